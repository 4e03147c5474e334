"""Merged bounds checks: one test for all arrays that a diverged thread accesses at one index.

Problem: a diverged thread tests each of its bounds checks where it stands. In a kernel that reads
and writes many arrays at ``array[i]`` this costs more than the computation.

Approach: if the arrays are parameters, their distances are the same for all threads. If the
elements of the lowest and of the highest array are within the arena, then so are those between.
What depends on parameters only is computed once, when the threads diverge, and kept in the block's
memory; one comparison per thread is left. If it fails, all bounds checks of the group are checked
there, in program order.

Terms: a *group*, see `gpud.device.cpu.codegen.hoisting.check_grouping`, is tested where its first
check stands.

Properties:
* a group is in one basic block, in which all of its accesses run if the first does, or the task
  block has ended for another reason;
* an access is reported if and only if it is illegal, before any access of its group happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.emit.addresses import header_field
from gpud.device.cpu.codegen.emit.check_code import (
    bounds_of,
    check_exactly,
    start_count,
)
from gpud.device.cpu.codegen.hoisting.check_grouping import CheckGrouping, GroupMember
from gpud.device.cpu.codegen.preparation.check_instruction import decode_check

if TYPE_CHECKING:
    from gpud.device.cpu.codegen.emit.kernel_context import KernelContext
    from gpud.device.cpu.codegen.emit.thread_code import ThreadCode
    from gpud.device.cpu.ir.emitter import Emitter

__all__ = ["MergedChecks"]

_FAR_SHIFT = 57
"""No arena has 2 to the power of this many bytes; five bits above are left for a misalignment."""


@dataclass
class _Group:
    """Bounds checks that are tested together.

    In the block's memory at ``at`` are two i64. The first, added to the first bounds check's base,
    gives the lowest hull's offset in the arena; the second is the limit of that offset, in
    multiples of the alignment.
    """

    members: list[GroupMember]
    at: int


class MergedChecks:
    """The groups of all blocks of a kernel."""

    def __init__(self, kernel: KernelContext) -> None:
        self.kernel = kernel
        self._groups: dict[int, _Group] = {}
        self._tested: set[int] = set()
        if kernel.arena is None:
            return
        grouping = CheckGrouping(kernel.regions.flow, kernel.storage, kernel.parameters)
        for number in kernel.regions.flow.order:
            for members in grouping.groups(kernel.regions.flow.blocks[number]):
                at, _ = kernel.layout.word(f"group {len(self._groups)}")
                self._groups[id(members[0].ins)] = _Group(members, at)
                self._tested.update(id(member.ins) for member in members)

    def covers(self, ins: ptx.Instruction) -> bool:
        """Return whether ``ins`` is a check of a group: then emit only `test` for it."""
        return id(ins) in self._tested

    # -- when the threads diverge

    def prepare(self, emitter: Emitter, code: ThreadCode) -> None:
        """Emit the computation of what all groups compare with; ``code``: any thread."""
        for group in self._groups.values():
            for number, value in enumerate(self._limits(group, emitter, code)):
                emitter.do(f"store i64 {value}, ptr {_word(emitter, group, number)}")

    def _limits(self, group: _Group, emitter: Emitter, code: ThreadCode) -> tuple[str, str]:
        for name in ("umin", "umax"):
            emitter.module.declare(f"declare i64 @llvm.{name}.i64(i64, i64)")
        first, operands = group.members[0], decode_check(group.members[0].ins)
        bounds = bounds_of(code, operands)
        places = {member.place: None for member in group.members}
        values = {place: _parameter(emitter, place) for place in places}
        span, hulls = 0, dict[tuple[int, int], None]()
        for member in group.members:
            part = decode_check(member.ins)
            span = max(span, part.span)
            hulls[member.place, member.offset + part.low] = None
        lowest = highest = bits = ""
        for place, offset in hulls:
            at = emitter.value(f"add i64 {values[place]}, {_wrapped(offset)}")
            at = emitter.value(f"sub i64 {at}, {bounds.first}")
            lowest = (
                emitter.value(f"call i64 @llvm.umin.i64(i64 {lowest}, i64 {at})") if lowest else at
            )
            highest = (
                emitter.value(f"call i64 @llvm.umax.i64(i64 {highest}, i64 {at})")
                if highest
                else at
            )
            bits = emitter.value(f"or i64 {bits}, {at}") if bits else at
        base = emitter.value(f"add i64 {values[first.place]}, {_wrapped(first.offset)}")
        bias = emitter.value(f"sub i64 {lowest}, {base}")
        length = emitter.value(f"sub i64 {highest}, {lowest}")
        if operands.align > 1:
            # A misaligned parameter counts as far away; a select would be evaluated per thread.
            odd = emitter.value(f"and i64 {bits}, {operands.align - 1}")
            length = emitter.value(
                f"or i64 {length}, {emitter.value(f'shl i64 {odd}, {_FAR_SHIFT}')}"
            )
        emitter.module.declare("declare i64 @llvm.usub.sat.i64(i64, i64)")
        room = emitter.value(
            f"call i64 @llvm.usub.sat.i64(i64 {start_count(emitter, bounds, span)}, i64 {length})"
        )
        if operands.align > 1:
            up = emitter.value(f"add i64 {room}, {operands.align - 1}")
            room = emitter.value(f"lshr i64 {up}, {operands.align.bit_length() - 1}")
        return bias, room

    # -- for a thread

    def test(self, code: ThreadCode, ins: ptx.Instruction) -> None:
        """Emit the test of the group whose first check is ``ins``; nothing for its other checks."""
        group = self._groups.get(id(ins))
        if group is None:
            return
        emitter, operands = code.emitter, decode_check(ins)
        tags = self.kernel.spill_tags
        bias, room = (
            emitter.value(f"load i64, ptr {_word(emitter, group, number)}{tags}")
            for number in (0, 1)
        )
        assert isinstance(operands.base, ptx.Register)
        base = code.read(operands.base, "u64")
        off = emitter.value(f"add i64 {base}, {bias}")
        if operands.align > 1:
            bits = operands.align.bit_length() - 1
            emitter.module.declare("declare i64 @llvm.fshr.i64(i64, i64, i64)")
            off = emitter.value(f"call i64 @llvm.fshr.i64(i64 {off}, i64 {off}, i64 {bits})")
        out = emitter.value(f"icmp uge i64 {off}, {room}")
        cold, warm, end = emitter.label("cold"), emitter.label("warm"), emitter.label("end")
        emitter.branch_unlikely(out, cold, warm)
        emitter.place(cold)
        first = group.members[0]
        start = emitter.value(
            f"add i64 {_parameter(emitter, first.place)}, {_wrapped(first.offset)}"
        )
        common = emitter.value(f"sub i64 {base}, {start}")
        for member in group.members:
            part = decode_check(member.ins)
            at = emitter.value(f"add i64 {_parameter(emitter, member.place)}, {common}")
            hull = emitter.value(f"add i64 {at}, {_wrapped(member.offset + part.low)}")
            check_exactly(code, member.ins, hull, end)
        emitter.jump(warm)
        emitter.place(end)
        code.fail()
        emitter.place(warm)


def _word(emitter: Emitter, group: _Group, number: int) -> str:
    """Return a ``ptr`` to one of the two words of a group in the block's memory."""
    return emitter.value(f"getelementptr i8, ptr %b, i64 {group.at + 8 * number}")


def _parameter(emitter: Emitter, place: int) -> str:
    pointer = emitter.value(f"getelementptr i8, ptr {header_field(emitter, 'params')}, i64 {place}")
    return emitter.value(f"load i64, ptr {pointer}, align 1, !invariant.load !0")


def _wrapped(number: int) -> int:
    """Return ``number`` modulo 2**64, as LLVM writes an i64."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
