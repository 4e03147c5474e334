"""The effects of single instructions (gpud.compiler.analysis.effects)."""

from __future__ import annotations

import pytest

from gpud.compiler.analysis import effects
from gpud.compiler.ptx.model import Immediate, Instruction, Register, Symbol, Tuple, opcode
from tests.compiler.support.flat_programs import instructions, kernel


def one(text: str) -> Instruction:
    return instructions(kernel(text + "\n"))[0]


@pytest.mark.parametrize(
    ("text", "written", "read"),
    [
        ("add.s32 %r1, %r2, %r3;", "r1", "r2 r3"),
        ("@!%p1 mov.u32 %r1, 5;", "r1", "p1"),
        ("ld.global.v2.u32 {%r1, %r2}, [%d1+8];", "r1 r2", "d1"),
        ("ld.param.u64 %d1, [a];", "d1", ""),
        ("st.global.v2.u32 [%d1], {%r1, %r2};", "", "d1 r1 r2"),
        ("st.shared.u32 [%r1+4], 7;", "", "r1"),
        ("setp.eq.s32 %p1|%p2, %r1, %r2;", "p1 p2", "r1 r2"),
        ("setp.eq.and.s32 %p1, %r1, %r2, !%p3;", "p1", "r1 r2 p3"),
        ("shfl.sync.down.b32 %r1|%p1, %r2, %r3, 31, -1;", "r1 p1", "r2 r3"),
        ("atom.global.add.u32 %r1, [%d1], %r2;", "r1", "d1 r2"),
        ("red.global.add.u32 [%d1], %r2;", "", "d1 r2"),
        ("bar.sync %r1, %r2;", "", "r1 r2"),
        ("barrier.red.or.pred %p1, 0, %p2;", "p1", "p2"),
        ("bar.red.popc.u32 %r1, 0, %p2;", "r1", "p2"),
        ("prefetch.global.L1 [%d1];", "", "d1"),
        ("cp.async.ca.shared.global [%r1], [%d1], 16;", "", "r1 d1"),
        ("nanosleep.u32 %r1;", "", "r1"),
        ("mov.b64 {%r1, _}, %d1;", "r1", "d1"),
        ("mbarrier.init.shared.b64 [%r1], %r2;", "", "r1 r2"),
        ("mbarrier.arrive.shared.b64 %d2, [%r1];", "d2", "r1"),
        ("mbarrier.test_wait.shared.b64 %p1, [%r1], %d2;", "p1", "r1 d2"),
        ("multimem.red.global.add.u32 [%d1], %r1;", "", "d1 r1"),
        ("wmma.store.d.sync.aligned.row.m16n16k16.f32 [%d1], {%f1, %f2}, %r1;", "", "d1 f1 f2 r1"),
        ("wgmma.wait_group.sync.aligned 0;", "", ""),
        ("madeup.thing %r1, %r2, [%d3];", "r1", "r2 d3"),
        ("@%p1 bra L; L: ret;", "", "p1"),
        ("membar.gl;", "", ""),
    ],
)
def test_reads_and_writes(text: str, written: str, read: str) -> None:
    ins = one(text)
    assert [r.name[1:] for r in effects.written(ins)] == written.split()
    assert [r.name[1:] for r in effects.read(ins)] == read.split()


def test_calls_write_results_and_read_arguments() -> None:
    a, b, c, f = (Register(f"%r{i}") for i in range(4))
    direct = Instruction(opcode("call.uni"), (Tuple((a,)), Symbol("f"), Tuple((b, c))))
    assert effects.written(direct) == (a,)
    assert effects.read(direct) == (b, c)
    assert effects.callee(direct) == Symbol("f")
    no_result = Instruction(opcode("call"), (Symbol("f"), Tuple((b,))))
    assert effects.written(no_result) == ()
    assert effects.read(no_result) == (b,)
    bare = Instruction(opcode("call"), (Symbol("f"),))
    assert effects.callee(bare) == Symbol("f")
    indirect = Instruction(opcode("call"), (Tuple((a,)), f, Tuple((b,)), Symbol("proto")))
    assert effects.read(indirect) == (f, b)
    assert effects.callee(indirect) == f
    with pytest.raises(ValueError, match="not a call"):
        effects.callee(one("ret;"))


