"""Uniform, warp-uniform and divergent values (analysis.uniformity and .thread_indices)."""

from __future__ import annotations

import pytest

from gpud.compiler.analysis.block_shape import ShapeRule, holds
from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.uniformity import Level, Uniformity
from tests.compiler.support.flat_programs import kernel, program

UNIFORM, WARP, DIVERGENT = Level.UNIFORM, Level.WARP, Level.DIVERGENT


def look(body: str) -> Uniformity:
    return Uniformity(ControlFlow(kernel(body + " ret;")))


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("mov.u32 %r1, %ctaid.x;", UNIFORM),
        ("mov.u32 %r1, %ntid.y;", UNIFORM),
        ("mov.u32 %r1, %nctaid.z;", UNIFORM),
        ("mov.u32 %r1, 17;", UNIFORM),
        ("ld.param.u32 %r1, [n];", UNIFORM),
        ("ld.param.u64 %d1, [a]; ld.global.u32 %r1, [%d1];", UNIFORM),
        ("ld.param.u64 %d1, [a]; ld.u32 %r1, [%d1];", UNIFORM),
        ("ld.shared.u32 %r1, [8];", UNIFORM),
        ("bar.red.popc.u32 %r1, 0, %p1;", UNIFORM),
        ("mov.u32 %r1, %tid.x;", DIVERGENT),
        ("mov.u32 %r1, %laneid;", DIVERGENT),
        ("mov.u32 %r1, %clock;", DIVERGENT),
        ("mov.u32 %r1, %warpid;", DIVERGENT),
        ("ld.param.u64 %d1, [a]; ld.volatile.global.u32 %r1, [%d1];", DIVERGENT),
        ("ld.param.u64 %d1, [a]; atom.global.add.u32 %r1, [%d1], 1;", DIVERGENT),
        ("mov.u32 %r2, %tid.x; ld.shared.u32 %r1, [%r2];", DIVERGENT),
        ("ld.local.u32 %r1, [8];", DIVERGENT),
        ("bar.red.popc.u32 %r1, 1, 64, %p1;", DIVERGENT),
        ("mov.u32 %r2, %tid.x; @%p1 mov.u32 %r1, %r2;", DIVERGENT),
        # The guard and the target are as many registers as there are operands.
        ("@%p1 mov.u32 %r1, %tid.x;", DIVERGENT),
        ("@%p1 mov.u32 %r1, %ctaid.x;", UNIFORM),
        ("activemask.b32 %r1;", DIVERGENT),
        ("mov.u32 %r2, 1; shfl.sync.down.b32 %r1, %r2, 1, 31, -1;", UNIFORM),
        # The last warp of a block may have fewer lanes.
        ("mov.u32 %r2, 1; redux.sync.add.s32 %r1, %r2, -1;", WARP),
    ],
)
def test_sources(text: str, level: Level) -> None:
    assert look(text).of("%r1")[0] is level


def test_carries_are_followed() -> None:
    found = look("mov.u32 %r2, %tid.x; add.cc.u32 %r3, %r2, %r2; addc.u32 %r1, 0, 0;")
    assert found.of("%r1")[0] is DIVERGENT
    assert look("add.cc.u32 %r3, %r2, %r2; addc.u32 %r1, 0, 0;").is_uniform("%r1")


def test_local_memory_makes_generic_loads_divergent() -> None:
    text = ".local .b8 depot[8]; ld.param.u64 %d1, [a]; ld.u32 %r1, [%d1];"
    assert look(text).of("%r1")[0] is DIVERGENT


def test_values_merged_after_branches() -> None:
    choose = "@%p1 bra A; mov.u32 %r1, 1; bra B; A: mov.u32 %r1, 2; B: add.s32 %r2, %r1, 1;"
    merged = look("mov.u32 %r3, %tid.x; setp.eq.u32 %p1, %r3, 0;" + choose)
    assert merged.of("%r2")[0] is DIVERGENT
    uniform = look("mov.u32 %r3, %ctaid.x; setp.eq.u32 %p1, %r3, 0;" + choose)
    assert uniform.of("%r2")[0] is UNIFORM
    assert uniform.branch(0)[0] is UNIFORM


