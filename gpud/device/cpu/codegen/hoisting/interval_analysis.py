"""The intervals of a stage's registers, and the bounds checks that can be tested with them.

For problem, approach and terms see `gpud.device.cpu.codegen.hoisting.intervals`; this module
follows definitions through the instructions of a stage and the conditions on their paths.

Properties:
* `IntervalAnalysis.misses` is conservative: if neither what it returns nor a doubt holds, no thread
  misses;
* a condition narrows a register's interval only if it reads the value that the access uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.analysis.register_types import WORD_BITS
from gpud.device.cpu.codegen.emit.check_code import bounds_of, bounds_vary, hull_misses
from gpud.device.cpu.codegen.hoisting.intervals import End, Interval
from gpud.device.cpu.codegen.hoisting.loop_indices import AT_MOST, LoopPlace
from gpud.device.cpu.codegen.hoisting.remainders import Remainders
from gpud.device.cpu.codegen.hoisting.slices import UnknownValue
from gpud.device.cpu.codegen.hoisting.thread_box import compared
from gpud.device.cpu.codegen.hoisting.transfer_functions import signed
from gpud.device.cpu.codegen.preparation.check_instruction import decode_check

if TYPE_CHECKING:
    from gpud.device.cpu.codegen.hoisting.hoisted_checks import HoistedChecks

__all__ = ["IntervalAnalysis"]

_MAX_DEPTH = 60
_UNSIGNED = ("%ctaid.", "%nctaid.", "%ntid.")


class IntervalAnalysis(Remainders):
    """Intervals of one stage, computed by code before its loop.

    Callers of `misses` must use `doubts` afterwards, which covers all bounds checks.
    """

    def __init__(self, hoisted: HoistedChecks) -> None:
        super().__init__(hoisted)
        self._code = hoisted.code
        self._open: set[object] = set()

    # -- bounds checks

    def misses(self, ins: ptx.Instruction) -> list[str]:
        """Return conditions, any of which means that a bounds check may miss.

        Raises:
            UnknownValue: no bounds are known before the loop.
        """
        with self.rollback_if_unknown():
            return self._misses(ins)

    def _misses(self, ins: ptx.Instruction) -> list[str]:
        operands = decode_check(ins)
        if bounds_vary(operands) or not isinstance(operands.base, ptx.Register):
            raise UnknownValue
        number, block = self._hoisted.where[id(ins)]
        values = self._register(operands.base.name, LoopPlace(ins, number, block))
        wide = self._bits_of(operands.base.name) == 64
        values = self.small(values) if wide else self.fits(values, "u32")
        values = self.add(values, self.one(operands.low, abs(operands.low)))
        if operands.align > 1:
            if values.step % operands.align:
                raise UnknownValue
            self.doubt("ne", self._masked(values.base, operands.align - 1), 0)
        layout = self._stage_writer.kernel.module
        if operands.space == "shared" and isinstance(values.high, int) and not layout.dynamic_names:
            if values.high + operands.span > layout.shared.size:
                # Not all of these values reach the bounds check: the test would always fail.
                raise UnknownValue
        bounds = bounds_of(self._code, operands)
        whole = operands._replace(align=1)
        ends = {str(values.low): None, str(values.high): None}
        return [hull_misses(self._code, whole, end, bounds) for end in ends]

    def _masked(self, value: End, mask: int) -> End:
        return self._binary("and", value, mask, lambda a, b: a & b)

    # -- registers

    def _register(self, name: str, place: LoopPlace) -> Interval:
        """Return the interval of a register where it is read."""
        bits = self._bits_of(name)
        if name not in self._stage_writer.lockstep.varying:
            return self._uniform(name, bits, place)
        if place.number < 0:
            return self._start(name)
        defining = self._exact(name, place)
        if defining is not None:
            return self._narrowed(name, place, self._result(defining))
        index = self._index(name)
        if index is not None:
            if self._reads_head_value(index, place):
                return self._narrowed(name, place, index.head)
            return index.anywhere
        return self._union(name, place, ())

    def _uniform(self, name: str, bits: int, place: LoopPlace) -> Interval:
        made = self._stage_writer.convergence.definitions_of(name)
        if len(made) == 1 and made[0][1].opcode.base == "mov" and made[0][1].guard is None:
            block, ins = made[0]
            source, here = (
                ins.operands[1],
                place.block if place.number >= 0 else self._stage_writer.stage.first,
            )
            before = block != here and self._flow.dominates(block, here)
            if before and isinstance(source, ptx.Immediate | ptx.Symbol):
                return self._operand(source, f"u{bits}", place)
        with self._stage_writer.earlier.as_of(place.reader, place.number):
            value = self._code.read(ptx.Register(name), f"u{bits}")
        if bits == 32:
            return self.one(self.emitter.value(f"sext i32 {value} to i64"), 1 << 31)
        return self.one(value, 1 << 63)

    def _union(self, name: str, place: LoopPlace, but: tuple[LoopPlace, ...]) -> Interval:
        """Return the hull of all definitions and of the initial value, if that can be read."""
        key = (name, tuple(d.number for d in but), self._keeps_start(name, place))
        union = self._made.get(key)
        if union is not None:
            return union
        if key in self._open or len(self._open) > _MAX_DEPTH:
            raise UnknownValue
        self._open.add(key)
        try:
            parts = [self._result(d) for d in self._defined(name) if d not in but]
            if key[2]:
                parts.append(self._start(name))
            if not parts:
                raise UnknownValue
            union = parts[0]
            for part in parts[1:]:
                union = self.hull(union, part)
        finally:
            self._open.discard(key)
        self._made[key] = union
        return union

    def _keeps_start(self, name: str, place: LoopPlace) -> bool:
        if place.number < 0:
            return True
        return not any(
            d.reader.guard is None
            and (
                d.number < place.number
                if d.block == place.block
                else self._flow.dominates(d.block, place.block)
            )
            for d in self._defined(name)
        )

    def _start(self, name: str) -> Interval:
        """Return the interval of a register at the stage's start."""
        recipe = self._hoisted.recipe.get(name)
        if recipe is not None:
            return self._result(LoopPlace(recipe, -1, -1))
        key = ("start", name)
        interval = self._made.get(key)
        if interval is None:
            interval = self._made[key] = self._spilled(name)
        return interval

    def _spilled(self, name: str) -> Interval:
        """Return the minimum and maximum of the values that the threads spilled."""
        if name not in self._stage_writer.live_in:
            return self.one(0, 0)
        emitter, kernel = self.emitter, self._stage_writer.kernel
        type_ = kernel.storage[name]
        slots = emitter.alloca("i64", "low"), emitter.alloca("i64", "high")
        for slot, first in zip(slots, ((1 << 63) - 1, -1 << 63), strict=True):
            emitter.do(f"store i64 {first}, ptr {slot}")
        with self._stage_writer.lockstep.threads():
            spilled = self._stage_writer.spill_slot(name)
            value = emitter.value(f"load {type_}, ptr {spilled}{kernel.spill_tags}")
            value = self._code.convert(value, type_, "i64", signed=True)
            for slot, choose in zip(slots, (self.least, self.greatest), strict=True):
                emitter.do(
                    f"store i64 {choose(emitter.value(f'load i64, ptr {slot}'), value)}, ptr {slot}"
                )
        low, high = (emitter.value(f"load i64, ptr {slot}") for slot in slots)
        return Interval(low, high, 1, 0, 1 << 31 if type_ == "i32" else 1 << 63)

    # -- conditions

    def _narrowed(self, name: str, place: LoopPlace, values: Interval) -> Interval:
        """Return ``values`` without those for which control does not reach ``place``."""
        for condition in self._hoisted.conditions(place.block):
            where = LoopPlace(condition.reader, condition.number, condition.block)
            for test, holds_not in self._tests(
                condition.predicate, where, negated=condition.negated
            ):
                values = self._restricted(name, place, values, test, negated=holds_not)
        return values

    def _tests(
        self, predicate: str, place: LoopPlace, *, negated: bool
    ) -> Iterator[tuple[LoopPlace, bool]]:
        """Return comparisons that hold (or not) where a predicate is true (``negated``: false)."""
        made = self._exact(predicate, place)
        if made is None or made.reader.operands[0] != ptx.Register(predicate):
            return
        base = made.reader.opcode.base
        if base == "setp":
            yield made, negated
        elif base == ("or" if negated else "and"):
            for operand in made.reader.operands[1:]:
                if isinstance(operand, ptx.Register):
                    yield from self._tests(operand.name, made, negated=negated)

    def _restricted(
        self, name: str, place: LoopPlace, values: Interval, test: LoopPlace, *, negated: bool
    ) -> Interval:
        """Return ``values`` restricted by a comparison."""
        ins, modifiers = test.reader, test.reader.opcode.modifiers
        type_ = modifiers[-1]
        if len(modifiers) != 2 or len(ins.operands) != 3 or type_ not in WORD_BITS:
            return values
        mine = [isinstance(o, ptx.Register) and o.name == name for o in ins.operands[1:]]
        if mine.count(True) != 1 or not self._same(name, test, place):
            return values
        how = compared(modifiers[0], negated=negated, mirrored=mine[1])
        other = ins.operands[1 if mine[1] else 2]
        if how == "ne":
            if isinstance(other, ptx.Immediate) and values.low == other.value:
                return replace(values, low=self.plus(values.low, 1))
            return values
        kind = "u" if type_[0] == "u" or how in ("lo", "ls") else "s"
        if how not in AT_MOST or kind != "u" or WORD_BITS[type_] != 32:
            return values
        try:
            border = self.fits(self._operand(other, type_, test), "u32").high
        except UnknownValue:
            return values
        most = border if how in ("le", "ls") else self.minus(border, 1)
        step = min(values.step, 1 << 32)
        return replace(values, low=0, high=most, step=step, most=1 << 32)

    def _same(self, name: str, test: LoopPlace, place: LoopPlace) -> bool:
        """Return whether ``test``, a condition before ``place``, reads the same value as that."""
        if not self._defined(name):
            return True
        first, second = self._exact(name, test), self._exact(name, place)
        if first is not None or second is not None:
            return first == second
        index = self._index(name)
        return (
            index is not None
            and self._reads_head_value(index, test)
            and self._reads_head_value(index, place)
        )

    # -- instructions

    def _result(self, made: LoopPlace) -> Interval:
        """Return the interval of an instruction's result."""
        key = ("result", id(made.reader), made.number < 0)
        interval = self._made.get(key)
        if interval is None:
            if len(self._open) > _MAX_DEPTH:
                raise UnknownValue
            interval = self.remainder(made)
            if interval is None:
                interval = self.result(made.reader, lambda o, type_: self._operand(o, type_, made))
            self._made[key] = interval
        return interval

    def _operand(self, operand: ptx.Operand, type_: str, place: LoopPlace) -> Interval:
        match operand:
            case ptx.Immediate(value=value):
                number = signed(value, WORD_BITS[type_])
                return self.one(number, abs(number))
            case ptx.Register(name):
                if self._bits_of(name) != WORD_BITS[type_]:
                    raise UnknownValue
                return self._register(name, place)
            case ptx.SpecialRegister(name) if name.startswith("%tid."):
                shape = self._stage_writer.kernel.shape
                return self.within(0, (shape.x, shape.y, shape.z)["xyz".index(name[-1])] - 1)
            case ptx.SpecialRegister(name) if name.startswith(_UNSIGNED):
                wide = self._code.convert(self._code.read(operand, "u32"), "i32", "i64")
                return self.one(wide, 1 << 32)
            case ptx.Symbol(name) if name not in self._stage_writer.kernel.locals:
                return self.one(self._code.read(operand, "u64"), 1 << 63)
        raise UnknownValue
