"""Names that gpud adds to programs: variants of kernels, and functions and variables of passes.

Problem: a rewritten program may contain a kernel several times, in other forms or with kill polls,
and gpud's own functions and variables next to the user's. They must not be confused.

Approach: a variant's name is the kernel's with a suffix; everything that a device recognises by
name (functions that it treats as intrinsics, the arena's variable, the registers and labels of
checks) has one fixed name, and programs that define such a name themselves are refused
(`gpud.compiler.analysis.name_checks`).

Properties:
    inverse: ``kernel_of`` of any variant of a kernel, or variant of a variant, is the kernel.
"""

from __future__ import annotations

from typing import Final

from gpud.compiler.abi.check_calls import CHECK_PREFIX

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
    "OWN_VARIABLES",
    "PRINT",
    "RANGES",
    "RESERVED",
    "RESERVED_PREFIXES",
    "VARIABLES",
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

See `gpud.compiler.instrumentation.bounds_checks`."""

HEAP: Final = "gpud_heap"
"""The variable with the base and size of the heap from which device code's ``malloc`` allocates."""

RANGES: Final = "gpud_ranges"
"""The variable with address and size of each of the program's variables that pointers may reach."""

VARIABLES: Final = "gpud_variables"
"""The variable with the base and size of the program's variables in the session's arena, of which
`gpud.compiler.passes.runtime.arena_variables` makes it. Also the prefix of its registers."""

OWN_VARIABLES: Final = (ARENA, HEAP, RANGES, VARIABLES)
"""The variables that are gpud's and not the program's."""

GRID_SYNC: Final = "gpud_grid"
"""Stands in bounds checks for the job record's ``grid_sync`` words; there is no such variable."""

CONTROL: Final = "_control"
"""Suffix of the name of a rewritten kernel's hidden parameter."""

PRINT: Final = "gpud_print"
"""``(format, values, most)``: replaces ``vprintf``. Also the prefix of the functions it calls."""

NORETURN: Final = frozenset((FAULT, ASSERT, LEAVE))
"""The functions that never return."""

RESERVED: Final = NORETURN | {*OWN_VARIABLES}
"""Names that a program may not define."""

LOOP: Final = "gpud_loop"
"""Prefix of all names of a persistent loop, after ``%`` or ``$``."""

RESERVED_PREFIXES: Final = (
    "gpud_bounds_",
    CHECK_PREFIX,
    "gpud_kill_",
    "gpud_report_",
    "gpud_target_",
    GRID_SYNC,
    LOOP,
    PRINT,
    VARIABLES,
)
"""Prefixes of registers, labels and functions that devices recognise, after ``%`` or ``$``."""

_SLOTS = "_slots"
_SLICED = "__gpud_sliced"
_KILLABLE = "__gpud_killable"


def sliced_variant(entry: str) -> str:
    """Return the PTX name of a kernel's variant in sliced form."""
    return entry + _SLICED


def killable_variant(entry: str) -> str:
    """Return the PTX name of the variant with kill polls of a kernel or of its sliced variant."""
    return entry + _KILLABLE


def is_killable(entry: str) -> bool:
    """Return whether ``entry`` is the name of a variant with kill polls."""
    return entry.endswith(_KILLABLE)


def kernel_of(entry: str) -> str:
    """Return the PTX name of the kernel that an entry of the rewritten program belongs to."""
    return entry.removesuffix(_KILLABLE).removesuffix(_SLICED)


def slots_of(control: str) -> str:
    """Return the name of a persistent loop's claim slots, from the name of its hidden parameter."""
    return control.removesuffix(CONTROL) + _SLOTS


def is_slots(variable: str) -> bool:
    """Return whether a variable is a persistent loop's claim slots, to judge by its name."""
    return variable.startswith(LOOP) and variable.endswith(_SLOTS)
