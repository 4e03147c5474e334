"""The registry of lowerings, and `Modifiers`, through which they read an instruction's modifiers.

A lowering is registered by opcode base and, where several families share a base (``add`` of
integers, floats and halves), by the instruction type. A lowering takes the modifiers that it knows
from `Modifiers`; one that is left over is an error, so that no modifier that changes a result is
ever ignored.
"""

from __future__ import annotations

from collections.abc import Callable

from gpud.compiler.ptx.model import Instruction
from gpud.device.cpu.ir.thread import LLVM_TYPE, Thread
from gpud.errors import KernelRejected

__all__ = [
    "CACHE_HINTS",
    "LLVM_ORDER",
    "LOWERINGS",
    "SCOPES",
    "Lowering",
    "Modifiers",
    "lowering",
    "rejected",
]

Lowering = Callable[[Thread, Instruction], None]

LOWERINGS: dict[str, Lowering] = {}
"""Opcode base -> lowering; filled by the modules of this package."""

SCOPES = ("cta", "cluster", "gpu", "sys")
"""Scopes of strong memory accesses. All are honoured as the widest one."""

CACHE_HINTS = ("L1::", "L2::")
"""Prefixes of modifiers that are hints to caches, without effect here; see `Modifiers.skip`."""

LLVM_ORDER = {
    "volatile": "monotonic",
    "relaxed": "monotonic",
    "mmio": "monotonic",
    "acquire": "acquire",
    "release": "release",
    "acq_rel": "acq_rel",
    "sc": "seq_cst",
}
"""LLVM's atomic ordering for each memory order of PTX."""


def rejected(instruction: Instruction, problem: str) -> KernelRejected:
    """Return the error for an instruction, modifier or type that this device does not support."""
    return KernelRejected(
        "unsupported-instruction",
        f"the CPU device does not run this instruction: {problem}",
        instruction=instruction.opcode.text,
        line=instruction.line or None,
    )


class _ByType:
    """The lowerings of one base, chosen by the last modifier that names one of their types."""

    def __init__(self) -> None:
        self.by_type: dict[str, Lowering] = {}

    def __call__(self, thread: Thread, instruction: Instruction) -> None:
        for modifier in reversed(instruction.opcode.modifiers):
            lowering = self.by_type.get(modifier)
            if lowering is not None:
                lowering(thread, instruction)
                return
        raise rejected(instruction, "unknown instruction type")


def lowering(*bases: str, types: str | None = None) -> Callable[[Lowering], Lowering]:
    """Register a lowering for opcode ``bases``, or only for these space-separated ``types``."""

    def register(function: Lowering) -> Lowering:
        for base in bases:
            if types is None:
                assert base not in LOWERINGS, base
                LOWERINGS[base] = function
                continue
            family = LOWERINGS.setdefault(base, _ByType())
            assert isinstance(family, _ByType), base
            for type_ in types.split():
                assert type_ not in family.by_type, (base, type_)
                family.by_type[type_] = function
        return function

    return register


class Modifiers:
    """The modifiers of one instruction, taken one by one."""

    def __init__(self, instruction: Instruction) -> None:
        self.instruction = instruction
        self.rest = list(instruction.opcode.modifiers)

    def flag(self, name: str) -> bool:
        """Take ``name`` if the instruction has it; returns whether it has."""
        if name in self.rest:
            self.rest.remove(name)
            return True
        return False

    def choice(self, *names: str, default: str = "") -> str:
        """Take the first modifier that is one of ``names``; ``default`` if there is none."""
        for modifier in self.rest:
            if modifier in names:
                self.rest.remove(modifier)
                return modifier
        return default

    def require(self, *names: str) -> str:
        """Take the first modifier that is one of ``names``; an error if there is none."""
        taken = self.choice(*names)
        if not taken:
            raise rejected(
                self.instruction, f"one of {', '.join('.' + n for n in names)} is needed"
            )
        return taken

    def type(self) -> str:
        """Take the last modifier that is a type."""
        for index in range(len(self.rest) - 1, -1, -1):
            if self.rest[index] in LLVM_TYPE:
                return self.rest.pop(index)
        raise rejected(self.instruction, "it has no type that is known here")

    def skip(self, *prefixes: str) -> None:
        """Drop every modifier that begins with one of ``prefixes``: hints without effect."""
        self.rest = [m for m in self.rest if not m.startswith(prefixes)]

    def done(self, operands: int | None = None) -> None:
        """Check that every modifier was taken, and the number of operands.

        Raises:
            KernelRejected: a modifier is left over, or there are not ``operands`` operands.
        """
        if self.rest:
            raise rejected(self.instruction, f"modifier .{self.rest[0]} is not known here")
        given = len(self.instruction.operands)
        if operands is not None and given != operands:
            raise rejected(self.instruction, f"it has {given} operands instead of {operands}")
