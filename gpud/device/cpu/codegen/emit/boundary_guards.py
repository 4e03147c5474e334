"""Branches that only the first threads of a block's first rows take, such as ``if (i < n)``.

Problem: in the last blocks of a grid some threads are outside the data. If the guard becomes a
mask, every block pays for it: LLVM turns all accesses that are not contiguous into gathers. If the
threads diverge, the last blocks run thread by thread, at a tenth of the speed.

Approach: the threads that pass nearly always fill a *tile* of the block: the first threads of the
first rows. So the threads vote. If they do not agree, the smallest tile is found that contains all
that pass. If it contains no other thread, the block stays in lockstep: in the branch's *body*, the
blocks between it and the join, loops run over that tile only.

Properties:
* a thread runs the body if and only if it voted for it;
* in the body no thread waits or diverges, and every register that it writes and other threads may
  read later is varying.
"""

from __future__ import annotations

from collections.abc import Callable

from gpud.compiler.analysis.cfg import Block
from gpud.compiler.analysis.effects import BARRIER, flags
from gpud.device.cpu.abi.layout import Shape
from gpud.device.cpu.codegen.analysis.regions import CodeRegions, waits
from gpud.device.cpu.ir.emitter import Emitter

__all__ = ["BoundaryTile", "may_guard_tile"]


def may_guard_tile(regions: CodeRegions, block: Block, body: set[int]) -> bool:
    """Return whether the branch at ``block``'s end may run its ``body`` for a tile of threads."""
    flow = regions.flow
    if block.last is None or block.last.guard is None or block.index in body:
        return False
    if flow.post_dominators[block.index] not in block.successors:
        return False
    own = {block.index, *body}
    return all(
        own.issuperset(flow.blocks[number].predecessors)
        and number not in regions.polling
        and not waits(flow.blocks[number].last)
        and not any(flags(p.instruction.opcode) & BARRIER for p in flow.blocks[number].places)
        for number in body
    )


class BoundaryTile:
    """The extent of the tile of threads that run a body.

    Args:
        taken: whether the body is on the taken side of the branch.

    Attributes:
        across: ``ptr`` to the number of threads in each row (i32).
        down: ``ptr`` to the number of rows.
    """

    def __init__(self, emitter: Emitter, body: set[int], *, taken: bool) -> None:
        self.emitter = emitter
        self.body = body
        self.taken = taken
        self.across = emitter.alloca("i32", "across")
        self.down = emitter.alloca("i32", "down")
        for name in ("umax", "umin"):
            emitter.module.declare(f"declare i32 @llvm.{name}.i32(i32, i32)")

    def all_active(self, shape: Shape) -> None:
        """Set the tile to the whole block."""
        self.emitter.do(f"store i32 {shape.x}, ptr {self.across}")
        self.emitter.do(f"store i32 {shape.y * shape.z}, ptr {self.down}")

    def find(self, vote: Callable[[str], str], agree: str, shape: Shape) -> str:
        """Find the smallest tile with all threads that pass; return whether it has no others (i1).

        Args:
            vote: given a thread (i32), its vote: an i32 that is not 0 if it takes the branch.
            agree: i32 number of threads that take the branch.
            shape: of the block.
        """
        emitter = self.emitter
        for slot in (self.across, self.down):
            emitter.do(f"store i32 0, ptr {slot}")
        with emitter.count("0", str(shape.threads)) as thread:
            goes = emitter.value(f"icmp {'ne' if self.taken else 'eq'} i32 {vote(thread)}, 0")
            for slot, step in ((self.across, "urem"), (self.down, "udiv")):
                place = emitter.value(f"{step} i32 {thread}, {shape.x}")
                far = emitter.value(
                    f"select i1 {goes}, i32 {emitter.value(f'add i32 {place}, 1')}, i32 0"
                )
                sofar = emitter.value(f"load i32, ptr {slot}")
                most = emitter.value(f"call i32 @llvm.umax.i32(i32 {sofar}, i32 {far})")
                emitter.do(f"store i32 {most}, ptr {slot}")
        number = agree if self.taken else emitter.value(f"sub i32 {shape.threads}, {agree}")
        across, down = (emitter.value(f"load i32, ptr {slot}") for slot in (self.across, self.down))
        return emitter.value(f"icmp eq i32 {number}, {emitter.value(f'mul i32 {across}, {down}')}")

    def at_most(self, slot: str, stop: int) -> str:
        """Return `across` or `down` (i32), clamped to ``stop`` so that LLVM knows the bound."""
        value = self.emitter.value(f"load i32, ptr {slot}")
        return self.emitter.value(f"call i32 @llvm.umin.i32(i32 {value}, i32 {stop})")

    def holds(self, x: int, row: int) -> str:
        """Return an i1: whether the thread at ``x`` in ``row`` is in the tile."""
        emitter = self.emitter
        across, down = (emitter.value(f"load i32, ptr {slot}") for slot in (self.across, self.down))
        inside = (
            emitter.value(f"icmp ugt i32 {across}, {x}"),
            emitter.value(f"icmp ugt i32 {down}, {row}"),
        )
        return emitter.value(f"and i1 {inside[0]}, {inside[1]}")
