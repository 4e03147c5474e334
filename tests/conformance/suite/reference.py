"""Exact arithmetic for the references: rounding in every mode and fused multiply-add.

Approach: a value is a Python `Fraction`; `round_fraction` rounds it to a binary format in the mode
that the PTX instruction names. Slow and obviously right. `fma32` does the same for single
precision over whole arrays, because kernels contract ``a * b + c`` by default.

Terms: a `Format` has ``precision`` bits of significand (the hidden one included) and the exponent
``emax`` of its largest finite value; ``emin = 1 - emax``.

Source: IEEE 754-2019, sections 3.4 and 4.3; PTX ISA 9.0, section 9.7.3 (rounding modifiers).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeAlias

import numpy as np

__all__ = [
    "BF16",
    "F16",
    "F32",
    "F64",
    "Format",
    "Mode",
    "each",
    "flush32",
    "fma32",
    "round_fraction",
    "ulp32",
]

Mode: TypeAlias = Literal["rn", "rna", "rz", "rm", "rp"]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Format:
    """A binary floating-point format."""

    precision: int
    emax: int
    bits: int

    @property
    def emin(self) -> int:
        """The exponent of the smallest normal number."""
        return 1 - self.emax


F16 = Format(11, 15, 16)
BF16 = Format(8, 127, 16)
F32 = Format(24, 127, 32)
F64 = Format(53, 1023, 64)


def round_fraction(
    value: Fraction,
    form: Format,
    mode: Mode = "rn",
    *,
    negative_zero: bool = False,
    saturate: bool = False,
) -> float:
    """``value`` rounded to ``form``, as a Python float (which holds all four formats exactly).

    Overflow gives infinity or the largest finite number as the mode directs. ``negative_zero`` is
    the sign of an exact zero. ``saturate`` clamps to [0, 1] first, as ``.sat`` does.
    """
    if saturate:
        value = min(max(value, Fraction(0)), Fraction(1))
    if value == 0:
        return -0.0 if negative_zero and not saturate else 0.0
    magnitude = abs(value)
    exponent = max(_exponent(magnitude), form.emin)
    quantum = Fraction(2) ** (exponent - form.precision + 1)
    units, rest = divmod(magnitude, quantum)
    if _rounds_up(int(units), rest / quantum, mode, negative=value < 0):
        units += 1
    result = units * quantum
    if result >= Fraction(2) ** (form.emax + 1):
        toward_zero = mode == "rz" or (mode == "rm" and value > 0) or (mode == "rp" and value < 0)
        largest = (Fraction(2) - Fraction(2) ** (1 - form.precision)) * Fraction(2) ** form.emax
        rounded = float(largest) if toward_zero else math.inf
    else:
        rounded = float(result)
    return -rounded if value < 0 else rounded


def fma32(a: Array, b: Array, c: Array) -> Array:
    """Single-precision fused multiply-add, elementwise, rounded once to nearest even.

    The product is exact in double precision. The sum is rounded to odd there (its last bit is set
    when it is inexact), which keeps the second rounding, to 24 bits, from going wrong twice.
    """
    x, y, z = (np.asarray(v, np.float32).astype(np.float64) for v in (a, b, c))
    with np.errstate(all="ignore"):
        product = x * y
        total = product + z
        rest = _two_sum_error(product, z, total)
        bits = np.asarray(total).view(np.int64)
        inexact = np.isfinite(total) & np.isfinite(rest) & (rest != 0) & (bits & 1 == 0)
        # Toward the error: away from zero if it has the sum's sign, else toward zero.
        step = np.where((rest > 0) == (total > 0), 1, -1)
        odd = np.where(inexact, bits + step, bits).view(np.float64)
        result: Array = odd.astype(np.float32)
    return result


def flush32(x: Array) -> Array:
    """Subnormal single-precision values replaced by zero of the same sign, as ``.ftz`` does."""
    x = np.asarray(x, np.float32)
    tiny = np.abs(x) < np.finfo(np.float32).tiny
    flushed: Array = np.where(tiny, np.copysign(np.float32(0), x), x).astype(np.float32)
    return flushed


def ulp32(x: Array) -> Array:
    """The distance from ``|x|`` to the next larger single-precision number, as float64."""
    magnitude = np.abs(np.asarray(x, np.float32))
    spacing: Array = np.spacing(magnitude).astype(np.float64)
    return spacing


def each(function: Callable[..., Any], dtype: Any, *arrays: Array) -> Array:
    """``function`` of Python scalars applied elementwise; the result has ``dtype``."""
    columns = [array.ravel().tolist() for array in arrays]
    values = [function(*row) for row in zip(*columns, strict=True)]
    return np.array(values, dtype).reshape(arrays[0].shape)


def _two_sum_error(a: Array, b: Array, total: Array) -> Array:
    """What rounding lost in ``total = a + b`` (Knuth, TAOCP volume 2, section 4.2.2, theorem B)."""
    b_part = total - a
    a_part = total - b_part
    error: Array = (a - a_part) + (b - b_part)
    return error


def _exponent(magnitude: Fraction) -> int:
    """The e with ``2**e <= magnitude < 2**(e + 1)``."""
    guess = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    return guess if Fraction(2) ** guess <= magnitude else guess - 1


def _rounds_up(units: int, rest: Fraction, mode: Mode, *, negative: bool) -> bool:
    """Whether a magnitude of ``units`` quanta and a ``rest`` of one rounds away from zero."""
    if rest == 0 or mode == "rz":
        return False
    if mode == "rm":
        return negative
    if mode == "rp":
        return not negative
    half = Fraction(1, 2)
    if rest != half:
        return rest > half
    return mode == "rna" or units % 2 == 1
