"""Integer arithmetic, carry chains, division and dot products against Python integers."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from gpud.compiler.ptx import model as ptx
from tests.unit.cpu.lower.instruction_runner import Array, Instructions, Operation, register

CODE = Instructions()
TYPES = ("u16", "s16", "u32", "s32", "u64", "s64")
WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def dtype(type_: str) -> str:
    return f"{'i' if type_[0] == 's' else 'u'}{int(type_[1:]) // 8}"


def wrap(value: int, type_: str) -> int:
    bits = int(type_[1:])
    value &= (1 << bits) - 1
    return value - (1 << bits) if type_[0] == "s" and value >> (bits - 1) else value


def limits(type_: str) -> tuple[int, int]:
    bits = int(type_[1:])
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if type_[0] == "s" else (0, (1 << bits) - 1)


def clamp(value: int, type_: str) -> int:
    low, high = limits(type_)
    return min(max(value, low), high)


def values(type_: str, count: int, seed: int = 0) -> list[int]:
    """Edge values and random ones of all magnitudes."""
    low, high = limits(type_)
    edge = {0, 1, 2, 3, 7, 10, high, high - 1, low, low + 1, high // 2, high // 2 + 1, high // 3}
    edge |= {wrap(v, type_) for v in (-1, -2, -7, 0xFFFF, 0x8000, 0xFFFFFF, 0x800000, 1 << 23)}
    rng = np.random.default_rng(seed)
    random = [
        wrap(int(v) >> int(s), type_)
        for v, s in zip(
            rng.integers(0, 1 << 64, count, dtype=np.uint64),
            rng.integers(0, 64, count),
            strict=True,
        )
    ]
    return sorted(edge) + random


def run(
    operation: Operation, function: Callable[..., int], result: str, *types: str, count: int = 12
) -> None:
    """Compare on the product of the operands' sample values."""
    columns = [values(type_, count, seed) for seed, type_ in enumerate(types)]
    rows = list(itertools.product(*columns)) if len(types) < 3 else triples(columns)
    arrays = [
        np.array(c, dtype(type_)) for c, type_ in zip(zip(*rows, strict=True), types, strict=True)
    ]
    got = operation(*arrays)
    for row, value in zip(rows, got.tolist(), strict=True):
        want = wrap(function(*row), result)
        assert value == want, f"{row}: got {value:#x}, want {want:#x}"


def triples(columns: list[list[int]]) -> list[tuple[int, ...]]:
    pairs = list(itertools.product(columns[0], columns[1]))
    return [(*pair, columns[2][i % len(columns[2])]) for i, pair in enumerate(pairs * 2)]


def define(text: str, result: str, *types: str) -> Operation:
    return CODE.define(text, dtype(result), [dtype(t) for t in types])


def truncated(a: int, b: int) -> int:
    if b == 0:
        return -1
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


SIMPLE: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "min": min,
    "max": max,
    "div": truncated,
    "rem": lambda a, b: a - truncated(a, b) * b,
}
BINARY = {
    (name, type_): define(f"{name}.{type_}", type_, type_, type_)
    for name in SIMPLE
    for type_ in TYPES
}


@pytest.mark.parametrize("key", BINARY, ids=".".join)
def test_binary(key: tuple[str, str]) -> None:
    name, type_ = key
    run(BINARY[key], SIMPLE[name], type_, type_, type_, count=30)


HIGH = {t: define(f"mul.hi.{t}", t, t, t) for t in TYPES}
WIDE = {t: define(f"mul.wide.{t}", WIDER[t], t, t) for t in WIDER}
MAD_LO = {t: define(f"mad.lo.{t}", t, t, t, t) for t in TYPES}
MAD_HI = {t: define(f"mad.hi.{t}", t, t, t, t) for t in TYPES}
MAD_WIDE = {t: define(f"mad.wide.{t}", WIDER[t], t, t, WIDER[t]) for t in WIDER}
SAD = {t: define(f"sad.{t}", t, t, t, t) for t in TYPES}
MUL24 = {(p, t): define(f"mul24.{p}.{t}", t, t, t) for p in ("lo", "hi") for t in ("u32", "s32")}
MAD24 = {(p, t): define(f"mad24.{p}.{t}", t, t, t, t) for p in ("lo", "hi") for t in ("u32", "s32")}
ABS = {t: define(f"abs.{t}", t, t) for t in TYPES if t[0] == "s"}
NEG = {t: define(f"neg.{t}", t, t) for t in TYPES if t[0] == "s"}


