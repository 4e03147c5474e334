"""Shared arrays at indices that a block's threads keep in bounds need no bounds check."""

from __future__ import annotations

import pytest

from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.pipeline import compile_program
from gpud.compiler.ptx.parser import parse
from gpud.device.cpu.abi.layout import Shape
from gpud.device.cpu.codegen.preparation.bounds_checks import insert_bounds_checks
from gpud.device.cpu.codegen.preparation.check_instruction import decode_check
from gpud.device.cpu.codegen.preparation.pseudo_instructions import fold_pseudos, is_bounds_check
from tests.unit.cpu.codegen.checked_arena import HEAD
from tests.unit.cpu.codegen.prepared import instructions

BOX = 256
REGISTERS = """.reg .b16 %h<9>; .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .pred %p<9>;"""


def checks(body: str, shape: Shape) -> int:
    """Number of bounds checks in ``body``; %r1 is the thread's x, %r2 the address of 64 words."""
    text = f"""{HEAD}.shared .align 16 .b8 box[{BOX}]; .extern .shared .align 16 .b8 rest[];
    .visible .entry k(.param .u64 p, .param .u32 n) {{ {REGISTERS}
    mov.u32 %r1, %tid.x; mov.u32 %r2, box; ld.param.u64 %rd1, [p]; ld.param.u32 %r9, [n];
    {body} ret; }}"""
    module = flatten_module(parse(text))
    bounded = insert_bounds_checks(module, module.entries()["k"], shape)
    return sum(is_bounds_check(ins) for ins in instructions(bounded))


def kept(body: str) -> int:
    """Number of checks of global accesses left; ``box`` has 64 words, %r1 is the thread's x."""
    text = f"""{HEAD}.global .align 16 .b8 box[{BOX}];
    .visible .entry k(.param .u64 p, .param .u32 n) {{ {REGISTERS}
    mov.u32 %r1, %tid.x; ld.param.u64 %rd1, [p]; ld.param.u32 %r9, [n]; mov.u64 %rd2, box;
    and.b32 %r2, %r9, 63; cvt.u64.u32 %rd6, %r2; shl.b64 %rd3, %rd6, 2; {body} ret; }}"""
    module = parse(compile_program(text).ptx)
    function = fold_pseudos(module.entries()["k"], checked=True)
    bounded = insert_bounds_checks(module, function, Shape(64))
    return sum(
        is_bounds_check(ins) and decode_check(ins).space != "shared"
        for ins in instructions(bounded)
    )


AT = "shl.b32 %r4, %r3, 2; add.u32 %r5, %r2, %r4; st.shared.u32 [%r5], 1;"
"""Writes word %r3."""
BEFORE = """sub.s32 %r6, %r1, 33; WIDEN %rd2, %r6; shl.b64 %rd3, %rd2, 2; mov.u64 %rd4, box;
    add.s64 %rd5, %rd4, %rd3; ld.shared.u32 %r3, [%rd5+132];"""
"""Reads the thread's word, from an address that is 33 words before it."""


@pytest.mark.parametrize("body", [
    "mov.u32 %r3, %r1;" + AT,
    "xor.b32 %r3, %r1, 21;" + AT,
    "shr.u32 %r7, %r1, 1; add.u32 %r3, %r7, 32;" + AT,
    "and.b32 %r3, %r9, 63;" + AT,
    "rem.u32 %r3, %r9, 64;" + AT,
    "ld.global.u8 %h1, [%rd1]; and.b16 %h2, %h1, 63; cvt.u32.u16 %r3, %h2;" + AT,
    "bfe.u32 %r3, %r9, 4, 6;" + AT,
    "mov.u32 %r6, %tid.y; mad.lo.s32 %r3, %r6, 4, 60;" + AT.replace("%r3, 2", "%r3, 0"),
    "mov.u64 %rd2, box; mad.wide.u32 %rd4, %r1, 4, %rd2; ld.shared.u32 %r3, [%rd4];",
    "mov.u32 %r3, 4; @%p1 mov.u32 %r3, 60;" + AT,
    "mov.u32 %r3, %laneid;" + AT,
    # 2 * t - (t & 3) for half of the threads, and so on: each thread's index is computed.
    "shr.u32 %r6, %r1, 1; shl.b32 %r7, %r6, 1; and.b32 %r8, %r6, 3; sub.s32 %r3, %r7, %r8;" + AT,
    "mov.u32 %r6, 63; sub.s32 %r3, %r6, %r1;" + AT,
    "add.s32 %r6, %r1, -64; mad.lo.s32 %r3, %r6, -1, -1;" + AT,
    "and.b32 %r6, %r1, 60; add.s32 %r7, %r6, 3; or.b32 %r8, %r7, %r1; xor.b32 %r3, %r8, 63;" + AT,
    BEFORE.replace("WIDEN", "cvt.s64.s32"),
    "shl.b32 %r6, %r1, 26; shr.s32 %r7, %r6, 26; add.u32 %r3, %r7, 32;" + AT,
    "shl.b32 %r3, %r1, 30;" + AT,  # always 0
])  # fmt: skip
def test_an_index_that_is_never_too_large(body: str) -> None:
    assert checks(body, Shape(64)) == 0


