"""Refuses programs that define a name of gpud's, or use an instruction that is none of PTX.

Source: `gpud.compiler.abi.reserved_names`, which says why.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpud.compiler.abi.reserved_names import RESERVED, RESERVED_PREFIXES, kernel_of
from gpud.compiler.analysis.call_graph import CallGraph
from gpud.compiler.ptx.model import Function, Module, Variable
from gpud.errors import KernelRejected

__all__ = ["check_names", "check_variant_names"]

_PSEUDO = "gpud"
"""First word of the devices' pseudo-instructions, such as a fence as one instruction."""


def check_variant_names(module: Module) -> None:
    """Checks that no function of a program has the name of a variant that gpud may add.

    Raises:
        KernelRejected: one has; reason code ``reserved-name``.
    """
    for function in module.functions():
        if kernel_of(function.name) != function.name:
            message = (
                f"the program defines {function.name}: names that end so are gpud's; rename it"
            )
            raise KernelRejected("reserved-name", message, None, function.line or None)


def check_names(call_graph: CallGraph) -> None:
    """Checks that a program defines none of gpud's names; names of variants are allowed.

    Raises:
        KernelRejected: it defines one, or has one of the CPU device's pseudo-instructions; reason
            code ``reserved-name``.
    """
    for name, line in _declared(call_graph):
        if name in RESERVED or name.lstrip("%$").startswith(RESERVED_PREFIXES):
            message = f"the program defines {name}, a name that gpud uses; rename it"
            raise KernelRejected("reserved-name", message, None, line or None)
    for uses in call_graph.uses.values():
        found = uses.bases.get(_PSEUDO)
        if found is not None:
            raise KernelRejected(
                "reserved-name",
                "the program has an instruction that is gpud's own, not one of PTX",
                found.opcode.text,
                found.line or None,
            )


def _declared(call_graph: CallGraph) -> Iterator[tuple[str, int]]:
    """All names that functions and bodies declare, with their lines."""
    for item in call_graph.module.items:
        if isinstance(item, Variable):
            yield item.name, item.line
        elif isinstance(item, Function):
            yield item.name, item.line
            for parameter in (*item.parameters, *item.returns):
                yield parameter.name, item.line
            uses = call_graph.uses.get(item.name)
            for statement in () if uses is None else uses.declared:
                yield statement.name, statement.line
