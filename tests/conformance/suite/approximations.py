"""The fast approximations, held to the errors that the ISA states.

Source: PTX ISA 9.0, section 9.7.3 (``div``, ``rcp``, ``sqrt``, ``rsqrt``, ``sin``, ``cos``,
``lg2``, ``ex2``, ``tanh``) and 9.7.4 (half precision). Where the ISA bounds an error over a range
only, the inputs stay in it; special values follow its tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Array, Rng, Satisfies, Within
from .cases import Cases
from .exact import FORMATS, as_double
from .reference import flush32, ulp32
from .sweep import Op, sweep

CASES = Cases()


def _f32(exact: Array) -> Array:
    return exact.astype(np.float32)


def _reciprocal(a: Array, b: Array) -> Within:
    exact = _f32(1 / a.astype(np.float64))
    return Within(exact, atol=ulp32(exact))  # at most 1 ulp


def _quotient(a: Array, b: Array) -> Within:
    exact = _f32(a.astype(np.float64) / b.astype(np.float64))
    return Within(exact, atol=2 * ulp32(exact))  # at most 2 ulp for |b| in [2**-126, 2**126]


def _flushed(reference: Any) -> Any:
    def result(a: Array, b: Array) -> Within:
        plain = reference(flush32(a), flush32(b))
        return Within(flush32(plain.value), plain.rtol, plain.atol)

    return result


def _root(a: Array, b: Array) -> Within:
    return Within(_f32(np.sqrt(a.astype(np.float64))), rtol=2.0**-23)


def _reciprocal_root(a: Array, b: Array) -> Within:
    return Within(_f32(1 / np.sqrt(a.astype(np.float64))), rtol=2.0**-22.9)


def _exponential(a: Array, b: Array) -> Within:
    # 2**-22 relative; a subnormal result cannot be closer than half its spacing.
    return Within(_f32(np.exp2(a.astype(np.float64))), rtol=2.0**-22, atol=2.0**-149)


def _logarithm(a: Array, b: Array) -> Within:
    # 2**-22 absolute for inputs in (0.5, 2), relative elsewhere.
    near = (a > 0.5) & (a < 2)
    exact = _f32(np.log2(a.astype(np.float64)))
    return Within(exact, rtol=np.where(near, 0, 2.0**-22), atol=np.where(near, 2.0**-22, 0))


def _sine(a: Array, b: Array) -> Within:
    return Within(_f32(np.sin(b.astype(np.float64))), atol=2.0**-20.5)


def _cosine(a: Array, b: Array) -> Within:
    return Within(_f32(np.cos(b.astype(np.float64))), atol=2.0**-20.5)


def _tangent(a: Array, b: Array) -> Within:
    exact = _f32(np.tanh(b.astype(np.float64)))
    return Within(exact, rtol=np.where(np.abs(b) < 2.0**-60, 0, 2.0**-11))


def _plain(reference: Any) -> Any:
    return reference


def _positive() -> list[Op]:
    """On ``a``: magnitudes from tiny to huge and the special values."""
    ops = []
    for ftz in ("", ".ftz"):
        wrap = _flushed if ftz else _plain
        ops += [
            Op(f"rcp.approx{ftz}.f32 d, a;", "f4", wrap(_reciprocal)),
            Op(f"sqrt.approx{ftz}.f32 d, a;", "f4", wrap(_root)),
            Op(f"rsqrt.approx{ftz}.f32 d, a;", "f4", wrap(_reciprocal_root)),
            Op(f"lg2.approx{ftz}.f32 d, a;", "f4", wrap(_logarithm)),
            Op(f"div.approx{ftz}.f32 d, b, a;", "f4", wrap(lambda a, b: _quotient(b, a))),
            Op(f"div.full{ftz}.f32 d, b, a;", "f4", wrap(lambda a, b: _quotient(b, a))),
        ]
    return ops


def _positive_values(rng: Rng) -> list[Array]:
    special = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        -1.0,
        1.0,
        2.0,
        4.0,
        0.5,
        2.0**-140,
        -(2.0**-135),
    ]
    drawn = rng.integers(0x00800000, 0x7E000000, 8000, dtype=np.uint32).view(np.float32)
    subnormal = 2.0 ** rng.uniform(-148, -127, 60)  # with reciprocals that are infinite
    near_one = np.concatenate([np.linspace(0.5, 2, 6001), 1 + rng.uniform(-0.4, 0.4, 60)])
    a = np.concatenate([special, drawn, subnormal, near_one]).astype(np.float32)
    b = (rng.standard_normal(a.size) + 3).astype(np.float32)
    return [a, b]


def _moderate() -> list[Op]:
    """On ``a`` around [-150, 129] for exponentials, on ``b`` in [-2 pi, 2 pi] for the rest."""
    ops = []
    for ftz in ("", ".ftz"):
        wrap = _flushed if ftz else _plain
        ops += [
            Op(f"ex2.approx{ftz}.f32 d, a;", "f4", wrap(_exponential)),
            Op(f"sin.approx{ftz}.f32 d, b;", "f4", wrap(_sine)),
            Op(f"cos.approx{ftz}.f32 d, b;", "f4", wrap(_cosine)),
        ]
    ops.append(Op("tanh.approx.f32 d, b;", "f4", _tangent))
    return ops


def _moderate_values(rng: Rng) -> list[Array]:
    special = [0.0, -0.0, 1.0, -1.0, 3.0, np.nan, np.inf, -np.inf, 127.0, -126.0, 128.0]
    a = np.concatenate([special, np.linspace(-125.99, 127.99, 8001), np.linspace(-2, 2, 4001)])
    a[-20:] = np.linspace(128.1, 129, 20)
    b = np.linspace(-2 * np.pi, 2 * np.pi, a.size)
    b[:7] = [0.0, -0.0, np.pi / 2, -np.pi, np.nan, np.inf, -np.inf]
    return [a.astype(np.float32), b.astype(np.float32)]


def _far() -> list[Op]:
    """Small results of ``ex2``, ``sin`` and ``cos`` far out, ``tanh`` everywhere."""

    def circular(function: Any) -> Any:
        return lambda a, b: Within(_f32(function(a.astype(np.float64))), atol=2.0**-14.7)

    def small(ftz: bool) -> Any:
        def reference(a: Array, b: Array) -> Within:
            exponent = np.abs(a) / np.float32(-10) + np.float32(-123)
            exact = _f32(np.exp2(exponent.astype(np.float64)))
            if not ftz:
                return Within(exact, rtol=2.0**-22, atol=2.0**-149)
            near = np.abs(exact / 2.0**-126 - 1) < 2.0**-22  # may be flushed or not
            return Within(flush32(exact), np.where(exact < 2.0**-126, 0, 2.0**-22),
                          np.where(near, 2.0**-126, 0))  # fmt: skip

        return reference

    scaled = "abs.f32 d, a; div.rn.f32 d, d, 0fC1200000; add.f32 d, d, 0fC2F60000;"
    return [
        Op("sin.approx.f32 d, a;", "f4", circular(np.sin)),
        Op("cos.approx.ftz.f32 d, a;", "f4", circular(np.cos)),
        Op("tanh.approx.f32 d, b;", "f4", _tangent),
        Op(f"{{ {scaled} ex2.approx.f32 d, d; }}", "f4", small(False)),
        Op(f"{{ {scaled} ex2.approx.ftz.f32 d, d; }}", "f4", small(True)),
        Op("div.approx.f32 d, b, 0f7EC00000;", "f4", lambda a, b: _by_huge(b)),
    ]


def _by_huge(a: Array) -> Array:
    """Divided by 1.5 * 2**126: the reciprocal is flushed, as the ISA says for such divisors."""
    return np.where(np.isfinite(a), np.copysign(np.float32(0), a), np.float32(np.nan))


def _far_values(rng: Rng) -> list[Array]:
    a = np.linspace(-100 * np.pi, 100 * np.pi, 4001)
    b = rng.integers(0, 0x7F800000, a.size, dtype=np.uint32).view(np.float32)
    b[::2] *= -1
    b[:3] = [np.inf, -np.inf, np.nan]
    return [a.astype(np.float32), b]


# -- double precision --------------------------------------------------------------------------


def _gross(function: Any) -> Any:
    """An approximation from the upper 32 bits of the input: 20 bits of significand."""

    def reference(a: Array) -> Within:
        return Within(_flushed64(function(_flushed64(a))), rtol=2.0**-19)

    return reference


def _flushed64(a: Array) -> Array:
    return np.where(np.abs(a) < np.finfo(np.float64).tiny, np.copysign(0.0, a), a)


def _low_word(a: Array) -> Array:
    """The upper half of a NaN's pattern, the lower half of every other result: zero."""
    return np.where(np.isnan(a) | (a < 0), 0x7FFFFFFF, 0).astype(np.uint32)


