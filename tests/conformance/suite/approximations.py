"""The fast approximations, held to the errors that the ISA states.

Source: PTX ISA 9.0, section 9.7.3 (``div``, ``rcp``, ``sqrt``, ``rsqrt``, ``sin``, ``cos``,
``lg2``, ``ex2``, ``tanh``) and 9.7.4 (half precision). Where the ISA bounds an error over a range
only, the inputs stay in it; special values follow its tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Case, Within
from .reference import flush32, ulp32
from .sweep import Op, sweep

Array = np.ndarray[Any, Any]
Rng = np.random.Generator


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
    return Within(_f32(np.tanh(b.astype(np.float64))), rtol=2.0**-11)


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
    drawn = 2.0 ** rng.uniform(-120, 120, 250)
    near_one = 1 + rng.uniform(-0.4, 0.4, 60)
    a = np.concatenate([special, drawn, near_one]).astype(np.float32)
    b = (rng.standard_normal(a.size) + 3).astype(np.float32)
    return [a, b]


def _moderate() -> list[Op]:
    """On ``a`` in [-150, 140] for exponentials, on ``b`` in [-2 pi, 2 pi] for the rest."""
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
    special = [0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 127.0, -126.0, 128.0]
    a = np.concatenate([special, rng.uniform(-125, 127, 200), rng.uniform(-1, 1, 60)])
    b = rng.uniform(-2 * np.pi, 2 * np.pi, a.size)
    b[:7] = [0.0, -0.0, np.pi / 2, -np.pi, np.nan, np.inf, -np.inf]
    return [a.astype(np.float32), b.astype(np.float32)]


# -- double precision --------------------------------------------------------------------------


def _gross(function: Any) -> Any:
    """An approximation from the upper 32 bits of the input: 20 bits of significand."""

    def reference(a: Array) -> Within:
        return Within(function(a), rtol=2.0**-19)

    return reference


def _double() -> list[Op]:
    return [
        Op("rcp.approx.ftz.f64 d, a;", "f8", _gross(lambda a: 1 / a)),
        Op("rsqrt.approx.ftz.f64 d, a;", "f8", _gross(lambda a: 1 / np.sqrt(a))),
        Op("rsqrt.approx.f64 d, a;", "f8", lambda a: Within(1 / np.sqrt(a), rtol=2.0**-51)),
        Op("{ .reg .b64 w; .reg .b32 high; rcp.approx.ftz.f64 w, a; mov.b64 {d, high}, w; }",
           "u4", lambda a: np.zeros(a.size, np.uint32)),
    ]  # fmt: skip


def _double_values(rng: Rng) -> list[Array]:
    return [np.concatenate([[1.0, 2.0, 0.25, np.inf, 0.0], 2.0 ** rng.uniform(-900, 900, 150)])]


# -- half precision ----------------------------------------------------------------------------


def _half() -> list[Op]:
    def power(a: Array) -> Within:
        exact = np.exp2(a.astype(np.float64)).astype(np.float16)
        return Within(exact, rtol=2.0**-9.9, atol=2.0**-24)

    def tangent(a: Array) -> Within:
        return Within(np.tanh(a.astype(np.float64)).astype(np.float16), atol=2.0**-10.987)

    return [
        Op("ex2.approx.f16 d, a;", "f2", power),
        Op("tanh.approx.f16 d, a;", "f2", tangent),
        Op("{ .reg .b32 w, v; mov.b32 w, {1, a}; ex2.approx.f16x2 v, w; mov.b32 {_, d}, v; }",
           "f2", power),
        Op("{ .reg .b32 w, v; mov.b32 w, {a, 1}; tanh.approx.f16x2 v, w; mov.b32 {d, _}, v; }",
           "f2", tangent),
    ]  # fmt: skip


def _half_values(rng: Rng) -> list[Array]:
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan]
    drawn = np.concatenate([rng.uniform(-13, 15, 120), rng.uniform(-1, 1, 60)])
    return [np.concatenate([special, drawn]).astype(np.float16)]


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


def _intrinsics_expect(args: list[Any]) -> dict[int | str, Any]:
    x = args[0].astype(np.float64)
    columns = [np.exp(x), np.log(x), np.sin(x), np.cos(x), 1 / x, x**1.5]
    columns += [np.clip(x - 0.5, 0, 1), 1 / np.sqrt(x)]
    exact = np.stack(columns, axis=1).astype(np.float32)
    # The intrinsics are the instructions above after one product: a few units of 2**-21.
    return {1: Within(exact, rtol=2.0**-20, atol=2.0**-20)}


CASES: tuple[Case, ...] = (
    sweep(
        "approximate_positive",
        _positive(),
        ("f4", "f4"),
        _positive_values,
        covers=frozenset({"rcp.approx", "sqrt.approx", "rsqrt.approx", "lg2.approx", "div.full"}),
    ),
    sweep(
        "approximate_moderate",
        _moderate(),
        ("f4", "f4"),
        _moderate_values,
        covers=frozenset({"ex2.approx", "sin.approx", "cos.approx", "tanh.approx"}),
    ),
    sweep(
        "approximate_f64",
        _double(),
        ("f8",),
        _double_values,
        block=56,
        covers=frozenset({"rcp.approx", "rsqrt.approx"}),
    ),
    sweep(
        "approximate_f16",
        _half(),
        ("f2",),
        _half_values,
        covers=frozenset({"ex2.approx", "tanh.approx", "f16"}),
    ),
    Case(
        "intrinsics",
        INTRINSICS,
        (4,),
        (96,),
        _intrinsics_make,
        _intrinsics_expect,
        covers=frozenset({"ex2.approx", "lg2.approx", "sin.approx"}),
    ),
)
