"""The end of a stage: go on in lockstep, wait, or diverge.

For terms see `gpud.device.cpu.codegen.analysis.convergence` and
`gpud.device.cpu.codegen.analysis.stage_plan`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpud.compiler.analysis.cfg import Block
from gpud.compiler.analysis.effects import BARRIER, barrier, flags
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.abi.layout import HEADER, Status
from gpud.device.cpu.codegen.analysis.regions import waits
from gpud.device.cpu.codegen.analysis.stage_plan import ends_the_block
from gpud.device.cpu.codegen.emit.kernel_context import state_word
from gpud.device.cpu.codegen.runtime.thread_scheduler import FAILED
from gpud.device.cpu.codegen.runtime.warp_exchange import array_slot

if TYPE_CHECKING:
    from gpud.device.cpu.codegen.emit.stage_writer import StageWriter

__all__ = ["StageEnd", "is_whole_warp_barrier", "offers"]


class StageEnd:
    """Writes the code after the loop over a stage's threads."""

    def __init__(self, writer: StageWriter) -> None:
        self._lockstep = writer.lockstep
        self._emitter = writer.emitter
        self._kernel = writer.kernel
        self._code = writer.code
        self._stage = writer.stage

    def write(self, last: ptx.Instruction | None, agree: str | None) -> None:
        """Write the exit from the stage.

        Args:
            last: the instruction at its end, if there is one.
            agree: i32 number of threads that take the branch, if they vote.
        """
        emitter, lockstep = self._emitter, self._lockstep
        number = self._stage.last
        block = lockstep.flow.blocks[number]
        if any(
            ends_the_block(lockstep.flow.blocks[n]) for s in self._stage.segments for n in s.blocks
        ):
            error = emitter.value(f"getelementptr i8, ptr %b, i64 {HEADER['error'][0]}")
            failed = emitter.value(f"icmp ne i32 {emitter.value(f'load i32, ptr {error}')}, 0")
            with emitter.when(failed):
                emitter.end(f"ret i32 {FAILED}")
        join = self._stage.segments[-1].join
        if join is not None:
            lockstep.branch_to(number, join)
        elif agree is not None:
            self._agreed(block, agree)
        elif last is not None and waits(last):
            self._wait(block, last)
        elif last is not None and last.opcode.base == "brx":
            self._uniform_table(block, last)
        elif last is not None and last.guard is not None and len(block.successors) > 1:
            taken, falls = emitter.label("taken"), emitter.label("falls")
            emitter.branch(self._code.guard(last.guard), taken, falls)
            emitter.place(taken)
            lockstep.branch_to(number, block.successors[0])
            emitter.place(falls)
            lockstep.branch_to(number, block.successors[-1])
        else:
            lockstep.branch_to(number, block.successors[0])

    def _agreed(self, block: Block, agree: str) -> None:
        emitter, lockstep = self._emitter, self._lockstep
        number, shape = block.index, self._kernel.shape
        tile = lockstep.tiles.get(number)
        into = None if tile is None else block.successors[0 if tile.taken else -1]
        for agreed, target in (shape.threads, block.successors[0]), (0, block.successors[-1]):
            alike, differ = emitter.label("alike"), emitter.label("differ")
            emitter.branch(emitter.value(f"icmp eq i32 {agree}, {agreed}"), alike, differ)
            emitter.place(alike)
            if tile is not None and target == into:
                tile.all_active(shape)
            lockstep.branch_to(number, target)
            emitter.place(differ)
        if tile is not None and into is not None:
            some, split = emitter.label("some"), emitter.label("split")
            emitter.branch(tile.find(self._vote, agree, shape), some, split)
            emitter.place(some)
            lockstep.branch_to(number, into)
            emitter.place(split)
        words = []
        for target in (block.successors[0], block.successors[-1]):
            if target == lockstep.flow.exit:
                words.append(state_word(Status.DONE, 0))
            else:
                yields = self._kernel.regions.yields(number, target)
                words.append(state_word(Status.YIELD if yields else Status.RUN, target))
        lockstep.diverge((block.successors[0], block.successors[-1]), (words[0], words[1]))

    def _vote(self, thread: str) -> str:
        slot = array_slot(self._emitter, self._kernel.layout, "key", thread)
        return self._emitter.value(f"load i32, ptr {slot}{self._kernel.spill_tags}")

    def _uniform_table(self, block: Block, last: ptx.Instruction) -> None:
        emitter, lockstep = self._emitter, self._lockstep
        index = self._code.read(last.operands[0], "u32")
        numbers = lockstep.flow.table(last)
        arms = [emitter.label("case") for _ in numbers]
        cases = " ".join(f"i32 {n}, label %{arm}" for n, arm in enumerate(arms))
        if last.guard is not None:
            taken, falls = emitter.label("taken"), emitter.label("falls")
            emitter.branch(self._code.guard(last.guard), taken, falls)
            emitter.place(falls)
            lockstep.branch_to(block.index, block.successors[-1])
            emitter.place(taken)
        emitter.end(f"switch i32 {index}, label %{arms[-1]} [{cases}]")
        for arm, number in zip(arms, numbers, strict=True):
            emitter.place(arm)
            lockstep.branch_to(block.index, number)

    def _wait(self, block: Block, last: ptx.Instruction) -> None:
        emitter, lockstep, kernel = self._emitter, self._lockstep, self._kernel
        target = block.successors[0]
        if flags(last.opcode) & BARRIER:
            if barrier(last).count is not None:
                self._count_barrier(block, last)
            if last.opcode.has("red"):
                kernel.collectives.reduce_all(emitter)
            if lockstep.plan.diverges_at(block.index, target):
                lockstep.branch_to(block.index, target)
            else:
                lockstep.yield_block(target)
            return
        if is_whole_warp_barrier(last):
            lockstep.branch_to(block.index, target)
            return
        if not kernel.collectives.involves_full_warps(last):
            same = kernel.collectives.masks_are_full(emitter)
            go_on, meet = emitter.label("full"), emitter.label("partial")
            emitter.branch(same, go_on, meet)
            emitter.place(meet)
            lockstep.diverge((target,), (state_word(Status.COLLECTIVE, target),))
            emitter.place(go_on)
        kernel.collectives.exchange_all(emitter, last)
        lockstep.branch_to(block.index, target)

    def _count_barrier(self, block: Block, last: ptx.Instruction) -> None:
        """Write a barrier with a count: unless it is the whole block, the threads diverge."""
        emitter, lockstep = self._emitter, self._lockstep
        count = barrier(last).count
        assert count is not None
        value = self._code.read(count, "b32")
        padded = self._kernel.layout.padded
        go_on, meet = emitter.label("whole"), emitter.label("counted")
        emitter.branch(emitter.value(f"icmp eq i32 {value}, {padded}"), go_on, meet)
        emitter.place(meet)
        target = block.successors[0]
        lockstep.diverge((target,), (state_word(Status.BARRIER, target),))
        emitter.place(go_on)


# -- helpers -----------------------------------------------------------------------------------


def offers(ins: ptx.Instruction) -> bool:
    """Return whether a barrier needs operands from the threads, beyond their arrival."""
    return ins.opcode.has("red") or barrier(ins).count is not None


def is_whole_warp_barrier(ins: ptx.Instruction) -> bool:
    """Return whether ``ins`` is a ``bar.warp.sync`` of all lanes: nothing to do in lockstep."""
    if ins.opcode.base != "bar" or ins.opcode.modifiers[:1] != ("warp",):
        return False
    mask = ins.operands[0]
    return isinstance(mask, ptx.Immediate) and mask.value & 0xFFFFFFFF == 0xFFFFFFFF
