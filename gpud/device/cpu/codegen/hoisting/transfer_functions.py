"""Transfer functions of intervals: an instruction's result from its operands.

Terms: see `gpud.device.cpu.codegen.hoisting.intervals`.
"""

from __future__ import annotations

from collections.abc import Callable

from gpud.compiler.analysis.effects import is_call
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.analysis.register_types import WORD_BITS
from gpud.device.cpu.codegen.hoisting.intervals import Interval, IntervalArithmetic
from gpud.device.cpu.codegen.hoisting.slices import UnknownValue

__all__ = ["TransferFunctions", "signed"]

_SMALL = {"u8": (0, 255), "b8": (0, 255), "s8": (-128, 127),
          "u16": (0, 65535), "b16": (0, 65535), "s16": (-32768, 32767)}  # fmt: skip

ANY = {"s32": (-(1 << 31), (1 << 31) - 1), "u32": (0, (1 << 32) - 1)}
"""The minimum and maximum of a type."""
_Operand = Callable[[ptx.Operand, str], Interval]


def signed(value: int, bits: int) -> int:
    """Reinterpret ``value`` as a signed number of ``bits`` bits."""
    half = 1 << (bits - 1)
    return (value + half) % (2 * half) - half


class TransferFunctions(IntervalArithmetic):
    """The effects of instructions on intervals."""

    def result(self, ins: ptx.Instruction, read: _Operand) -> Interval:
        """Return the interval of the register that ``ins`` writes; ``read`` gives operands'.

        Raises:
            UnknownValue: there is none.
        """
        base, modifiers = ins.opcode.base, ins.opcode.modifiers
        if not modifiers or not isinstance(ins.operands[0], ptx.Register) or is_call(ins):
            raise UnknownValue
        if ins.opcode.has("cc") or "sat" in modifiers or "hi" in modifiers:
            raise UnknownValue
        type_ = modifiers[-1]
        if base == "ld":
            return self._loaded(ins)
        if base == "cvt":
            return self._converted(ins, read)
        if type_ not in WORD_BITS:
            raise UnknownValue
        if base == "gpud":
            if modifiers[0] != "move":
                raise UnknownValue
            return read(ins.operands[1], type_)
        if base in ("mov", "cvta"):
            return read(ins.operands[1], type_)
        if base in ("mul", "mad"):
            return self._product(ins, read, modifiers, type_)
        if base in ("and", "or", "xor", "shl", "shr", "bfe"):
            return self._bits(ins, read, base, type_)
        if base in ("min", "max"):
            return self._clamped(ins, read, base, type_)
        given = [read(operand, type_) for operand in ins.operands[1:3]]
        return self._arithmetic(base, given, type_)

    def _arithmetic(self, base: str, given: list[Interval], type_: str) -> Interval:
        first, second = given[0], given[-1]
        match base:
            case "add":
                return self._ring(self.add(first, second), type_)
            case "sub":
                return self._ring(self.add(first, self.negate(self.small(second))), type_)
            case "neg":
                return self._ring(self.negate(self.small(first)), type_)
            case "selp":
                return self.hull(first, second)
        raise UnknownValue

    def _clamped(self, ins: ptx.Instruction, read: _Operand, base: str, type_: str) -> Interval:
        """Return the minimum or maximum of two values; one may be any value of its type."""
        given: list[Interval] = []
        for operand in ins.operands[1:3]:
            try:
                given.append(self.fits(read(operand, type_), type_))
            except UnknownValue:
                if type_ not in ANY:
                    raise
                given.append(self.within(*ANY[type_]))
        first, second = given
        return self.lesser(first, second) if base == "min" else self.greater(first, second)

    def _ring(self, made: Interval, type_: str) -> Interval:
        return self.small(made, 1 << 40) if WORD_BITS[type_] == 32 else self.small(made)

    def _loaded(self, ins: ptx.Instruction) -> Interval:
        limits = _SMALL.get(ins.opcode.modifiers[-1])
        if limits is None:
            raise UnknownValue
        return self.within(*limits)

    def _converted(self, ins: ptx.Instruction, read: _Operand) -> Interval:
        modifiers = ins.opcode.modifiers
        if len(modifiers) != 2:
            raise UnknownValue
        to, of = modifiers
        if of in _SMALL and to in WORD_BITS:
            return self.within(*_SMALL[of])
        if to in ("u8", "u16") and (of in WORD_BITS or of in _SMALL):
            return self.within(*_SMALL[to])
        if to not in WORD_BITS or of not in WORD_BITS:
            raise UnknownValue
        values = read(ins.operands[1], of)
        if WORD_BITS[to] > WORD_BITS[of]:
            return self.fits(values, of)
        return self._ring(values, to)

    def _product(
        self, ins: ptx.Instruction, read: _Operand, modifiers: tuple[str, ...], type_: str
    ) -> Interval:
        if len(modifiers) != 2 or modifiers[0] not in ("lo", "wide"):
            raise UnknownValue
        first, second = (read(operand, type_) for operand in ins.operands[1:3])
        wide = modifiers[0] == "wide"
        if wide:
            if WORD_BITS[type_] != 32:
                raise UnknownValue
            first, second = self.fits(first, type_), self.fits(second, type_)
        made = self.multiply(first, second)
        type_ = "s64" if wide else type_
        if ins.opcode.base == "mad":
            made = self.add(self._ring(made, type_), read(ins.operands[3], type_))
        return self._ring(made, type_)

    def _bits(self, ins: ptx.Instruction, read: _Operand, base: str, type_: str) -> Interval:
        bits = WORD_BITS[type_]
        sources = ins.operands[1:]
        if base == "bfe":
            length = sources[2]
            if type_[0] != "u" or not isinstance(length, ptx.Immediate):
                raise UnknownValue
            if not 0 <= length.value < min(bits, 60):
                raise UnknownValue
            return self.within(0, (1 << length.value) - 1)
        if base in ("shl", "shr"):
            amount = sources[1]
            if not isinstance(amount, ptx.Immediate) or not 0 <= amount.value < bits:
                raise UnknownValue
            values = read(sources[0], type_)
            if base == "shl":
                factor = self.one(1 << amount.value, 1 << amount.value)
                return self._ring(self.multiply(values, factor), type_)
            as_ = type_ if type_[0] == "s" else f"u{bits}"
            return self.shifted(self.fits(values, as_), amount.value)
        if base == "and":
            for operand in sources:
                if isinstance(operand, ptx.Immediate):
                    mask = signed(operand.value, bits)
                    if 0 <= mask < 1 << 60:
                        return self.within(0, mask)
        tops = [self._top(read(operand, type_)) for operand in sources]
        if base == "and":
            return self.within(0, min(tops))
        return self.within(0, (1 << max(tops).bit_length()) - 1)

    def _top(self, values: Interval) -> int:
        """Return the upper end of a known, non-negative interval."""
        if isinstance(values.low, int) and isinstance(values.high, int) and values.low >= 0:
            return max(values.low, values.high)
        raise UnknownValue
