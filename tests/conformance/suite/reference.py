"""Whole-array helpers of the references: single precision fused, flushed, and its spacing.

The exact arithmetic on patterns is `tests.conformance.suite.exact`; this is the fast way for
kernels that contract ``a * b + c``, as compilers do by default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


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
