"""Bounds of remainders by a constant, as compilers compute them.

Problem: ``i % 24`` is not a ``rem`` in PTX: it is ``i - i / 24 * 24``, and the quotient is the
upper bits of a product. Interval arithmetic on the single instructions does not bound an array's
index.

Approach: recognise the quotient in a difference. The upper bits of ``x * magic``, shifted right,
are ``x / c`` rounded down for all x of so many bits, if ``magic * c - 2**shift`` is neither less
than 0 nor more than ``2**(shift - bits)``.

Properties:
* a match is the remainder of one value: dividend and difference read the same;
* a signed remainder has the dividend's sign, as in C: without bounds it may be negative.

Source: T. Granlund and P. L. Montgomery, "Division by Invariant Integers using Multiplication",
PLDI 1994, theorem 4.2.
"""

from __future__ import annotations

from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.hoisting.intervals import Interval
from gpud.device.cpu.codegen.hoisting.loop_indices import LoopIndices, LoopPlace
from gpud.device.cpu.codegen.hoisting.slices import UnknownValue
from gpud.device.cpu.codegen.hoisting.transfer_functions import signed

__all__ = ["Remainders"]


class Remainders(LoopIndices):
    """The intervals of remainders in one stage."""

    def _same(self, name: str, test: LoopPlace, place: LoopPlace) -> bool:
        """Return whether ``test``, before ``place``, reads the same value of a register as that."""
        raise NotImplementedError

    def remainder(self, made: LoopPlace) -> Interval | None:
        """Return the interval of the result of ``made``, if that is a remainder by a constant."""
        ins = made.reader
        base, modifiers = ins.opcode.base, ins.opcode.modifiers
        if modifiers not in (("s32",), ("u32",), ("b32",)) or len(ins.operands) != 3:
            return None
        dividend, other = ins.operands[1:]
        if base == "rem" and isinstance(other, ptx.Immediate) and 0 < other.value < 1 << 31:
            return self._below(other.value, dividend, made, is_signed=modifiers[0] == "s32")
        if base != "sub" or not isinstance(dividend, ptx.Register):
            return None
        return self._difference(dividend, other, made)

    def _below(
        self, divisor: int, dividend: ptx.Operand, place: LoopPlace, *, is_signed: bool
    ) -> Interval:
        """Return the interval of numbers of magnitude below ``divisor``, of the dividend's sign."""
        if not is_signed:
            return self.within(0, divisor - 1)
        try:
            with self.rollback_if_unknown():
                values = self.fits(self._operand(dividend, "s32", place), "s32")
                self.doubt("slt", values.low, 0)
        except UnknownValue:
            return self.within(1 - divisor, divisor - 1)
        return self.within(0, divisor - 1)

    def _difference(
        self, dividend: ptx.Register, other: ptx.Operand, made: LoopPlace
    ) -> Interval | None:
        multiple = self._maker(other, made)
        if multiple is None:
            return None
        ins = multiple.reader
        base, modifiers, sources = ins.opcode.base, ins.opcode.modifiers, ins.operands[1:]
        if len(sources) != 2 or not isinstance(sources[1], ptx.Immediate):
            return None
        number = signed(sources[1].value, 32)
        if base == "and" and modifiers == ("b32",) and number < 0 and not -number & (-number - 1):
            return self._low_bits(-number, dividend, sources[0], multiple, made)
        if base != "mul" or modifiers not in (("lo", "s32"), ("lo", "u32")) or number <= 0:
            return None
        for quotient in (self._unsigned, self._signed):
            divided = quotient(number, sources[0], multiple)
            if (
                divided is not None
                and divided[0] == dividend
                and self._reads(dividend, divided[1], made)
            ):
                is_signed = quotient == self._signed
                return self._below(number, dividend, made, is_signed=is_signed)
        return None

    def _low_bits(
        self,
        size: int,
        dividend: ptx.Register,
        of: ptx.Operand,
        multiple: LoopPlace,
        made: LoopPlace,
    ) -> Interval | None:
        """Match ``x - (y & -size)``: y is x, or x + ``size - 1`` if x is negative."""
        if of == dividend:
            return self.within(0, size - 1) if self._reads(dividend, multiple, made) else None
        sum_ = self._maker(of, multiple)
        if sum_ is None or sum_.reader.opcode.base != "add" or _width(sum_) != 32:
            return None
        first, second = sum_.reader.operands[1:]
        more = self._shifted(second, sum_, "u32")
        if first != dividend or more is None or 1 << (32 - more[1]) != size:
            return None
        sign = self._shifted(more[0], more[2], "s32")
        if sign is None or sign[0] != dividend or sign[1] != 31:
            return None
        for place in (sum_, sign[2]):
            if not self._reads(dividend, place, made):
                return None
        return self._below(size, dividend, made, is_signed=True)

    # -- quotients: the dividend, and where it is read

    def _unsigned(
        self, divisor: int, quotient: ptx.Operand, place: LoopPlace
    ) -> tuple[ptx.Operand, LoopPlace] | None:
        """Match ``mul.wide.u32``, ``shr.u64``, ``cvt.u32.u64`` or ``mul.hi.u32``, ``shr.u32``."""
        low = self._maker(quotient, place)
        if low is not None and low.reader.opcode.text == "cvt.u32.u64":
            shifted = self._shifted(low.reader.operands[1], low, "u64")
            product, how = shifted, ("wide", "u32")
            extra = 0
        else:
            product, how = self._shifted(quotient, place, "u32"), ("hi", "u32")
            extra = 32
        if product is None:
            return None
        return self._dividend(product[0], product[2], how, divisor, product[1] + extra, 32)

    def _signed(
        self, divisor: int, quotient: ptx.Operand, place: LoopPlace
    ) -> tuple[ptx.Operand, LoopPlace] | None:
        """Match ``mul.hi.s32``, ``shr.s32``, and 1 added where the product is negative."""
        sum_ = self._maker(quotient, place)
        if sum_ is None or sum_.reader.opcode.base != "add" or _width(sum_) != 32:
            return None
        for one, two in (sum_.reader.operands[1:], sum_.reader.operands[:0:-1]):
            sign, upper = self._shifted(one, sum_, "u32"), self._shifted(two, sum_, "s32")
            if sign is None or upper is None or sign[1] != 31 or sign[0] != upper[0]:
                continue
            if self._maker(sign[0], sign[2]) != self._maker(upper[0], upper[2]):
                continue
            how = ("hi", "s32")
            return self._dividend(upper[0], upper[2], how, divisor, 32 + upper[1], 31)
        return None

    def _dividend(
        self,
        product: ptx.Operand,
        place: LoopPlace,
        how: tuple[str, str],
        divisor: int,
        shift: int,
        bits: int,
    ) -> tuple[ptx.Operand, LoopPlace] | None:
        """Return the multiplicand if the product's upper bits are its quotient by ``divisor``."""
        made = self._maker(product, place)
        if made is None or made.reader.opcode.base != "mul":
            return None
        dividend, magic = made.reader.operands[1:]
        if made.reader.opcode.modifiers != how or not isinstance(magic, ptx.Immediate):
            return None
        number = magic.value % (1 << 32)
        if how[1] == "s32" and number >> 31:
            return None
        excess = number * divisor - (1 << shift)
        # Rounding negative quotients up by adding 1 is right only if no product is exact.
        if excess < int(how[1] == "s32") or excess << bits > 1 << shift:
            return None
        return dividend, made

    # -- definitions

    def _maker(self, operand: ptx.Operand, place: LoopPlace) -> LoopPlace | None:
        """Return the unguarded instruction that defined a varying register, as read there."""
        if (
            not isinstance(operand, ptx.Register)
            or operand.name not in self._stage_writer.lockstep.varying
        ):
            return None
        if place.number >= 0:
            made = self._exact(operand.name, place)
            if made is not None:
                return made if made.reader.operands[0] == operand else None
            if self._defined(operand.name):
                return None
        recipe = self._hoisted.recipe.get(operand.name)
        return None if recipe is None else LoopPlace(recipe, -1, -1)

    def _reads(self, register: ptx.Register, earlier: LoopPlace, place: LoopPlace) -> bool:
        """Return whether both places read the same value of ``register``."""
        if register.name not in self._stage_writer.lockstep.varying:
            return False
        if earlier.number < 0 or place.number < 0:
            both = earlier.number < 0 and place.number < 0
            return both or not self._defined(register.name)
        return self._same(register.name, earlier, place)

    def _shifted(
        self, operand: ptx.Operand, place: LoopPlace, type_: str
    ) -> tuple[ptx.Operand, int, LoopPlace] | None:
        """Return (operand, number of bits, where it is read) of a right shift by a constant."""
        made = self._maker(operand, place)
        if made is None or made.reader.opcode.text != f"shr.{type_}":
            return None
        what, amount = made.reader.operands[1:]
        if not isinstance(amount, ptx.Immediate) or not 0 <= amount.value < 64:
            return None
        return what, amount.value, made


def _width(place: LoopPlace) -> int:
    modifiers = place.reader.opcode.modifiers
    return 32 if modifiers in (("s32",), ("u32",), ("b32",)) else 0
