"""Half precision and bfloat16, single and in pairs; results are patterns, NaNs included.

References are exact (`exact`). Source: PTX ISA 9.0, section 9.7.4.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from . import exact
from .case import Array, Rng
from .cases import Cases
from .exact import BF16, F16, FORMATS, Format
from .floats import ARITHMETIC, extreme, patterns
from .sweep import Op, sweep

CASES = Cases()


_BOTH = ("add", "add.rn", "sub", "sub.rn", "mul", "mul.rn", "fma.rn", "fma.rn.relu")
_HALF_ONLY = ("add.sat", "add.ftz", "sub.ftz", "mul.ftz", "mul.ftz.sat", "fma.rn.ftz",
              "fma.rn.sat", "fma.rn.ftz.sat", "fma.rn.ftz.relu")  # fmt: skip
_EXTREMES = ("", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs")


def _table(t: str) -> list[tuple[str, int, exact.Operation]]:
    """(spelling before the type, operands, function of patterns)."""
    f = FORMATS[t]
    table: list[tuple[str, int, exact.Operation]] = []
    for text in (*_BOTH, *(_HALF_ONLY if f is F16 else ())):
        name, *words = text.split(".")
        function, count = ARITHMETIC[name]
        ftz, sat, relu = (word in words for word in ("ftz", "sat", "relu"))
        modified = exact.operation(function, f, ftz=ftz, sat=sat, relu=relu)
        table.append((text, count, modified))
    for name in ("min", "max"):
        for modifiers_ in (*_EXTREMES, *((".ftz",) if f is F16 else ())):
            table.append((f"{name}{modifiers_}", 2, extreme(name, modifiers_, f)))
    table += [("neg", 1, lambda x: x ^ f.sign), ("abs", 1, lambda x: x & ~f.sign)]
    if f is F16:
        table += [
            ("neg.ftz", 1, lambda x: f.flush(x) ^ f.sign),
            ("abs.ftz", 1, lambda x: f.flush(x) & ~f.sign),
        ]
    return table


def _scalars(t: str) -> list[Op]:
    return [
        Op(
            f"{text}.{t} d, {', '.join('abc'[:count])};",
            "u2",
            exact.on_patterns(function, "u2", count),
        )
        for text, count, function in _table(t)
    ]


def _pairs(t: str) -> list[Op]:
    """The same operations on (a, b), (b, c) and (c, a): both halves of the result."""
    packs = "mov.b32 x, {a, b}; mov.b32 y, {b, c}; mov.b32 z, {c, a};"

    def doubled(text: str, count: int, function: exact.Operation) -> Op:
        low = exact.on_patterns(function, "u2", count)

        def reference(a: Array, b: Array, c: Array) -> Array:
            both: Array = low(a, b, c).astype(np.uint32) | low(b, c, a).astype(np.uint32) << 16
            return both

        return Op(
            f"{{ .reg .b32 x, y, z; {packs} {text}.{t}x2 d, {', '.join('xyz'[:count])}; }}",
            "u4",
            reference,
        )

    return [doubled(*row) for row in _table(t)]


# -- all products that lie half-way between two halves -----------------------------------------


def _midpoints(f: Format) -> Callable[[Rng], list[Array]]:
    """a * b is half-way and c too small to show in a double: rounding twice goes wrong."""
    top = f.mantissa + 1

    def values(rng: Rng) -> list[Array]:
        step = 8 if f is F16 else 1
        significands = np.arange(1 << f.mantissa, 1 << top, step, dtype=np.int64)
        x, y = (g.ravel() for g in np.meshgrid(significands, significands))
        product = x * y
        length = np.where(product >> (2 * top - 1) != 0, 2 * top, 2 * top - 1)
        midpoint = np.flatnonzero(product & -product == 1 << (length - top - 1))
        chosen = rng.choice(midpoint, 80)
        tiny = np.array([1, 2, 0x8001, 0x8002, 0x0400, 0x8400, 0], np.uint16)
        a, b = (np.repeat(f.one - (1 << f.mantissa) + v[chosen], tiny.size) for v in (x, y))
        return [a.astype(np.uint16), b.astype(np.uint16), np.tile(tiny, chosen.size)]

    return values


def _fused(t: str) -> list[Op]:
    function = exact.on_patterns(partial(exact.fma, FORMATS[t], "rn"), "u2")
    return [Op(f"fma.rn.{t} d, a, b, c;", "u2", function)]


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


@CASES.cuda("half_axpy", HALF_AXPY, 6, 96, _half_axpy_make, "f16x2 inline-ptx")
def _half_axpy_expect(args: list[Any]) -> dict[int | str, Any]:
    exact_sum = 1.5 * args[1].astype(np.float64) + args[2].astype(np.float64)
    return {2: exact_sum.astype(np.float16)}


CASES += (
    *(
        sweep(
            f"{name}_{kind}",
            make(t),
            ("u2",) * 3,
            patterns(FORMATS[t], 3),
            arch="compute_90",
            covers=f"{t} {t}x2 ftz sat relu",
        )
        for name, t in (("half", "f16"), ("bfloat16", "bf16"))
        for kind, make in (("scalar", _scalars), ("pairs", _pairs))
    ),
    *(
        sweep(
            f"{name}_fused",
            _fused(t),
            ("u2",) * 3,
            _midpoints(f),
            arch="compute_90",
            covers=f"{t} rounding",
        )
        for name, t, f in (("half", "f16", F16), ("bfloat16", "bf16", BF16))
    ),
)
