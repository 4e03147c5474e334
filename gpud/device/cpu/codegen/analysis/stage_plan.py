"""The stages of a kernel: code that one loop over all threads of a block can run.

Terms: a *segment* is a block that all threads run, with the inner blocks of its folded branch; a
*stage* is one or more consecutive segments in one loop over the threads; see
`gpud.device.cpu.codegen.analysis.convergence` for folded, voted, inner and solo.

Algorithm: start at the entry and follow all edges that threads take in lockstep. A stage is
extended by its only successor if that has no other predecessor and no load that runs once for all
threads would move before a store of the loop. Atomics and calls that a single thread makes are a
stage of their own, so that the loops before and after it can be vectorised.

Properties:
* every path through a segment's inner blocks ends at its join;
* a block at which threads may reconverge begins a stage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpud.compiler.analysis.cfg import Block
from gpud.compiler.analysis.effects import (
    ATOMIC,
    MEMORY_READ,
    MEMORY_WRITE,
    VOLATILE,
    flags,
    is_call,
    state_space,
)
from gpud.device.cpu.abi.layout import Shape
from gpud.device.cpu.codegen.analysis.active_threads import ActiveThreads
from gpud.device.cpu.codegen.analysis.convergence import Convergence
from gpud.device.cpu.codegen.analysis.regions import waits
from gpud.device.cpu.codegen.analysis.thread_constants import ThreadConstants

__all__ = ["Segment", "Stage", "StagePlan", "ends_the_block"]


@dataclass(slots=True)
class Segment:
    """Blocks that one thread runs in one iteration of a stage's loop, entered at ``blocks[0]``.

    Without a ``join`` it is one block that all threads run, and control leaves the stage after it
    in lockstep. With one, the other blocks are inner ones, and all paths through them lead to the
    join. The first block is inner too if the segment is a loop that each thread ends by itself.
    """

    blocks: tuple[int, ...]
    join: int | None = None


@dataclass(slots=True)
class Stage:
    """Segments that one loop over the threads runs one after another."""

    segments: list[Segment] = field(default_factory=list)

    @property
    def first(self) -> int:
        """The block at which the stage is entered."""
        return self.segments[0].blocks[0]

    @property
    def last(self) -> int:
        """The block whose end decides where control goes; meaningless if there is a join."""
        return self.segments[-1].blocks[0]

    def has_inner_loops(self, back_edges: Iterable[tuple[int, int]]) -> bool:
        """Return whether the stage contains loops that threads run by themselves."""
        inner = [set(segment.blocks) for segment in self.segments if segment.join is not None]
        return any(blocks.issuperset(edge) for edge in back_edges for blocks in inner)


class StagePlan:
    """The stages of a kernel.

    Attributes:
        values: register values that are known in every stage, by thread.
        entries: blocks at which threads may reconverge.
        divergence_points: blocks at which threads can be when they diverge.
    """

    def __init__(self, convergence: Convergence, shape: Shape) -> None:
        self.convergence = convergence
        self.shape = shape
        self.flow = convergence.flow
        self.regions = convergence.regions
        self.values = ThreadConstants(convergence.made, self.regions.live_into(0), shape)
        skeleton = set(self.flow.order) - convergence.inner
        self.entries = {0} | {
            s
            for b in self.flow.order
            if waits(self.flow.blocks[b].last)
            for s in self.flow.blocks[b].successors
            if s in skeleton and s not in convergence.solo
        }
        if 0 in convergence.solo:
            self.entries.discard(0)
        self.stages: dict[int, Stage] = {}
        self.divergence_points: set[int] = set()
        while not self._plan():
            self.entries -= convergence.solo

    def _plan(self) -> bool:
        """Build all stages; False if a block turned out to be one that cannot run in lockstep."""
        self.stages.clear()
        self.divergence_points.clear()
        convergence = self.convergence
        work = sorted(self.entries)
        while work:
            number = work.pop()
            if number in self.stages:
                continue
            stage = self._grow(number)
            if stage is None:
                convergence.solo.add(number)
                return False
            self.stages[number] = stage
            for target in self.exits(stage):
                if target == self.flow.exit:
                    continue
                if self.diverges_at(stage.last, target):
                    self.divergence_points.add(target)
                else:
                    work.append(target)
            if stage.segments[-1].join is None and stage.last in convergence.voted:
                self.divergence_points.update(
                    s for s in self.flow.blocks[stage.last].successors if s != self.flow.exit
                )
        return True

    def diverges_at(self, source: int, target: int) -> bool:
        """Return whether threads that go from ``source`` to ``target`` must diverge there."""
        return target in self.convergence.solo or self.regions.yields(source, target)

    def exits(self, stage: Stage) -> tuple[int, ...]:
        """Return the blocks (or the virtual exit) that may follow a stage."""
        segment = stage.segments[-1]
        if segment.join is not None:
            return (segment.join,)
        return self.flow.blocks[stage.last].successors

    def _grow(self, number: int) -> Stage | None:
        stage = Stage()
        inside: set[int] = set()
        while True:
            segment = self._segment(number)
            if segment is None:
                if not stage.segments:
                    return None
                self.convergence.solo.add(number)
                return stage
            stage.segments.append(segment)
            inside.update(segment.blocks)
            follow = self._continues(segment)
            if follow is None or follow in self.entries or follow in self.convergence.solo:
                return stage
            if self._is_single_threaded(segment) or self._is_single_threaded(self._segment(follow)):
                return stage
            around = inside | self._inner_from(follow)
            if any(p not in around for p in self.flow.blocks[follow].predecessors):
                return stage
            if follow in inside or self._would_reorder(inside, follow):
                return stage
            number = follow

    def _is_single_threaded(self, segment: Segment | None) -> bool:
        """Return whether a segment should be a stage of its own, which runs for a single thread.

        It should if it would also prevent vectorising the loop over all threads.
        """
        if segment is None or segment.join is None or segment.blocks[0] in self.convergence.inner:
            return False
        flow, join = self.flow, segment.join
        costly = any(
            flags(p.instruction.opcode) & (ATOMIC | VOLATILE) or is_call(p.instruction)
            for n in segment.blocks[1:]
            for p in flow.blocks[n].places
        )
        if not costly or join == flow.exit:
            return False
        if self.regions.to_spill(segment.blocks[0], (join,)):
            return False
        kept = self.convergence.varying.intersection(self.regions.spilled_at(join))
        block, *inner = (flow.blocks[n] for n in segment.blocks)
        active = ActiveThreads(self.shape, kept, self.values)
        for place in block.places[:-1]:
            ins = place.instruction
            if self.convergence.is_uniform(ins, block.index):
                active.run_once(ins)
            else:
                active.run(ins)
        active.branch(block, inner)
        first, stop = active.range
        return stop - first == 1

    def _would_reorder(self, inside: set[int], follow: int) -> bool:
        """Return whether a load that runs once for all threads would move before a loop's store."""
        writes = any(
            flags(p.instruction.opcode) & (MEMORY_WRITE | ATOMIC) or is_call(p.instruction)
            for n in inside
            for p in self.flow.blocks[n].places
        )
        return writes and any(
            flags(p.instruction.opcode) & MEMORY_READ
            and state_space(p.instruction.opcode) not in ("param", "const")
            and self.convergence.is_uniform(p.instruction, follow)
            for p in self.flow.blocks[follow].places
        )

    def _inner_from(self, number: int) -> set[int]:
        """Return ``number``, if it is inner, and the inner blocks reachable from there."""
        inner = self.convergence.inner
        reached = {number} & inner
        stack = list(reached)
        while stack:
            for successor in self.flow.blocks[stack.pop()].successors:
                if successor in inner and successor not in reached:
                    reached.add(successor)
                    stack.append(successor)
        return reached

    def _segment(self, number: int) -> Segment | None:
        """Return the segment that begins at ``number``; None if its threads would not rejoin."""
        block = self.flow.blocks[number]
        convergence = self.convergence
        if number in convergence.inner:
            region = self._inner_from(number)
        elif number in convergence.voted or not convergence.diverges(block):
            return Segment((number,))
        else:
            region = {number}
            for successor in block.successors:
                if successor != self.flow.exit:
                    region |= self._inner_from(successor)
        joins = {s for b in region for s in self.flow.blocks[b].successors if s not in region}
        traps = {b for b in region if ends_the_block(self.flow.blocks[b])}
        if traps:
            leaving = {s for b in region - traps for s in self.flow.blocks[b].successors}
            joins = (leaving - region) or joins
        if len(joins) != 1:
            return None
        ordered = (number, *(b for b in self.flow.order if b in region and b != number))
        return Segment(ordered, joins.pop())

    def _continues(self, segment: Segment) -> int | None:
        """Return the one block that follows a segment in the same loop over threads, if any."""
        if segment.join is not None:
            return None if segment.join == self.flow.exit else segment.join
        block = self.flow.blocks[segment.blocks[0]]
        if waits(block.last) or len(block.successors) != 1:
            return None
        target = block.successors[0]
        return None if target == self.flow.exit else target


def ends_the_block(block: Block) -> bool:
    """Return whether a thread that comes to the end of ``block`` ends its whole thread block."""
    last = block.last
    return last is not None and last.opcode.base == "trap"
