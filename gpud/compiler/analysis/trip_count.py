"""Loops that certainly end soon: those that count from one constant to another.

Problem: what is done in loops because they may go on for ever is wasted in one that a compiler left
as a loop of three rounds.

Approach: a register that is set to a constant right before the loop, and in each round is changed
by a constant and then compared with one: the rounds are counted here, one by one.

Property:
    ends_soon: a loop that is found runs no more than `MOST_INSTRUCTIONS` each time control enters
    it, in all its rounds together, calls nothing, and does not sleep.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Final

from gpud.compiler.analysis.cfg import Block, ControlFlow, Loop
from gpud.compiler.analysis.effects import is_call, written
from gpud.compiler.ptx.model import Immediate, Instruction, Register

__all__ = ["MOST_INSTRUCTIONS", "bounded_loops"]

MOST_INSTRUCTIONS: Final = 4096
"""A GPU runs so many in microseconds, and the CPU device a whole block's in about a millisecond."""

_COMPARE: Final[dict[str, Callable[[int, int], bool]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_TYPES: Final = {"s32": 32, "u32": 32, "b32": 32, "s64": 64, "u64": 64, "b64": 64}


def bounded_loops(flow: ControlFlow) -> frozenset[tuple[int, int]]:
    """The edges (source, target) by which control goes back in loops that certainly end soon."""
    headers = {loop.header for loop in flow.loops}
    return frozenset(
        (loop.latches[0], loop.header)
        for loop in flow.loops
        if len(loop.latches) == 1
        and headers.intersection(loop.blocks) == {loop.header}
        and _ends_soon(flow, loop)
    )


def _ends_soon(flow: ControlFlow, loop: Loop) -> bool:
    latch = loop.latches[0]
    inside = [(b, place.instruction) for b in loop.blocks for place in flow.blocks[b].places]
    if any(is_call(ins) or ins.opcode.base == "nanosleep" for _, ins in inside):
        return False
    stays = _stays(flow.blocks[latch], loop.header)
    tests = [(b, ins) for b, ins in inside if stays is not None and stays[0] in written(ins)]
    if stays is None or len(tests) != 1 or not _is_test(tests[0][1]):
        return False
    tested, test = tests[0]
    _, counter, limit = test.operands
    compare, type_ = test.opcode.modifiers
    steps = [(b, ins) for b, ins in inside if counter in written(ins)]
    if len(steps) != 1 or not isinstance(counter, Register) or not isinstance(limit, Immediate):
        return False
    stepped, step = steps[0]
    # Each round steps once, then tests, and what it found is still so where control goes back.
    if not (flow.dominates(stepped, tested) and flow.dominates(tested, latch)):
        return False
    if stepped == tested and inside.index(steps[0]) > inside.index(tests[0]):
        return False
    advance = _step(step, counter, _TYPES[type_])
    outside = [p for p in flow.blocks[loop.header].predecessors if p != latch]
    starts = [_start(flow.blocks[p], counter) for p in outside if p in flow.reachable]
    most = MOST_INSTRUCTIONS // len(inside)
    return (
        advance is not None
        and bool(starts)
        and all(
            start is not None
            and _rounds(start, advance, compare, limit.value, type_, stays[1], most) <= most
            for start in starts
        )
    )


def _stays(latch: Block, header: int) -> tuple[Register, bool] | None:
    """The predicate that decides whether control goes back, and what it is then."""
    last = latch.last
    if last is None or last.opcode.base != "bra" or last.guard is None:
        return None
    if len(latch.successors) != 2 or latch.successors.count(header) != 1:
        return None
    return last.guard.register, (latch.successors[0] == header) != last.guard.negated


def _is_test(ins: Instruction) -> bool:
    """Whether ``ins`` compares integers, one of them a constant, and always does."""
    if ins.opcode.base != "setp" or ins.guard is not None or len(ins.operands) != 3:
        return False
    names, limit = ins.opcode.modifiers, ins.operands[2]
    if len(names) != 2 or names[0] not in _COMPARE or names[1] not in _TYPES:
        return False
    return isinstance(limit, Immediate) and limit.kind == "int"


def _step(ins: Instruction, counter: Register, bits: int) -> int | None:
    """What ``ins`` adds to the counter."""
    if ins.opcode.base != "add" or ins.guard is not None or len(ins.operands) != 3:
        return None
    target, first, second = ins.operands
    if len(ins.opcode.modifiers) != 1 or _TYPES.get(ins.opcode.modifiers[0]) != bits:
        return None
    if (
        target != counter
        or first != counter
        or not isinstance(second, Immediate)
        or second.kind != "int"
    ):
        return None
    return second.value


def _start(block: Block, counter: Register) -> int | None:
    """What the counter holds at the end of ``block``, which sets it."""
    made = [p.instruction for p in block.places if counter in written(p.instruction)]
    if not made or made[-1].opcode.base != "mov" or made[-1].guard is not None:
        return None
    target, source = made[-1].operands
    if target != counter:
        return None
    return source.value if isinstance(source, Immediate) and source.kind == "int" else None


def _rounds(
    start: int, step: int, compare: str, limit: int, type_: str, stays: bool, most: int
) -> int:
    """How often control goes round, or more than ``most``."""
    bits, holds = _TYPES[type_], _COMPARE[compare]
    value, rounds = start, 0
    while rounds <= most:
        value, rounds = value + step, rounds + 1
        if holds(_wrapped(value, bits, type_), _wrapped(limit, bits, type_)) is not stays:
            break
    return rounds


def _wrapped(value: int, bits: int, type_: str) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if type_[0] == "s" and value >> (bits - 1) else value
