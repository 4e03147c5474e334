"""What the flat body of a function contains: its declarations, its calls, and how it ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from gpud.compiler.analysis.effects import TERMINATOR, flags
from gpud.compiler.ptx.model import Instruction, Label, Statement

__all__ = ["calls", "declarations", "ends_in_terminator"]


def declarations(body: Iterable[Statement]) -> Iterable[Statement]:
    """Return the statements before a flat body's first instruction: all declarations are there."""
    return takewhile(lambda statement: type(statement) is not Instruction, body)


def calls(body: Iterable[Statement]) -> list[tuple[int, Instruction]]:
    """Return the calls of a flat body, each with its position."""
    return [
        (at, statement)
        for at, statement in enumerate(body)
        if type(statement) is Instruction and statement.opcode.base == "call"
    ]


def ends_in_terminator(body: Sequence[Statement]) -> bool:
    """Return whether control never falls off the end of ``body``."""
    last = next((s for s in reversed(body) if isinstance(s, (Instruction, Label))), None)
    if not isinstance(last, Instruction) or last.guard is not None:
        return False
    return bool(flags(last.opcode) & TERMINATOR)
