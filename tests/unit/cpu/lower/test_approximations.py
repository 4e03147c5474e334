"""The approximate functions: largest errors over dense samples, and the ISA's special values."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.unit.cpu.lower.instruction_runner import Array, Instructions, Operation, f4, optimised

CODE = Instructions()
FUNCTIONS = {
    text: CODE.define(f"{text}.f32", "f4", "f4")
    for base in ("ex2", "lg2", "sin", "cos", "rsqrt", "rcp", "sqrt")
    for text in (f"{base}.approx", f"{base}.approx.ftz")
} | {"tanh.approx": CODE.define("tanh.approx.f32", "f4", "f4")}
RSQRT_64 = CODE.define("rsqrt.approx.f64", "f8", "f8")
RSQRT_GROSS = CODE.define("rsqrt.approx.ftz.f64", "f8", "f8")


def every_exponent(count: int, *, negative: bool = False) -> Array:
    """Floats of all magnitudes, subnormal ones included."""
    rng = np.random.default_rng(1)
    bits = rng.integers(1, 0x7F800000, count, dtype=np.uint32)
    bits[: count // 8] = rng.integers(1, 0x00800000, count // 8)
    if negative:
        bits[::2] |= np.uint32(1 << 31)
    return bits.view("f4")


def ulp(exact: Array) -> Array:
    """The unit in the last place of a float of that size."""
    exponent = np.floor(np.log2(np.maximum(np.abs(exact), 2.0**-126)))
    return 2.0 ** (exponent - 23)


def relative(got: Array, exact: Array) -> float:
    return float(np.max(np.abs(got.astype("f8") / exact - 1)))


@pytest.mark.parametrize("text", ["ex2.approx", "ex2.approx.ftz"])
def test_ex2_within_two_ulp(text: str) -> None:
    x = np.linspace(-152, 128.5, 400_001).astype("f4")
    x = np.concatenate([x, np.linspace(-2, 2, 200_001).astype("f4")])
    with np.errstate(under="ignore"):
        exact = np.exp2(x.astype("f8"))
    got = FUNCTIONS[text](x).astype("f8")
    largest = float(np.finfo("f4").max)
    inside = exact <= largest
    if "ftz" in text:
        inside &= exact >= 2.0**-126
        assert (got[exact < 2.0**-126 * (1 - 2.0**-23)] == 0).all()
    error = np.abs(got - exact)[inside] / ulp(exact[inside])
    assert error.max() <= 1.1  # the ISA allows 2
    assert (got[exact > largest * (1 + 2.0**-23)] == np.inf).all()


@pytest.mark.parametrize("text", ["lg2.approx", "lg2.approx.ftz"])
def test_lg2_error(text: str) -> None:
    x = every_exponent(300_000)
    if "ftz" in text:
        x = x[x >= 2.0**-126]
    x = x[(x <= 0.5) | (x >= 2)]
    assert relative(FUNCTIONS[text](x), np.log2(x.astype("f8"))) <= 2**-22
    x = np.linspace(0.5, 2, 600_001).astype("f4")
    error = np.abs(FUNCTIONS[text](x).astype("f8") - np.log2(x.astype("f8")))
    assert error.max() <= 2**-22


@pytest.mark.parametrize("base", ["sin", "cos"])
def test_sin_cos_error(base: str) -> None:
    function = getattr(np, base)
    for text in (f"{base}.approx", f"{base}.approx.ftz"):
        for bound, error in ((2 * math.pi, 2**-20.5), (100 * math.pi, 2**-14.7), (1e5, 1e-4)):
            x = np.linspace(-bound, bound, 400_001).astype("f4")
            got = FUNCTIONS[text](x).astype("f8")
            assert np.abs(got - function(x.astype("f8"))).max() <= error
            assert np.abs(got).max() <= 1
    huge = FUNCTIONS[f"{base}.approx"](every_exponent(10_000, negative=True))
    assert (np.abs(huge) <= 1).all()


def test_tanh_error() -> None:
    x = np.concatenate([np.linspace(-12, 12, 400_001).astype("f4"), every_exponent(100_000)])
    x = x[x != 0]
    with np.errstate(under="ignore"):
        assert relative(FUNCTIONS["tanh.approx"](x), np.tanh(x.astype("f8"))) <= 2**-11
    small = every_exponent(20_000, negative=True)
    small = small[np.abs(small) < 2.0**-60]
    assert (FUNCTIONS["tanh.approx"](small) == small).all()


@pytest.mark.parametrize(
    ("base", "bound"), [("rsqrt", 2**-22.9), ("rcp", 2**-23), ("sqrt", 2**-23)]
)
def test_roots_and_reciprocals(base: str, bound: float) -> None:
    functions: dict[str, Callable[[Array], Array]] = {
        "rsqrt": lambda v: 1 / np.sqrt(v),
        "rcp": lambda v: 1 / v,
        "sqrt": np.sqrt,
    }
    exact = functions[base]
    x = every_exponent(400_000)
    x = x[(x >= 2.0**-126) & (x < 2.0**125)]  # no subnormal operands or reciprocals
    for text in (f"{base}.approx", f"{base}.approx.ftz"):
        assert relative(FUNCTIONS[text](x), exact(x.astype("f8"))) <= bound
    subnormal = f4([1e-40, 3e-42])
    if base != "rcp":
        got = FUNCTIONS[f"{base}.approx"](subnormal)
        assert relative(got, exact(subnormal.astype("f8"))) <= bound


INF, NAN = math.inf, math.nan
SPECIAL: dict[str, list[tuple[float, float]]] = {
    "ex2": [(-INF, 0.0), (-0.0, 1.0), (0.0, 1.0), (INF, INF), (NAN, NAN), (3.0, 8.0)],
    "lg2": [
        (-INF, NAN),
        (-2.0, NAN),
        (-0.0, -INF),
        (0.0, -INF),
        (INF, INF),
        (NAN, NAN),
        (1.0, 0.0),
    ],
    "sin": [(-INF, NAN), (-0.0, -0.0), (0.0, 0.0), (INF, NAN), (NAN, NAN)],
    "cos": [(-INF, NAN), (-0.0, 1.0), (0.0, 1.0), (INF, NAN), (NAN, NAN)],
    "tanh": [(-INF, -1.0), (-0.0, -0.0), (0.0, 0.0), (INF, 1.0), (NAN, NAN)],
    "rsqrt": [(-INF, NAN), (-1.0, NAN), (-0.0, -INF), (0.0, INF), (INF, 0.0), (NAN, NAN)],
    "rcp": [(-INF, -0.0), (-0.0, -INF), (0.0, INF), (INF, 0.0), (NAN, NAN)],
    "sqrt": [(-INF, NAN), (-1.0, NAN), (-0.0, -0.0), (0.0, 0.0), (INF, INF), (NAN, NAN)],
}


@pytest.mark.parametrize("text", FUNCTIONS)
def test_special_values(text: str) -> None:
    given, want = (f4(c) for c in zip(*SPECIAL[text.partition(".")[0]], strict=True))
    got = FUNCTIONS[text](given)
    nan = np.isnan(want)
    assert (got.view("u4")[nan] == 0x7FFFFFFF).all()
    assert got.view("u4")[~nan].tolist() == want.view("u4")[~nan].tolist()


def test_ftz_flushes_subnormal_operands() -> None:
    x = f4([1e-40, -1e-40])
    results = {
        base: FUNCTIONS[f"{base}.approx.ftz"](x).tolist() for base in ("rcp", "rsqrt", "lg2")
    }
    assert results == {"rcp": [INF, -INF], "rsqrt": [INF, -INF], "lg2": [-INF, -INF]}
    assert FUNCTIONS["sin.approx.ftz"](x).view("u4").tolist() == [0, 1 << 31]
    assert FUNCTIONS["sqrt.approx.ftz"](x).view("u4").tolist() == [0, 1 << 31]
    assert FUNCTIONS["rcp.approx.ftz"](f4([3e38]))[0] == 0


def test_double_reciprocal_roots() -> None:
    x = np.random.default_rng(2).uniform(1e-300, 1e300, 10_000)
    assert np.abs(RSQRT_64(x) * np.sqrt(x) - 1).max() <= 2**-51
    gross = RSQRT_GROSS(x)
    assert (gross.view("u8") & 0xFFFFFFFF == 0).all()
    assert np.abs(gross * np.sqrt(x) - 1).max() <= 2**-19
    special = RSQRT_GROSS([-INF, -1e-310, -0.0, 0.0, 1e-310, INF, NAN]).view("u8")
    nan, inf, sign = 0x7FFFFFFF00000000, 0x7FF0000000000000, 1 << 63
    assert special.tolist() == [nan, inf | sign, inf | sign, inf, inf, 0, nan]


@pytest.mark.parametrize(
    "text",
    [
        "ex2.approx.ftz.f32",
        "lg2.approx.f32",
        "sin.approx.f32",
        "cos.approx.f32",
        "tanh.approx.f32",
        "rsqrt.approx.f32",
        "fma.rm.f32",
        "div.full.f32",
        "cvt.rn.f16.f32",
        "cvt.rzi.s32.f32",
        "fma.rn.bf16",
        "min.f32",
        "div.s32",
    ],
)
def test_a_loop_over_threads_is_vectorised(text: str) -> None:
    """The point of avoiding branches and library calls."""
    alone = Instructions()
    output, source = {"cvt": ("u2", "f4"), "div": ("f4", "f4")}.get(text[:3], ("f4", "f4"))
    if text.endswith("s32"):
        output, source = "i4", "f4" if "cvt" in text else "i4"
    if "bf16" in text:
        output = source = "u2"
    count = {"fma": 3, "div": 2, "min": 2}.get(text[:3], 1)
    operation = alone.define(text, output, [source] * count)
    assert isinstance(operation, Operation)
    module, _ = optimised(alone.module.text())
    assert "vector.body" in str(module.get_function("op0"))
