"""cvt between all pairs of types against exact rational arithmetic."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from tests.unit.cpu.lower import float_oracle
from tests.unit.cpu.lower.instruction_runner import Array, Instructions, f2
from tests.unit.cpu.lower.test_integer_arithmetic import clamp, dtype, limits, values, wrap

CODE = Instructions()
INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
FORMATS = {
    "f16": float_oracle.F16,
    "bf16": float_oracle.BF16,
    "f32": float_oracle.F32,
    "f64": float_oracle.F64,
}
MODES = ("rn", "rz", "rm", "rp")
FLOOR: dict[str, Callable[[Fraction], int]] = {
    "rni": round,
    "rzi": math.trunc,
    "rmi": math.floor,
    "rpi": math.ceil,
}


def slot(type_: str) -> str:
    """The dtype of a register that holds a value as bits."""
    return FORMATS[type_].dtype if type_ in FORMATS else dtype(type_)


def compare(got: Array, want: list[int], given: Array) -> None:
    wrong = [i for i, (g, w) in enumerate(zip(got.tolist(), want, strict=True)) if g != w]
    shown = [(hex(given[i]), hex(got[i]), hex(want[i])) for i in wrong[:5]]
    assert not wrong, f"{len(wrong)} of {len(want)}: (given, got, wanted) {shown}"


# -- between integers

WHOLE_FORMS = [(sat, to) for sat in ("", ".sat") for to in INTEGERS]
WHOLE = {
    of: CODE.define_many(
        [f"cvt{sat}.{to}.{of}" for sat, to in WHOLE_FORMS],
        [slot(to) for _, to in WHOLE_FORMS],
        slot(of),
    )
    for of in INTEGERS
}


def test_integer_to_integer() -> None:
    for of, operation in WHOLE.items():
        given = values(of, 20)
        results = operation(np.array(given, slot(of)))
        for (sat, to), got in zip(WHOLE_FORMS, results, strict=True):
            want = [clamp(v, to) if sat else wrap(v, to) for v in given]
            assert got.tolist() == want, (sat, to, of)


def test_registers_wider_than_the_types() -> None:
    given = np.array([0x12345680, 0xFFFFFF7F, 0x80], "u4")
    assert WIDE_SIGNED(given).tolist() == [-128, 127, -128]
    assert WIDE_UNSIGNED(given).tolist() == [0x80, 0x7F, 0x80]


WIDE_SIGNED = CODE.define("cvt.s8.s32", "i4", "u4")
WIDE_UNSIGNED = CODE.define("cvt.u8.u32", "i4", "u4")

# -- floats to integers

TO_INTEGER_FORMS = [(mode, to) for to in INTEGERS for mode in FLOOR]
TO_INTEGER = {
    of: CODE.define_many(
        [f"cvt.{mode}.{to}.{of}" for mode, to in TO_INTEGER_FORMS],
        [slot(to) for _, to in TO_INTEGER_FORMS],
        slot(of),
    )
    for of in FORMATS
}


def float_samples(f: float_oracle.Format, seed: int) -> Array:
    """Special patterns, halves of integers, limits of the integer types, random patterns."""
    special = float_oracle.samples(f, 1, 150, seed)[0]
    numbers = [n / 2 for n in range(-9, 10)]
    for type_ in INTEGERS:
        for limit in limits(type_):
            numbers += [limit + d for d in (-1, -0.5, 0, 0.5, 1)]
    bits = [f.encode(Fraction(n), negative_zero=False) for n in numbers]
    return np.unique(np.concatenate([special, np.array(bits, f.dtype)]))


def to_integer(f: float_oracle.Format, bits: int, mode: str, to: str) -> int:
    if f.is_nan(bits):
        if f is float_oracle.F64 or to[1:] == "64":
            return wrap(1 << (int(to[1:]) - 1), to)
        return 0
    if f.is_infinite(bits):
        return limits(to)[0 if f.is_negative(bits) else 1]
    return clamp(FLOOR[mode](f.decode(bits)), to)


@pytest.mark.parametrize("of", FORMATS)
def test_float_to_integer(of: str) -> None:
    f = FORMATS[of]
    given = float_samples(f, 1)
    for (mode, to), got in zip(TO_INTEGER_FORMS, TO_INTEGER[of](given), strict=True):
        want = [to_integer(f, int(bits), mode, to) for bits in given]
        compare(got, want, given)


# -- integers to floats

FROM_INTEGER = {
    (to, of): CODE.define_many(
        [f"cvt.{mode}.{to}.{of}" for mode in MODES], [slot(to)] * 4, slot(of)
    )
    for to in FORMATS
    for of in INTEGERS
}


def halfway(of: str, f: float_oracle.Format) -> list[int]:
    """Integers on and beside numbers of the format and midpoints between them."""
    low, high = limits(of)
    found = []
    for power in range(f.mantissa, int(of[1:])):
        unit = 1 << (power - f.mantissa)
        for base in (1 << power, (1 << power) + unit, (2 << power) - unit):
            found += [base + d for d in (-1, 0, 1, unit // 2 - 1, unit // 2, unit // 2 + 1)]
    return [s * n for n in found for s in (1, -1) if low <= s * n <= high]


@pytest.mark.parametrize("to", FORMATS)
def test_integer_to_float(to: str) -> None:
    f = FORMATS[to]
    for of in INTEGERS:
        given = np.array(values(of, 30) + halfway(of, f), slot(of))
        for mode, got in zip(MODES, FROM_INTEGER[to, of](given), strict=True):
            want = [f.encode(Fraction(int(v)), mode) for v in given]
            compare(got, want, given)


# -- between floats

NARROWING = [
    (to, of)
    for to in FORMATS
    for of in FORMATS
    if FORMATS[to].width < FORMATS[of].width or {to, of} == {"f16", "bf16"}
]
NARROW = {
    (to, of): CODE.define_many(
        [f"cvt.{mode}.{to}.{of}" for mode in MODES], [slot(to)] * 4, slot(of)
    )
    for to, of in NARROWING
}
WIDEN = {
    (to, of): CODE.define(f"cvt.{to}.{of}", slot(to), slot(of))
    for to, of in (("f32", "f16"), ("f32", "bf16"), ("f64", "f16"), ("f64", "bf16"), ("f64", "f32"))
}


def near(to: float_oracle.Format, of: float_oracle.Format, seed: int) -> Array:
    """Patterns of ``of`` on and beside numbers of ``to`` and their midpoints."""
    rng = np.random.default_rng(seed)
    found = []
    for bits in rng.integers(0, to.infinity, 150):
        value = to.decode(int(bits))
        above = to.decode(int(bits) + 1) if bits + 1 < to.infinity else 2 * value
        for point in (value, (value + above) / 2):
            pattern = of.encode(point)
            found += [pattern, pattern + 1, max(pattern - 1, 0)]
    found += [bits | of.sign for bits in found]
    return np.array(found, of.dtype)


def to_float(to: float_oracle.Format, of: float_oracle.Format, bits: int, mode: str = "rn") -> int:
    sign = to.sign if of.is_negative(bits) else 0
    if of.is_nan(bits):
        return to.nan
    if of.is_infinite(bits):
        return to.infinity | sign
    return to.encode(of.decode(bits), mode, negative_zero=bool(sign))


@pytest.mark.parametrize(("to", "of"), NARROWING, ids=".".join)
def test_float_to_narrower_float(to: str, of: str) -> None:
    f, g = FORMATS[to], FORMATS[of]
    if g.width == 16:
        given = np.arange(0, 1 << 16, 7, dtype=np.uint16)
    else:
        given = np.concatenate([float_oracle.samples(g, 1, 400, 2)[0], near(f, g, 3)])
    for mode, got in zip(MODES, NARROW[to, of](given), strict=True):
        want = [to_float(f, g, int(bits), mode) for bits in given]
        compare(got, want, given)


@pytest.mark.parametrize(("to", "of"), WIDEN, ids=".".join)
def test_float_to_wider_float(to: str, of: str) -> None:
    f, g = FORMATS[to], FORMATS[of]
    given = float_oracle.samples(g, 1, 400, 2)[0]
    if g.width == 16:
        given = np.arange(1 << 16, dtype=np.uint16)
        given = given[:: 1 if to == "f32" else 13]
    want = [to_float(f, g, int(bits)) for bits in given]
    compare(WIDEN[to, of](given), want, given)


MODIFIED = {
    text: CODE.define(text, slot(text.split(".")[-2]), slot(text.split(".")[-1]))
    for text in (
        "cvt.rn.relu.f16.f32",
        "cvt.rz.relu.satfinite.bf16.f32",
        "cvt.rn.satfinite.f16.f32",
        "cvt.sat.f32.f32",
        "cvt.ftz.sat.f32.f32",
        "cvt.rn.sat.f16.f32",
        "cvt.rn.sat.f32.f64",
        "cvt.rn.ftz.f32.f64",
        "cvt.rn.ftz.f16.f32",
        "cvt.ftz.f32.f16",
    )
}


@pytest.mark.parametrize("text", MODIFIED)
def test_modifiers_of_float_conversions(text: str) -> None:
    _, *modifiers, to, of = text.split(".")
    f, g = FORMATS[to], FORMATS[of]
    given = float_oracle.samples(g, 1, 600, 5)[0]
    want = []
    flush = g.flush if "ftz" in modifiers and of == "f32" else int
    for bits in (flush(int(x)) for x in given):
        result = to_float(f, g, bits, "rz" if "rz" in modifiers else "rn")
        if "ftz" in modifiers and to == "f32":
            result = f.flush(result)
        nan, negative = f.is_nan(result), f.is_negative(result)
        if "satfinite" in modifiers and not nan:
            result = min(result & ~f.sign, f.infinity - 1) | (result & f.sign)
        if "relu" in modifiers and negative and not nan:
            result = 0
        if "sat" in modifiers:
            one = f.encode(Fraction(1))
            result = 0 if nan or negative else min(result, one)
        want.append(result)
    compare(MODIFIED[text](given), want, given)


INTEGRAL = {
    (mode, t): CODE.define(f"cvt.{mode}.{t}.{t}", slot(t), slot(t))
    for mode in FLOOR
    for t in FORMATS
}


@pytest.mark.parametrize("type_", FORMATS)
def test_round_to_integral(type_: str) -> None:
    f = FORMATS[type_]
    given = float_samples(f, 3)
    for mode, function in FLOOR.items():
        want = []
        for bits in map(int, given):
            if f.is_nan(bits) or f.is_infinite(bits):
                want.append(f.nan if f.is_nan(bits) else bits)
            else:
                whole = Fraction(function(f.decode(bits)))
                want.append(f.encode(whole, negative_zero=f.is_negative(bits)))
        compare(INTEGRAL[mode, type_](given), want, given)


PACK = {
    text: CODE.define(text, "u4", "u4 u4")
    for text in ("cvt.rn.f16x2.f32", "cvt.rz.bf16x2.f32", "cvt.rn.relu.f16x2.f32")
}


def test_pack_puts_the_first_operand_on_top() -> None:
    a, b = float_oracle.samples(float_oracle.F32, 2, 500, 6)
    for text, operation in PACK.items():
        _, mode, *_ = text.split(".")
        f = FORMATS[text.split(".")[-2][:-2]]
        halves = []
        for column in (b, a):
            bits = [to_float(f, float_oracle.F32, int(x), mode) for x in column]
            if "relu" in text:
                bits = [0 if f.is_negative(x) else x for x in bits]
            halves.append(bits)
        want = [low | high << 16 for low, high in zip(*halves, strict=True)]
        compare(operation(a, b), want, a)


# -- tf32 and eight-bit floats

TF32 = {mode: CODE.define(f"cvt.{mode}.tf32.f32", "u4", "u4") for mode in ("rna", "rn", "rz")}
TF32_FORMAT = float_oracle.Format(8, 10, 0x3FFFF, "u4")


def test_tf32_keeps_ten_bits() -> None:
    given = float_oracle.samples(float_oracle.F32, 1, 2000, 7)[0]
    for mode, operation in TF32.items():
        want = [
            0x7FFFFFFF
            if float_oracle.F32.is_nan(int(bits))
            else to_float(TF32_FORMAT, float_oracle.F32, int(bits), mode) << 13
            for bits in given
        ]
        compare(operation(given), want, given)


MINI = {
    "e4m3x2": (4, 3, 0x7E, 0x7F),
    "e5m2x2": (5, 2, 0x7B, 0x7F),
    "e2m3x2": (2, 3, 0x1F, None),
    "e3m2x2": (3, 2, 0x1F, None),
    "e2m1x2": (2, 1, 0x7, None),
}
TO_MINI = {
    t: CODE.define(f"cvt.rn.satfinite.{t}.f32", "u1" if t == "e2m1x2" else "u2", "u4 u4")
    for t in MINI
}
FROM_MINI = {
    t: CODE.define(f"cvt.rn.f16x2.{t}", "u4", "u1" if t == "e2m1x2" else "u2") for t in MINI
}
MINI_RELU = CODE.define("cvt.rn.satfinite.relu.e4m3x2.f16x2", "u2", "u4")


@pytest.mark.parametrize("type_", MINI)
def test_minifloats(type_: str) -> None:
    exponent, mantissa, largest, nan = MINI[type_]
    # One exponent bit more than the type has room for its finite top binade.
    f = float_oracle.Format(exponent, mantissa, 0, "u1")
    width = 4 if type_ == "e2m1x2" else 8
    values_ = {bits: f.decode(bits) for bits in range(largest + 1)}

    def encode(bits: int) -> int:
        if float_oracle.F32.is_nan(bits):
            return largest if nan is None else nan
        sign = f.sign if float_oracle.F32.is_negative(bits) else 0
        if float_oracle.F32.is_infinite(bits):
            return largest | sign
        value = abs(float_oracle.F32.decode(bits))
        # Nearest by distance, ties to the even pattern.
        return min(values_, key=lambda k: (abs(values_[k] - value), k & 1)) | sign

    points = sorted(values_.values())
    numbers = [*points, *((a + b) / 2 for a, b in itertools.pairwise(points))]
    given = [float_oracle.F32.encode(n) for n in numbers]
    given += [b + d for b in given for d in (-1, 1) if b + d > 0]
    given += [0x7F800000, 0x7FC00000, 0x7F7FFFFF, 1]
    array = np.array(given + [b | 1 << 31 for b in given], "u4")
    other = array[::-1].copy()
    got = TO_MINI[type_](array, other)
    want = [encode(int(a)) << width | encode(int(b)) for a, b in zip(array, other, strict=True)]
    compare(got, want, array)
    # And back: every pattern that the type has.
    half = []
    for bits in range(1 << (1 + exponent + mantissa)):
        magnitude, sign = bits & (f.sign - 1), bits & f.sign
        if magnitude in values_:
            half.append(float_oracle.F16.encode(values_[magnitude]) | (0x8000 if sign else 0))
        elif type_ == "e5m2x2" and magnitude == 0x7C:
            half.append(0x7C00 | (0x8000 if sign else 0))
        else:
            half.append(0x7FFF)
    patterns = np.arange(len(half))
    packed = patterns | patterns[::-1] << width
    got_back = FROM_MINI[type_](packed)
    compare(
        got_back, [low | high << 16 for low, high in zip(half, half[::-1], strict=True)], packed
    )


def test_minifloat_from_halves_with_relu() -> None:
    pair = f2([-1.0, 500.0]).view("u4")
    assert MINI_RELU(pair)[0] == 0x7E00  # 500 saturates to 448, -1 becomes 0


CVT_PACK = CODE.define("cvt.pack.sat.u8.s32.b32", "u4", "i4 i4 u4")


def test_cvt_pack() -> None:
    assert CVT_PACK([300], [-5], [0xAABB1122])[0] == 0x1122FF00
