"""Names that gpud puts into programs: variants of kernels, and what the passes define.

Problem: one kernel may be in a rewritten program several times, in another form or with kill polls,
and gpud's own functions and variables stand beside the user's. Both must be told apart.

Approach: a variant's name is the kernel's with a suffix; everything that has a meaning to a device
(functions that it treats as intrinsics, the arena's variable, the registers and labels of checks)
has one fixed name, and programs that define such a name themselves are refused.

Properties:
    inverse: ``kernel_of`` of any variant of a kernel, or variant of a variant, is the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpud.compiler.ptx.model import (
    BranchTargets,
    CallPrototype,
    CallTargets,
    Function,
    Instruction,
    Label,
    Module,
    RegisterDeclaration,
    Variable,
)
from gpud.errors import KernelRejected

__all__ = [
    "ARENA",
    "ASSERT",
    "CONTROL",
    "FAULT",
    "GRID_SYNC",
    "HEAP",
    "LEAVE",
    "LOOP",
    "NORETURN",
    "PRINT",
    "RESERVED",
    "check_names",
    "check_variant_names",
    "is_killable",
    "is_slots",
    "kernel_of",
    "killable_variant",
    "sliced_variant",
    "slots_of",
]

FAULT: Final = "gpud_fault"
"""``(kind, site, address)``: records a fault and ends the thread.

See `gpud.compiler.passes.runtime.fault_lowering`."""

ASSERT: Final = "gpud_assert"
"""``(site, message, file, line, function)``: records a failed assertion and ends the thread."""

LEAVE: Final = "gpud_leave"
"""``()``: ends the thread, and keeps its block from claiming anything more."""

ARENA: Final = "gpud_arena"
"""The variable with the base and size of the session's memory.

See `gpud.compiler.instrumentation.fences`."""

HEAP: Final = "gpud_heap"
"""The variable with the base and size of what device code's ``malloc`` hands out."""

GRID_SYNC: Final = "gpud_grid"
"""What fences call the words of the job record where the blocks of a grid meet; no variable."""

CONTROL: Final = "_control"
"""What the name of a rewritten kernel's hidden parameter ends with."""

PRINT: Final = "gpud_print"
"""``(format, values, most)``: what stands for ``vprintf``; begins the names of what it calls."""

NORETURN: Final = frozenset((FAULT, ASSERT, LEAVE))
"""The functions that never return."""

RESERVED: Final = NORETURN | {ARENA, HEAP}
"""Names that a program may not define."""

LOOP: Final = "gpud_loop"
"""What all names of a persistent loop begin with, without their first character."""

_RESERVED_BEGINNINGS = (
    "gpud_fence_",
    "gpud_kill_",
    "gpud_report_",
    "gpud_target_",
    GRID_SYNC,
    LOOP,
    PRINT,
)
"""Of registers, labels and functions that devices recognise, without their first character."""

_DECLARING = (RegisterDeclaration, Label, Variable, BranchTargets, CallTargets, CallPrototype)

_PSEUDO = "gpud"
"""What devices' own instructions begin with, such as a fence in one piece."""

_SLOTS = "_slots"
_SLICED = "__gpud_sliced"
_KILLABLE = "__gpud_killable"


def sliced_variant(entry: str) -> str:
    """The PTX name of a kernel's variant in sliced form."""
    return entry + _SLICED


def killable_variant(entry: str) -> str:
    """The PTX name of the variant with kill polls, of a kernel or of its variant in sliced form."""
    return entry + _KILLABLE


def is_killable(entry: str) -> bool:
    """Whether ``entry`` is the name of a variant with kill polls."""
    return entry.endswith(_KILLABLE)


def kernel_of(entry: str) -> str:
    """The PTX name of the kernel that an entry of the rewritten program belongs to."""
    return entry.removesuffix(_KILLABLE).removesuffix(_SLICED)


def slots_of(control: str) -> str:
    """The name of the claim slots of a persistent loop, from that of its hidden parameter."""
    return control.removesuffix(CONTROL) + _SLOTS


def is_slots(variable: str) -> bool:
    """Whether a variable has the name of a persistent loop's claim slots: no user's has."""
    return variable.startswith(LOOP) and variable.endswith(_SLOTS)


def check_variant_names(module: Module) -> None:
    """Returns if no function of a program is called like a variant that gpud may add.

    Raises:
        KernelRejected: one is; reason code ``reserved-name``.
    """
    for function in module.functions():
        if kernel_of(function.name) != function.name:
            message = (
                f"the program defines {function.name}: names that end so are gpud's; rename it"
            )
            raise KernelRejected("reserved-name", message, None, function.line or None)


def check_names(module: Module) -> None:
    """Returns if a program leaves gpud's names alone; variants may be there.

    Raises:
        KernelRejected: it defines one, or has an instruction of the CPU device's own; reason code
            ``reserved-name``.
    """
    for name, line in _declared(module):
        if name in RESERVED or name.lstrip("%$").startswith(_RESERVED_BEGINNINGS):
            message = f"the program defines {name}, a name that gpud uses; rename it"
            raise KernelRejected("reserved-name", message, None, line or None)
    for function in module.functions():
        for statement in function.body or ():
            if isinstance(statement, Instruction) and statement.opcode.base == _PSEUDO:
                raise KernelRejected(
                    "reserved-name",
                    "the program has an instruction that is gpud's own, not one of PTX",
                    statement.opcode.text,
                    statement.line or None,
                )


def _declared(module: Module) -> Iterator[tuple[str, int]]:
    """All names that functions and bodies declare, with their lines."""
    for item in module.items:
        if isinstance(item, Variable):
            yield item.name, item.line
        elif isinstance(item, Function):
            yield item.name, item.line
            for parameter in (*item.parameters, *item.returns):
                yield parameter.name, item.line
            for statement in item.body or ():
                if isinstance(statement, _DECLARING):
                    yield statement.name, statement.line
