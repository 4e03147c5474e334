"""Half precision and bfloat16, single and in pairs.

References round exactly (`ieee`). A bfloat16 result is widened to single precision in the kernel,
because NumPy has no such type. Source: PTX ISA 9.0, section 9.7.4.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import ieee
from .case import Case
from .predicates import float_operands
from .reference import BF16, F16, Format, each
from .sweep import Op, sweep

Array = np.ndarray[Any, Any]
Rng = np.random.Generator


def _least(x: float, y: float) -> float:
    if math.isnan(x) or math.isnan(y):
        return y if math.isnan(x) else x
    if x == 0 and y == 0:
        return x if math.copysign(1, x) < 0 else y
    return min(x, y)


def _most(x: float, y: float) -> float:
    return -_least(-x, -y)


def _nan_first(function: Any) -> Any:
    return lambda x, y: math.nan if math.isnan(x) or math.isnan(y) else function(x, y)


def _relu(x: float) -> float:
    """``.relu``: negative results become +0; a NaN stays one."""
    return x if math.isnan(x) or x > 0 else 0.0


def _flush(x: float) -> float:
    return math.copysign(0.0, x) if abs(x) < 2.0**-14 else x


# (spelling after the type is known, operands, function of Python floats); {t} is the type.
def _table(form: Format) -> list[tuple[str, int, Any]]:
    add = ieee.operation(ieee.add, form, "rn")
    multiply = ieee.operation(ieee.multiply, form, "rn")
    fma = ieee.operation(ieee.fma, form, "rn")
    return [
        ("add.{t}", 2, add),
        ("sub.{t}", 2, lambda x, y: add(x, -y)),
        ("mul.{t}", 2, multiply),
        ("fma.rn.{t}", 3, fma),
        ("fma.rn.relu.{t}", 3, lambda x, y, z: _relu(fma(x, y, z))),
        ("neg.{t}", 1, lambda x: -x),
        ("abs.{t}", 1, abs),
        ("min.{t}", 2, _least),
        ("max.{t}", 2, _most),
        ("min.NaN.{t}", 2, _nan_first(_least)),
        ("max.NaN.{t}", 2, _nan_first(_most)),
    ]


def _half_only() -> list[tuple[str, int, Any]]:
    def op(function: Any, **modifiers: bool) -> Any:
        return ieee.operation(function, F16, "rn", **modifiers)

    return [
        ("add.rn.{t}", 2, op(ieee.add)),
        ("add.sat.{t}", 2, op(ieee.add, sat=True)),
        ("add.ftz.{t}", 2, op(ieee.add, ftz=True)),
        ("mul.ftz.sat.{t}", 2, op(ieee.multiply, ftz=True, sat=True)),
        ("fma.rn.ftz.{t}", 3, op(ieee.fma, ftz=True)),
        ("fma.rn.sat.{t}", 3, op(ieee.fma, sat=True)),
        ("neg.ftz.{t}", 1, lambda x: -_flush(x)),
        ("abs.ftz.{t}", 1, lambda x: abs(_flush(x))),
    ]


def _apply(function: Any, count: int, dtype: str, arrays: tuple[Array, ...]) -> Array:
    return each(function, dtype, *arrays[:count])


# -- scalars -----------------------------------------------------------------------------------


def _scalars() -> list[Op]:
    ops = []
    for text, count, function in [*_table(F16), *_half_only()]:
        operands = ", ".join("abc"[:count])
        ops.append(
            Op(
                f"{text.format(t='f16')} d, {operands};",
                "f2",
                lambda *arrays, f=function, n=count: _apply(f, n, "f2", arrays),
            )
        )
    for name, holds in {
        "lt": lambda x, y: x < y,
        "equ": lambda x, y: x == y or math.isnan(x) or math.isnan(y),
        "ne": lambda x, y: x != y and not math.isnan(x) and not math.isnan(y),
        "nan": lambda x, y: math.isnan(x) or math.isnan(y),
    }.items():
        ops.append(
            Op(
                f"{{ .reg .pred p; setp.{name}.f16 p, a, b; selp.u32 d, 1, 0, p; }}",
                "u4",
                lambda a, b, c, f=holds: each(f, "u4", a, b),
            )
        )
    ops.append(
        Op(
            "set.gt.f16.f16 d, a, b;",
            "f2",
            lambda a, b, c: (a > b).astype(np.float16),
        )
    )
    return ops


# -- pairs: f16x2 in one 32-bit register -------------------------------------------------------


def _pairs() -> list[Op]:
    """The same operations on (a, b) pairs: the high halves are the rows in reverse order."""

    def doubled(text: str, count: int, function: Any, part: str) -> Op:
        operands = ", ".join(f"{letter}{letter}" for letter in "abc"[:count])
        packs = " ".join(f"mov.b32 {x}{x}, {{{x}, {_OTHER[x]}}};" for x in "abc")
        pick = "mov.b32 {d, _}, dd;" if part == "low" else "mov.b32 {_, d}, dd;"

        def reference(*arrays: Array) -> Array:
            chosen = (
                arrays if part == "low" else tuple(arrays["abc".index(_OTHER[x])] for x in "abc")
            )
            return _apply(function, count, "f2", chosen)

        return Op(
            f"{{ .reg .b32 aa, bb, cc, dd; {packs} {text.format(t='f16x2')} dd, {operands};"
            f" {pick} }}",
            "f2",
            reference,
        )

    ops = []
    for text, count, function in [*_table(F16), *_half_only()]:
        for part in ("low", "high"):
            ops.append(doubled(text, count, function, part))
    ops.append(
        Op(
            "{ .reg .b32 aa, bb; .reg .pred p, q; mov.b32 aa, {a, b}; mov.b32 bb, {b, a};"
            " setp.lt.f16x2 p|q, aa, bb; selp.u32 d, 1, 0, p; @q or.b32 d, d, 2; }",
            "u4",
            lambda a, b, c: ((a < b) + 2 * (b < a)).astype(np.uint32),
        )
    )
    return ops


_OTHER = {"a": "b", "b": "c", "c": "a"}


# -- bfloat16 ----------------------------------------------------------------------------------


def _widen(a: Array) -> Array:
    return (a.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _brain() -> list[Op]:
    ops = []
    for text, count, function in _table(BF16):
        operands = ", ".join("abc"[:count])

        def reference(*arrays: Array, f: Any = function, n: int = count) -> Array:
            return _apply(f, n, "f4", tuple(_widen(x) for x in arrays))

        ops.append(
            Op(
                f"{{ .reg .b16 h; {text.format(t='bf16')} h, {operands}; mov.b32 d, {{0, h}}; }}",
                "f4",
                reference,
            )
        )
        pairs = " ".join(f"mov.b32 {x}{x}, {{7, {x}}};" for x in "abc")
        doubles = ", ".join(f"{x}{x}" for x in "abc"[:count])
        ops.append(
            Op(
                f"{{ .reg .b32 aa, bb, cc, dd; {pairs} {text.format(t='bf16x2')} dd, {doubles};"
                " and.b32 d, dd, 0xFFFF0000; }",
                "f4",
                reference,
            )
        )
    ops.append(
        Op(
            "{ .reg .pred p; setp.le.bf16 p, a, b; selp.u32 d, 1, 0, p; }",
            "u4",
            lambda a, b, c: (_widen(a) <= _widen(b)).astype(np.uint32),
        )
    )
    return ops


def _brain_values(rng: Rng) -> list[Array]:
    arrays = float_operands("f4", 3)(rng)
    return [(x.view(np.uint32) >> np.uint32(16)).astype(np.uint16) for x in arrays]


# -- a CUDA C++ kernel that computes in half precision without its header ----------------------

HALF_AXPY = r"""
__device__ unsigned axpy2(unsigned a, unsigned x, unsigned y) {
    unsigned r;
    asm("{ fma.rn.f16x2 %0, %1, %2, %3; }" : "=r"(r) : "r"(a), "r"(x), "r"(y));
    return r;
}
extern "C" __global__ void half_axpy(unsigned short a, const unsigned* x, unsigned* y, int pairs,
                                     unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < pairs) y[i] = axpy2(a * 0x10001u, x[i], y[i]);
}
"""


def _half_axpy_make(rng: Rng) -> list[Any]:
    x, y = (rng.standard_normal((501, 2)).astype(np.float16) for _ in range(2))
    return [np.float16(1.5).view(np.uint16), x, y, np.int32(501)]


def _half_axpy_expect(args: list[Any]) -> dict[int | str, Any]:
    exact = 1.5 * args[1].astype(np.float64) + args[2].astype(np.float64)
    return {2: exact.astype(np.float16)}


CASES: tuple[Case, ...] = (
    sweep(
        "half_scalar",
        _scalars(),
        ("f2",) * 3,
        float_operands("f2", 3),
        arch="compute_90",
        covers=frozenset({"f16", "ftz", "sat", "relu"}),
    ),
    sweep(
        "half_pairs",
        _pairs(),
        ("f2",) * 3,
        float_operands("f2", 3),
        arch="compute_90",
        covers=frozenset({"f16x2"}),
    ),
    sweep(
        "bfloat16",
        _brain(),
        ("u2",) * 3,
        _brain_values,
        arch="compute_90",
        covers=frozenset({"bf16", "bf16x2"}),
    ),
    Case(
        "half_axpy",
        HALF_AXPY,
        (6,),
        (96,),
        _half_axpy_make,
        _half_axpy_expect,
        covers=frozenset({"f16x2", "inline-ptx"}),
    ),
)
