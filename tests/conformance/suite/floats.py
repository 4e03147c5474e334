"""Single and double precision: every rounding mode, flushing and saturation.

References are exact (`ieee`). Source: PTX ISA 9.0, section 9.7.3.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import ieee
from .case import Case
from .predicates import float_operands
from .reference import F32, F64, Format, Mode, each, flush32
from .sweep import Op, bits_of, sweep

Array = np.ndarray[Any, Any]
Rng = np.random.Generator

_MODES: tuple[Mode, ...] = ("rn", "rz", "rm", "rp")


def _op(
    name: str, t: str, function: Any, count: int, form: Format, mode: Mode, modifiers: str = ""
) -> Op:
    """An op of ``count`` operands; ``modifiers`` is what stands between name and type."""
    dtype = f"f{form.bits // 8}"
    exact = ieee.operation(function, form, mode, ftz=".ftz" in modifiers, sat=".sat" in modifiers)
    operands = ", ".join("abc"[:count])
    return Op(
        f"{name}{modifiers}.{t} d, {operands};",
        dtype,
        lambda *arrays: each(exact, dtype, *arrays[:count]),
    )


def _rounded(t: str, form: Format) -> list[Op]:
    """Everything that takes a rounding mode, and the spellings without one."""
    ops = [
        _op("add", t, ieee.add, 2, form, "rn"),
        _op("mul", t, ieee.multiply, 2, form, "rn"),
    ]
    for mode in _MODES:
        m = f".{mode}"
        ops += [
            _op("add", t, ieee.add, 2, form, mode, m),
            _op("mul", t, ieee.multiply, 2, form, mode, m),
            _op("fma", t, ieee.fma, 3, form, mode, m),
            _op("mad", t, ieee.fma, 3, form, mode, m),
            _op("div", t, ieee.divide, 2, form, mode, m),
            _op("sqrt", t, ieee.square_root, 1, form, mode, m),
            Op(
                f"rcp.{mode}.{t} d, a;",
                f"f{form.bits // 8}",
                lambda a, *_, mode=mode: each(
                    lambda x: ieee.divide(1.0, x, form, mode), a.dtype, a
                ),
            ),
            Op(
                f"sub.{mode}.{t} d, a, b;",
                f"f{form.bits // 8}",
                lambda a, b, *_, mode=mode: each(
                    lambda x, y: ieee.add(x, -y, form, mode), a.dtype, a, b
                ),
            ),
        ]
    return ops


def _modified() -> list[Op]:
    """Flushing and saturation, which single precision alone has."""
    ops = []
    for mode in _MODES:
        ops += [
            _op("add", "f32", ieee.add, 2, F32, mode, f".{mode}.ftz"),
            _op("mul", "f32", ieee.multiply, 2, F32, mode, f".{mode}.ftz.sat"),
            _op("fma", "f32", ieee.fma, 3, F32, mode, f".{mode}.sat"),
            _op("fma", "f32", ieee.fma, 3, F32, mode, f".{mode}.ftz"),
        ]
    ops += [
        _op("add", "f32", ieee.add, 2, F32, "rn", ".sat"),
        _op("add", "f32", ieee.add, 2, F32, "rn", ".ftz.sat"),
        _op("mul", "f32", ieee.multiply, 2, F32, "rn", ".sat"),
        _op("mul", "f32", ieee.multiply, 2, F32, "rn", ".ftz"),
        _op("div", "f32", ieee.divide, 2, F32, "rn", ".rn.ftz"),
        _op("sqrt", "f32", ieee.square_root, 1, F32, "rn", ".rn.ftz"),
        Op("sub.f32 d, a, b;", "f4", lambda a, b, c: a - b),
        Op("sub.ftz.sat.f32 d, a, b;", "f4", lambda a, b, c: _saturated(flush32(a), flush32(b))),
    ]
    return ops


def _saturated(a: Array, b: Array) -> Array:
    difference = flush32(a - b)
    clamped = np.where(np.isnan(difference), 0, np.clip(difference, 0, 1))
    return np.abs(clamped).astype(np.float32)


def _least(a: Array, b: Array) -> Array:
    """``min``: a NaN loses, and -0 is less than +0 (PTX ISA 9.0, 9.7.3 ``min``)."""
    both_zero = (a == 0) & (b == 0)
    return np.where(both_zero, np.where(np.signbit(a), a, b), np.fmin(a, b)).astype(a.dtype)


def _most(a: Array, b: Array) -> Array:
    both_zero = (a == 0) & (b == 0)
    return np.where(both_zero, np.where(np.signbit(a), b, a), np.fmax(a, b)).astype(a.dtype)


def _extremes(t: str, dtype: str) -> list[Op]:
    ops = [
        Op(f"min.{t} d, a, b;", dtype, lambda a, b, *_: _least(a, b)),
        Op(f"max.{t} d, a, b;", dtype, lambda a, b, *_: _most(a, b)),
        Op(f"abs.{t} d, a;", dtype, lambda a, *_: np.abs(a)),
        Op(f"neg.{t} d, a;", dtype, lambda a, *_: -a),
        Op(f"copysign.{t} d, a, b;", dtype, lambda a, b, *_: np.copysign(b, a)),
        Op(f"mov.{t} d, b;", dtype, lambda a, b, *_: b.copy()),
        Op(f"sub.{t} d, a, b;", dtype, lambda a, b, *_: a - b),
    ]
    for kind, holds in {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        # Zeros count as normal (PTX ISA 9.0, 9.7.3, testp).
        "normal": lambda a: (a == 0) | np.isfinite(a) & (np.abs(a) >= np.finfo(a.dtype).tiny),
        "subnormal": lambda a: (a != 0) & (np.abs(a) < np.finfo(a.dtype).tiny),
    }.items():
        ops.append(
            Op(
                f"{{ .reg .pred p; testp.{kind}.{t} p, a; selp.u32 d, 1, 0, p; }}",
                "u4",
                lambda a, *_, holds=holds: holds(a).astype(np.uint32),
            )
        )
    return ops


_CANONICAL = np.uint32(0x7FFFFFFF)


def _with_nan(a: Array, b: Array, number: Array) -> Array:
    """The bits of ``number``, or of the canonical NaN where ``a`` or ``b`` is a NaN."""
    return np.where(np.isnan(a) | np.isnan(b), _CANONICAL, bits_of(number)).astype(np.uint32)


def _extremes_f32() -> list[Op]:
    return [
        Op("min.ftz.f32 d, a, b;", "f4", lambda a, b, *_: _least(flush32(a), flush32(b))),
        Op("max.ftz.f32 d, a, b;", "f4", lambda a, b, *_: _most(flush32(a), flush32(b))),
        Op("abs.ftz.f32 d, a;", "f4", lambda a, *_: np.abs(flush32(a))),
        Op("neg.ftz.f32 d, a;", "f4", lambda a, *_: -flush32(a)),
        # sm_80 has .NaN: the canonical NaN if either input is one.
        Op("min.NaN.f32 d, a, b;", "u4", lambda a, b, *_: _with_nan(a, b, _least(a, b))),
        Op("max.NaN.f32 d, a, b;", "u4", lambda a, b, *_: _with_nan(a, b, _most(a, b))),
        Op(
            "max.ftz.NaN.xorsign.abs.f32 d, a, b;",
            "u4",
            lambda a, b, *_: _with_nan(a, b, _xorsign(a, b)),
        ),
    ]


def _xorsign(a: Array, b: Array) -> Array:
    magnitude = _most(np.abs(flush32(a)), np.abs(flush32(b)))
    return np.copysign(magnitude, np.where(np.signbit(a) == np.signbit(b), 1, -1)).astype(a.dtype)


# -- contraction: what the compiler makes of a * b + c -----------------------------------------

CONTRACTION = r"""
extern "C" __global__ void contraction(const float* a, const float* b, const float* c,
                                       float* fused, float* apart, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    fused[i] = a[i] * b[i] + c[i];
    apart[i] = __fadd_rn(__fmul_rn(a[i], b[i]), c[i]);
}
"""


def _contraction_make(rng: Rng) -> list[Any]:
    arrays = float_operands("f4", 3, extra=400)(rng)
    a, b = arrays[0], arrays[1]
    with np.errstate(all="ignore"):
        arrays[2][300:] = -(a * b)[300:]  # cancellation shows what the product lost
    blank = np.zeros(a.size, np.float32)
    return [*arrays, blank, blank.copy(), np.int32(a.size)]


def _contraction_expect(args: list[Any]) -> dict[int | str, Any]:
    a, b, c, *_ = args
    fused = ieee.operation(ieee.fma, F32, "rn")
    with np.errstate(all="ignore"):
        return {3: each(fused, "f4", a, b, c), 4: a * b + c}


CASES: tuple[Case, ...] = (
    sweep(
        "float_f32",
        _rounded("f32", F32),
        ("f4",) * 3,
        float_operands("f4", 3, extra=60),
        covers=frozenset({"float.f32", "rounding"}),
    ),
    sweep(
        "float_f64",
        _rounded("f64", F64),
        ("f8",) * 3,
        float_operands("f8", 3, extra=60),
        covers=frozenset({"float.f64", "rounding"}),
    ),
    sweep(
        "float_flush_saturate",
        _modified(),
        ("f4",) * 3,
        float_operands("f4", 3, extra=60),
        covers=frozenset({"ftz", "sat"}),
    ),
    sweep(
        "float_extremes_f32",
        [*_extremes("f32", "f4"), *_extremes_f32()],
        ("f4", "f4"),
        float_operands("f4", 2),
        arch="compute_90",
        covers=frozenset({"min", "max", "testp", "copysign", "nan"}),
    ),
    sweep(
        "float_extremes_f64",
        _extremes("f64", "f8"),
        ("f8", "f8"),
        float_operands("f8", 2),
        block=56,
        covers=frozenset({"min", "max", "testp", "copysign", "nan"}),
    ),
    Case(
        "contraction",
        CONTRACTION,
        (8,),
        (96,),
        _contraction_make,
        _contraction_expect,
        covers=frozenset({"fma"}),
    ),
)
