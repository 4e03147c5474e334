"""Hoisted bounds checks: tests for all threads of a stage, before its loop over them.

Problem: a test with a branch before each access prevents LLVM from vectorising a loop over threads,
which is most of the speed.

Approach: most addresses can be computed before the loop, since they depend only on thread numbers,
parameters and uniform values. So all such bounds checks of a stage are tested before its loop. If
none can miss, the loop runs without them. If one might, another copy of the loop runs, in which
each bounds check stands where the program has it and is exact. How a bounds check is tested depends
on its address:

* *affine*: start + x * a + y * b + z * c in 64 bits: only the lowest and the highest address;
* *pure*: any other that reads no memory: in a loop over threads of its own, which LLVM vectorises;
* *bounded*: any other with known bounds, such as the index of a loop within the stage or a byte
  that it loads: only the bounds (`gpud.device.cpu.codegen.hoisting.interval_analysis`);
* all others: in the loop, always.

Terms: for slices see `gpud.device.cpu.codegen.hoisting.slices`, for strides and wrapping around in
32 bits `gpud.device.cpu.codegen.hoisting.affine`, for boxes
`gpud.device.cpu.codegen.hoisting.path_conditions`.

Properties:
* the test is conservative: if it passes, no thread of the stage misses a bounds check that it
  covers;
* it reads spilled registers, parameters and registers, and writes none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpud.compiler.analysis.effects import (
    written,
)
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.emit.check_code import (
    Bounds,
    address_of,
    bounds_of,
    bounds_vary,
    hull_misses,
    misses,
    start_count,
)
from gpud.device.cpu.codegen.hoisting.interval_analysis import IntervalAnalysis
from gpud.device.cpu.codegen.hoisting.path_conditions import PathConditions
from gpud.device.cpu.codegen.hoisting.slices import SliceStep, UnknownValue
from gpud.device.cpu.codegen.hoisting.stride_arithmetic import FLAT, Stride, add, subtract
from gpud.device.cpu.codegen.hoisting.thread_box import AlignedRanges, span_of
from gpud.device.cpu.codegen.preparation.check_instruction import CheckOperands, decode_check
from gpud.device.cpu.codegen.preparation.pseudo_instructions import is_bounds_check

if TYPE_CHECKING:
    from gpud.device.cpu.codegen.emit.stage_writer import StageWriter

__all__ = ["HoistedChecks"]


_MAX_SLICE = 64
"""Maximum length of a slice; longer ones are not worth running twice."""


class HoistedChecks(PathConditions):
    """The hoisted bounds checks of one stage.

    Attributes:
        inline: identities of the checks that always stay in the loop.
        any: whether there are others.
    """

    def __init__(self, stage: StageWriter, varying: list[tuple[ptx.Instruction, int]]) -> None:
        super().__init__(stage, varying)
        self._ranges = AlignedRanges(self.emitter)
        self.inline: set[int] = set()
        self._hoisted: list[tuple[ptx.Instruction, list[SliceStep], SliceStep | None]] = []
        self._bounded: list[ptx.Instruction] = []

    @property
    def any(self) -> bool:
        """Whether some bounds checks are tested before the loop."""
        return bool(self._hoisted or self._bounded)

    def plan(self, checks: list[ptx.Instruction], recipe: list[ptx.Instruction]) -> None:
        """Decide how each of the stage's bounds checks is tested; polls stay in place."""
        for ins in recipe:
            for register in written(ins):
                self.recipe[register.name] = ins
        for ins in checks:
            if not is_bounds_check(ins):
                self.inline.add(id(ins))
                continue
            try:
                steps, last = self._slice(ins)
            except UnknownValue:
                self._bounded.append(ins)
            else:
                self._hoisted.append((ins, steps, last))

    # -- slices

    def _slice(self, ins: ptx.Instruction) -> tuple[list[SliceStep], SliceStep | None]:
        base = decode_check(ins).base
        if not isinstance(base, ptx.Register):
            return [], None
        number, block = self.where[id(ins)]
        last = self.reaching(base.name, number, block)
        steps = [] if last is None else [*self.ordered(last), last]
        if len(steps) > _MAX_SLICE:
            raise UnknownValue
        return steps, last

    @contextmanager
    def _address(
        self, ins: ptx.Instruction, last: SliceStep | None, values: dict[object, str]
    ) -> Iterator[tuple[CheckOperands, str]]:
        """Yield the check's operands and its hull's address; its slice must have been run."""
        operands = decode_check(ins)
        base = operands.base
        if isinstance(base, ptx.Register) and base.name in self.stage_writer.lockstep.varying:
            before = self.code.slot(base.name)
            self.code.redirect(base.name, self.slot(base.name, last, values))
            yield operands, address_of(self.code, operands)
            self.code.redirect(base.name, before)
        else:
            with self.stage_writer.earlier.as_of(ins):
                yield operands, address_of(self.code, operands)

    # -- the test

    def emit(self) -> str:
        """Emit the test; return an i1: whether some bounds check might miss."""
        emitter = self.emitter
        flags_: list[str] = []
        pure: list[tuple[ptx.Instruction, list[SliceStep], SliceStep | None]] = []
        for one in self._hoisted:
            condition = self._affine(one[0], one[2])
            if condition is None:
                pure.append(one)
            else:
                flags_ += condition
        flags_ += self.wraps
        flags_ += self._by_intervals()
        if self._ranges.any:
            flags_.append(self._ranges.missed())
        if pure:
            flags_.append(self._tested(pure))
        result = "false"
        for flag in dict.fromkeys(flags_):
            result = emitter.value(f"or i1 {result}, {flag}")
        return result

    def _affine(self, ins: ptx.Instruction, last: SliceStep | None) -> list[str] | None:
        """Return conditions; if one holds, the check may miss. None if it is not affine."""
        emitter, operands = self.emitter, decode_check(ins)
        if last is None and isinstance(operands.base, ptx.Register):
            if operands.base.name in self.stage_writer.lockstep.varying:
                return None
        strides = FLAT if last is None else self.strides_of(last)
        if strides is None:
            return None
        if bounds_vary(operands):
            linear_strides = self.linear_strides(self.stage_writer.kernel.local_size)
            strides = tuple(
                subtract(emitter, stride, linear_stride)
                for stride, linear_stride in zip(strides, linear_strides, strict=True)
            )  # type: ignore[assignment]
        shape = self.stage_writer.kernel.shape
        conditions: list[str] = []
        extents = (shape.x, shape.y, shape.z)
        box = self.box(ins, extents)
        lowest, highest = span_of(emitter, strides, box)
        for stride, extent in zip(strides, extents, strict=True):
            if extent == 1:
                continue
            if isinstance(stride, int):
                if stride % operands.align or abs(stride) >= 1 << 50:
                    return None
            else:
                moved = emitter.value(f"add i64 {stride}, {1 << 50}")
                conditions.append(emitter.value(f"icmp uge i64 {moved}, {1 << 51}"))
                if operands.align > 1:
                    low = emitter.value(f"and i64 {stride}, {operands.align - 1}")
                    conditions.append(emitter.value(f"icmp ne i64 {low}, 0"))
        with self._address(ins, last, self._values) as (_, address):
            first = add(emitter, address, lowest)
            if lowest != 0 and self._is_narrow(operands):
                # A 32-bit register: the first thread's value must not be negative.
                below = emitter.value(f"sub i64 {first}, {operands.low}")
                value = emitter.value(
                    f"zext i32 {emitter.value(f'trunc i64 {below} to i32')} to i64"
                )
                first = emitter.value(f"add i64 {value}, {operands.low}")
            outside = self._range_misses(
                operands, first, subtract(emitter, highest, lowest), box.some
            )
            conditions += [outside] if outside else []
        if box.some:
            conditions = [emitter.value(f"and i1 {box.some}, {one}") for one in conditions]
        return conditions

    def _range_misses(self, operands: CheckOperands, first: str, length: Stride, some: str) -> str:
        """Return whether hulls over a range of addresses miss; "" if `_ranges` tests it.

        The range is from ``first`` to ``length`` bytes further; it is tested only if the i1
        ``some`` holds.
        """
        emitter, bounds = self.emitter, bounds_of(self.code, operands)
        choices = 2 if operands.origins[:1] == ("static",) else 1
        end = add(emitter, first, length)
        if choices == 1 and bounds.align % operands.align == 0:
            off, span = emitter.value(f"sub i64 {first}, {bounds.first}"), operands.span
            if isinstance(length, int):  # all hulls together are one hull of known length
                self._ranges.add(
                    off, off, operands.align, start_count(emitter, bounds, span + length), some
                )
            else:
                last = emitter.value(f"sub i64 {end}, {bounds.first}")
                self._ranges.add(
                    off, last, operands.align, start_count(emitter, bounds, span), some
                )
            return ""
        outside = ""
        for which in range(choices):
            bounds = bounds_of(self.code, operands, which)
            out = hull_misses(self.code, operands, first, bounds)
            if length != 0:
                out = emitter.value(f"or i1 {out}, {self._end_misses(operands, end, bounds)}")
            outside = emitter.value(f"and i1 {outside}, {out}") if outside else out
        return outside

    def _by_intervals(self) -> list[str]:
        """Return the conditions for the checks that are tested by intervals."""
        extents = IntervalAnalysis(self)
        conditions: list[str] = []
        for ins in self._bounded:
            try:
                conditions += extents.misses(ins)
            except UnknownValue:
                self.inline.add(id(ins))
        return [*conditions, *extents.doubts]

    def _is_narrow(self, operands: CheckOperands) -> bool:
        base = operands.base
        return (
            isinstance(base, ptx.Register) and self.stage_writer.kernel.storage[base.name] == "i32"
        )

    def _end_misses(self, operands: CheckOperands, address: str, bounds: Bounds) -> str:
        """Return whether the hull at the highest address, aligned as the lowest is, misses."""
        emitter = self.emitter
        off = (
            address if bounds.first == "0" else emitter.value(f"sub i64 {address}, {bounds.first}")
        )
        return emitter.value(f"icmp uge i64 {off}, {start_count(emitter, bounds, operands.span)}")

    def _tested(
        self, checks: list[tuple[ptx.Instruction, list[SliceStep], SliceStep | None]]
    ) -> str:
        """Return an i1: whether a pure check misses, by bounds or in a loop over threads."""
        emitter, extents = self.emitter, IntervalAnalysis(self)
        conditions: list[str] = []
        try:
            for ins, _, _ in checks:
                conditions += extents.misses(ins)
        except UnknownValue:
            return self._pure(checks)
        result = emitter.alloca("i1", "pure")
        emitter.do(f"store i1 false, ptr {result}")
        perhaps = "false"
        for one in dict.fromkeys((*conditions, *extents.doubts)):
            perhaps = emitter.value(f"or i1 {perhaps}, {one}")
        with emitter.when(perhaps):
            emitter.do(f"store i1 {self._pure(checks)}, ptr {result}")
        return emitter.value(f"load i1, ptr {result}")

    def _pure(self, checks: list[tuple[ptx.Instruction, list[SliceStep], SliceStep | None]]) -> str:
        """Emit a loop over all threads that tests these checks; return an i1 as `emit` does."""
        emitter = self.emitter
        total = emitter.alloca("i32", "misses")
        emitter.do(f"store i32 0, ptr {total}")
        with self.stage_writer.lockstep.threads():
            values: dict[object, str] = {}
            for ins, steps, last in checks:
                self.run(steps, values)
                with self._address(ins, last, values) as (operands, address):
                    out = misses(self.code, operands, address)
                sofar = emitter.value(f"load i32, ptr {total}")
                more = emitter.value(f"or i32 {sofar}, {emitter.value(f'zext i1 {out} to i32')}")
                emitter.do(f"store i32 {more}, ptr {total}")
        return emitter.value(f"icmp ne i32 {emitter.value(f'load i32, ptr {total}')}, 0")