def test_unknown_text_operands_count_as_read_and_written() -> None:
    ins = one("tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [a, {%f5, %f6}];")
    assert {r.name for r in effects.read(ins)} >= {"%f5", "%f6"}
    assert [r.name for r in effects.written(ins)] == ["%f1", "%f2", "%f3", "%f4"]


@pytest.mark.parametrize(
    ("text", "action", "number", "count"),
    [
        ("bar.sync 0;", "sync", 0, None),
        ("bar.sync 3, 64;", "sync", 3, 64),
        ("bar.arrive 3, 64;", "arrive", 3, 64),
        ("barrier.sync.aligned 7;", "sync", 7, None),
        ("barrier.cta.sync 2;", "sync", 2, None),
        ("bar.red.popc.u32 %r1, 4, %p1;", "red", 4, None),
        ("bar.red.and.pred %p2, 4, 96, %p1;", "red", 4, 96),
        ("bar.sync %r5;", "sync", None, None),
    ],
)
def test_barrier_parts(text: str, action: str, number: int | None, count: int | None) -> None:
    ins = one(text)
    assert effects.is_barrier(ins)
    assert not effects.is_warp_collective(ins)
    parts = effects.barrier(ins)
    assert parts.action == action
    assert parts.constant_id == number
    found = parts.count.value if isinstance(parts.count, Immediate) else parts.count
    assert found == count


@pytest.mark.parametrize(
    "text",
    [
        "bar.warp.sync -1;",
        "shfl.sync.idx.b32 %r1, %r2, 0, 31, -1;",
        "vote.sync.ballot.b32 %r1, %p1, -1;",
        "activemask.b32 %r1;",
        "redux.sync.add.s32 %r1, %r2, -1;",
        "match.any.sync.b32 %r1, %r2, -1;",
        "elect.sync %r1|%p1, -1;",
    ],
)
def test_warp_collectives(text: str) -> None:
    ins = one(text)
    assert effects.is_warp_collective(ins)
    assert not effects.is_barrier(ins)
    with pytest.raises(ValueError, match="not a block-wide barrier"):
        effects.barrier(ins)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ld.volatile.global.u32 %r1, [%d1];", True),
        ("ld.acquire.gpu.global.u32 %r1, [%d1];", True),
        ("ld.relaxed.sys.global.u32 %r1, [%d1];", True),
        ("atom.global.add.u32 %r1, [%d1], 1;", True),
        ("mbarrier.try_wait.shared.b64 %p1, [%r1], %d2;", True),
        ("ld.global.u32 %r1, [%d1];", False),
        ("red.global.add.u32 [%d1], 1;", False),
        ("st.volatile.global.u32 [%d1], 1;", False),
        ("add.s32 %r1, %r1, 1;", False),
    ],
)
def test_polling_reads(text: str, expected: bool) -> None:
    assert effects.is_volatile_or_atomic_read(one(text)) is expected


def test_state_spaces_and_terminators() -> None:
    spaces = {
        "ld.global.u32": "global",
        "ld.u32": "generic",
        "st.shared::cta.u32": "shared",
        "ld.param.b32": "param",
        "ld.volatile.local.u32": "local",
    }
    for text, space in spaces.items():
        assert effects.state_space(opcode(text)) == space
    for text in ("bra L; L: ret;", "ret;", "exit;", "trap;"):
        assert effects.flags(one(text).opcode) & effects.TERMINATOR
    assert not effects.flags(opcode("brkpt")) & effects.TERMINATOR


def test_special_registers_anywhere_among_the_operands() -> None:
    assert effects.special_registers(one("mov.u32 %r1, %ctaid.x;")) == ("%ctaid.x",)
    mad = one("mad.lo.s32 %r1, %ctaid.x, %ntid.x, %tid.x;")
    assert effects.special_registers(mad) == ("%ctaid.x", "%ntid.x", "%tid.x")
    packed = one("mov.b64 %d1, {%tid.x, %tid.y};")
    assert effects.special_registers(packed) == ("%tid.x", "%tid.y")