def _double() -> list[Op]:
    halves = ".reg .b64 w; .reg .b32 high, low; .reg .pred p, q;"
    nan = "testp.notanumber.f64 p, w; mov.b64 {low, high}, w; selp.b32 d, high, low, p;"
    both = "@p or.b32 d, d, low;"
    return [
        Op("rcp.approx.ftz.f64 d, a;", "f8", _gross(lambda a: 1 / a)),
        Op("rsqrt.approx.ftz.f64 d, a;", "f8", _gross(_signed_root)),
        Op("rsqrt.approx.f64 d, a;", "f8", lambda a: Within(_signed_root(a), rtol=2.0**-51)),
        Op(f"{{ {halves} rsqrt.approx.ftz.f64 w, a; {nan} {both} }}", "u4",
           lambda a: _low_word(_flushed64(a))),
        Op(f"{{ {halves} rcp.approx.ftz.f64 w, a; {nan} {both} }}", "u4",
           lambda a: _low_word(np.abs(a))),
    ]  # fmt: skip


def _signed_root(a: Array) -> Array:
    """Infinities for the zeros, of their signs."""
    return np.where(a == 0, np.copysign(np.inf, a), 1 / np.sqrt(a))


def _double_values(rng: Rng) -> list[Array]:
    special = [
        1.0,
        2.0,
        0.25,
        3.0,
        -7.0,
        1e308,
        np.inf,
        -np.inf,
        0.0,
        -0.0,
        1e-310,
        -1e-310,
        np.nan,
    ]
    return [np.concatenate([special, 2.0 ** rng.uniform(-900, 900, 2000)])]


