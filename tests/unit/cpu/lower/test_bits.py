"""Logic, shifts, bit fields and permutation against the ISA's reference code, in Python."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gpud.compiler.ptx import model as ptx
from tests.unit.cpu.lower.instruction_runner import Array, Instructions, register

CODE = Instructions()
RNG = np.random.default_rng(0)
WORDS = np.concatenate(
    [
        np.array([0, 1, 2, 0x80000000, 0xFFFFFFFF, 0x7FFFFFFF, 0xF0F0F0F0, 0x12345678], "u4"),
        RNG.integers(0, 1 << 32, 24, dtype=np.uint32),
    ]
)
LONGS = np.concatenate(
    [
        np.array([0, 1, 1 << 63, (1 << 64) - 1, (1 << 63) - 1, 1 << 32, 0xFFFFFFFF], "u8"),
        RNG.integers(0, 1 << 64, 24, dtype=np.uint64),
    ]
)
COUNTS = np.array(
    [0, 1, 2, 5, 8, 15, 16, 17, 31, 32, 33, 40, 63, 64, 65, 255, 256, 300, 1 << 31], "u4"
)


def grid(*arrays: Array) -> list[Array]:
    return [g.ravel() for g in np.meshgrid(*arrays, indexing="ij")]


def rows(*arrays: Array) -> list[tuple[int, ...]]:
    return [tuple(map(int, row)) for row in zip(*arrays, strict=True)]


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


# -- logic

LOGIC = {
    (name, bits): CODE.define(f"{name}.b{bits}", f"u{bits // 8}", [f"u{bits // 8}"] * 2)
    for name in ("and", "or", "xor")
    for bits in (16, 32, 64)
}
PREDICATES = {name: CODE.define(f"{name}.pred", "?", "? ?") for name in ("and", "or", "xor")}
NOT = {bits: CODE.define(f"not.b{bits}", f"u{bits // 8}", f"u{bits // 8}") for bits in (16, 32, 64)}
NOT_PRED = CODE.define("not.pred", "?", "?")
CNOT = CODE.define("cnot.b32", "u4", "u4")


def test_logic() -> None:
    functions = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
    for (name, bits), operation in LOGIC.items():
        a, b = (x.astype(f"u{bits // 8}") for x in grid(LONGS, LONGS))
        assert (operation(a, b) == functions[name](a, b)).all()
    truth = grid(np.array([False, True]), np.array([False, True]))
    for name, operation in PREDICATES.items():
        assert (operation(*truth) == functions[name](*truth)).all()
    for bits, operation in NOT.items():
        a = LONGS.astype(f"u{bits // 8}")
        assert (operation(a) == ~a).all()
    assert NOT_PRED([True, False]).tolist() == [False, True]
    assert CNOT([0, 5, 1]).tolist() == [1, 0, 0]


LOP3 = [
    CODE.define_many(["lop3.b32"] * 32, ["u4"] * 32, "u4 u4 u4", *([t] for t in range(k, k + 32)))
    for k in range(0, 256, 32)
]
LOP3_PREDICATE = {
    name: CODE.define(
        [
            ptx.Instruction(
                ptx.opcode(f"lop3.{name}.b32"),
                (
                    ptx.Pair(register("%d0"), register("%d1")),
                    *map(register, ("%a0", "%a1", "%a2")),
                    ptx.Immediate("0x80", 0x80),
                    register("%a3"),
                ),
            )
        ],
        "u4 ?",
        "u4 u4 u4 ?",
    )
    for name in ("or", "and")
}


def test_lop3_every_table() -> None:
    a, b, c = (np.array([x], "u4") for x in (0xF0, 0xCC, 0xAA))
    results = [int(r[0]) & 0xFF for operation in LOP3 for r in operation(a, b, c)]
    assert results == list(range(256))


def test_lop3_with_predicate() -> None:
    a = np.array([1, 1, 2, 2], "u4")
    q = np.array([False, True, False, True])
    result, p = LOP3_PREDICATE["or"](a, 3, 1, q)
    assert result.tolist() == [1, 1, 0, 0]
    assert p.tolist() == [True, True, False, True]
    assert LOP3_PREDICATE["and"](a, 3, 1, q)[1].tolist() == [False, True, False, False]


# -- shifts

SHIFTS = {
    (name, type_): CODE.define(
        f"{name}.{type_}", f"u{int(type_[1:]) // 8}", [f"u{int(type_[1:]) // 8}", "u4"]
    )
    for name, kinds in (("shl", "b"), ("shr", "us"))
    for type_ in (f"{k}{n}" for k in kinds for n in (16, 32, 64))
}
FIXED = {n: CODE.define("shr.s32", "u4", "u4", ["%d0", "%a0", n]) for n in (0, 7, 31, 32, 100)}
FUNNEL = {
    (d, m): CODE.define(f"shf.{d}.{m}.b32", "u4", "u4 u4 u4")
    for d in "lr"
    for m in ("clamp", "wrap")
}


@pytest.mark.parametrize("key", SHIFTS, ids=".".join)
def test_shifts_clamp(key: tuple[str, str]) -> None:
    name, type_ = key
    bits = int(type_[1:])
    a, n = grid(LONGS.astype(f"u{bits // 8}"), COUNTS)
    for value, count, got in rows(a, n, SHIFTS[key](a, n)):
        number = signed(value, bits) if type_[0] == "s" else value
        clamped = min(count, bits)
        want = number << clamped if name == "shl" else number >> clamped
        assert got == want & ((1 << bits) - 1), (value, count)


def test_shifts_by_constants() -> None:
    for count, operation in FIXED.items():
        want = [(signed(int(a), 32) >> min(count, 32)) & 0xFFFFFFFF for a in WORDS]
        assert operation(WORDS).tolist() == want


@pytest.mark.parametrize("key", FUNNEL, ids=".".join)
def test_funnel_shift(key: tuple[str, str]) -> None:
    direction, mode = key
    a, b, n = grid(WORDS, WORDS, COUNTS)
    for low, high, count, got in rows(a, b, n, FUNNEL[key](a, b, n)):
        by = min(count, 32) if mode == "clamp" else count & 31
        both = high << 32 | low
        want = both << by >> 32 if direction == "l" else both >> by
        assert got == want & 0xFFFFFFFF


# -- counting

COUNT = {
    (name, bits): CODE.define(f"{name}.b{bits}", "u4", f"u{bits // 8}")
    for name in ("popc", "clz")
    for bits in (32, 64)
}
BREV = {bits: CODE.define(f"brev.b{bits}", f"u{bits // 8}", f"u{bits // 8}") for bits in (32, 64)}
BFIND = {
    (shift, type_): CODE.define(f"bfind{shift}.{type_}", "u4", f"u{int(type_[1:]) // 8}")
    for shift in ("", ".shiftamt")
    for type_ in ("u32", "s32", "u64", "s64")
}


def test_counting() -> None:
    for (name, bits), operation in COUNT.items():
        a = LONGS.astype(f"u{bits // 8}")
        want = [int(x).bit_count() if name == "popc" else bits - int(x).bit_length() for x in a]
        assert operation(a).tolist() == want
    for bits, operation in BREV.items():
        a = LONGS.astype(f"u{bits // 8}")
        assert operation(a).tolist() == [int(f"{int(x):0{bits}b}"[::-1], 2) for x in a]


@pytest.mark.parametrize("key", BFIND, ids="".join)
def test_bfind(key: tuple[str, str]) -> None:
    shift, type_ = key
    bits = int(type_[1:])
    a = np.concatenate([LONGS, ~LONGS, LONGS >> np.uint64(11)]).astype(f"u{bits // 8}")
    for value, got in rows(a, BFIND[key](a)):
        inverted = type_[0] == "s" and value >> (bits - 1)
        want = (value ^ ((1 << bits) - 1) if inverted else value).bit_length() - 1
        if shift and want >= 0:
            want = bits - 1 - want
        assert got == want & 0xFFFFFFFF


FNS = CODE.define("fns.b32", "u4", "u4 u4 i4")


def fns(mask: int, base: int, offset: int) -> int:
    if offset == 0:
        return base if base < 32 and mask >> base & 1 else 0xFFFFFFFF
    position, count, step = base, abs(offset) - 1, 1 if offset > 0 else -1
    while 0 <= position < 32:
        if mask >> position & 1:
            if count == 0:
                return position
            count -= 1
        position += step
    return 0xFFFFFFFF


def test_fns() -> None:
    offsets = np.array([0, 1, -1, 2, -2, 5, -7, 16, 32, -32, 33, -(1 << 31)], "i4")
    mask, base, offset = grid(WORDS, np.array([*range(34), 1 << 31], "u4"), offsets)
    for *given, got in rows(mask, base, offset, FNS(mask, base, offset)):
        assert got == fns(*given), given


# -- bit fields

BFE = {
    type_: CODE.define(
        f"bfe.{type_}", f"u{int(type_[1:]) // 8}", [f"u{int(type_[1:]) // 8}", "u4", "u4"]
    )
    for type_ in ("u32", "s32", "u64", "s64")
}
BFI = {
    bits: CODE.define(f"bfi.b{bits}", f"u{bits // 8}", [f"u{bits // 8}"] * 2 + ["u4", "u4"])
    for bits in (32, 64)
}


@pytest.mark.parametrize("type_", BFE)
def test_bfe(type_: str) -> None:
    bits = int(type_[1:])
    last = bits - 1
    a, p, n = grid(LONGS.astype(f"u{bits // 8}"), COUNTS, COUNTS)
    for value, p_, n_, got in rows(a, p, n, BFE[type_](a, p, n)):
        position, length = p_ & 0xFF, n_ & 0xFF
        sign = 0
        if type_[0] == "s" and length:
            sign = value >> min(position + length - 1, last) & 1
        want = 0
        for i in range(bits):
            inside = i < length and position + i <= last
            want |= (value >> (position + i) & 1 if inside else sign) << i
        assert got == want, (value, position, length)


@pytest.mark.parametrize("bits", BFI)
def test_bfi(bits: int) -> None:
    a, b, p, n = grid(*[LONGS[5:15].astype(f"u{bits // 8}")] * 2, COUNTS, COUNTS)
    for field, target, p_, n_, got in rows(a, b, p, n, BFI[bits](a, b, p, n)):
        position, length = p_ & 0xFF, n_ & 0xFF
        want = target
        for i in range(length):
            if position + i < bits:
                want = want & ~(1 << (position + i)) | (field >> i & 1) << (position + i)
        assert got == want, (field, target, position, length)


SZEXT = {
    (m, t): CODE.define(f"szext.{m}.{t}", "u4", "u4 u4")
    for m in ("clamp", "wrap")
    for t in ("u32", "s32")
}
BMSK = {m: CODE.define(f"bmsk.{m}.b32", "u4", "u4 u4") for m in ("clamp", "wrap")}


def test_szext_and_bmsk() -> None:
    a, n = grid(WORDS, COUNTS)
    for (mode, type_), operation in SZEXT.items():
        for value, n_, got in rows(a, n, operation(a, n)):
            length = min(n_, 32) if mode == "clamp" else n_ & 31
            want = value & ((1 << length) - 1)
            if type_ == "s32" and length and want >> (length - 1):
                want |= 0xFFFFFFFF & -(1 << length)
            assert got == want, (mode, type_, value, length)
    p, n = grid(COUNTS, COUNTS)
    for mode, operation in BMSK.items():
        for p_, n_, got in rows(p, n, operation(p, n)):
            position, length = (p_ & 31, n_ & 31) if mode == "wrap" else (p_, n_)
            want = ((1 << min(length, 64)) - 1) << min(position, 64) & 0xFFFFFFFF
            assert got == want, (mode, position, length)


# -- permutation

PRMT = {
    m: CODE.define(f"prmt.b32{m}", "u4", "u4 u4 u4")
    for m in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16")
}
# Bytes 3 to 0 of the result for control values 0 to 3: the ISA's table.
SPECIAL = {
    ".f4e": ("3210", "4321", "5432", "6543"),
    ".b4e": ("5670", "6701", "7012", "0123"),
    ".rc8": ("0000", "1111", "2222", "3333"),
    ".ecl": ("3210", "3211", "3222", "3333"),
    ".ecr": ("0000", "1110", "2210", "3210"),
    ".rc16": ("1010", "3232", "1010", "3232"),
}


def test_prmt_special_modes() -> None:
    for mode, table in SPECIAL.items():
        for control, wanted in itertools.product(range(8), [table]):
            got = int(PRMT[mode](0x33221100, 0x77665544, control))
            assert f"{got:08x}" == "".join(2 * digit for digit in wanted[control & 3])


def test_prmt_selects_bytes_and_signs() -> None:
    control = np.concatenate([RNG.integers(0, 1 << 32, 400, dtype=np.uint32), [0xFEDCBA98, 0x3210]])
    a, b = 0x80FF017F, 0xC0DE8142
    both = (b << 32 | a).to_bytes(8, "little")
    for selector, got in rows(control, PRMT[""](a, b, control)):
        want = []
        for nibble in (selector >> s & 15 for s in (0, 4, 8, 12)):
            byte = both[nibble & 7]
            want.append((0xFF if byte >> 7 else 0) if nibble & 8 else byte)
        assert got == int.from_bytes(bytes(want), "little")