@pytest.mark.parametrize("type_", TYPES)
def test_products_and_sums(type_: str) -> None:
    bits = int(type_[1:])
    run(HIGH[type_], lambda a, b: a * b >> bits, type_, type_, type_)
    run(MAD_LO[type_], lambda a, b, c: a * b + c, type_, type_, type_, type_)
    run(MAD_HI[type_], lambda a, b, c: (a * b >> bits) + c, type_, type_, type_, type_)
    run(SAD[type_], lambda a, b, c: c + abs(a - b), type_, type_, type_, type_)
    if type_ in WIDER:
        wide = WIDER[type_]
        run(WIDE[type_], lambda a, b: a * b, wide, type_, type_)
        run(MAD_WIDE[type_], lambda a, b, c: a * b + c, wide, type_, type_, wide)


@pytest.mark.parametrize("key", MUL24, ids=".".join)
def test_24_bit_products(key: tuple[str, str]) -> None:
    part, type_ = key

    def low24(a: int) -> int:
        a &= 0xFFFFFF
        return a - (1 << 24) if type_ == "s32" and a >> 23 else a

    shift = 0 if part == "lo" else 16
    run(MUL24[key], lambda a, b: low24(a) * low24(b) >> shift, type_, type_, type_)
    run(
        MAD24[key],
        lambda a, b, c: wrap(low24(a) * low24(b) >> shift, type_) + c,
        type_,
        type_,
        type_,
        type_,
    )


@pytest.mark.parametrize("type_", ABS)
def test_abs_neg(type_: str) -> None:
    run(ABS[type_], abs, type_, type_, count=50)
    run(NEG[type_], lambda a: -a, type_, type_, count=50)


SATURATING = {
    "add": define("add.sat.s32", "s32", "s32", "s32"),
    "sub": define("sub.sat.s32", "s32", "s32", "s32"),
}
MAD_SAT = define("mad.hi.sat.s32", "s32", "s32", "s32", "s32")
RELU = define("max.relu.s32", "s32", "s32", "s32")
RELU_MIN = define("min.s32.relu", "s32", "s32", "s32")


def test_saturation_and_relu() -> None:
    run(SATURATING["add"], lambda a, b: clamp(a + b, "s32"), "s32", "s32", "s32", count=30)
    run(SATURATING["sub"], lambda a, b: clamp(a - b, "s32"), "s32", "s32", "s32", count=30)
    run(MAD_SAT, lambda a, b, c: clamp((a * b >> 32) + c, "s32"), "s32", "s32", "s32", "s32")
    run(RELU, lambda a, b: max(a, b, 0), "s32", "s32", "s32")
    run(RELU_MIN, lambda a, b: max(min(a, b), 0), "s32", "s32", "s32")


PACKED = {
    (name, type_): CODE.define(f"{name}.{type_}", "u4", "u4 u4")
    for name in ("add", "min", "max")
    for type_ in ("u16x2", "s16x2")
}
PACKED_RELU = CODE.define("min.s16x2.relu", "u4", "u4 u4")


@pytest.mark.parametrize("key", PACKED, ids=".".join)
def test_packed_halves(key: tuple[str, str]) -> None:
    name, type_ = key
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 1 << 32, (2, 500), dtype=np.uint32)
    view = dtype(type_[:3])
    function = {"add": np.add, "min": np.minimum, "max": np.maximum}[name]
    want = function(a.view(view), b.view(view))
    assert (PACKED[key](a, b).view(view) == want).all()
    if (name, type_) == ("min", "s16x2"):
        assert (PACKED_RELU(a, b).view("i2") == np.maximum(want, 0)).all()


def test_division_by_constants() -> None:
    a = np.array(values("s32", 40), "i4")
    for divisor, operation in BY_CONSTANT.items():
        got = operation(a).tolist()
        want = [wrap(truncated(int(x), divisor), "s32") for x in a]
        assert got == want, divisor


BY_CONSTANT = {
    divisor: CODE.define("div.s32", "i4", "i4", ["%d0", "%a0", divisor])
    for divisor in (1, 3, -7, 1 << 20, -1, 0, -(1 << 31))
}


# -- carry chains: 128-bit arithmetic from 32-bit words


