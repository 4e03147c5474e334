"""Exact arithmetic on floating-point bit patterns: the one reference for every PTX float.

Approach: a finite number is an integer times a power of two; `Format.encode` rounds one to a format
in any of PTX's modes. Infinities, NaNs and the signs of zeros go by case. Nothing here is fast and
nothing is shared with a device.

Terms: patterns are Python integers, a `Format` knows its fields. A NaN result is the canonical one,
all ones but the sign.

Source: IEEE 754-2019, sections 3.4, 4.3, 5.4 and 6.3 (sign of zero); PTX ISA 9.0, section 9.7.3
(``.ftz`` flushes subnormal inputs and results, ``.sat`` clamps to [0, 1] and turns NaN into +0).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

Array = np.ndarray[Any, Any]
Mode: TypeAlias = Literal["rn", "rz", "rm", "rp", "rna"]
Operation: TypeAlias = Callable[..., int]

MODES: tuple[Mode, ...] = ("rn", "rz", "rm", "rp")


@dataclass(frozen=True)
class Format:
    """``exponent`` and ``mantissa`` bits of a binary format."""

    exponent: int
    mantissa: int

    @cached_property
    def width(self) -> int:
        """Bits of a pattern."""
        return 1 + self.exponent + self.mantissa

    @cached_property
    def sign(self) -> int:
        """The sign bit; also the number of patterns without it."""
        return 1 << (self.width - 1)

    @cached_property
    def infinity(self) -> int:
        """Plus infinity."""
        return ((1 << self.exponent) - 1) << self.mantissa

    @cached_property
    def nan(self) -> int:
        """The canonical NaN."""
        return self.sign - 1

    @cached_property
    def one(self) -> int:
        """1.0."""
        return ((1 << (self.exponent - 1)) - 1) << self.mantissa

    @cached_property
    def least_exponent(self) -> int:
        """The exponent of the smallest normal number."""
        return 2 - (1 << (self.exponent - 1))

    @property
    def dtype(self) -> str:
        """The NumPy type of a pattern."""
        return f"u{max(self.width // 8, 1)}"

    def is_nan(self, bits: int) -> bool:
        """Whether the pattern is a NaN."""
        return bits & (self.sign - 1) > self.infinity

    def is_infinite(self, bits: int) -> bool:
        """Whether the pattern is an infinity."""
        return bits & (self.sign - 1) == self.infinity

    def flush(self, bits: int) -> int:
        """The pattern, or the zero of its sign if it is subnormal."""
        return bits & self.sign if bits & self.infinity == 0 else bits

    def saturate(self, bits: int) -> int:
        """The pattern clamped to [0, 1]; +0 for a NaN."""
        return 0 if self.is_nan(bits) or bits & self.sign else min(bits, self.one)

    def decode(self, bits: int) -> tuple[int, int]:
        """(m, e) with the value ``m * 2**e`` of a finite pattern."""
        magnitude = bits & (self.sign - 1)
        exponent, number = magnitude >> self.mantissa, magnitude & ((1 << self.mantissa) - 1)
        if exponent:
            number |= 1 << self.mantissa
        power = max(exponent, 1) - 1 + self.least_exponent - self.mantissa
        return (-number if bits & self.sign else number), power

    def encode(
        self, number: int, power: int = 0, mode: Mode = "rn", *, negative_zero: bool = False
    ) -> int:
        """``number * 2**power`` rounded; ``rna`` rounds ties away from zero."""
        if number == 0:
            return self.sign if negative_zero else 0
        sign, number = (self.sign, -number) if number < 0 else (0, number)
        exponent = max(power + number.bit_length() - 1, self.least_exponent)
        drop = exponent - self.mantissa - power
        if drop <= 0:
            low, rest, half = number << -drop, 0, 1
        else:
            low, rest, half = number >> drop, number & ((1 << drop) - 1), 1 << (drop - 1)
        away = mode == ("rm" if sign else "rp")
        if mode == "rna":
            up = rest >= half
        elif mode == "rn":
            up = rest > half or (rest == half and low & 1 == 1)
        else:
            up = away and rest > 0
        bits = ((exponent - self.least_exponent) << self.mantissa) + low + up
        if bits >= self.infinity:
            bits = self.infinity if mode in ("rn", "rna") or away else self.infinity - 1
        return bits | sign


F16 = Format(5, 10)
BF16 = Format(8, 7)
F32 = Format(8, 23)
F64 = Format(11, 52)
FORMATS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64}


# -- operations --------------------------------------------------------------------------------


def fma(f: Format, mode: Mode, a: int, b: int, c: int) -> int:
    """``a * b + c`` rounded once."""
    if f.is_nan(a) or f.is_nan(b) or f.is_nan(c):
        return f.nan
    sign = (a ^ b) & f.sign
    if f.is_infinite(a) or f.is_infinite(b):
        zero = 0 in (a & (f.sign - 1), b & (f.sign - 1))
        product = f.infinity | sign
        return f.nan if zero or (f.is_infinite(c) and c != product) else product
    if f.is_infinite(c):
        return c
    (m, e), (n, g), (k, h) = f.decode(a), f.decode(b), f.decode(c)
    product, power = m * n, e + g
    if product == 0 == k:
        return sign if sign == c & f.sign else f.sign * (mode == "rm")
    least = min(power, h)
    total = (product << (power - least)) + (k << (h - least))
    return f.encode(total, least, mode, negative_zero=mode == "rm")


def multiply(f: Format, mode: Mode, a: int, b: int) -> int:
    """``a * b`` rounded once."""
    sign = (a ^ b) & f.sign
    result = fma(f, mode, a, b, sign)
    return result if result & (f.sign - 1) else sign


def add(f: Format, mode: Mode, a: int, b: int) -> int:
    """``a + b`` rounded once."""
    return fma(f, mode, a, f.one, b)


def subtract(f: Format, mode: Mode, a: int, b: int) -> int:
    """``a - b`` rounded once."""
    return fma(f, mode, a, f.one, b ^ f.sign)


def divide(f: Format, mode: Mode, a: int, b: int) -> int:
    """``a / b`` rounded once."""
    if f.is_nan(a) or f.is_nan(b) or (f.is_infinite(a) and f.is_infinite(b)):
        return f.nan
    sign = (a ^ b) & f.sign
    if f.is_infinite(a) or b & (f.sign - 1) == 0:
        return f.nan if a & (f.sign - 1) == 0 else f.infinity | sign
    if f.is_infinite(b):
        return sign
    (m, e), (n, g) = f.decode(a), f.decode(b)
    shift = 2 * f.mantissa + 8
    quotient, rest = divmod(abs(m) << shift, abs(n))
    # One more bit says whether digits were cut off.
    exact = 2 * quotient + (rest > 0)
    return f.encode(-exact if sign else exact, e - g - shift - 1, mode, negative_zero=bool(sign))


def reciprocal(f: Format, mode: Mode, a: int) -> int:
    """``1 / a`` rounded once."""
    return divide(f, mode, f.one, a)


def square_root(f: Format, mode: Mode, a: int) -> int:
    """The root of ``a`` rounded once."""
    if a & (f.sign - 1) == 0 or a == f.infinity:
        return a
    if f.is_nan(a) or a & f.sign:
        return f.nan
    m, e = f.decode(a)
    shift = 2 * f.mantissa + 8 + (e & 1)
    scaled = m << shift
    root = math.isqrt(scaled)
    return f.encode(2 * root + (root * root != scaled), (e - shift) // 2 - 1, mode)


def minimum(f: Format, a: int, b: int) -> int:
    """``min``: a NaN loses, and -0 is less than +0 (PTX ISA 9.0, section 9.7.3)."""
    if f.is_nan(a) or f.is_nan(b):
        other = b if f.is_nan(a) else a
        return f.nan if f.is_nan(other) else other
    return min(a, b, key=lambda x: -(x & ~f.sign) - 1 if x & f.sign else x)


def maximum(f: Format, a: int, b: int) -> int:
    """``max``, likewise."""
    if f.is_nan(a) or f.is_nan(b):
        return minimum(f, a, b)
    return minimum(f, a ^ f.sign, b ^ f.sign) ^ f.sign


def operation(
    function: Operation,
    f: Format,
    mode: Mode = "rn",
    *,
    ftz: bool = False,
    sat: bool = False,
    relu: bool = False,
) -> Operation:
    """``function(f, mode, ...)`` with an instruction's modifiers."""

    def modified(*operands: int) -> int:
        result = function(f, mode, *(map(f.flush, operands) if ftz else operands))
        if ftz:
            result = f.flush(result)
        if sat:
            result = f.saturate(result)
        if relu and result & f.sign and not f.is_nan(result):
            result = 0
        return result

    return modified