# -- half precision and bfloat16: every pattern ------------------------------------------------


def _half(t: str, name: str, function: Any, rtol: float, atol: float) -> list[Op]:
    """Alone and as the upper half of a pair, both widened; and NaNs as patterns."""
    f = FORMATS[t]
    least = 2.0**f.least_exponent
    widen = f"cvt.f32.{t} d, h;"

    def bounded(a: Array) -> Within:
        value = function(as_double(a, f))
        large = value > (2 - 2.0**-f.mantissa) * 2.0 ** (1 - f.least_exponent)
        value[large] = np.inf
        slack = np.full(value.shape, float(atol))
        if "ftz" in name:  # may be flushed or not just below the smallest normal number
            slack[np.abs(value) < least] = least
            value[np.abs(value) < least / 2] = 0
            slack[value == 0] = 0
        return Within(_f32(value), rtol, slack)

    def canonical(a: Array) -> Satisfies:
        nans = np.isnan(as_double(a, f))
        return Satisfies(lambda got: bool((got[nans] == f.nan).all()), "the canonical NaN of NaNs")

    return [
        Op(f"{{ .reg .b16 h; {name}.{t} h, a; {widen} }}", "f4", bounded),
        Op(f"{{ .reg .b16 h; .reg .b32 w; mov.b32 w, {{1, a}}; {name}.{t}x2 w, w;"
           f" mov.b32 {{_, h}}, w; {widen} }}", "f4", bounded),
        Op(f"{{ .reg .b16 h; .reg .b32 w; mov.b32 w, {{a, 1}}; {name}.{t}x2 w, w;"
           f" mov.b32 {{h, _}}, w; {widen} }}", "f4", bounded),
        Op(f"{name}.{t} d, a;", "u2", canonical),
    ]  # fmt: skip