@pytest.mark.parametrize("body", [
    "mov.u32 %r3, %r9;" + AT,
    "add.u32 %r3, %r1, 1;" + AT,
    "sub.u32 %r3, %r1, 1;" + AT,
    "xor.b32 %r3, %r1, 64;" + AT,
    "and.b32 %r3, %r9, 64;" + AT,
    "and.b32 %r3, %r9, -4;" + AT,
    "rem.s32 %r3, %r9, 64;" + AT,
    "not.b32 %r3, %r1;" + AT,
    "mul.lo.u32 %r3, %r1, 67108865;" + AT,
    "shl.b32 %r3, %r1, 29;" + AT,
    "shr.u32 %r3, %r9, 1;" + AT,
    "mov.u32 %r3, 4; @%p1 mov.u32 %r3, 64;" + AT,
    "mov.u32 %r3, 0; LOOP: add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, 9; @%p1 bra LOOP;" + AT,
    "ld.global.s8 %h1, [%rd1]; cvt.s32.s16 %r3, %h1;" + AT,
    "mov.u32 %r3, %r1;" + AT.replace("[%r5]", "[%r5+4]"),
    "mov.u32 %r3, %r1;" + AT.replace("[%r5]", "[%r5+-4]"),
    "add.u32 %r5, %r2, %r1; st.shared.u32 [%r5], 1;",  # not aligned
    "mov.u32 %r6, rest; add.u32 %r5, %r6, %r1; st.shared.u8 [%r5], 1;",
    "add.u32 %r5, %r2, %r2; st.shared.u8 [%r5], 1;",
    "st.shared.u32 [%r1], 1;",
    "mov.u32 %r6, 62; sub.s32 %r3, %r6, %r1;" + AT,
    "mov.u32 %r6, 64; sub.s32 %r3, %r6, %r1;" + AT,
    "sub.s32 %r3, %r2, %r1; st.shared.u8 [%r3], 1;",
    BEFORE.replace("WIDEN", "cvt.u64.u32"),
    "@%p1 sub.s32 %r3, 63, %r1;" + AT,  # it may be 0, and %r4 too
    "sub.s32 %r3, 63, %r1; @%p1 sub.s32 %r3, 64, %r1;" + AT,
    "@%p1 bra OVER; mov.u32 %r6, 63; OVER: sub.s32 %r3, %r6, %r1;" + AT,
])  # fmt: skip
def test_an_index_that_may_be_too_large(body: str) -> None:
    assert checks(body, Shape(64)) > 0


@pytest.mark.parametrize("body", [
    "add.s64 %rd4, %rd2, %rd3; st.global.u32 [%rd4], 1;",
    "add.s64 %rd4, %rd3, %rd2; st.u32 [%rd4], 1;",
    "and.b32 %r3, %r9, 31; mad.wide.u32 %rd4, %r3, 4, %rd2; st.global.u32 [%rd4+128], 1;",
    "mad.wide.u32 %rd4, %r1, 4, %rd2; st.global.u32 [%rd4], 1;",
    "mul.wide.u32 %rd4, %r1, 4; add.s64 %rd5, %rd2, %rd4; atom.global.add.u32 %r3, [%rd5], 1;",
])  # fmt: skip
def test_an_index_into_a_module_s_array_that_is_never_too_large(body: str) -> None:
    assert kept(body) == 0


@pytest.mark.parametrize("body", [
    "add.s64 %rd4, %rd2, %rd3; st.global.u32 [%rd4+4], 1;",
    "add.s64 %rd4, %rd2, %rd3; st.global.u64 [%rd4], %rd3;",
    "add.s64 %rd4, %rd2, %rd3; st.global.u32 [%rd4], 1; st.global.u32 [%rd4+-4], 1;",
    "add.s64 %rd4, %rd1, %rd3; st.global.u32 [%rd4], 1;",
    "@%p1 add.s64 %rd4, %rd2, %rd3; st.global.u32 [%rd4], 1;",
    "@%p1 bra ON; add.s64 %rd4, %rd2, %rd3; ON: st.global.u32 [%rd4], 1;",
    "@%p1 mov.u64 %rd5, box; add.s64 %rd4, %rd5, %rd3; st.global.u32 [%rd4], 1;",
    "cvt.u32.u64 %r3, %rd2; add.u32 %r3, %r3, %r2; cvt.u64.u32 %rd4, %r3; st.global.u8 [%rd4], 1;",
    "add.u32 %rd4, %rd2, %rd3; st.global.u32 [%rd4], 1;",
    "mov.u64 %r3, box; cvt.u64.u32 %rd4, %r3; st.global.u32 [%rd4], 1;",
    "not.b64 %rd4, %rd3; add.s64 %rd4, %rd2, %rd4; st.global.u32 [%rd4], 1;",
])  # fmt: skip
def test_an_address_that_may_be_outside_the_module_s_array(body: str) -> None:
    assert kept(body) > 0


def test_ranges_depend_on_the_block_shape() -> None:
    body = "mov.u32 %r3, %r1;" + AT
    assert [checks(body, Shape(x)) for x in (1, 64, 65, 1024)] == [0, 0, 1, 1]
    rows = "mov.u32 %r3, %tid.y; shl.b32 %r3, %r3, 4; add.u32 %r6, %r3, %r1;" + AT.replace(
        "%r3, 2", "%r6, 2"
    )
    # A register with two definitions that read each other is not followed.
    assert checks(rows, Shape(16, 4)) == 1
    rows = rows.replace("%r3, %r3, 4; add.u32 %r6, %r3", "%r7, %r3, 4; add.u32 %r6, %r7")
    assert [checks(rows, Shape(16, y)) for y in (1, 4, 5)] == [0, 0, 1]
