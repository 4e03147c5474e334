"""Exact floating-point arithmetic on bit patterns, with Fractions: slow, and nothing shared.

A finite number is a `Fraction`; `encode` rounds one to a format in any direction. Infinities,
NaNs and the signs of zeros follow IEEE 754, sections 6 and 7.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from tests.unit.cpu.lower.instruction_runner import Array

__all__ = ["BF16", "F16", "F32", "F64", "Format", "add", "divide", "fma", "multiply", "samples"]


@dataclass(frozen=True)
class Format:
    """``exponent`` and ``mantissa`` bits of an IEEE format, ``nan`` its canonical NaN."""

    exponent: int
    mantissa: int
    nan: int
    dtype: str

    @property
    def width(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent) - 1) << self.mantissa

    @property
    def sign(self) -> int:
        return 1 << (self.width - 1)

    @property
    def least_exponent(self) -> int:
        return 2 - (1 << (self.exponent - 1))

    def is_nan(self, bits: int) -> bool:
        return bits & (self.sign - 1) > self.infinity

    def is_infinite(self, bits: int) -> bool:
        return bits & (self.sign - 1) == self.infinity

    def is_negative(self, bits: int) -> bool:
        return bool(bits & self.sign)

    def flush(self, bits: int) -> int:
        return bits & self.sign if bits & self.infinity == 0 else bits

    def decode(self, bits: int) -> Fraction:
        """The value of a finite pattern."""
        magnitude = bits & (self.sign - 1)
        exponent, mantissa = magnitude >> self.mantissa, magnitude & ((1 << self.mantissa) - 1)
        if exponent:
            mantissa |= 1 << self.mantissa
        power = max(exponent, 1) - 1 + self.least_exponent - self.mantissa
        value = mantissa * Fraction(2) ** power
        return -value if bits & self.sign else value

    def encode(self, value: Fraction, mode: str = "rn", *, negative_zero: bool = False) -> int:
        """``value`` rounded in ``mode``: rn, rz, rm, rp, or rna (ties away from zero)."""
        if value == 0:
            return self.sign if negative_zero else 0
        negative, value = value < 0, abs(value)
        exponent = value.numerator.bit_length() - value.denominator.bit_length()
        if value < Fraction(2) ** exponent:
            exponent -= 1
        exponent = max(exponent, self.least_exponent)
        scaled = value / Fraction(2) ** (exponent - self.mantissa)
        low = scaled.numerator // scaled.denominator
        rest = scaled - low
        away = mode == ("rm" if negative else "rp")
        half = Fraction(1, 2)
        if mode == "rna":
            up = rest >= half
        elif mode == "rn":
            up = rest > half or (rest == half and low & 1 == 1)
        else:
            up = away and rest > 0
        bits = ((exponent - self.least_exponent) << self.mantissa) + low + up
        if bits >= self.infinity:
            bits = self.infinity if mode in ("rn", "rna") or away else self.infinity - 1
        return bits | (self.sign if negative else 0)


F16 = Format(5, 10, 0x7FFF, "u2")
BF16 = Format(8, 7, 0x7FFF, "u2")
F32 = Format(8, 23, 0x7FFFFFFF, "u4")
F64 = Format(11, 52, 0x7FFFFFFFFFFFFFFF, "u8")


def add(f: Format, a: int, b: int, *, mode: str = "rn", exact: Fraction | None = None) -> int:
    """a + b; ``exact`` replaces a's value (a product) where a is finite."""
    if f.is_nan(a) or f.is_nan(b):
        return f.nan
    if f.is_infinite(a):
        return f.nan if f.is_infinite(b) and a != b else a
    if f.is_infinite(b):
        return b
    first = f.decode(a) if exact is None else exact
    second = f.decode(b)
    if first == 0 and second == 0 and f.is_negative(a) == f.is_negative(b):
        return a & f.sign
    return f.encode(first + second, mode, negative_zero=mode == "rm")


def multiply(f: Format, a: int, b: int, *, mode: str = "rn") -> int:
    """The product a * b."""
    if f.is_nan(a) or f.is_nan(b):
        return f.nan
    sign = (a ^ b) & f.sign
    if f.is_infinite(a) or f.is_infinite(b):
        zero = 0 in (a & (f.sign - 1), b & (f.sign - 1))
        return f.nan if zero else f.infinity | sign
    return f.encode(f.decode(a) * f.decode(b), mode, negative_zero=bool(sign))


