"""Video instructions against the ISA's reference code, in Python."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable

import numpy as np
import pytest

from gpud.compiler.ptx import model as ptx
from gpud.errors import KernelRejected
from tests.unit.cpu.lower.instruction_runner import Array, Instructions, Operation

CODE = Instructions()
RNG = np.random.default_rng(0)
WORDS = np.concatenate(
    [
        np.array([0, 1, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 0x80FF7F01, 0x8000FFFF], "u4"),
        RNG.integers(0, 1 << 32, 60, dtype=np.uint32),
    ]
)


def raw(text: str) -> ptx.Operand:
    return ptx.RawOperand(text) if "." in text or text[0] == "-" else ptx.Register(text)


def define(text: str, *operands: str) -> Operation:
    return CODE.define(text, "u4", ["u4"] * 3, [raw(o) for o in operands])


def part(word: int, selector: str, type_: str) -> int:
    """The selected byte, half or word as a signed or unsigned integer."""
    bits = {"": 32, "h": 16, "b": 8}[selector[:1]]
    value = word >> (int(selector[1:] or 0) * bits if selector else 0) & ((1 << bits) - 1)
    return value - (1 << bits) if type_[0] == "s" and value >> (bits - 1) else value


def saturate(value: int, *, signed: bool, bits: int) -> int:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return min(max(value, low), high)


def signed32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "absdiff": lambda a, b: abs(a - b),
    "min": min,
    "max": max,
    "avrg": lambda a, b: (a + b + (a + b >= 0)) >> 1,
}
TYPES = ("u32", "s32")
SCALAR = {
    (base, to, x, y, sat, second, target, first, other): define(
        f"v{base}.{to}.{x}.{y}{sat}{second}",
        f"%d0{target}",
        f"%a0{first}",
        f"%a1{other}",
        *(["%a2"] if second or target else []),
    )
    for base in ("add", "sub", "absdiff", "min", "max")
    for to, x, y, sat, second, target, first, other in (
        ("s32", "s32", "s32", "", "", "", "", ""),
        ("u32", "u32", "u32", ".sat", "", "", "", ""),
        ("s32", "u32", "s32", ".sat", ".add", "", ".b3", ".h1"),
        ("u32", "s32", "u32", "", ".min", "", ".h0", ""),
        ("s32", "s32", "u32", "", ".max", "", "", ".b2"),
        ("u32", "u32", "s32", ".sat", "", ".b1", "", ".b0"),
        ("s32", "s32", "s32", ".sat", "", ".h1", ".h1", ""),
    )
}


def finish(result: int, c: int, *, signed: bool, sat: bool, second: str, target: str) -> int:
    bits = {"": 32, "h": 16, "b": 8}[target[:1]]
    if sat:
        result = saturate(result, signed=signed, bits=bits)
    value = result & 0xFFFFFFFF
    if second == "add":
        return value + c & 0xFFFFFFFF
    if second:
        view = signed32 if signed else int
        return (min if second == "min" else max)(view(value), view(c)) & 0xFFFFFFFF
    if target:
        shift = int(target[1:]) * bits
        mask = ((1 << bits) - 1) << shift
        return value << shift & mask | c & ~mask
    return value


def columns() -> list[Array]:
    a, b = (g.ravel() for g in np.meshgrid(WORDS, WORDS))
    return [a, b, RNG.permutation(a)]


@pytest.mark.parametrize("base", ["add", "sub", "absdiff", "min", "max"])
def test_scalar(base: str) -> None:
    a, b, c = columns()
    for key, operation in SCALAR.items():
        if key[0] != base:
            continue
        _, to, x, y, sat, second, target, first, other = key
        got = operation(a, b, c)
        for row, value in zip(zip(a, b, c, strict=True), got.tolist(), strict=True):
            i, j, k = map(int, row)
            exact = OPERATIONS[base](part(i, first[1:], x), part(j, other[1:], y))
            want = finish(
                exact, k, signed=to == "s32", sat=bool(sat), second=second[1:], target=target[1:]
            )
            assert value == want, (key, row)


SHIFT = {
    (base, mode, x): define(f"{base}.u32.{x}.u32.{mode}", "%d0", "%a0", "%a1.b0")
    for base in ("vshl", "vshr")
    for mode in ("clamp", "wrap")
    for x in TYPES
}
SHIFT_SAT = define("vshl.s32.s32.u32.sat.clamp.add", "%d0", "%a0", "%a1.b0", "%a2")


def test_scalar_shift() -> None:
    a, b, c = columns()
    for (base, mode, x), operation in SHIFT.items():
        for i, j, value in zip(a.tolist(), b.tolist(), operation(a, b, c).tolist(), strict=True):
            count = min(j & 0xFF, 32) if mode == "clamp" else j & 31
            number = part(i, "", x)
            want = number << count if base == "vshl" else number >> count
            assert value == want & 0xFFFFFFFF
    got = SHIFT_SAT(a, b, c)
    for i, j, k, value in zip(*(v.tolist() for v in (a, b, c, got)), strict=True):
        number = saturate(signed32(i) << min(j & 0xFF, 32), signed=True, bits=32)
        assert value == number + k & 0xFFFFFFFF


VSET = {
    name: define(f"vset.s32.u32.{name}.add", "%d0", "%a0.h0", "%a1.h1", "%a2")
    for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
VMAD = {
    "vmad.u32.u32.u32": ("%a0.h0", "%a1.h1", "%a2"),
    "vmad.s32.s32.s32.sat.shr7": ("%a0.h1", "%a1.h0", "%a2"),
    "vmad.s32.s32.s32": ("-%a0.b0", "%a1", "%a2"),
    "vmad.s32.u32.u32.sat": ("%a0.b3", "%a1.b2", "-%a2"),
    "vmad.u32.u32.u32.po.shr15": ("%a0", "%a1.h0", "%a2"),
}
VMADS = {text: define(text, "%d0", *operands) for text, operands in VMAD.items()}


def test_vset() -> None:
    a, b, c = columns()
    for name, operation in VSET.items():
        for i, j, k, value in zip(
            *(v.tolist() for v in (a, b, c, operation(a, b, c))), strict=True
        ):
            holds = getattr(operator, name)(part(i, "h0", "s32"), part(j, "h1", "u32"))
            assert value == k + holds & 0xFFFFFFFF


@pytest.mark.parametrize("text", VMAD)
def test_vmad(text: str) -> None:
    a, b, c = columns()
    _, _, x, y, *modifiers = text.split(".")
    first, second, third = VMAD[text]
    for i, j, k, value in zip(*(v.tolist() for v in (a, b, c, VMADS[text](a, b, c))), strict=True):
        factors = [
            part(word, name.partition(".")[2], type_)
            for word, name, type_ in ((i, first, x), (j, second, y))
        ]
        minus, minus_c = first[0] == "-", third[0] == "-"
        signed = "s32" in (x, y) or minus or minus_c
        product = factors[0] * factors[1] * (-1 if minus else 1)
        addend = -k & 0xFFFFFFFF if minus_c else k
        total = product + (signed32(addend) if signed else addend) + ("po" in modifiers)
        total >>= 7 if "shr7" in modifiers else 15 if "shr15" in modifiers else 0
        if "sat" in modifiers:
            total = saturate(total, signed=signed, bits=32)
        assert value == total & 0xFFFFFFFF


SIMD_FORMS = (
    ("u32", "u32", "u32", "", "", ""),
    ("s32", "s32", "s32", ".sat", "", ""),
    ("u32", "s32", "u32", ".sat", "", ""),
    ("s32", "u32", "s32", "", ".add", ""),
    ("u32", "u32", "u32", "", ".add", "mask"),
    ("s32", "s32", "s32", "", "", "mask"),
)
MASK = {2: ".h1", 4: ".b20"}
SELECTORS = {2: (".h03", ".h21"), 4: (".b7012", ".b4563")}


def simd_operands(count: int, mask: str) -> tuple[str, ...]:
    first, second = SELECTORS[count] if mask else ("", "")
    return (f"%d0{MASK[count] if mask else ''}", f"%a0{first}", f"%a1{second}", "%a2")


SIMD = {
    (base, count, *form): define(
        f"v{base}{count}.{'.'.join(form[:3])}{form[3]}{form[4]}", *simd_operands(count, form[5])
    )
    for base in OPERATIONS
    for count in (2, 4)
    for form in SIMD_FORMS
}
SIMD_SET = {count: define(f"vset{count}.s32.u32.lt", *simd_operands(count, "")) for count in (2, 4)}
# The order of modifiers that CUDA's headers use.
HEADERS = CODE.define("vabsdiff4.u32.u32.u32.add", "u4", "u4 u4 u4")


def simd_parts(
    words: tuple[int, int], selector: str, position: int, count: int, type_: str
) -> list[int]:
    bits = 32 // count
    every = [w >> (bits * i) & ((1 << bits) - 1) for w in words for i in range(count)]
    chosen = [int(d) for d in reversed(selector[2:])] or range(
        position * count, (position + 1) * count
    )
    return [
        every[i] - (1 << bits) if type_ == "s32" and every[i] >> (bits - 1) else every[i]
        for i in chosen
    ]


@pytest.mark.parametrize(("base", "count"), list(itertools.product(OPERATIONS, (2, 4))))
def test_simd(base: str, count: int) -> None:
    a, b, c = (v[::5] for v in columns())
    bits = 32 // count
    for form in SIMD_FORMS:
        to, x, y, sat, accumulate, mask = form
        _, first, second, _ = simd_operands(count, mask)
        mask_digits = {int(d) for d in MASK[count][2:]} if mask else set(range(count))
        got = SIMD[base, count, *form](a, b, c)
        for i, j, k, value in zip(*(v.tolist() for v in (a, b, c, got)), strict=True):
            left = simd_parts((i, j), first.partition("%a0")[2], 0, count, x)
            right = simd_parts((i, j), second.partition("%a1")[2], 1, count, y)
            want = k if accumulate else 0
            for at, pair in enumerate(zip(left, right, strict=True)):
                number = OPERATIONS[base](*pair)
                if sat:
                    number = saturate(number, signed=to == "s32", bits=bits)
                field = ((1 << bits) - 1) << (at * bits)
                if accumulate:
                    want += number if at in mask_digits else 0
                elif at in mask_digits:
                    want |= number << (at * bits) & field
                else:
                    want |= k & field
            assert value == want & 0xFFFFFFFF, (form, hex(i), hex(j), hex(k))


def test_simd_comparison_and_header_forms() -> None:
    assert SIMD_SET[2]([0x80000001], [0x00000002], [0])[0] == 0x00010001
    assert SIMD_SET[4]([0xFF000001], [0x00000000], [0])[0] == 0x01000000
    assert HEADERS([0x01FF0010], [0x03000020], [100])[0] == 100 + 2 + 255 + 0x10


def test_a_bad_selector_is_refused() -> None:
    with pytest.raises(KernelRejected, match="selector"):
        define("vadd2.u32.u32.u32", "%d0", "%a0.h012", "%a1", "%a2")
