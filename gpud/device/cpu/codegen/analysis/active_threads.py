"""Which threads of a block a stage has an effect for.

Problem: ``if (threadIdx.x == 0) atomicAdd(...)`` in a loop over all threads tests every one of
them. The leader's part of the persistent loop is such code, and runs for each task block.

Approach: registers computed from thread numbers and constants are known for each thread at compile
time. A stage is interpreted once with these values. An instruction *matters* for a thread if it may
access memory that others see, end the block, or change a register that is spilled for the next
stage. A stage needs to run only for the threads for which some instruction matters.

Algorithm: abstract interpretation over the stage's blocks; a value is a number or unknown, for each
thread. A guarded instruction leaves the old value where the guard is false, so
``previous = -1; @leader ld previous`` is known for all threads but the leader.

Properties: for a thread outside of `ActiveThreads.range`, running the stage would change nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpud.compiler.analysis.cfg import Block
from gpud.compiler.analysis.effects import (
    ATOMIC,
    MEMORY_WRITE,
    TERMINATOR,
    TRAP,
    VOLATILE,
    flags,
    is_call,
    written,
)
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.abi.layout import Shape
from gpud.device.cpu.codegen.analysis.regions import waits
from gpud.device.cpu.codegen.analysis.thread_constants import (
    Mask,
    ThreadConstants,
    Values,
    value_of,
)
from gpud.device.cpu.codegen.preparation.pseudo_instructions import is_check

__all__ = ["ActiveThreads", "active_range"]

if TYPE_CHECKING:
    from gpud.device.cpu.codegen.emit.stage_writer import StageWriter


class ActiveThreads:
    """The threads for which the instructions seen so far matter.

    Args:
        kept: registers that each thread spills at the stage's end.
        always: values that registers hold in every stage.
    """

    def __init__(self, shape: Shape, kept: Collection[str], always: ThreadConstants) -> None:
        self._shape = shape
        self._kept = kept
        self._always = always
        self._values: dict[str, Values | None] = {}
        self._taking_part: Mask = np.zeros(shape.threads, np.bool_)

    @property
    def range(self) -> tuple[int, int]:
        """The first of the threads, and the one after the last; equal if there is none."""
        threads = np.flatnonzero(self._taking_part)
        return (int(threads[0]), int(threads[-1]) + 1) if len(threads) else (0, 0)

    def run(self, ins: ptx.Instruction) -> None:
        """Interpret ``ins`` for all threads whose guard holds."""
        held = self._held(ins)
        targets = [register.name for register in written(ins)]
        if _has_side_effect(ins) or any(name in self._kept for name in targets):
            self._taking_part |= held
        result = value_of(ins, self._shape, self._now)
        for name in targets:
            self._write(name, result, held, guarded=ins.guard is not None)

    def run_once(self, ins: ptx.Instruction) -> None:
        """Interpret ``ins`` as run once for all threads, whichever of them are active."""
        held, result = self._held(ins), value_of(ins, self._shape, self._now)
        for register in written(ins):
            self._write(register.name, result, held, guarded=ins.guard is not None)

    def branch(self, block: Block, inner: Sequence[Block]) -> None:
        """Interpret a branch from ``block`` through ``inner`` blocks to their join."""
        last = block.last
        assert last is not None, "a branch leads to inner blocks"
        asked = None if last.guard is None else self._guard(last.guard)
        for side in dict.fromkeys(block.successors):
            matters = any(self._matters(one) for one in _reached(side, inner))
            if not matters:
                continue
            if asked is None or last.opcode.base != "bra":
                self._taking_part[:] = True
            else:
                taken, known = asked
                self._taking_part |= ~known | (taken == (side == block.successors[0]))
        for one in inner:
            for place in one.places:
                for register in written(place.instruction):
                    self._values[register.name] = None

    def _matters(self, block: Block) -> bool:
        return any(
            _has_side_effect(place.instruction)
            or any(register.name in self._kept for register in written(place.instruction))
            for place in block.places
        )

    # -- values

    def _held(self, ins: ptx.Instruction) -> Mask:
        """Return the mask of the threads that may run ``ins``."""
        asked = None if ins.guard is None else self._guard(ins.guard)
        if asked is None:
            return np.ones(self._shape.threads, np.bool_)
        held, known = asked
        return ~known | held

    def _guard(self, guard: ptx.Guard) -> tuple[Mask, Mask] | None:
        """Return for which threads a guard holds, and for which of them that is known."""
        value = self._now(guard.register.name)
        return None if value is None else ((value.numbers != 0) != guard.negated, value.known)

    def _write(self, name: str, result: Values | None, held: Mask, *, guarded: bool) -> None:
        if guarded:
            # A thread that may have run it may hold either value.
            old = self._now(name)
            result = None if old is None else old._replace(known=old.known & ~held)
        self._values[name] = result

    def _now(self, name: str) -> Values | None:
        """Return the values of a register at this point of the stage."""
        return self._values[name] if name in self._values else self._always.of(name)


def active_range(stage: StageWriter, uniform: Collection[int]) -> tuple[int, int]:
    """Return the first thread that a stage has an effect for, and the one after the last.

    All threads if nothing better is known, or if the loop over the others would not be one over the
    threads of a row.

    Args:
        stage: the stage being written.
        uniform: identities of its instructions that run once for all threads.
    """
    shape, flow, convergence = stage.kernel.shape, stage.lockstep.flow, stage.convergence
    everybody = 0, shape.threads
    last = flow.blocks[stage.stage.last].last
    asks = last is not None and waits(last) and stage.has_effect(last, last)
    if asks or stage.to_spill or stage.stage.last in convergence.voted:
        return everybody
    exits = [target for target in stage.lockstep.plan.exits(stage.stage) if target != flow.exit]
    kept = {name for target in exits for name in stage.kernel.regions.spilled_at(target)}
    active = ActiveThreads(shape, kept & stage.lockstep.varying, stage.lockstep.plan.values)
    for segment in stage.stage.segments:
        block, *inner = (flow.blocks[number] for number in segment.blocks)
        if block.index in convergence.inner:
            return everybody
        for place in block.places:
            ins = place.instruction
            if id(ins) in uniform:
                active.run_once(ins)
            elif ins is not block.last or segment.join is None:
                active.run(ins)
        if segment.join is not None:
            active.branch(block, inner)
    first, stop = active.range
    if stop - first <= 1:
        return first, first + 1
    return (first, stop) if shape.x == shape.threads else everybody


# -- helpers -----------------------------------------------------------------------------------


def _has_side_effect(ins: ptx.Instruction) -> bool:
    """Return whether ``ins`` affects more than registers: memory, or by ending the block.

    Waits and branches at the stage's end belong to the stage and do not count.
    """
    bits = flags(ins.opcode)
    if bits & (MEMORY_WRITE | ATOMIC | VOLATILE | TRAP) or is_call(ins) or is_check(ins):
        return True
    if bits & TERMINATOR or waits(ins) or ins.opcode.text.startswith("gpud.resume"):
        return False
    return ins.opcode.base == "mbarrier" or not written(ins)


def _reached(start: int, inside: Sequence[Block]) -> Iterator[Block]:
    """Return the blocks of ``inside`` that are reachable from ``start``."""
    blocks = {block.index: block for block in inside}
    work = [start]
    while work:
        block = blocks.pop(work.pop(), None)
        if block is not None:
            yield block
            work += block.successors
