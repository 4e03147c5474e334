"""Refuses programs that define a name of gpud's, or use an instruction that PTX does not have.

Source: `gpud.compiler.abi.reserved_names`, which says why.
"""

from __future__ import annotations

from gpud.compiler.abi.reserved_names import RESERVED, RESERVED_PREFIXES, kernel_of
from gpud.compiler.analysis.call_graph import CallGraph
from gpud.compiler.ptx.model import Module
from gpud.errors import KernelRejected

__all__ = ["check_names", "check_variant_names"]

_PSEUDO = "gpud"
"""First word of the devices' pseudo-instructions, such as a bounds check as one instruction."""


def check_variant_names(module: Module) -> None:
    """Check that no function of a program has the name of a variant that gpud may add.

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
    """Check that a program defines none of gpud's names; names of variants are allowed.

    Raises:
        KernelRejected: it defines one, or has one of the CPU device's pseudo-instructions; reason
            code ``reserved-name``.
    """
    for name, line in call_graph.declared_names():
        if name in RESERVED or name.lstrip("%$").startswith(RESERVED_PREFIXES):
            message = f"the program defines {name}, a name that gpud uses; rename it"
            raise KernelRejected("reserved-name", message, None, line or None)
    for uses in call_graph.uses.values():
        pseudo = uses.bases.get(_PSEUDO)
        if pseudo is not None:
            raise KernelRejected(
                "reserved-name",
                "the program has an instruction that is gpud's own, not one of PTX",
                pseudo.opcode.text,
                pseudo.line or None,
            )
