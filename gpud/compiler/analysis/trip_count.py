"""Finds loops with a small constant trip count.

Problem: kill polls, which loops get because they may run forever, are a waste in a loop of, say,
three iterations that the compiler did not unroll.

Approach: find a counter that is set to a constant directly before the loop, and that each iteration
changes by a constant and then compares with one; its iterations are simulated here one by one.

Property:
    ends_soon: a loop that is found executes at most `MOST_INSTRUCTIONS` each time control enters
    it, in all iterations together, has no calls, and does not sleep.
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
"""The most instructions of a bounded loop. A GPU executes them in microseconds, and the CPU device
for all threads of a block in about a millisecond."""

_COMPARE: Final[dict[str, Callable[[int, int], bool]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_TYPES: Final = {"s32": 32, "u32": 32, "b32": 32, "s64": 64, "u64": 64, "b64": 64}


def bounded_loops(flow: ControlFlow) -> dict[tuple[int, int], int]:
    """Return the loops with a small constant trip count: that by the back edge (source, target)."""
    headers = {loop.header for loop in flow.loops}
    found: dict[tuple[int, int], int] = {}
    for loop in flow.loops:
        if len(loop.latches) == 1 and headers.intersection(loop.blocks) == {loop.header}:
            turns = _turns(flow, loop)
            if turns is not None:
                found[loop.latches[0], loop.header] = turns
    return found


def _turns(flow: ControlFlow, loop: Loop) -> int | None:
    """Return how often a loop turns at most; None if that is not known or too often."""
    latch = loop.latches[0]
    inside = [(b, place.instruction) for b in loop.blocks for place in flow.blocks[b].places]
    if any(is_call(ins) or ins.opcode.base == "nanosleep" for _, ins in inside):
        return None
    stays = _continue_condition(flow.blocks[latch], loop.header)
    tests = [(b, ins) for b, ins in inside if stays is not None and stays[0] in written(ins)]
    if stays is None or len(tests) != 1 or not _is_test(tests[0][1]):
        return None
    tested, test = tests[0]
    _, counter, limit = test.operands
    compare, type_ = test.opcode.modifiers
    steps = [(b, ins) for b, ins in inside if counter in written(ins)]
    if len(steps) != 1 or not isinstance(counter, Register) or not isinstance(limit, Immediate):
        return None
    stepped, step = steps[0]
    # Each iteration steps once, then tests, and the predicate is unchanged at the back edge.
    if not (flow.dominates(stepped, tested) and flow.dominates(tested, latch)):
        return None
    if stepped == tested and inside.index(steps[0]) > inside.index(tests[0]):
        return None
    advance = _step(step, counter, _TYPES[type_])
    outside = [p for p in flow.blocks[loop.header].predecessors if p != latch]
    starts = [_start(flow.blocks[p], counter) for p in outside if p in flow.reachable]
    most = MOST_INSTRUCTIONS // len(inside)
    if advance is None or not starts:
        return None
    turns = 0
    for start in starts:
        if start is None:
            return None
        turns = max(turns, _trip_count(start, advance, compare, limit.value, type_, stays[1], most))
    return turns if turns <= most else None


def _continue_condition(latch: Block, header: int) -> tuple[Register, bool] | None:
    """Return the predicate that decides whether the loop continues, and its value if it does."""
    last = latch.last
    if last is None or last.opcode.base != "bra" or last.guard is None:
        return None
    if len(latch.successors) != 2 or latch.successors.count(header) != 1:
        return None
    return last.guard.register, (latch.successors[0] == header) != last.guard.negated


def _is_test(ins: Instruction) -> bool:
    """Return whether ``ins`` compares an integer with a constant, without a guard."""
    if ins.opcode.base != "setp" or ins.guard is not None or len(ins.operands) != 3:
        return False
    names, limit = ins.opcode.modifiers, ins.operands[2]
    if len(names) != 2 or names[0] not in _COMPARE or names[1] not in _TYPES:
        return False
    return isinstance(limit, Immediate) and limit.kind == "int"


def _step(ins: Instruction, counter: Register, bits: int) -> int | None:
    """Return the constant that ``ins`` adds to the counter, ``None`` if it does anything else."""
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
    """Return the constant to which ``block`` sets the counter, ``None`` if it does not."""
    made = [p.instruction for p in block.places if counter in written(p.instruction)]
    if not made or made[-1].opcode.base != "mov" or made[-1].guard is not None:
        return None
    target, source = made[-1].operands
    if target != counter:
        return None
    return source.value if isinstance(source, Immediate) and source.kind == "int" else None


def _trip_count(
    start: int, step: int, compare: str, limit: int, type_: str, stays: bool, most: int
) -> int:
    """Return the number of iterations, or a number above ``most`` if there are more."""
    bits, holds = _TYPES[type_], _COMPARE[compare]
    value, count = start, 0
    while count <= most:
        value, count = value + step, count + 1
        if holds(_wrapped(value, bits, type_), _wrapped(limit, bits, type_)) is not stays:
            break
    return count


def _wrapped(value: int, bits: int, type_: str) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if type_[0] == "s" and value >> (bits - 1) else value