# -- arrays ------------------------------------------------------------------------------------


def on_patterns(function: Operation, result: str, count: int = 3) -> Callable[..., Array]:
    """``function`` of patterns on whole arrays: on the first ``count`` of those it is given."""
    unsigned = f"u{np.dtype(result).itemsize}"

    def reference(*arrays: Array) -> Array:
        columns = [a.view(f"u{a.dtype.itemsize}").tolist() for a in arrays[:count]]
        rows = zip(*columns, strict=True)
        mask = (1 << 8 * int(unsigned[1])) - 1
        return np.array([function(*row) & mask for row in rows], unsigned).view(result)

    return reference


def as_double(patterns: Array, f: Format) -> Array:
    """The values of patterns of one of the four formats, which double precision holds exactly."""
    if f is BF16:
        patterns, f = patterns.astype(np.uint32) << np.uint32(16), F32
    with np.errstate(invalid="ignore"):  # signalling NaNs
        values: Array = patterns.view(f"f{f.width // 8}").astype(np.float64)
    return values


def compares(name: str, a: Array, b: Array) -> Array:
    """``setp.name``: with ``u`` true for unordered operands too."""
    unordered = np.isnan(a) | np.isnan(b)
    if name in ("num", "nan"):
        return np.asarray(unordered == (name == "nan"))
    ordered = {
        "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
        "gt": np.greater, "ge": np.greater_equal,
    }[name[:2]]  # fmt: skip
    holds = ordered(a, b)
    return np.asarray(holds | unordered if len(name) == 3 else holds & ~unordered)