def _half_values(*left_out: int) -> Any:
    """All but the powers that round to infinity or do not: both are right."""
    return lambda rng: [np.delete(np.arange(1 << 16), left_out).astype(np.uint16)]


# -- CUDA's own spelling of them ---------------------------------------------------------------

INTRINSICS = r"""
extern "C" __global__ void intrinsics(const float* x, float* out, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float a = x[i], s, c;
    __sincosf(a, &s, &c);
    float* mine = out + 8 * i;
    mine[0] = __expf(a);
    mine[1] = __logf(a);
    mine[2] = s;
    mine[3] = c;
    mine[4] = __fdividef(1.f, a);
    mine[5] = __powf(a, 1.5f);
    mine[6] = __saturatef(a - 0.5f);
    mine[7] = rsqrtf(a);
}
"""


def _intrinsics_make(rng: Rng) -> list[Any]:
    x = rng.uniform(0.1, 3, 333).astype(np.float32)
    return [x, np.zeros((333, 8), np.float32), np.int32(333)]


@CASES.cuda("intrinsics", INTRINSICS, 4, 96, _intrinsics_make, "ex2.approx lg2.approx sin.approx")
def _intrinsics_expect(args: list[Any]) -> dict[int | str, Any]:
    x = args[0].astype(np.float64)
    columns = [np.exp(x), np.log(x), np.sin(x), np.cos(x), 1 / x, x**1.5]
    columns += [np.clip(x - 0.5, 0, 1), 1 / np.sqrt(x)]
    exact = np.stack(columns, axis=1).astype(np.float32)
    # The intrinsics are the instructions above after one product: a few units of 2**-21.
    return {1: Within(exact, rtol=2.0**-20, atol=2.0**-20)}


CASES += (
    sweep(
        "approximate_positive",
        _positive(),
        ("f4", "f4"),
        _positive_values,
        block=256,
        covers="rcp.approx sqrt.approx rsqrt.approx lg2.approx div.full",
    ),
    sweep(
        "approximate_moderate",
        _moderate(),
        ("f4", "f4"),
        _moderate_values,
        block=256,
        covers="ex2.approx sin.approx cos.approx tanh.approx",
    ),
    sweep(
        "approximate_far",
        _far(),
        ("f4", "f4"),
        _far_values,
        block=256,
        covers="ex2.approx sin.approx cos.approx tanh.approx",
    ),
    sweep(
        "approximate_f64",
        _double(),
        ("f8",),
        _double_values,
        block=56,
        covers="rcp.approx rsqrt.approx",
    ),
    sweep(
        "approximate_f16",
        [
            *_half("f16", "ex2.approx", np.exp2, 2.0**-9.9, 2.0**-25),
            *_half("f16", "tanh.approx", np.tanh, 0, 2.0**-10.987),
        ],
        ("u2",),
        _half_values(0x4C00),
        block=256,
        covers="ex2.approx tanh.approx f16",
    ),
    sweep(
        "approximate_bf16",
        [
            *_half("bf16", "ex2.approx.ftz", np.exp2, 2.0**-7, 0),
            *_half("bf16", "tanh.approx", np.tanh, 0, 2.0**-8),
        ],
        ("u2",),
        _half_values(0x4300),
        block=256,
        arch="compute_90",
        covers="ex2.approx tanh.approx bf16",
    ),
)
