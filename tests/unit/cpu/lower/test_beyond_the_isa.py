"""What the CPU device does where the ISA leaves the result open, or has no such spelling."""

from __future__ import annotations

import numpy as np
import pytest

from gpud.compiler.ptx import model as ptx
from gpud.errors import KernelRejected
from tests.unit.cpu.lower.instruction_runner import Instructions

CODE = Instructions()
DIVISION = {
    (name, t): CODE.define(f"{name}.{t}", f"{t[0].replace('s', 'i')}{int(t[1:]) // 8}",
                           [f"{t[0].replace('s', 'i')}{int(t[1:]) // 8}"] * 2)
    for name in ("div", "rem")
    for t in ("u16", "s16", "u32", "s32", "u64", "s64")
}  # fmt: skip
BY_CONSTANT = {n: CODE.define("div.s32", "i4", "i4", ["%d0", "%a0", n]) for n in (0, -1)}
FNS = CODE.define("fns.b32", "u4", "u4 u4 i4")
BYTES_OF = {
    t: CODE.define(f"cvt.rmi.{t}.bf16", f"{'i' if t == 's8' else 'u'}4", "u2") for t in ("s8", "u8")
}
TO_BRAIN = {t: CODE.define(f"cvt.rn.bf16.{t}", "u2", f"{t[0].replace('s', 'i')}1")
            for t in ("s8", "u8")}  # fmt: skip
SAT = CODE.define("cvt.sat.s32.u8", "i4", "u1")


@pytest.mark.parametrize("t", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_division_by_zero_and_the_quotient_that_overflows(t: str) -> None:
    """All ones and the dividend; the lowest number again, and 0."""
    kind = np.dtype(f"{t[0].replace('s', 'i')}{int(t[1:]) // 8}")
    limits = np.iinfo(kind)
    a = np.array([0, 1, 7, limits.max, limits.min], kind)
    ones = np.array(-1).astype(kind)
    assert (DIVISION["div", t](a, np.zeros_like(a)) == ones).all()
    assert (DIVISION["rem", t](a, np.zeros_like(a)) == a).all()
    if t[0] == "s":
        assert DIVISION["div", t](a, np.full_like(a, -1)).tolist() == (0 - a).tolist()
        assert not DIVISION["rem", t](a, np.full_like(a, -1)).any()


def test_division_by_such_constants() -> None:
    a = np.array([0, 5, -7, -(2**31), 2**31 - 1], "i4")
    assert (BY_CONSTANT[0](a) == -1).all()
    assert BY_CONSTANT[-1](a).tolist() == [0, -5, 7, -(2**31), -(2**31) + 1]


def test_fns_from_beyond_the_word() -> None:
    mask = np.array([0, 1, 0xFFFFFFFF, 0x80000000], "u4")
    for base in (32, 33, 1 << 31):
        for offset in (0, 1, -1, 2, -7):
            assert (FNS(mask, base, offset) == 0xFFFFFFFF).all()


def test_bytes_and_bfloat16() -> None:
    assert BYTES_OF["s8"]([0xC020, 0x42FE, 0x7F80, 0x7FFF, 0xC3A0]).tolist() == [
        -3,
        127,
        127,
        0,
        -128,
    ]
    assert BYTES_OF["u8"]([0xC020, 0x42FF, 0x7F80, 0x7FFF, 0x3FC0]).tolist() == [0, 127, 255, 0, 1]
    assert TO_BRAIN["s8"]([-128, -3, 127]).tolist() == [0xC300, 0xC040, 0x42FE]
    assert TO_BRAIN["u8"]([255, 1, 0]).tolist() == [0x437F, 0x3F80, 0]


def test_saturation_where_nothing_is_out_of_range() -> None:
    assert SAT([0, 127, 128, 255]).tolist() == [0, 127, 128, 255]


def test_a_bad_selector_of_a_video_instruction_is_refused() -> None:
    operands = [ptx.Register("%d0"), ptx.RawOperand("%a0.h012"), "%a1", "%a2"]
    with pytest.raises(KernelRejected, match="selector"):
        CODE.define("vadd2.u32.u32.u32", "u4", "u4 u4 u4", operands)