def fma(f: Format, a: int, b: int, c: int, *, mode: str = "rn") -> int:
    """a * b + c rounded once."""
    sign = (a ^ b) & f.sign
    if any(map(f.is_nan, (a, b))):
        return f.nan
    if f.is_infinite(a) or f.is_infinite(b):
        return add(f, multiply(f, a, b), c, mode=mode)
    return add(f, sign, c, mode=mode, exact=f.decode(a) * f.decode(b))


def divide(f: Format, a: int, b: int, *, mode: str = "rn") -> int:
    """The quotient a / b."""
    if f.is_nan(a) or f.is_nan(b):
        return f.nan
    sign = (a ^ b) & f.sign
    zero = b & (f.sign - 1) == 0
    if f.is_infinite(a):
        return f.nan if f.is_infinite(b) else f.infinity | sign
    if f.is_infinite(b):
        return sign
    if zero:
        return f.nan if a & (f.sign - 1) == 0 else f.infinity | sign
    return f.encode(f.decode(a) / f.decode(b), mode, negative_zero=bool(sign))


def square_root(f: Format, a: int, *, mode: str = "rn") -> int:
    """The square root of a."""
    if f.is_nan(a) or a & (f.sign - 1) == 0:
        return f.nan if f.is_nan(a) else a
    if f.is_negative(a):
        return f.nan
    if f.is_infinite(a):
        return a
    # 200 extra bits and a sticky one decide every rounding.
    value = f.decode(a)
    scaled = value * Fraction(4) ** 700
    root = math.isqrt(scaled.numerator // scaled.denominator)
    exact = Fraction(root * root) == scaled
    return f.encode((root + (Fraction(0) if exact else Fraction(1, 2))) / Fraction(2) ** 700, mode)


def _interesting(f: Format) -> Iterator[int]:
    """Zeros, subnormals, powers of two and their neighbours, infinities and NaNs."""
    one = ((1 << (f.exponent - 1)) - 1) << f.mantissa
    unit = 1 << f.mantissa
    points = [0, unit, f.infinity, one, one + unit, one + (unit >> 1), one - 3 * unit, 1, unit >> 1]
    points += [one + (f.mantissa + k) * unit for k in (-1, 0, 1, 2) if f.mantissa + k < 15]
    for point in points:
        for step in (-2, -1, 0, 1, 2):
            bits = point + step
            if 0 <= bits < f.sign:
                yield bits
                yield bits | f.sign
    yield from (f.nan, f.nan | f.sign, f.infinity + (unit >> 1), f.infinity + 5)


def samples(f: Format, arity: int, count: int, seed: int) -> list[Array]:
    """``arity`` arrays of bit patterns: special values in all pairs, then random ones.

    Half of the random tuples have exponents close together, where cancellation and halfway cases
    are common, and short mantissas.
    """
    special = np.array(sorted(set(_interesting(f))), f.dtype)
    rng = np.random.default_rng(seed)
    columns = [rng.integers(0, 1 << f.width, count, dtype=np.uint64) for _ in range(arity)]
    near = rng.integers(0, 2, count).astype(bool)
    middle = ((1 << (f.exponent - 1)) - 1) << f.mantissa
    for index, column in enumerate(columns):
        spread = rng.integers(-12, 13, count) if f.exponent > 5 else rng.integers(-9, 10, count)
        mantissa = column & np.uint64((1 << f.mantissa) - 1)
        short = rng.integers(0, f.mantissa + 1, count).astype(np.uint64)
        mantissa = (mantissa >> short) << short
        close = (np.int64(middle) + (spread << f.mantissa)).astype(np.uint64) + mantissa
        close |= column & np.uint64(f.sign)
        columns[index] = np.where(near, close, column)
    grids = list(np.meshgrid(*([special] * min(arity, 2))))
    while len(grids) < arity:
        grids.append(rng.choice(special, grids[0].shape))
    return [
        np.concatenate([g.ravel().astype(f.dtype), c.astype(f.dtype)])
        for g, c in zip(grids, columns, strict=True)
    ]
