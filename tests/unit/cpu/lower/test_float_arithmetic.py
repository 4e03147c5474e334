"""f32 and f64 arithmetic against exact rational arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.cpu.lower import float_oracle
from tests.unit.cpu.lower.instruction_runner import Array, Instructions, Operation, f2, f4

CODE = Instructions()
FORMATS = {"f32": float_oracle.F32, "f64": float_oracle.F64}
ARITY = {"add": 2, "sub": 2, "mul": 2, "fma": 3, "div": 2, "sqrt": 1, "rcp": 1}


def expected(base: str, f: float_oracle.Format, mode: str, *bits: int) -> int:
    if base == "add":
        return float_oracle.add(f, *bits, mode=mode)
    if base == "sub":
        return float_oracle.add(f, bits[0], bits[1] ^ f.sign, mode=mode)
    if base == "mul":
        return float_oracle.multiply(f, *bits, mode=mode)
    if base == "fma":
        return float_oracle.fma(f, *bits, mode=mode)
    if base == "div":
        return float_oracle.divide(f, *bits, mode=mode)
    if base == "rcp":
        one = ((1 << (f.exponent - 1)) - 1) << f.mantissa
        return float_oracle.divide(f, one, bits[0], mode=mode)
    return float_oracle.square_root(f, bits[0], mode=mode)


def floats(f: float_oracle.Format) -> str:
    return "f4" if f.width == 32 else "f8"


ROUNDED = {
    (base, mode, type_): CODE.define(
        f"{base}.{mode}.{type_}", floats(FORMATS[type_]), [floats(FORMATS[type_])] * ARITY[base]
    )
    for base in ARITY
    for mode in ("rn", "rz", "rm", "rp")
    for type_ in FORMATS
}


def check(got: Array, want: list[int], f: float_oracle.Format, arrays: list[Array]) -> None:
    """Equal bits, where any NaN will do for a NaN."""
    bits = got.view(f.dtype)
    wanted = np.array(want, f.dtype)
    magnitude = np.array(f.sign - 1, f.dtype)
    both_nan = ((bits & magnitude) > f.infinity) & ((wanted & magnitude) > f.infinity)
    wrong = np.flatnonzero((bits != wanted) & ~both_nan)
    shown = [(*(hex(a[i]) for a in arrays), hex(bits[i]), hex(wanted[i])) for i in wrong[:5]]
    assert not len(wrong), f"{len(wrong)} of {len(bits)}: (operands, got, wanted) {shown}"


@pytest.mark.parametrize("key", ROUNDED, ids=".".join)
def test_correctly_rounded(key: tuple[str, str, str]) -> None:
    base, mode, type_ = key
    f = FORMATS[type_]
    arrays = float_oracle.samples(f, ARITY[base], 1500, seed=ARITY[base])
    got = ROUNDED[key](*(a.view(floats(f)) for a in arrays))
    want = [expected(base, f, mode, *map(int, row)) for row in zip(*arrays, strict=True)]
    check(got, want, f, arrays)


FLUSHED = {
    base: CODE.define(f"{base}{'' if base == 'mul' else '.rn'}.ftz.f32", "f4", ["f4"] * ARITY[base])
    for base in ARITY
}


@pytest.mark.parametrize("base", FLUSHED)
def test_ftz_flushes_operands_and_results(base: str) -> None:
    f = float_oracle.F32
    arrays = float_oracle.samples(f, ARITY[base], 1000, seed=7)
    got = FLUSHED[base](*(a.view("f4") for a in arrays))
    want = [
        f.flush(expected(base, f, "rn", *(f.flush(int(x)) for x in row)))
        for row in zip(*arrays, strict=True)
    ]
    check(got, want, f, arrays)


SATURATED = {
    base: CODE.define(f"{base}.rn.sat.f32", "f4", ["f4"] * ARITY[base])
    for base in ("add", "sub", "mul", "fma")
}


@pytest.mark.parametrize("base", SATURATED)
def test_sat_clamps_to_unit_interval_and_nan_to_zero(base: str) -> None:
    f = float_oracle.F32
    arrays = float_oracle.samples(f, ARITY[base], 500, seed=8)
    got = SATURATED[base](*(a.view("f4") for a in arrays))
    want = []
    for row in zip(*arrays, strict=True):
        bits = expected(base, f, "rn", *map(int, row))
        if f.is_nan(bits) or f.is_negative(bits):
            bits = 0
        want.append(min(bits, 0x3F800000))
    check(got, want, f, arrays)
    assert not np.isnan(got).any()


MIN_MAX = {
    text: CODE.define(text, "f4" if "f32" in text else "f8", ["f4" if "f32" in text else "f8"] * 2)
    for base in ("min", "max")
    for text in (f"{base}.f32", f"{base}.f64", f"{base}.NaN.f32", f"{base}.ftz.f32")
}


@pytest.mark.parametrize("text", MIN_MAX)
def test_min_max(text: str) -> None:
    f = float_oracle.F64 if "f64" in text else float_oracle.F32
    arrays = float_oracle.samples(f, 2, 1000, seed=9)
    got = MIN_MAX[text](*(a.view(floats(f)) for a in arrays))

    def one(a: int, b: int) -> int:
        if "ftz" in text:
            a, b = f.flush(a), f.flush(b)
        if f.is_nan(a) or f.is_nan(b):
            if "NaN" in text or (f.is_nan(a) and f.is_nan(b)):
                return f.nan
            return b if f.is_nan(a) else a
        # As sign and magnitude, so that -0 < +0.
        ordered = sorted((a, b), key=lambda x: -(x & ~f.sign) - 1 if x & f.sign else x)
        return ordered[0] if text.startswith("min") else ordered[1]

    want = np.array([one(int(a), int(b)) for a, b in zip(*arrays, strict=True)], f.dtype)
    assert (got.view(f.dtype) == want).all()  # the canonical NaN, to the bit


def test_xorsign_and_three_operands() -> None:
    x = f4([3, -3, -3, -0.0, np.nan])
    y = f4([-2, 2, -2, 1, -2])
    assert (XORSIGN(x, y).view("u4") == f4([-2, -2, 2, -0.0, -2]).view("u4")).all()
    nan_sign = np.array([0xFFC00000], "u4").view("f4")
    assert XORSIGN(nan_sign, [2.0])[0] == -2.0
    assert THREE([1, 5, np.nan], [4, 2, 3], [3, 9, 1]).tolist() == [4, 9, 3]


XORSIGN = CODE.define("min.xorsign.abs.f32", "f4", "f4 f4")
THREE = CODE.define("max.f32", "f4", "f4 f4 f4")
ABS = CODE.define("abs.f32", "f4", "f4")
ABS_FTZ = CODE.define("abs.ftz.f32", "f4", "f4")
NEG = CODE.define("neg.f64", "f8", "f8")
COPYSIGN = CODE.define("copysign.f32", "f4", "f4 f4")
RCP_GROSS = CODE.define("rcp.approx.ftz.f64", "f8", "f8")
PAIR = CODE.define("fma.rn.f32x2", "u8", "u8 u8 u8")
MIXED = CODE.define("fma.rn.f32.f16", "f4", "u2 u2 f4")
CANONICAL = CODE.define("div.rn.f32", "f4", "f4 f4")
APPROX = CODE.define("div.approx.f32", "f4", "f4 f4")
FULL = CODE.define("div.full.f32", "f4", "f4 f4")


def test_signs() -> None:
    x = f4([-1.5, -0.0, 1e-40, -1e-40])
    assert (ABS(x).view("u4") == np.abs(x).view("u4")).all()
    assert ABS_FTZ(x).tolist() == [1.5, 0, 0, 0]
    assert NEG([1.0, 0.0]).view("u8").tolist() == [0xBFF0000000000000, 1 << 63]
    assert COPYSIGN([-0.0, 1.0], [3.0, -4.0]).tolist() == [-3.0, 4.0]


def test_division_gives_the_canonical_nan() -> None:
    assert CANONICAL([0.0, np.nan], [0.0, 1.0]).view("u4").tolist() == [0x7FFFFFFF] * 2
    for count in (2, 100):  # scalar and vector code
        x = f4([-1.0, np.nan] * count)
        assert set(ROUNDED["sqrt", "rn", "f32"](x).view("u4").tolist()) == {0x7FFFFFFF}
        assert set(ROUNDED["sqrt", "rn", "f64"](x).view("u8").tolist()) == {(1 << 63) - 1}


@pytest.mark.parametrize("operation", [APPROX, FULL], ids=["approx", "full"])
def test_fast_division_within_two_ulp(operation: Operation) -> None:
    rng = np.random.default_rng(3)
    a = rng.uniform(1, 2, 20000).astype("f4")
    b = (rng.uniform(1, 2, 20000) * 2.0 ** rng.integers(-120, 120, 20000)).astype("f4")
    exact = a.astype("f8") / b
    error = np.abs(operation(a, b) - exact) / np.spacing(np.abs(exact).astype("f4"))
    assert error.max() <= 2


def test_approx_division_by_huge_numbers_as_the_isa_says() -> None:
    huge = np.float32(1.5 * 2.0**126)
    assert APPROX([1.0, -3e38], [huge, huge]).tolist() == [0, 0]
    assert np.isnan(APPROX([np.inf], [huge])).all()
    assert FULL([3e38], [huge])[0] == np.float32(3e38) / huge


def test_gross_reciprocal_has_a_zero_low_word() -> None:
    x = np.array([3.0, -7.0, 1e-310, np.inf, 0.0, -0.0, np.nan, 1e308], "f8")
    bits = RCP_GROSS(x).view("u8")
    assert (bits & 0xFFFFFFFF == 0).all()
    assert bits[6] == 0x7FFFFFFF00000000
    values = bits.view("f8")
    assert abs(values[0] * 3 - 1) < 2**-19
    assert values[2:6].tolist() == [np.inf, 0, np.inf, -np.inf]
    assert values[7] == 0  # a subnormal result is flushed


def test_packed_and_mixed_precision() -> None:
    def pack(low: float, high: float) -> int:
        return int(np.array([low, high], "f4").view("u8")[0])

    assert PAIR([pack(2, 3)], [pack(5, 7)], [pack(1, -1)])[0] == pack(11, 20)
    half = f2([1.5, 2.0]).view("u2")
    assert MIXED(half, half, [0.25, 1e-3]).tolist() == [2.5, np.float32(4 + np.float32(1e-3))]