def test_single_writes_under_a_divergent_branch_stay_uniform() -> None:
    found = look("mov.u32 %r3, %tid.x; setp.eq.u32 %p1, %r3, 0; @%p1 bra A; mov.u32 %r1, 1; A:")
    assert found.is_uniform("%r1")


def test_temporal_divergence() -> None:
    """Threads that leave a loop in different iterations keep different values of its registers."""
    found = look("""
        mov.u32 %r3, %tid.x;
        mov.u32 %r1, 0;
    LOOP:
        add.s32 %r1, %r1, 1;
        shl.b32 %r4, %r1, 2;
        setp.lt.u32 %p1, %r1, %r3;
        @%p1 bra LOOP;
        add.s32 %r2, %r4, 1;
    """)
    assert found.of("%r1")[0] is DIVERGENT
    assert found.of("%r4")[0] is DIVERGENT
    assert found.of("%r2")[0] is DIVERGENT


def test_uniform_loops_stay_uniform() -> None:
    found = look("""
        ld.param.u32 %r3, [n];
        mov.u32 %r1, 0;
    LOOP:
        add.s32 %r1, %r1, 1;
        setp.lt.u32 %p1, %r1, %r3;
        @%p1 bra LOOP;
    """)
    assert found.is_uniform("%r1")
    assert found.branch(1) == (UNIFORM, ShapeRule.ANY)


def test_functions_know_nothing_of_their_parameters() -> None:
    module = program(
        ".func (.param .b32 r) f(.param .b32 x) { .reg .b32 %r<4>; ld.param.b32 %r1, [x]; ret; }"
    )
    found = Uniformity(ControlFlow(module.functions()[0]))
    assert found.of("%r1")[0] is DIVERGENT


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("mov.u32 %r2, %tid.x; shr.u32 %r1, %r2, 5;", ShapeRule.ROWS),
        ("mov.u32 %r2, %tid.x; div.u32 %r1, %r2, 64;", ShapeRule.ROWS),
        ("mov.u32 %r2, %tid.x; and.b32 %r1, %r2, -32;", ShapeRule.ROWS),
        ("mov.u32 %r2, %tid.x; mov.u32 %r3, 5; shr.u32 %r1, %r2, %r3;", ShapeRule.ROWS),
        ("mov.u32 %r2, %tid.x; cvt.u64.u32 %d1, %r2; shr.u64 %d2, %d1, 6; cvt.u32.u64 %r1, %d2;",
         ShapeRule.ROWS),
        ("mov.u32 %r1, %tid.y;", ShapeRule.ROWS),
        # ctaid.x * ntid.x + tid.x
        (("mov.u32 %r2, %tid.x; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x;"
         "mad.lo.s32 %r5, %r3, %r4, %r2; shr.u32 %r1, %r5, 5;"), ShapeRule.ROWS | ShapeRule.WHOLE),
        # the same as int: (i + ((i >> 31) >>> 27)) >> 5
        (("mov.u32 %r2, %tid.x; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x;"
         "mad.lo.s32 %r5, %r3, %r4, %r2; shr.s32 %r6, %r5, 31; shr.u32 %r7, %r6, 27;"
         "add.s32 %r8, %r5, %r7; shr.s32 %r1, %r8, 5;"), ShapeRule.ROWS | ShapeRule.WHOLE),
        # (tid.z * ntid.y + tid.y) * ntid.x + tid.x
        (("mov.u32 %r2, %tid.z; mov.u32 %r3, %ntid.y; mov.u32 %r4, %tid.y;"
         "mad.lo.s32 %r5, %r2, %r3, %r4; mov.u32 %r6, %ntid.x; mov.u32 %r7, %tid.x;"
         "mad.lo.s32 %r8, %r5, %r6, %r7; shr.u32 %r1, %r8, 5;"), ShapeRule.ANY),
        ("vote.sync.ballot.b32 %r1, %p1, -1;", ShapeRule.ANY),
        ("mov.u32 %r2, %tid.y; shfl.sync.down.b32 %r1, %r2, 1, 31, 0xff;", ShapeRule.ROWS),
        ("mov.u32 %r3, -1; vote.sync.ballot.b32 %r1, %p1, %r3;", ShapeRule.ANY),
        ("mov.u32 %r2, %laneid; shfl.sync.idx.b32 %r1, %r2, 0, 31, -1;", ShapeRule.ANY),
        ("mov.u32 %r2, %laneid; redux.sync.add.s32 %r1, %r2, -1;", ShapeRule.ANY),
    ],
)  # fmt: skip
def test_warp_uniform_values(text: str, shape: ShapeRule) -> None:
    if "vote" in text:
        text = "mov.u32 %r9, %laneid; setp.lt.u32 %p1, %r9, 7;" + text
    assert look(text).of("%r1") == (WARP, shape)


