"""IEEE 754 operations on Python floats, rounded once, in every mode that PTX has.

Approach: infinities, NaNs and signed zeros by case; everything finite through exact `Fraction`s
and `round_fraction`. A format narrower than double precision is a Python float too.

Source: IEEE 754-2019, sections 4.3, 5.4 and 6.3 (sign of zero); PTX ISA 9.0, section 9.7.3
(``.ftz`` flushes subnormal inputs and results, ``.sat`` clamps to [0, 1] and turns NaN into +0).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from .reference import Format, Mode, round_fraction

__all__ = ["add", "divide", "fma", "operation", "square_root"]

Operation = Callable[..., float]


def fma(a: float, b: float, c: float, form: Format, mode: Mode) -> float:
    """``a * b + c`` rounded once."""
    if any(map(math.isnan, (a, b, c))):
        return math.nan
    if math.isinf(a) or math.isinf(b):
        if a == 0 or b == 0:
            return math.nan
        product = math.copysign(math.inf, a) * math.copysign(1.0, b)
        return product + c if math.isinf(c) else product
    if math.isinf(c):
        return c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    product_negative = math.copysign(1.0, a) * math.copysign(1.0, b) < 0
    return round_fraction(
        exact, form, mode, negative_zero=_zero_sign(product_negative, _negative(c), mode)
    )


def multiply(a: float, b: float, form: Format, mode: Mode) -> float:
    """``a * b`` rounded once."""
    negative = _negative(a) != _negative(b)
    result = fma(a, b, -0.0 if negative else 0.0, form, mode)
    return math.copysign(result, -1.0 if negative else 1.0) if result == 0 else result


def add(a: float, b: float, form: Format, mode: Mode) -> float:
    """``a + b`` rounded once."""
    return fma(a, 1.0, b, form, mode)


def divide(a: float, b: float, form: Format, mode: Mode) -> float:
    """``a / b`` rounded once."""
    if math.isnan(a) or math.isnan(b) or (math.isinf(a) and math.isinf(b)) or (a == 0 and b == 0):
        return math.nan
    negative = _negative(a) != _negative(b)
    if math.isinf(a) or b == 0:
        return -math.inf if negative else math.inf
    if math.isinf(b) or a == 0:
        return -0.0 if negative else 0.0
    return round_fraction(Fraction(a) / Fraction(b), form, mode)


def square_root(a: float, form: Format, mode: Mode) -> float:
    """``sqrt(a)`` rounded once."""
    if math.isnan(a) or a < 0:
        return math.nan
    if a == 0 or math.isinf(a):
        return a
    exact = Fraction(a)
    # Scale by an even power of two until the root has well over the format's precision, then
    # append a bit that says whether digits were cut off.
    shift = 2 * (form.precision + 4) - (
        exact.numerator.bit_length() - exact.denominator.bit_length()
    )
    shift += shift % 2
    scaled = exact * Fraction(2) ** shift
    whole = scaled.numerator // scaled.denominator
    root = math.isqrt(whole)
    sticky = int(Fraction(root) ** 2 != scaled)
    return round_fraction(Fraction(2 * root + sticky, 2) / Fraction(2) ** (shift // 2), form, mode)


def operation(
    function: Operation, form: Format, mode: Mode, *, ftz: bool = False, sat: bool = False
) -> Operation:
    """``function`` of this module as one PTX instruction, modifiers included."""

    def rounded(*operands: float) -> float:
        inputs = [_flush(x, form) for x in operands] if ftz else list(operands)
        result = function(*inputs, form, mode)
        if ftz:
            result = _flush(result, form)
        if sat:
            result = 0.0 if math.isnan(result) else min(max(result, 0.0), 1.0)
            result = abs(result)
        return result

    return rounded


def _flush(x: float, form: Format) -> float:
    return math.copysign(0.0, x) if abs(x) < 2.0**form.emin else x


def _negative(x: float) -> bool:
    return math.copysign(1.0, x) < 0


def _zero_sign(first: bool, second: bool, mode: Mode) -> bool:
    """The sign of an exact zero sum: of equal signs that sign, else plus unless rounding down."""
    return first if first == second else mode == "rm"
