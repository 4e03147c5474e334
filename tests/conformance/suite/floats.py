"""Single and double precision: every rounding mode, flushing and saturation.

References are exact (`exact`). The payload of a NaN is checked where the ISA gives one: there the
results are patterns. Source: PTX ISA 9.0, sections 9.7.3 and 9.7.5 (mixed precision).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from . import exact
from .case import Array, Rng
from .cases import Cases
from .exact import F16, F32, F64, FORMATS, MODES, Format, Mode
from .sweep import Op, sweep

CASES = Cases()


ARITHMETIC: dict[str, tuple[exact.Operation, int]] = {
    "add": (exact.add, 2),
    "sub": (exact.subtract, 2),
    "mul": (exact.multiply, 2),
    "fma": (exact.fma, 3),
    "mad": (exact.fma, 3),
    "div": (exact.divide, 2),
    "sqrt": (exact.square_root, 1),
    "rcp": (exact.reciprocal, 1),
}


def patterns(
    f: Format, arity: int, count: int = 300, further: Sequence[int] = ()
) -> Callable[[Rng], list[Array]]:
    """Draws the columns of `exact.samples`."""
    return lambda rng: exact.samples(f, arity, rng, count, further)


def _arithmetic(name: str, modifiers: str, t: str) -> Op:
    """One of the table; ``modifiers`` is what stands between name and type."""
    words = modifiers.split(".")
    mode: Mode = next((m for m in MODES if m in words), "rn")
    function, count = ARITHMETIC[name]
    f = FORMATS[t]
    modified = exact.operation(function, f, mode, ftz="ftz" in words, sat="sat" in words)
    dtype = f"f{f.width // 8}"
    return Op(
        f"{name}{modifiers}.{t} d, {', '.join('abc'[:count])};",
        dtype,
        exact.on_patterns(modified, dtype, count),
    )


def _rounded(t: str) -> list[Op]:
    """Everything that takes a rounding mode, and the spellings without one."""
    ops = [_arithmetic(name, f".{mode}", t) for name in ARITHMETIC for mode in MODES]
    return ops + [_arithmetic(name, "", t) for name in ("add", "sub", "mul")]


def _modified() -> list[Op]:
    """Flushing and saturation, which single precision alone has."""
    flushed = [(name, ".ftz" if name == "mul" else ".rn.ftz") for name in ARITHMETIC]
    saturated = [(name, f".{m}.sat") for name in ("add", "sub", "mul", "fma") for m in MODES]
    other = [("add", ".rz.ftz"), ("sub", ".ftz.sat"), ("add", ".sat"), ("add", ".ftz.sat"),
             ("mul", ".sat"), ("mul", ".rp.ftz.sat"), ("fma", ".rm.ftz"), ("fma", ".rn.ftz.sat"),
             ("div", ".rp.ftz"), ("sqrt", ".rz.ftz"), ("rcp", ".rm.ftz")]  # fmt: skip
    return [_arithmetic(name, modifiers, "f32") for name, modifiers in flushed + saturated + other]


# -- the smaller and the larger, signs, kinds --------------------------------------------------


def extreme(name: str, modifiers: str, f: Format) -> exact.Operation:
    """``min`` or ``max`` with any of ``.ftz.NaN.xorsign.abs``."""
    function = exact.minimum if name == "min" else exact.maximum

    def chosen(a: int, b: int) -> int:
        if "ftz" in modifiers:
            a, b = f.flush(a), f.flush(b)
        sign = (a ^ b) & f.sign
        nan = f.is_nan(a) or f.is_nan(b)
        if "xorsign" in modifiers:
            a, b = a & ~f.sign, b & ~f.sign
        if nan and ("NaN" in modifiers or (f.is_nan(a) and f.is_nan(b))):
            return f.nan
        result = function(f, a, b)
        return result | sign if "xorsign" in modifiers else result

    return chosen


KINDS: dict[str, Callable[[Format, int], bool]] = {
    "finite": lambda f, x: not f.is_nan(x) and not f.is_infinite(x),
    "infinite": lambda f, x: f.is_infinite(x),
    "number": lambda f, x: not f.is_nan(x),
    "notanumber": lambda f, x: f.is_nan(x),
    # Zeros count as normal (PTX ISA 9.0, 9.7.3, testp).
    "normal": lambda f, x: not f.is_nan(x) and not f.is_infinite(x) and f.flush(x) == x,
    "subnormal": lambda f, x: f.flush(x) != x,
}


def _unordered(t: str) -> list[Op]:
    f = FORMATS[t]
    bits, low = f.dtype, f.sign - 1
    number = f"f{f.width // 8}"
    unary = {
        "abs": lambda a: a & low,
        "neg": lambda a: a ^ f.sign,
        **({"abs.ftz": lambda a: f.flush(a) & low} if t == "f32" else {}),
        **({"neg.ftz": lambda a: f.flush(a) ^ f.sign} if t == "f32" else {}),
    }
    variants = ["", ".ftz", ".NaN", ".ftz.NaN.xorsign.abs", ".xorsign.abs"]
    return [
        *(
            Op(f"{name}{modifiers}.{t} d, a, b;", bits,
               exact.on_patterns(extreme(name, modifiers, f), bits, 2))
            for name in ("min", "max")
            for modifiers in (variants if t == "f32" else [""])
        ),
        *(
            Op(f"{name}.{t} d, a;", number, exact.on_patterns(function, number, 1))
            for name, function in unary.items()
        ),
        Op(f"copysign.{t} d, a, b;", number,
           exact.on_patterns(lambda a, b: a & f.sign | b & low, number, 2)),
        Op(f"mov.{t} d, b;", bits, lambda a, b: b.copy()),
        *(
            Op(f"{{ .reg .pred p; testp.{kind}.{t} p, a; selp.u32 d, 1, 0, p; }}", "u4",
               exact.on_patterns(partial(holds, f), "u4", 1))
            for kind, holds in KINDS.items()
        ),
        # These give the canonical NaN.
        Op(f"div.rn.{t} d, a, b;", bits,
           exact.on_patterns(partial(exact.divide, f, "rn"), bits, 2)),
        Op(f"sqrt.rn.{t} d, a;", bits,
           exact.on_patterns(partial(exact.square_root, f, "rn"), bits, 1)),
    ]  # fmt: skip


# -- what sm_100 added -------------------------------------------------------------------------


def _newest() -> list[Op]:
    """Three operands, pairs, and halves in a single-precision sum; on single-precision patterns."""

    def largest(a: int, b: int, c: int) -> int:
        return exact.maximum(F32, exact.maximum(F32, a, b), c)

    def mixed(name: str, mode: Mode) -> exact.Operation:
        def widened(a: int, b: int, c: int) -> int:
            first, second = (F32.encode(*F16.decode(x & 0x3FFF)) for x in (a, b))
            if name == "fma":
                return exact.fma(F32, mode, first, second, c)
            return ARITHMETIC[name][0](F32, mode, first, c)

        return widened

    halves = "cvt.u16.u32 h, a; and.b16 h, h, 0x3FFF; cvt.u16.u32 k, b; and.b16 k, k, 0x3FFF;"
    pairs = "mov.b64 x, {a, b}; mov.b64 y, {b, c}; mov.b64 z, {c, a};"
    ops = [Op("max.f32 d, a, b, c;", "f4", exact.on_patterns(largest, "f4"))]
    for name, text in (("fma", "h, k, c"), ("add", "h, c"), ("sub", "h, c")):
        for mode in ("rn", "rz"):
            ops.append(
                Op(f"{{ .reg .b16 h, k; {halves} {name}.{mode}.f32.f16 d, {text}; }}", "f4",
                   exact.on_patterns(mixed(name, mode), "f4"))
            )  # fmt: skip
    for half, order in (("d, high", "abc"), ("low, d", "bca")):
        for ftz in ("", ".ftz"):
            function = exact.on_patterns(exact.operation(exact.fma, F32, ftz=bool(ftz)), "f4", 3)
            ops.append(
                Op(
                    f"{{ .reg .b64 x, y, z; .reg .b32 low, high; {pairs}"
                    f" fma.rn{ftz}.f32x2 x, x, y, z; mov.b64 {{{half}}}, x; }}",
                    "f4",
                    lambda a, b, c, order=order, function=function: function(
                        *({"a": a, "b": b, "c": c}[x] for x in order)
                    ),
                )
            )
    return ops


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
    a, b, c = (column[::2].view(np.float32) for column in exact.samples(F32, 3, rng, 400))
    with np.errstate(all="ignore"):
        c[-200:] = -(a * b)[-200:]  # cancellation shows what the product lost
    blank = np.zeros(a.size, np.float32)
    return [a.copy(), b.copy(), c.copy(), blank, blank.copy(), np.int32(a.size)]


@CASES.cuda("contraction", CONTRACTION, 16, 96, _contraction_make, "fma")
def _contraction_expect(args: list[Any]) -> dict[int | str, Any]:
    a, b, c, *_ = args
    fused = exact.on_patterns(partial(exact.fma, F32, "rn"), "f4")
    with np.errstate(all="ignore"):
        return {3: fused(a, b, c), 4: a * b + c}


CASES += (
    sweep("float_f32", _rounded("f32"), ("u4",) * 3, patterns(F32, 3), covers="float.f32 rounding"),
    sweep("float_f64", _rounded("f64"), ("u8",) * 3, patterns(F64, 3), covers="float.f64 rounding"),
    sweep("float_flush_saturate", _modified(), ("u4",) * 3, patterns(F32, 3), covers="ftz sat"),
    sweep(
        "float_extremes_f32",
        _unordered("f32"),
        ("u4", "u4"),
        patterns(F32, 2),
        arch="compute_90",
        covers="min max testp copysign nan",
    ),
    sweep(
        "float_extremes_f64",
        _unordered("f64"),
        ("u8", "u8"),
        patterns(F64, 2),
        block=56,
        covers="min max testp copysign nan",
    ),
    sweep(
        "float_newest",
        _newest(),
        ("u4",) * 3,
        patterns(F32, 3),
        arch="compute_100",
        version="8.8",
        covers="max.f32.three f32x2 fma.f32.f16",
    ),
)
