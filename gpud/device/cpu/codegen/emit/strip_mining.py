"""Strip mining: loops of a single thread poll the kill flag once in `STRIP_LENGTH` iterations.

Problem: where the loop over threads is outside, every iteration of every thread has a poll's load,
test and branch. A loop of a few instructions takes up to 1.2 times as long with them.

Approach: such a loop becomes two, the inner one of which counts in a machine register::

    outer: left = STRIP_LENGTH
    inner: the loop as the program has it, up to its back edge:
           if (--left) goto inner
           poll; goto outer

A thread that leaves after fewer iterations never polls. LLVM is told not to unroll the inner loop:
it would take `STRIP_LENGTH` for the number of iterations, and copies of a loop that can end in each
of them were slower, and take longer to compile.

Properties:
* ``bounded``: between two polls a thread makes at most `STRIP_LENGTH` iterations of such a loop,
  which contains no calls, no waits and no other loops;
* ``others``: all other loops poll in each iteration.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpud.compiler.analysis.cfg import ControlFlow, Loop
from gpud.compiler.analysis.cycles import retreating_edges
from gpud.compiler.analysis.effects import is_call
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.emit.check_code import poll
from gpud.device.cpu.codegen.emit.thread_code import ThreadCode
from gpud.device.cpu.codegen.preparation.pseudo_instructions import is_poll

__all__ = ["STRIP_LENGTH", "StripMinedLoop", "StripMinedLoops", "strip_mined_loops"]

STRIP_LENGTH = 64
"""Small enough that a killed thread stops within microseconds; longer strips were not faster."""
_LOOP_WEIGHTS = "!22"


@dataclass(frozen=True, slots=True)
class StripMinedLoop:
    """A strip-mined loop: its header, all its blocks, and its poll."""

    header: int
    blocks: frozenset[int]
    poll: ptx.Instruction


def strip_mined_loops(flow: ControlFlow, cuts: Collection[int]) -> dict[int, StripMinedLoop]:
    """Return the loops that can be strip-mined, by the source of their only back edge.

    ``cuts`` are blocks at which a thread may be suspended, see
    `gpud.device.cpu.codegen.analysis.regions`.
    """
    back = [source for source, _ in flow.back_edges]
    if len(retreating_edges(flow)) != len(back):
        return {}  # in irreducible cycles a poll cannot be assigned to a loop
    loops = {}
    headers = {loop.header for loop in flow.loops}
    for loop in flow.loops:
        inside = frozenset(loop.blocks)
        alone = len(headers & inside) == 1 and inside.isdisjoint(cuts)
        if alone and len(loop.latches) == 1 and back.count(loop.latches[0]) == 1:
            polls = _polls(flow, loop)
            if len(polls) == 1:
                loops[loop.latches[0]] = StripMinedLoop(loop.header, inside, polls[0])
    return loops


def _polls(flow: ControlFlow, loop: Loop) -> list[ptx.Instruction]:
    """Return the polls of a loop without calls if all are at its back edge; otherwise none."""
    inside = [(b, place.instruction) for b in loop.blocks for place in flow.blocks[b].places]
    if any(is_call(ins) or (is_poll(ins) and b not in loop.latches) for b, ins in inside):
        return []
    return [ins for _, ins in inside if is_poll(ins)]


class StripMinedLoops:
    """The loops of `strip_mined_loops` among blocks that are generated together, for one thread.

    Args:
        loops: those of the kernel.
        labels: of the blocks that one thread runs by itself; a loop is included if all of its
            blocks are.
    """

    def __init__(
        self, code: ThreadCode, loops: Mapping[int, StripMinedLoop], labels: Mapping[int, str]
    ) -> None:
        self._code = code
        self._loops = {n: one for n, one in loops.items() if one.blocks <= labels.keys()}
        self._labels = labels
        self._covered = {id(one.poll) for one in self._loops.values()}
        emitter = code.emitter
        self._inner = {one.header: emitter.label("inner") for one in self._loops.values()}
        self._left = {header: emitter.alloca("i32", "left") for header in self._inner}

    def start(self) -> None:
        """Emit the start of a thread that may enter loops in their middle."""
        for slot in self._left.values():
            self._code.emitter.do(f"store i32 1, ptr {slot}")

    def begin(self, number: int) -> None:
        """Emit the start of the loops that begin at block ``number``."""
        if number in self._inner:
            emitter = self._code.emitter
            emitter.do(f"store i32 {STRIP_LENGTH}, ptr {self._left[number]}")
            emitter.place(self._inner[number])

    def polls(self, ins: ptx.Instruction) -> bool:
        """Return whether ``ins`` is a poll that `go_back` emits."""
        return id(ins) in self._covered

    def goes_back(self, source: int, target: int) -> bool:
        """Return whether the edge is the back edge of one of these loops."""
        return source in self._loops and self._loops[source].header == target

    def go_back(self, source: int) -> None:
        """End the LLVM block with the back edge of the loop that ends in block ``source``."""
        emitter, loop = self._code.emitter, self._loops[source]
        slot = self._left[loop.header]
        left = emitter.value(f"sub i32 {emitter.value(f'load i32, ptr {slot}')}, 1")
        emitter.do(f"store i32 {left}, ptr {slot}")
        look = emitter.label("look")
        emitter.module.metadata(
            _LOOP_WEIGHTS, f'{_LOOP_WEIGHTS} = !{{!"branch_weights", i32 {STRIP_LENGTH}, i32 1}}'
        )
        emitter.end(
            f"br i1 {emitter.value(f'icmp ne i32 {left}, 0')}, label %{self._inner[loop.header]}, "
            f"label %{look}, !prof {_LOOP_WEIGHTS}, !llvm.loop !7"
        )
        emitter.place(look)
        poll(self._code, loop.poll)
        emitter.jump(self._labels[loop.header])