def chain(names: list[str], arity: int) -> Operation:
    """Four-word addition or subtraction in one operation; words of a, then words of b."""
    program = [
        ptx.Instruction(
            ptx.opcode(name),
            (register(f"%d{i}"), *(register(f"%a{i + 4 * k}") for k in range(arity))),
        )
        for i, name in enumerate(names)
    ]
    return CODE.define(program, ["u4"] * 4, ["u4"] * 4 * arity)


ADD_128 = chain(["add.cc.u32", "addc.cc.u32", "addc.cc.s32", "addc.u32"], 2)
SUB_128 = chain(["sub.cc.u32", "subc.cc.u32", "subc.cc.s32", "subc.u32"], 2)
MAD_128 = CODE.define(
    [
        ptx.Instruction(ptx.opcode(name), tuple(register(r) for r in registers.split()))
        for name, registers in (
            ("mad.lo.cc.u32", "%d0 %a0 %a1 %a2"),
            ("madc.hi.cc.u32", "%d1 %a0 %a1 %a3"),
            ("addc.u32", "%d2 %a4 %a5"),
        )
    ],
    "u4 u4 u4",
    ["u4"] * 6,
)


def words(numbers: list[int], count: int) -> list[Array]:
    return [np.array([n >> (32 * i) & 0xFFFFFFFF for n in numbers], "u4") for i in range(count)]


def joined(arrays: tuple[Array, ...]) -> list[int]:
    return [sum(int(w) << (32 * i) for i, w in enumerate(row)) for row in zip(*arrays, strict=True)]


def test_carry_chains() -> None:
    full = (1 << 128) - 1
    rng = np.random.default_rng(2)
    numbers = [int.from_bytes(rng.bytes(16), "little") for _ in range(30)]
    numbers += [0, 1, full, full - 1, (1 << 32) - 1, (1 << 64) - 1, 1 << 96, full - (1 << 64)]
    a, b = zip(*itertools.product(numbers, numbers), strict=True)
    given = words(list(a), 4) + words(list(b), 4)
    assert joined(ADD_128(*given)) == [(x + y) & full for x, y in zip(a, b, strict=True)]
    assert joined(SUB_128(*given)) == [(x - y) & full for x, y in zip(a, b, strict=True)]


def test_multiply_add_carry_chain() -> None:
    rng = np.random.default_rng(3)
    columns = [np.array(values("u32", 400, seed), "u4") for seed in range(6)]
    for column in columns:
        rng.shuffle(column)
    low, high, top = MAD_128(*columns)
    for row in zip(low, high, top, *columns, strict=True):
        d0, d1, d2, a, b, c0, c1, e, f = map(int, row)
        total = a * b + c0 + (c1 << 32) + ((e + f) << 64)
        assert d0 + (d1 << 32) + (d2 << 64) == total & ((1 << 96) - 1)


# -- dot products

DP4A = {
    (x, y): CODE.define(f"dp4a.{x}.{y}", "u4", "u4 u4 u4")
    for x in ("u32", "s32")
    for y in ("u32", "s32")
}
DP2A = {
    (part, x, y): CODE.define(f"dp2a.{part}.{x}.{y}", "u4", "u4 u4 u4")
    for part in ("lo", "hi")
    for x in ("u32", "s32")
    for y in ("u32", "s32")
}


def test_dot_products() -> None:
    rng = np.random.default_rng(4)
    a, b, c = rng.integers(0, 1 << 32, (3, 1000), dtype=np.uint32)
    a[:3], b[:3] = (0x80808080, 0xFFFFFFFF, 0x7F7F7F7F), (0x80808080, 0x80FF7F00, 0xFFFFFFFF)
    bytes_ = {"u32": "u1", "s32": "i1"}
    halves = {"u32": "u2", "s32": "i2"}
    for (x, y), operation in DP4A.items():
        parts = a.view(bytes_[x]).reshape(-1, 4).astype("i8"), b.view(bytes_[y]).reshape(-1, 4)
        want = (c.astype("i8") + (parts[0] * parts[1]).sum(1)).astype("u8").astype("u4")
        assert (operation(a, b, c) == want).all(), (x, y)
    for (part, x, y), operation in DP2A.items():
        low = 0 if part == "lo" else 2
        first = a.view(halves[x]).reshape(-1, 2).astype("i8")
        second = b.view(bytes_[y]).reshape(-1, 4)[:, low : low + 2]
        want = (c.astype("i8") + (first * second).sum(1)).astype("u8").astype("u4")
        assert (operation(a, b, c) == want).all(), (part, x, y)
