"""Fences of a stage, tested for all threads before its loop over them.

Problem: a test with a branch in front of each access keeps LLVM from making vector instructions of
a loop over threads, which is most of the speed.

Approach: most addresses can be worked out before the loop: they are made of thread numbers,
parameters and what is the same for all threads. So all such fences of a stage are tested before its
loop. If none can miss, the loop runs without them. If one might, another copy of the loop runs, in
which each fence stands where the program has it and is exact.

How a fence is tested, by its address:

* *affine*: start + x * a + y * b + z * c in 64 bits: only the lowest and the highest address;
* *pure*: any other that needs no memory: in a loop over threads of its own, that LLVM vectorises;
* *bounded*: any other between known bounds, such as the index of a loop within the stage or a byte
  that it loads: only the bounds (`gpud.device.cpu.codegen.extents`);
* all others: where they stand, always.

Addresses are computed in 32 bits before they are widened, and could wrap around between the first
and the last thread: so where an affine value of 32 bits is widened, its lowest and highest value
must fit 32 bits, as integers. Then the widened value is affine too.

Terms: the *slopes* of a value are by how much it grows for the next thread in x, y and z, modulo 2
to the power of its width; for slices see `gpud.device.cpu.codegen.slices`.

Properties:
* the test is cautious: if it passes, no thread of the stage misses a fence that it covers;
* it reads what threads have kept, parameters and registers, and writes nothing of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpud.compiler.analysis.effects import (
    written,
)
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.checks import (
    Bounds,
    address_of,
    bounds_of,
    bounds_vary,
    hull_misses,
    misses,
    starts,
)
from gpud.device.cpu.codegen.emitter import Emitter
from gpud.device.cpu.codegen.extents import Extents
from gpud.device.cpu.codegen.fences import Check, check_of
from gpud.device.cpu.codegen.pseudo import is_fence
from gpud.device.cpu.codegen.ranges import AlignedRanges, Box, compared, narrowed, span_of
from gpud.device.cpu.codegen.slices import Slices, Step, UnknownValue
from gpud.device.cpu.codegen.slopes import Slope, Slopes, Widening, slopes_of

if TYPE_CHECKING:
    from gpud.device.cpu.codegen.stages import StageWriter

__all__ = ["EarlyChecks"]


_LONGEST = 64
"""Instructions of a slice that is worth running twice."""


class EarlyChecks(Slices):
    """The fences of one stage.

    Attributes:
        inline: identities of the fences that are tested in the loop, always.
        any: whether there are others.
    """

    def __init__(self, stage: StageWriter, varying: list[tuple[ptx.Instruction, int]]) -> None:
        super().__init__(stage, varying)
        self._values: dict[object, str] = {}
        self._slopes: dict[int, Slopes | None] = {}
        self._wraps: list[str] = []
        self._ranges = AlignedRanges(self.e)
        self.inline: set[int] = set()
        self._early: list[tuple[ptx.Instruction, list[Step], Step | None]] = []
        self._bounded: list[ptx.Instruction] = []

    @property
    def any(self) -> bool:
        """Whether some fences are tested before the loop."""
        return bool(self._early or self._bounded)

    def plan(self, checks: list[ptx.Instruction], recipe: list[ptx.Instruction]) -> None:
        """Decide how each of the stage's fences is tested; polls stay where they stand."""
        for ins in recipe:
            for register in written(ins):
                self.recipe[register.name] = ins
        for ins in checks:
            if not is_fence(ins):
                self.inline.add(id(ins))
                continue
            try:
                steps, last = self._slice(ins)
            except UnknownValue:
                self._bounded.append(ins)
            else:
                self._early.append((ins, steps, last))

    # -- slices

    def _slice(self, ins: ptx.Instruction) -> tuple[list[Step], Step | None]:
        base = check_of(ins).base
        if not isinstance(base, ptx.Register):
            return [], None
        number, block = self.where[id(ins)]
        last = self.reaching(base.name, number, block)
        steps = [] if last is None else [*self.ordered(last), last]
        if len(steps) > _LONGEST:
            raise UnknownValue
        return steps, last

    @contextmanager
    def _address(
        self, ins: ptx.Instruction, last: Step | None, values: dict[object, str]
    ) -> Iterator[tuple[Check, str]]:
        """The fence's parts and its hull's address, its slice having been run."""
        found = check_of(ins)
        base = found.base
        if isinstance(base, ptx.Register) and base.name in self.s.w.varying:
            before = self.code.slot(base.name)
            self.code.redirect(base.name, self.slot(base.name, last, values))
            yield found, address_of(self.code, found)
            self.code.redirect(base.name, before)
        else:
            with self.s.as_of(ins):
                yield found, address_of(self.code, found)

    # -- the test

    def emit(self) -> str:
        """Emit the test; an i1: whether some fence might miss."""
        e = self.e
        flags_: list[str] = []
        pure: list[tuple[ptx.Instruction, list[Step], Step | None]] = []
        for one in self._early:
            condition = self._affine(*one)
            if condition is None:
                pure.append(one)
            else:
                flags_ += condition
        flags_ += self._wraps
        flags_ += self._by_extents()
        if self._ranges.any:
            flags_.append(self._ranges.missed())
        if pure:
            flags_.append(self._pure(pure))
        result = "false"
        for flag in dict.fromkeys(flags_):
            result = e.value(f"or i1 {result}, {flag}")
        return result

    def _affine(
        self, ins: ptx.Instruction, steps: list[Step], last: Step | None
    ) -> list[str] | None:
        """Conditions, any of which means that the fence may miss; None if it is not affine."""
        e, found = self.e, check_of(ins)
        for step in steps:
            if not self._knows_slopes(step):
                return None
        if last is None and isinstance(found.base, ptx.Register):
            if found.base.name in self.s.w.varying:
                return None
        slopes: Slopes = (0, 0, 0) if last is None else self._slopes[id(last)] or (0, 0, 0)
        if bounds_vary(found):
            strides = self._strides(self.s.kernel.local_size)
            slopes = tuple(
                _sub(e, slope, stride) for slope, stride in zip(slopes, strides, strict=True)
            )  # type: ignore[assignment]
        shape = self.s.kernel.shape
        conditions: list[str] = []
        extents = (shape.x, shape.y, shape.z)
        box = self._box(ins, extents)
        lowest, highest = span_of(e, slopes, box)
        for slope, extent in zip(slopes, extents, strict=True):
            if extent == 1:
                continue
            if isinstance(slope, int):
                if slope % found.align or abs(slope) >= 1 << 50:
                    return None
            else:
                moved = e.value(f"add i64 {slope}, {1 << 50}")
                conditions.append(e.value(f"icmp uge i64 {moved}, {1 << 51}"))
                if found.align > 1:
                    low = e.value(f"and i64 {slope}, {found.align - 1}")
                    conditions.append(e.value(f"icmp ne i64 {low}, 0"))
        with self._address(ins, last, self._values) as (_, address):
            first, end = _plus(e, address, lowest), _plus(e, address, highest)
            choices = 2 if found.homes[:1] == ("static",) else 1
            bounds = bounds_of(self.code, found)
            if choices == 1 and not box.some and self._is_range(found, bounds, lowest, highest):
                # All hulls together are one range of known length: one comparison is enough.
                limit = starts(e, bounds, found.span + int(highest) - int(lowest))
                off = e.value(f"sub i64 {first}, {bounds.first}")
                self._ranges.add(off, found.align, limit)
                return conditions
            if lowest != 0 and self._is_narrow(found):
                # A register of 32 bits: it is the first thread's that may not be negative.
                below = e.value(f"sub i64 {first}, {found.low}")
                value = e.value(f"zext i32 {e.value(f'trunc i64 {below} to i32')} to i64")
                first = e.value(f"add i64 {value}, {found.low}")
                end = _plus(e, first, _sub(e, highest, lowest))
            outside = ""
            for which in range(choices):
                bounds = bounds_of(self.code, found, which)
                out = hull_misses(self.code, found, first, bounds)
                if highest != lowest:
                    out = e.value(f"or i1 {out}, {self._beyond(found, end, bounds)}")
                outside = e.value(f"and i1 {outside}, {out}") if outside else out
            conditions.append(outside)
        if box.some:
            conditions = [e.value(f"and i1 {box.some}, {one}") for one in conditions]
        return conditions

    def _by_extents(self) -> list[str]:
        """Conditions for the fences of which no more than bounds can be known."""
        extents = Extents(self)
        conditions: list[str] = []
        for ins in self._bounded:
            try:
                conditions += extents.misses(ins)
            except UnknownValue:
                self.inline.add(id(ins))
        return [*conditions, *extents.doubts]

    def _is_range(self, found: Check, bounds: Bounds, lowest: Slope, highest: Slope) -> bool:
        """Whether the hulls, which lie so far apart, are a range that `AlignedRanges` can test."""
        if isinstance(lowest, str) or isinstance(highest, str) or bounds.align % found.align:
            return False
        return lowest == 0 or not self._is_narrow(found)

    # -- which threads

    def _box(self, ins: ptx.Instruction, extents: tuple[int, int, int]) -> Box:
        """The threads that come to a fence, as far as the conditions before it tell."""
        x, y, z = extents
        box = Box(((0, x), (0, y), (0, z)))
        for predicate, negated, number, block in self._conditions(ins):
            try:
                step = self.reaching(predicate, number, block)
            except UnknownValue:
                continue
            if step is not None:
                box = self._narrowed(box, step, extents, negated=negated)
        return box

    def _conditions(self, ins: ptx.Instruction) -> Iterator[tuple[str, bool, int, int]]:
        """(predicate, whether it is false, place of its reader) of what leads to ``ins``."""
        number, block = self.where[id(ins)]
        if ins.guard is not None:
            yield ins.guard.register.name, ins.guard.negated, number, block
        yield from self.conditions(block)

    def conditions(self, block: int) -> Iterator[tuple[str, bool, int, int]]:
        """(predicate, whether it is false, place of its reader) of what leads to ``block``."""
        flow = self.s.w.flow
        while block in self.s.convergence.inner:
            above = flow.dominators[block]
            if above is None:
                return
            last = flow.blocks[above].last
            if last is not None and last.guard is not None and last.opcode.base == "bra":
                if id(last) in self.where and len(flow.blocks[above].successors) == 2:
                    taken, falls = flow.blocks[above].successors
                    for target, negated in ((taken, False), (falls, True)):
                        only = flow.blocks[target].predecessors == [above]
                        if only and flow.dominates(target, block):
                            guard = last.guard
                            place = self.where[id(last)]
                            yield guard.register.name, guard.negated != negated, *place
            block = above

    def _narrowed(
        self, box: Box, step: Step, extents: tuple[int, int, int], *, negated: bool
    ) -> Box:
        """``box`` without the threads for which a ``setp`` gives another result."""
        ins, e = step.ins, self.e
        modifiers = ins.opcode.modifiers
        if ins.opcode.base != "setp" or len(modifiers) != 2 or len(ins.operands) != 3:
            return box
        type_ = modifiers[1]
        if type_ not in ("s32", "u32", "b32"):
            return box
        sides = [self._slopes_at(step, operand) for operand in ins.operands[1:]]
        if sides[0] is None or sides[1] is None or sides.count((0, 0, 0)) != 1:
            return box
        mirrored = sides[0] == (0, 0, 0)
        slopes = sides[1] if mirrored else sides[0]
        how = compared(modifiers[0], negated=negated, mirrored=mirrored)
        if how is None or slopes not in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
            return box
        axis = slopes.index(1)
        varying, common = ins.operands[1:] if not mirrored else ins.operands[:0:-1]
        signed = type_ == "s32"
        widening = Widening(varying, signed, slopes)
        for source in self.ordered(step):
            if not self._knows_slopes(source):
                return box
        self._wraps.append(self._may_wrap(step, widening))
        with self.reading(step, self._values):
            how_wide = "sext" if signed else "zext"
            start, end = (
                e.value(f"{how_wide} i32 {self.code.read(o, 'u32')} to i64")
                for o in (varying, common)
            )
        border = e.value(f"sub i64 {end}, {start}")
        return narrowed(e, box, axis, extents[axis], how, border)

    def _slopes_at(self, step: Step, operand: ptx.Operand) -> Slopes | None:
        """Slopes of an operand of ``step``."""
        if isinstance(operand, ptx.Immediate):
            return (0, 0, 0)
        if isinstance(operand, ptx.SpecialRegister) and operand.name.startswith("%tid."):
            axis = "xyz".find(operand.name[-1])
            return (int(axis == 0), int(axis == 1), int(axis == 2))
        if not isinstance(operand, ptx.Register):
            return None
        if operand.name not in self.s.w.varying:
            return (0, 0, 0)
        source = step.sources.get(operand.name)
        if source is None or not all(self._knows_slopes(one) for one in self.ordered(source)):
            return None
        return self._slopes[id(source)] if self._knows_slopes(source) else None

    def _is_narrow(self, found: Check) -> bool:
        base = found.base
        return isinstance(base, ptx.Register) and self.s.kernel.storage[base.name] == "i32"

    def _beyond(self, found: Check, address: str, bounds: Bounds) -> str:
        """Whether the hull at the highest address, aligned as the lowest is, misses."""
        e = self.e
        off = address if bounds.first == "0" else e.value(f"sub i64 {address}, {bounds.first}")
        return e.value(f"icmp uge i64 {off}, {starts(e, bounds, found.span)}")

    def _strides(self, size: int) -> Slopes:
        """Slopes of thread number times ``size``."""
        shape = self.s.kernel.shape
        return (size, size * shape.x, size * shape.x * shape.y)

    def _knows_slopes(self, step: Step) -> bool:
        """Run the step for the first thread and work out its slopes; whether it has any."""
        if id(step) in self._slopes:
            return self._slopes[id(step)] is not None
        self._slopes[id(step)] = None
        sources: dict[str, Slopes] = {}
        for name, source in step.sources.items():
            if name not in self.s.w.varying:
                sources[name] = (0, 0, 0)
                continue
            known = None if source is None else self._slopes.get(id(source))
            if known is None:
                return False
            sources[name] = known
        self.run([step], self._values)
        with self.reading(step, self._values):
            result = slopes_of(self.code, step.ins, sources, self._strides(1), self.s.kernel)
        if result is None:
            return False
        slopes, widening = result
        if widening is not None and any(slopes):
            self._wraps.append(self._may_wrap(step, widening))
        self._slopes[id(step)] = slopes
        return True

    def _may_wrap(self, step: Step, widening: Widening) -> str:
        """Whether a widened value leaves 32 bits for some thread (i1)."""
        e, shape = self.e, self.s.kernel.shape
        with self.reading(step, self._values):
            start = self.code.read(widening.operand, "u32")
        how = "sext" if widening.signed else "zext"
        wide = e.value(f"{how} i32 {start} to i64")
        whole = Box(((0, shape.x), (0, shape.y), (0, shape.z)))
        lowest, highest = span_of(e, widening.slopes, whole)
        result = "false"
        for end in (lowest, highest):
            if end == 0:
                continue
            value = _plus(e, wide, end)
            again = e.value(f"{how} i32 {e.value(f'trunc i64 {value} to i32')} to i64")
            differs = e.value(f"icmp ne i64 {value}, {again}")
            result = differs if result == "false" else e.value(f"or i1 {result}, {differs}")
        return result

    def _pure(self, fences: list[tuple[ptx.Instruction, list[Step], Step | None]]) -> str:
        """A loop over all threads that tests these fences; an i1 as `emit`."""
        e = self.e
        total = e.alloca("i32", "misses")
        e.do(f"store i32 0, ptr {total}")
        with self.s.w.threads():
            values: dict[object, str] = {}
            for ins, steps, last in fences:
                self.run(steps, values)
                with self._address(ins, last, values) as (found, address):
                    out = misses(self.code, found, address)
                sofar = e.value(f"load i32, ptr {total}")
                more = e.value(f"or i32 {sofar}, {e.value(f'zext i1 {out} to i32')}")
                e.do(f"store i32 {more}, ptr {total}")
        return e.value(f"icmp ne i32 {e.value(f'load i32, ptr {total}')}, 0")


# -- slopes as numbers or LLVM values ----------------------------------------------------------


def _sub(e: Emitter, slope: Slope, number: Slope) -> Slope:
    if isinstance(slope, int) and isinstance(number, int):
        return slope - number
    return e.value(f"sub i64 {slope}, {number}")


def _plus(e: Emitter, address: str, number: Slope) -> str:
    return address if number == 0 else e.value(f"add i64 {address}, {number}")
