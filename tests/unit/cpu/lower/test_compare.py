"""setp, set, selp, slct and testp."""

from __future__ import annotations

import operator

import numpy as np
import pytest

from gpud.compiler.ptx import model as ptx
from tests.unit.cpu.lower import float_oracle
from tests.unit.cpu.lower.instruction_runner import Instructions, Operation, f2, f4, register
from tests.unit.cpu.lower.test_integer_arithmetic import dtype, values

CODE = Instructions()
FORMATS = {
    "f16": float_oracle.F16,
    "bf16": float_oracle.BF16,
    "f32": float_oracle.F32,
    "f64": float_oracle.F64,
}
ORDERED = {n: getattr(operator, n) for n in ("eq", "ne", "lt", "le", "gt", "ge")}
UNSIGNED = {"lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge}
INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")

SETP = {
    (name, t): CODE.define(f"setp.{name}.{t}", "?", [dtype(t)] * 2)
    for t in INTEGERS
    for name in (ORDERED | (UNSIGNED if t[0] == "u" else {}))
} | {
    (name, t): CODE.define(f"setp.{name}.{t}", "?", [f"u{int(t[1:]) // 8}"] * 2)
    for t in ("b16", "b32", "b64")
    for name in ("eq", "ne")
}


def pairs(type_: str) -> tuple[list[int], list[int]]:
    some = values(type_, 10)
    return zip(*((a, b) for a in some for b in some), strict=True)  # type: ignore[return-value]


def test_integer_comparisons() -> None:
    for (name, type_), operation in SETP.items():
        a, b = pairs(type_.replace("b", "u"))
        function = (ORDERED | UNSIGNED)[name]
        dtype_ = dtype(type_.replace("b", "u"))
        got = operation(np.array(a, dtype_), np.array(b, dtype_)).tolist()
        assert got == [function(x, y) for x, y in zip(a, b, strict=True)], (name, type_)


def float_comparison(name: str, f: float_oracle.Format, a: int, b: int) -> bool:
    nan = f.is_nan(a) or f.is_nan(b)
    if name in ("num", "nan"):
        return nan == (name == "nan")
    if nan:
        return name.endswith("u") and name != "u"

    def number(bits: int) -> float:
        if f.is_infinite(bits):
            return float("-inf") if f.is_negative(bits) else float("inf")
        return f.decode(bits)  # type: ignore[return-value]

    base = name.removesuffix("u")
    return bool(ORDERED[base](number(a), number(b)))


FLOAT_NAMES = (*ORDERED, *(n + "u" for n in ORDERED), "num", "nan")
FLOAT_SETP = {
    (name, t): CODE.define(f"setp.{name}.{t}", "?", [FORMATS[t].dtype] * 2)
    for t in FORMATS
    for name in FLOAT_NAMES
}
FTZ = {t: CODE.define(f"setp.eq.ftz.{t}", "?", [FORMATS[t].dtype] * 2) for t in ("f16", "f32")}


@pytest.mark.parametrize("type_", FORMATS)
def test_float_comparisons(type_: str) -> None:
    f = FORMATS[type_]
    a, b = float_oracle.samples(f, 2, 100, 1)
    for name in FLOAT_NAMES:
        got = FLOAT_SETP[name, type_](a, b).tolist()
        rows = zip(a, b, strict=True)
        assert got == [float_comparison(name, f, int(x), int(y)) for x, y in rows], name
    if type_ in FTZ:
        rows = zip(a, b, strict=True)
        want = [float_comparison("eq", f, f.flush(int(x)), f.flush(int(y))) for x, y in rows]
        assert FTZ[type_](a, b).tolist() == want


def pair_setp(text: str, inputs: str, *, combined: bool, negated: bool = False) -> Operation:
    c = register("%a2")
    third = ((ptx.Not(c) if negated else c),) if combined else ()
    targets = ptx.Pair(register("%d0"), register("%d1"))
    operands = (targets, register("%a0"), register("%a1"), *third)
    return CODE.define([ptx.Instruction(ptx.opcode(text), operands)], "? ?", inputs)


TWO = pair_setp("setp.lt.s32", "i4 i4", combined=False)
AND = pair_setp("setp.lt.and.s32", "i4 i4 ?", combined=True)
XOR = pair_setp("setp.lt.xor.s32", "i4 i4 ?", combined=True, negated=True)
HALVES = pair_setp("setp.gtu.f16x2", "u4 u4", combined=False)


def test_second_destination_and_combination() -> None:
    a, b = [1, 2, 1, 2], [2, 1, 2, 1]
    c = np.array([True, True, False, False])
    assert [r.tolist() for r in TWO(a, b)] == [[True, False] * 2, [False, True] * 2]
    first, second = AND(a, b, c)
    assert first.tolist() == [True, False, False, False]
    assert second.tolist() == [False, True, False, False]
    assert XOR(a, b, c)[0].tolist() == [True, False, False, True]


def test_packed_halves_give_two_predicates() -> None:
    a = f2([1, np.nan, 3, -2]).view("u4")
    b = f2([2, 0, 2, -2]).view("u4")
    low, high = HALVES(a, b)
    assert low.tolist() == [False, True]
    assert high.tolist() == [True, False]


SET = {
    "set.lt.u32.f32": ("u4", "f4 f4"),
    "set.lt.f32.s32": ("f4", "i4 i4"),
    "set.ne.s32.u16": ("u4", "u2 u2"),
    "set.geu.f16x2.f16x2": ("u4", "u4 u4"),
    "set.eq.u32.f16x2": ("u4", "u4 u4"),
    "set.eq.f16.f16": ("u2", "u2 u2"),
}
SETS = {text: CODE.define(text, *types) for text, types in SET.items()}
SET_AND = CODE.define("set.lt.and.u32.s32", "u4", "i4 i4 ?")


def test_set() -> None:
    x, y = f4([1, 2, np.nan]), f4([2, 1, 1])
    assert SETS["set.lt.u32.f32"](x, y).tolist() == [0xFFFFFFFF, 0, 0]
    assert SETS["set.lt.f32.s32"]([1, 2], [2, 1]).tolist() == [1.0, 0.0]
    assert SETS["set.ne.s32.u16"]([1, 2], [2, 2]).tolist() == [0xFFFFFFFF, 0]
    a = f2([1, np.nan]).view("u4")
    b = f2([2, 1]).view("u4")
    assert SETS["set.geu.f16x2.f16x2"](a, b)[0] == 0x3C000000
    assert SETS["set.eq.u32.f16x2"](a, a)[0] == 0x0000FFFF
    assert SETS["set.eq.f16.f16"]([0x8000, 0x7E00], [0, 0x7E00]).tolist() == [0x3C00, 0]
    assert SET_AND([1, 1], [2, 2], [True, False]).tolist() == [0xFFFFFFFF, 0]


SELP = {
    "selp.f64": CODE.define("selp.f64", "f8", "f8 f8 ?"),
    "selp.b16": CODE.define("selp.b16", "u2", "u2 u2 ?"),
}
SLCT = CODE.define("slct.u32.s32", "u4", "u4 u4 i4")
SLCT_FLOAT = CODE.define("slct.f32.f32", "f4", "f4 f4 f4")
SLCT_FTZ = CODE.define("slct.ftz.f32.f32", "f4", "f4 f4 f4")


def test_selection() -> None:
    for operation in SELP.values():
        assert operation([1, 2], [3, 4], [True, False]).tolist() == [1, 4]
    assert SLCT([1] * 3, [2] * 3, [-1, 0, 5]).tolist() == [2, 1, 1]
    c = f4([-1, -0.0, np.nan, -1e-40, 2])
    assert SLCT_FLOAT([1] * 5, [2] * 5, c).tolist() == [2, 1, 2, 2, 1]
    assert SLCT_FTZ([1] * 5, [2] * 5, c).tolist() == [2, 1, 2, 1, 1]


TESTP = {
    (kind, t): CODE.define(f"testp.{kind}.{t}", "?", FORMATS[t].dtype)
    for t in ("f32", "f64")
    for kind in ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
}


def test_testp() -> None:
    for (kind, type_), operation in TESTP.items():
        f = FORMATS[type_]
        given = float_oracle.samples(f, 1, 200, 2)[0]
        for bits, got in zip(map(int, given), operation(given).tolist(), strict=True):
            nan, infinite = f.is_nan(bits), f.is_infinite(bits)
            finite = not nan and not infinite
            subnormal = finite and f.flush(bits) != bits
            want = {
                "finite": finite,
                "infinite": infinite,
                "number": not nan,
                "notanumber": nan,
                "normal": finite and not subnormal,  # zeros count as normal
                "subnormal": subnormal,
            }[kind]
            assert got == want, (kind, type_, hex(bits))
