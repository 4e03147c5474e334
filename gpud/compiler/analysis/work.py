"""Bounds what a function does between two places where it can be ended.

Problem: kill polls stand in loops, but code without loops can take long, too: a single ``printf``
takes as long as a million additions, a copy in bulk moves megabytes, a few thousand short loops
follow each other, and of functions that call each other twice the sixtieth is called 2^60 times.

Approach: instructions have a *weight*, 1 that of an addition. The work of a function is the sum of
its instructions' weights, those of a loop with a small constant trip count
(`gpud.compiler.analysis.trip_count`) as often as it turns, and the work of the functions that it
calls, as often as their names stand there. Whoever has more than `MOST_WORK` polls before each of
its *costly* instructions, and in all of its loops.

Properties:
    bounded: between two polls a thread does at most `MOST_WORK`, one costly instruction, and each
        other instruction of its functions once;
    linear: each function is visited once, however often it is called.
"""

from __future__ import annotations

from typing import Final

from gpud.compiler.analysis.call_graph import CallGraph
from gpud.compiler.analysis.cycles import retreating_edges
from gpud.compiler.analysis.effects import callee, is_call
from gpud.compiler.analysis.trip_count import bounded_loops
from gpud.compiler.ptx.model import Immediate, Instruction, Symbol

__all__ = ["MOST_WORK", "Work", "weight"]

MOST_WORK: Final = 1 << 14
"""The most work without a poll: a few milliseconds on the CPU device for all threads of a block."""

_WITHOUT_END: Final = MOST_WORK + 1
_COSTLY: Final = 64
_BYTES_MOVED: Final = 8  # by a bulk copy in the time of an addition
_EXTERNAL: Final = {"vprintf": _WITHOUT_END, "malloc": _COSTLY, "free": _COSTLY}


def weight(ins: Instruction) -> int:
    """Return the work of an instruction, without that of a function of the module that it calls."""
    op = ins.opcode
    if op.base == "call":
        target = callee(ins)
        return _EXTERNAL.get(target.name, 1) if isinstance(target, Symbol) else 1
    if op.base == "cp" and "bulk" in op.modifiers and len(ins.operands) > 2:
        size = ins.operands[2]
        if not isinstance(size, Immediate) or size.kind != "int":
            return _WITHOUT_END
        return min(_WITHOUT_END, max(_COSTLY, size.value // _BYTES_MOVED))
    return 1


class Work:
    """The work of the functions of a module, computed on demand, `MOST_WORK` + 1 if it is more."""

    def __init__(self, call_graph: CallGraph) -> None:
        self._call_graph = call_graph
        self._known: dict[str, int] = {}

    def of(self, name: str) -> int:
        """Return the work of a function with a body, in one call."""
        # Callees first, without recursion of this program's own: calls may be nested deeply.
        stack = [name]
        while stack:
            function = stack[-1]
            if function in self._known:
                stack.pop()
                continue
            waits = [one for one in self._targets(function) if one not in self._known]
            waits = [one for one in waits if one not in stack]  # who calls itself polls
            stack += waits
            if not waits:
                self._known[stack.pop()] = self._sum(function)
        return self._known[name]

    def is_long(self, name: str) -> bool:
        """Return whether a function needs polls beside those of its loops without an end."""
        return self.of(name) > MOST_WORK

    def is_costly(self, ins: Instruction) -> bool:
        """Return whether a poll stands before an instruction of a function that is long."""
        return weight(ins) + self._called(ins) >= _COSTLY

    def _targets(self, name: str) -> list[str]:
        uses = self._call_graph.uses[name]
        return [one for one in self._call_graph.targets(uses) if one in self._call_graph.uses]

    def _called(self, ins: Instruction) -> int:
        """Return the work of the function that an instruction calls, the longest that it may."""
        if not is_call(ins):
            return 0
        target = callee(ins)
        names = (target.name,) if isinstance(target, Symbol) else self._call_graph.addressed
        return max((self._known.get(name, 0) for name in names), default=0)

    def _sum(self, name: str) -> int:
        flow = self._call_graph.flow(name)
        turns: dict[int, int] = {}
        if len(retreating_edges(flow)) == len(flow.back_edges):
            bounded = bounded_loops(flow)
            for loop in flow.loops:
                many = bounded.get((loop.latches[0], loop.header))
                if many is not None:
                    turns |= dict.fromkeys(loop.blocks, many)
        total = 0
        for number, block in enumerate(flow.blocks):
            for place in block.places:
                work = weight(place.instruction) + self._called(place.instruction)
                total += work * turns.get(number, 1)
                if total > MOST_WORK:
                    return _WITHOUT_END
        return total