@pytest.mark.parametrize(
    "text",
    [
        "mov.u32 %r2, %tid.x; shr.u32 %r1, %r2, 4;",
        "mov.u32 %r2, %tid.x; and.b32 %r1, %r2, 31;",
        "mov.u32 %r2, %tid.x; div.u32 %r1, %r2, 33;",
        "mov.u32 %r2, %tid.x; add.s32 %r3, %r2, 1; shr.u32 %r1, %r3, 5;",
        "mov.u32 %r2, %tid.x; mul.lo.s32 %r3, %r2, 2; shr.u32 %r1, %r3, 5;",
        "mov.u32 %r2, %laneid; shfl.sync.idx.b32 %r1, %r2, 0, 0x181f, -1;",
        "mov.u32 %r2, %laneid; shfl.sync.down.b32 %r1, %r2, 1, 31, -1;",
        "mov.u32 %r2, %laneid; redux.sync.add.s32 %r1, %r2, 0xffff;",
    ],
)
def test_values_that_differ_within_a_warp(text: str) -> None:
    assert look(text).of("%r1")[0] is DIVERGENT


@pytest.mark.parametrize(
    ("comparison", "level"),
    [
        ("setp.lt.u32 %p1, %r1, 32;", WARP),
        ("setp.gt.u32 %p1, %r1, 31;", WARP),
        ("setp.ge.s32 %p1, %r1, 64;", WARP),
        ("setp.le.u32 %p1, %r1, 95;", WARP),
        ("setp.lt.u32 %p1, %r1, 16;", DIVERGENT),
        ("setp.gt.u32 %p1, %r1, 32;", DIVERGENT),
        ("setp.eq.u32 %p1, %r1, 32;", DIVERGENT),
        ("ld.param.u32 %r2, [n]; setp.lt.u32 %p1, %r1, %r2;", DIVERGENT),
    ],
)
def test_comparing_the_thread_index(comparison: str, level: Level) -> None:
    found = look(f"mov.u32 %r1, %tid.x; {comparison} @%p1 bra A; mov.u32 %r3, 0; A:")
    assert found.of("%p1")[0] is level
    assert found.branch(0)[0] is level


def test_block_shapes() -> None:
    assert holds(ShapeRule.ANY, (7, 3, 2))
    assert holds(ShapeRule.ROWS, (48, 1, 1))
    assert holds(ShapeRule.ROWS, (64, 5, 3))
    assert not holds(ShapeRule.ROWS, (48, 2, 1))
    assert not holds(ShapeRule.ROWS, (48, 1, 2))
    assert holds(ShapeRule.WHOLE, (96, 2, 1))
    assert not holds(ShapeRule.WHOLE, (48, 1, 1))
    assert not holds(ShapeRule.ROWS | ShapeRule.WHOLE, (48, 1, 1))