# -- operands ----------------------------------------------------------------------------------


def _edges(f: Format) -> tuple[list[int], list[int]]:
    """Patterns to combine all with all, and their neighbours to combine with some.

    Zeros, subnormals, powers of two, numbers whose last bit is worth 1, infinities, NaNs.
    """
    unit = 1 << f.mantissa
    half = unit >> 1
    core = [0, 1, half, unit - 1, unit, f.one, f.one + half, f.one - 3 * unit, f.one + unit,
            f.infinity - 1, f.infinity, f.nan]  # fmt: skip
    core += [bits | f.sign for bits in core]
    points = [0, half, unit, f.one, f.one + half, f.one + unit, f.one - 3 * unit, f.infinity]
    points += [f.one + p * unit for p in range(f.mantissa - 1, min(f.mantissa + 3, f.one // unit))]
    beside = {p + step for p in points for step in (-2, -1, 0, 1, 2)}
    beside |= {f.infinity + half, f.infinity + 5, f.one + (unit >> 9), f.one + unit + half}
    more = sorted(bits for bits in beside if 0 <= bits < f.sign)
    return core, more + [bits | f.sign for bits in more]


def _drawn(f: Format, rng: np.random.Generator, arity: int, count: int) -> list[Array]:
    """Random tuples: half of them of close exponents, where cancellation and ties are common."""
    columns = [rng.integers(0, 1 << f.width, count, dtype=np.uint64) for _ in range(arity)]
    near = rng.integers(0, 2, count).astype(bool)
    spread = min(12, (1 << (f.exponent - 1)) - 6)
    for index, column in enumerate(columns):
        exponent = f.one + (rng.integers(-spread, spread + 1, count) << f.mantissa)
        short = rng.integers(0, f.mantissa + 1, count).astype(np.uint64)
        mantissa = (column & np.uint64((1 << f.mantissa) - 1)) >> short << short
        close = exponent.astype(np.uint64) + mantissa | column & np.uint64(f.sign)
        columns[index] = np.where(near, close, column)
    return columns


def samples(
    f: Format, arity: int, rng: np.random.Generator, count: int = 300, further: Sequence[int] = ()
) -> list[Array]:
    """``arity`` columns of patterns: pairs of edge values, then random ones.

    With one column also the patterns ``further``.
    """
    core, more = _edges(f)
    if arity == 1:
        rows: list[tuple[int, ...]] = [(bits,) for bits in [*core, *more, *further]]
    else:
        pairs = [(a, b) for a in core for b in core]
        for k, bits in enumerate(more):
            chosen = [core[(k + step) % len(core)] for step in (0, 7, 14)]
            pairs += [pair for other in chosen for pair in ((bits, other), (other, bits))]
        mixed = rng.permutation(len(pairs))
        every = [*core, *more]
        rows = [(*pair, every[mixed[k] % len(every)])[:arity] for k, pair in enumerate(pairs)]
    drawn = _drawn(f, rng, arity, count)
    return [
        np.concatenate([np.array(column, f.dtype), random.astype(f.dtype)])
        for column, random in zip(zip(*rows, strict=True), drawn, strict=True)
    ]
