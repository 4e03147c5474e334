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
from gpud.device.cpu.codegen.emit.region_writer import state_word
from gpud.device.cpu.codegen.runtime.thread_scheduler import FAILED
from gpud.device.cpu.codegen.runtime.warp_exchange import array_slot

if TYPE_CHECKING:
    from gpud.device.cpu.codegen.emit.stage_writer import StageWriter

__all__ = ["StageEnd", "is_whole_warp_barrier", "offers"]


class StageEnd:
    """Writes the code after the loop over a stage's threads."""

    def __init__(self, writer: StageWriter) -> None:
        self._w = writer.w
        self._e = writer.e
        self._kernel = writer.kernel
        self._code = writer.code
        self._stage = writer.stage

    def write(self, last: ptx.Instruction | None, agree: str | None) -> None:
        """Write the exit from the stage.

        Args:
            last: the instruction at its end, if there is one.
            agree: i32 number of threads that take the branch, if they vote.
        """
        e, w = self._e, self._w
        number = self._stage.last
        block = w.flow.blocks[number]
        if any(ends_the_block(w.flow.blocks[n]) for s in self._stage.segments for n in s.blocks):
            error = e.value(f"getelementptr i8, ptr %b, i64 {HEADER['error'][0]}")
            failed = e.value(f"icmp ne i32 {e.value(f'load i32, ptr {error}')}, 0")
            with e.when(failed):
                e.end(f"ret i32 {FAILED}")
        join = self._stage.segments[-1].join
        if join is not None:
            w.branch_to(number, join)
        elif agree is not None:
            self._agreed(block, agree)
        elif last is not None and waits(last):
            self._wait(block, last)
        elif last is not None and last.opcode.base == "brx":
            self._uniform_table(block, last)
        elif last is not None and last.guard is not None and len(block.successors) > 1:
            taken, falls = e.label("taken"), e.label("falls")
            e.branch(self._code.guard(last.guard), taken, falls)
            e.place(taken)
            w.branch_to(number, block.successors[0])
            e.place(falls)
            w.branch_to(number, block.successors[-1])
        else:
            w.branch_to(number, block.successors[0])

    def _agreed(self, block: Block, agree: str) -> None:
        e, w = self._e, self._w
        number, shape = block.index, self._kernel.shape
        tile = w.tiles.get(number)
        into = None if tile is None else block.successors[0 if tile.taken else -1]
        for agreed, target in (shape.threads, block.successors[0]), (0, block.successors[-1]):
            alike, differ = e.label("alike"), e.label("differ")
            e.branch(e.value(f"icmp eq i32 {agree}, {agreed}"), alike, differ)
            e.place(alike)
            if tile is not None and target == into:
                tile.all_active(shape)
            w.branch_to(number, target)
            e.place(differ)
        if tile is not None and into is not None:
            some, split = e.label("some"), e.label("split")
            e.branch(tile.find(self._vote, agree, shape), some, split)
            e.place(some)
            w.branch_to(number, into)
            e.place(split)
        words = []
        for target in (block.successors[0], block.successors[-1]):
            if target == w.flow.exit:
                words.append(state_word(Status.DONE, 0))
            else:
                yields = self._kernel.regions.yields(number, target)
                words.append(state_word(Status.YIELD if yields else Status.RUN, target))
        w.diverge((block.successors[0], block.successors[-1]), (words[0], words[1]))

    def _vote(self, thread: str) -> str:
        slot = array_slot(self._e, self._kernel.layout, "key", thread)
        return self._e.value(f"load i32, ptr {slot}{self._kernel.spill_tags}")

    def _uniform_table(self, block: Block, last: ptx.Instruction) -> None:
        e, w = self._e, self._w
        index = self._code.read(last.operands[0], "u32")
        numbers = w.flow.table(last)
        arms = [e.label("case") for _ in numbers]
        cases = " ".join(f"i32 {n}, label %{arm}" for n, arm in enumerate(arms))
        if last.guard is not None:
            taken, falls = e.label("taken"), e.label("falls")
            e.branch(self._code.guard(last.guard), taken, falls)
            e.place(falls)
            w.branch_to(block.index, block.successors[-1])
            e.place(taken)
        e.end(f"switch i32 {index}, label %{arms[-1]} [{cases}]")
        for arm, number in zip(arms, numbers, strict=True):
            e.place(arm)
            w.branch_to(block.index, number)

    def _wait(self, block: Block, last: ptx.Instruction) -> None:
        e, w, kernel = self._e, self._w, self._kernel
        target = block.successors[0]
        if flags(last.opcode) & BARRIER:
            if barrier(last).count is not None:
                self._count_barrier(block, last)
            if last.opcode.has("red"):
                kernel.collectives.reduce_all(e)
            if w.plan.diverges_at(block.index, target):
                w.branch_to(block.index, target)
            else:
                w.yield_block(target)
            return
        if is_whole_warp_barrier(last):
            w.branch_to(block.index, target)
            return
        if not kernel.collectives.involves_full_warps(last):
            same = kernel.collectives.masks_are_full(e)
            go_on, meet = e.label("full"), e.label("partial")
            e.branch(same, go_on, meet)
            e.place(meet)
            w.diverge((target,), (state_word(Status.COLLECTIVE, target),))
            e.place(go_on)
        kernel.collectives.exchange_all(e, last)
        w.branch_to(block.index, target)

    def _count_barrier(self, block: Block, last: ptx.Instruction) -> None:
        """Write a barrier with a count: unless it is the whole block, the threads diverge."""
        e, w = self._e, self._w
        count = barrier(last).count
        assert count is not None
        value = self._code.read(count, "b32")
        padded = self._kernel.layout.padded
        go_on, meet = e.label("whole"), e.label("counted")
        e.branch(e.value(f"icmp eq i32 {value}, {padded}"), go_on, meet)
        e.place(meet)
        target = block.successors[0]
        w.diverge((target,), (state_word(Status.BARRIER, target),))
        e.place(go_on)


# -- helpers -----------------------------------------------------------------------------------


def offers(ins: ptx.Instruction) -> bool:
    """Whether a barrier needs operands from the threads, beyond their arrival."""
    return ins.opcode.has("red") or barrier(ins).count is not None


def is_whole_warp_barrier(ins: ptx.Instruction) -> bool:
    """Whether ``ins`` is a ``bar.warp.sync`` of all lanes, which does nothing in lockstep."""
    if ins.opcode.base != "bar" or ins.opcode.modifiers[:1] != ("warp",):
        return False
    mask = ins.operands[0]
    return isinstance(mask, ptx.Immediate) and mask.value & 0xFFFFFFFF == 0xFFFFFFFF
