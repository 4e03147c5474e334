"""f16 and bf16 arithmetic against exact rational arithmetic; every value where one is enough."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.cpu.lower import float_oracle
from tests.unit.cpu.lower.instruction_runner import Array, Instructions, Operation

CODE = Instructions()
FORMATS = {"f16": float_oracle.F16, "bf16": float_oracle.BF16}
ALL = np.arange(1 << 16, dtype=np.uint16)
ONE = {"f16": 0x3C00, "bf16": 0x3F80}


def define(text: str, sources: int) -> Operation:
    return CODE.define(text, "u2", ["u2"] * sources)


ARITY = {"add": 2, "sub": 2, "mul": 2, "fma": 3}
ARITHMETIC = {
    (base, type_): define(f"{base}.rn.{type_}", ARITY[base]) for base in ARITY for type_ in FORMATS
}


def expected(base: str, f: float_oracle.Format, *bits: int) -> int:
    if base == "fma":
        return float_oracle.fma(f, *bits)
    if base == "mul":
        return float_oracle.multiply(f, *bits)
    return float_oracle.add(
        f, bits[0], bits[1] ^ (f.sign if base == "sub" and not f.is_nan(bits[1]) else 0)
    )


def compare(got: Array, want: list[int], arrays: list[Array]) -> None:
    """Equal to the bit, NaNs included."""
    wrong = np.flatnonzero(got != np.array(want, "u2"))
    shown = [(*(hex(a[i]) for a in arrays), hex(got[i]), hex(want[i])) for i in wrong[:5]]
    assert not len(wrong), f"{len(wrong)} of {len(got)}: (operands, got, wanted) {shown}"


@pytest.mark.parametrize("key", ARITHMETIC, ids=".".join)
def test_single_rounding(key: tuple[str, str]) -> None:
    base, type_ = key
    f = FORMATS[type_]
    arrays = float_oracle.samples(f, ARITY[base], 3000, seed=1)
    want = [expected(base, f, *map(int, row)) for row in zip(*arrays, strict=True)]
    compare(ARITHMETIC[key](*arrays), want, arrays)


@pytest.mark.parametrize("type_", FORMATS)
def test_fma_with_the_product_on_a_midpoint(type_: str) -> None:
    """The case that makes rounding twice wrong: a*b halfway, c too small to show in a double."""
    f = FORMATS[type_]
    bits = f.mantissa + 1
    significands = np.arange(1 << f.mantissa, 1 << bits, 8 if type_ == "f16" else 1, dtype=np.int64)
    x, y = (g.ravel() for g in np.meshgrid(significands, significands))
    product = x * y
    # A midpoint: the lowest bit that is set stands one below the last bit of the result.
    length = np.where(product >> (2 * bits - 1) != 0, 2 * bits, 2 * bits - 1)
    midpoint = np.flatnonzero(product & -product == 1 << (length - bits - 1))
    chosen = np.random.default_rng(2).choice(midpoint, 80)
    one = ONE[type_] - (1 << f.mantissa)
    a, b = (one + x[chosen]).astype("u2"), (one + y[chosen]).astype("u2")
    tiny = np.array([1, 2, 0x8001, 0x8002, 0x0400, 0x8400, 0], "u2")
    grid = [g.ravel() for g in np.meshgrid(np.arange(len(a)), tiny)]
    arrays = [a[grid[0]], b[grid[0]], grid[1].astype("u2")]
    want = [expected("fma", f, *map(int, row)) for row in zip(*arrays, strict=True)]
    compare(ARITHMETIC["fma", type_](*arrays), want, arrays)


MODIFIED = {
    text: define(text, ARITY[text[:3]])
    for text in (
        "add.ftz.f16",
        "mul.ftz.f16",
        "fma.rn.ftz.f16",
        "add.sat.f16",
        "fma.rn.ftz.sat.f16",
        "fma.rn.relu.f16",
        "fma.rn.ftz.relu.f16",
        "fma.rn.relu.bf16",
    )
}


@pytest.mark.parametrize("text", MODIFIED)
def test_ftz_sat_relu(text: str) -> None:
    base, type_ = text[:3], text.rsplit(".", 1)[1]
    f = FORMATS[type_]
    arrays = float_oracle.samples(f, ARITY[base], 1000, seed=3)
    want = []
    for row in zip(*arrays, strict=True):
        bits = [f.flush(int(x)) if "ftz" in text else int(x) for x in row]
        result = expected(base, f, *bits)
        if "ftz" in text:
            result = f.flush(result)
        if "sat" in text:
            result = 0 if f.is_nan(result) or f.is_negative(result) else min(result, ONE[type_])
        if "relu" in text and f.is_negative(result):
            result = 0
        want.append(result)
    compare(MODIFIED[text](*arrays), want, arrays)


PACKED = {type_: CODE.define(f"fma.rn.{type_}x2", "u4", "u4 u4 u4") for type_ in FORMATS}


@pytest.mark.parametrize("type_", FORMATS)
def test_pairs_are_two_single_operations(type_: str) -> None:
    rng = np.random.default_rng(4)
    a, b, c = rng.integers(0, 1 << 32, (3, 2000), dtype=np.uint32)
    want = ARITHMETIC["fma", type_](*(x.view("u2") for x in (a, b, c)))
    assert (PACKED[type_](a, b, c).view("u2") == want).all()


MIN_MAX = {
    f"{base}{modifiers}.{type_}": define(f"{base}{modifiers}.{type_}", 2)
    for base in ("min", "max")
    for modifiers in ("", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs")
    for type_ in FORMATS
}


@pytest.mark.parametrize("text", MIN_MAX)
def test_min_max(text: str) -> None:
    f = FORMATS[text.rsplit(".", 1)[1]]
    a, b = float_oracle.samples(f, 2, 3000, seed=5)

    def one(x: int, y: int) -> int:
        sign = (x ^ y) & f.sign
        if "abs" in text:
            x, y = x & ~f.sign, y & ~f.sign
        if f.is_nan(x) or f.is_nan(y):
            if "NaN" in text or (f.is_nan(x) and f.is_nan(y)):
                return f.nan
            result = y if f.is_nan(x) else x
        else:
            ordered = sorted((x, y), key=lambda v: -(v & ~f.sign) - 1 if v & f.sign else v)
            result = ordered[0] if text.startswith("min") else ordered[1]
        return result | sign if "abs" in text else result

    want = [one(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    compare(MIN_MAX[text](a, b), want, [a, b])


SIGNS = {
    text: define(text, 1)
    for text in ("neg.f16", "abs.bf16", "neg.ftz.f16", "abs.ftz.f16", "neg.bf16")
}


@pytest.mark.parametrize("text", SIGNS)
def test_signs_of_every_value(text: str) -> None:
    flushed = ALL
    if "ftz" in text:
        flushed = np.where(ALL & 0x7C00 == 0, ALL & 0x8000, ALL)
    want = flushed ^ 0x8000 if text.startswith("neg") else flushed & 0x7FFF
    assert (SIGNS[text](ALL) == want).all()


APPROXIMATE = {
    text: define(text, 1)
    for text in ("ex2.approx.f16", "tanh.approx.f16", "ex2.approx.ftz.bf16", "tanh.approx.bf16")
}


def as_double(bits: Array, type_: str) -> Array:
    single = bits.view("f2") if type_ == "f16" else (bits.astype("u4") << 16).view("f4")
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return single.astype("f8")


@pytest.mark.parametrize(
    ("text", "relative", "absolute"),
    [
        ("ex2.approx.f16", 2**-9.9, 2**-25),
        ("tanh.approx.f16", 0, 2**-10.987),
        ("ex2.approx.ftz.bf16", 2**-7, 0),
        ("tanh.approx.bf16", 0, 2**-8),
    ],
)
def test_approximations_of_every_value(text: str, relative: float, absolute: float) -> None:
    type_ = text.rsplit(".", 1)[1]
    f = FORMATS[type_]
    got_bits = APPROXIMATE[text](ALL)
    value, got = as_double(ALL, type_), as_double(got_bits, type_)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        exact = np.exp2(value) if text.startswith("ex2") else np.tanh(value)
    nan = np.isnan(value)
    assert (got_bits[nan] == f.nan).all()
    largest = (2 - 2.0**-f.mantissa) * 2.0 ** (1 - f.least_exponent)
    least = 2.0**f.least_exponent
    inside = ~nan & (exact <= largest) & ((exact >= least) | ("ftz" not in text))
    error = np.abs(got[inside] - exact[inside])
    assert (error <= relative * np.abs(exact[inside]) + absolute).all()
    if "ftz" in text:
        assert (got[exact < least / 2] == 0).all()
    assert (got[~nan & (exact > largest * 1.01)] == np.inf).all()
