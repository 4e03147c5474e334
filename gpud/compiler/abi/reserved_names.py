"""Names that gpud adds to programs: variants of kernels, and functions and variables of passes.

Problem: a rewritten program may contain a kernel several times, in other forms or with kill polls,
and gpud's own functions and variables next to the user's. They must not be confused.

Approach: a variant's name is the kernel's with a suffix; everything that a device recognises by
name (functions that it treats as intrinsics, the arena's variable, the registers and labels of
checks) has one fixed name, and programs that define such a name themselves are refused.

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
"""``()``: ends the thread, and prevents its block from claiming any more task blocks."""

ARENA: Final = "gpud_arena"
"""The variable with the base and size of the session's arena.

See `gpud.compiler.instrumentation.fences`."""

HEAP: Final = "gpud_heap"
"""The variable with the base and size of the heap from which device code's ``malloc`` allocates."""

GRID_SYNC: Final = "gpud_grid"
"""Stands in fences for the job record's ``grid_sync`` words; there is no such variable."""

CONTROL: Final = "_control"
"""Suffix of the name of a rewritten kernel's hidden parameter."""

PRINT: Final = "gpud_print"
"""``(format, values, most)``: replaces ``vprintf``. Also the prefix of the functions it calls."""

NORETURN: Final = frozenset((FAULT, ASSERT, LEAVE))
"""The functions that never return."""

RESERVED: Final = NORETURN | {ARENA, HEAP}
"""Names that a program may not define."""

LOOP: Final = "gpud_loop"
"""Prefix of all names of a persistent loop, after ``%`` or ``$``."""

_RESERVED_BEGINNINGS = (
    "gpud_fence_",
    "gpud_kill_",
    "gpud_report_",
    "gpud_target_",
    GRID_SYNC,
    LOOP,
    PRINT,
)
"""Prefixes of registers, labels and functions that devices recognise, after ``%`` or ``$``."""

_DECLARING = (RegisterDeclaration, Label, Variable, BranchTargets, CallTargets, CallPrototype)

_PSEUDO = "gpud"
"""First word of the devices' pseudo-instructions, such as a fence as one instruction."""

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
    """The name of a persistent loop's claim slots, from the name of its hidden parameter."""
    return control.removesuffix(CONTROL) + _SLOTS


def is_slots(variable: str) -> bool:
    """Whether a variable is a persistent loop's claim slots; no user variable has such a name."""
    return variable.startswith(LOOP) and variable.endswith(_SLOTS)


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


def check_names(module: Module) -> None:
    """Checks that a program defines none of gpud's names; names of variants are allowed.

    Raises:
        KernelRejected: it defines one, or has one of the CPU device's pseudo-instructions; reason
            code ``reserved-name``.
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
