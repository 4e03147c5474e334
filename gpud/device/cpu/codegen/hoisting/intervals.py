"""Intervals of the values of a stage's registers, for accesses in loops within a stage.

Problem: the address of an access in a loop that each thread runs by itself, or one computed from a
loaded byte, is not known before the stage; its bounds check stays in the loop and costs most of the
loop's speed.

Approach: bounds are enough for a test before the stage. They are computed there, once for all
threads and all iterations: those of an index from its start and the condition that ends its loop,
those of a byte from its width, all others from their operands.

Terms: an `Interval` of a register of 32 (64) bits at a program point: each value that the register
has there, in any thread and iteration, is congruent modulo 2**32 (2**64) to an integer between
``low`` and ``high``, and that integer to ``base`` modulo ``step``. A *condition for doubt* is an
i1; where one holds, nothing is known.

Algorithm: interval arithmetic, backwards along definitions; of several definitions, the hull. An
index that one instruction advances by a positive amount, in a loop whose last branch compares it,
lies between its start and the last value for which the loop continues, provided that this does not
wrap.

Properties:
* if no condition for doubt holds, every value is within its interval;
* ends are numbers below 2**61 in magnitude: sums of two do not overflow 64 bits;
* an interval may be empty (high < low): then no thread reaches that point, and any statement about
  it holds.

Source: R. E. Moore, "Interval Analysis", 1966; for indices of loops, W. H. Harrison, "Compiler
Analysis of the Value Ranges for Variables", IEEE TSE 3(3), 1977.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpud.device.cpu.codegen.hoisting.slices import UnknownValue

if TYPE_CHECKING:
    from gpud.device.cpu.ir.emitter import Emitter

__all__ = ["EXACT", "End", "Interval", "IntervalArithmetic"]

End = int | str
EXACT = 1 << 60
"""The ``step`` of an interval with a single value."""
_MAX_END = 1 << 61
_WIDE = 1 << 60
_LIMITS = {"s32": (-(1 << 31), (1 << 31) - 1), "u32": (0, (1 << 32) - 1),
           "s64": (-_MAX_END, _MAX_END), "u64": (0, _MAX_END)}  # fmt: skip


@dataclass(frozen=True)
class Interval:
    """An interval as the module describes it; ``most`` bounds the magnitude of both ends."""

    low: End
    high: End
    step: int
    base: End
    most: int


class IntervalArithmetic:
    """Operations on intervals; appends to ``doubts`` conditions under which they are wrong."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self.doubts: list[str] = []

    # -- ends

    def _binary(self, what: str, first: End, second: End, known: Callable[[int, int], int]) -> End:
        if isinstance(first, int) and isinstance(second, int):
            return known(first, second)
        return self.emitter.value(f"{what} i64 {first}, {second}")

    def plus(self, first: End, second: End) -> End:
        """Return the sum of two ends."""
        if second == 0:
            return first
        return second if first == 0 else self._binary("add", first, second, lambda a, b: a + b)

    def minus(self, first: End, second: End) -> End:
        """Return the difference of two ends."""
        if second == 0:
            return first
        return self._binary("sub", first, second, lambda a, b: a - b)

    def times(self, first: End, second: End) -> End:
        """Return the product of two ends."""
        if second == 1:
            return first
        return second if first == 1 else self._binary("mul", first, second, lambda a, b: a * b)

    def least(self, first: End, second: End) -> End:
        """Return the lesser of two ends."""
        return first if first == second else self._choice("smin", first, second, min)

    def greatest(self, first: End, second: End) -> End:
        """Return the greater of two ends."""
        return first if first == second else self._choice("smax", first, second, max)

    def _choice(self, name: str, first: End, second: End, known: Callable[..., int]) -> End:
        if isinstance(first, int) and isinstance(second, int):
            return known(first, second)
        self.emitter.module.declare(f"declare i64 @llvm.{name}.i64(i64, i64)")
        return self.emitter.value(f"call i64 @llvm.{name}.i64(i64 {first}, i64 {second})")

    def doubt(self, how: str, first: End, second: End) -> None:
        """Add a condition for doubt: a comparison of two ends.

        Args:
            how: the comparison, as LLVM names it: ``slt``, ``sgt`` or ``ne``.
            first: its left side.
            second: its right side.

        Raises:
            UnknownValue: both ends are known, and the condition holds.
        """
        if isinstance(first, int) and isinstance(second, int):
            if {"slt": first < second, "sgt": first > second, "ne": first != second}[how]:
                raise UnknownValue
        else:
            self.doubts.append(self.emitter.value(f"icmp {how} i64 {first}, {second}"))

    # -- intervals

    def one(self, value: End, most: int) -> Interval:
        """Return the interval of a value that is the same for all threads and iterations."""
        if isinstance(value, str) and value.lstrip("-").isdigit():
            value = int(value)
        if isinstance(value, int):
            most = abs(value)
        return Interval(value, value, EXACT, value, most)

    def within(self, low: int, high: int) -> Interval:
        """Return the interval of all integers from ``low`` to ``high``."""
        return Interval(low, high, 1, 0, max(abs(low), abs(high)))

    def fits(self, one: Interval, type_: str) -> Interval:
        """Return ``one`` as the interval of a register that is read as ``type_``.

        Raises:
            UnknownValue: it certainly does not fit, or the type is not an integer.
        """
        if type_ not in _LIMITS:
            raise UnknownValue
        least, greatest = _LIMITS[type_]
        if one.most > -least or isinstance(one.low, int):
            self.doubt("slt", one.low, least)
        if one.most > greatest or isinstance(one.high, int):
            self.doubt("sgt", one.high, greatest)
        return replace(one, most=min(one.most, max(-least, greatest)))

    def small(self, one: Interval, most: int = _WIDE) -> Interval:
        """Return ``one``; it is in doubt if an end exceeds ``most`` in magnitude."""
        if one.most <= most:
            return one
        self.doubt("slt", one.low, -most)
        self.doubt("sgt", one.high, most)
        return replace(one, most=most)

    def add(self, first: Interval, second: Interval) -> Interval:
        """Add two intervals."""
        first, second = self.small(first), self.small(second)
        return Interval(
            self.plus(first.low, second.low),
            self.plus(first.high, second.high),
            min(first.step, second.step),
            self.plus(first.base, second.base),
            first.most + second.most,
        )

    def negate(self, one: Interval) -> Interval:
        """Negate an interval."""
        low, high = self.minus(0, one.high), self.minus(0, one.low)
        return Interval(low, high, one.step, self.minus(0, one.base), one.most)

    def multiply(self, first: Interval, second: Interval) -> Interval:
        """Multiply two intervals, of which one is a single value."""
        if second.low != second.high:
            first, second = second, first
        factor = second.low
        if factor != second.high or second.step != EXACT:
            raise UnknownValue
        if first.most * second.most > _MAX_END:
            most = _WIDE // factor if isinstance(factor, int) and factor > 0 else 1 << 30
            first, second = self.small(first, most), self.small(second)
            if not isinstance(factor, int):
                second = self.small(second, 1 << 30)
        low, high = self.times(first.low, factor), self.times(first.high, factor)
        if not isinstance(factor, int):
            low, high = self.least(low, high), self.greatest(low, high)
        elif factor < 0:
            low, high = high, low
        step = (
            min(first.step * (abs(factor) & -factor if factor else EXACT), EXACT)
            if isinstance(factor, int)
            else first.step
        )
        base = self.times(first.base, factor)
        return Interval(low, high, step, base, first.most * second.most)

    def hull(self, first: Interval, second: Interval) -> Interval:
        """Return the smallest interval that contains both."""
        low, high = self.least(first.low, second.low), self.greatest(first.high, second.high)
        step, base = 1, first.base
        if isinstance(first.base, int) and isinstance(second.base, int):
            apart = first.base - second.base
            step = min(first.step, second.step, apart & -apart if apart else EXACT)
        elif first.base == second.base:
            step = min(first.step, second.step)
        return Interval(low, high, step, base if step > 1 else 0, max(first.most, second.most))

    def lesser(self, first: Interval, second: Interval) -> Interval:
        """Return the minima of two intervals of integers."""
        low, high = self.least(first.low, second.low), self.least(first.high, second.high)
        return Interval(low, high, 1, 0, max(first.most, second.most))

    def greater(self, first: Interval, second: Interval) -> Interval:
        """Return the maxima of two intervals of integers."""
        low, high = self.greatest(first.low, second.low), self.greatest(first.high, second.high)
        return Interval(low, high, 1, 0, max(first.most, second.most))

    def shifted(self, one: Interval, bits: int) -> Interval:
        """Shift an interval of integers right."""
        low, high = (
            self._binary("ashr", end, bits, lambda a, b: a >> b) for end in (one.low, one.high)
        )
        return Interval(low, high, 1, 0, one.most)
