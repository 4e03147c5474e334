"""Unsupported instructions are refused, with the instruction, the line and the reason."""

from __future__ import annotations

import pytest

from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.ir.emitter import Emitter, IRModule
from gpud.device.cpu.ir.thread import Thread
from gpud.device.cpu.lower import LOWERINGS, lower, unsupported_error
from gpud.device.cpu.lower.collectives import check_barrier, collective_kind
from gpud.errors import REJECTIONS, KernelRejected
from tests.unit.cpu.lower.instruction_runner import ArrayAddresses, Instructions, address

REFUSED = {
    "wgmma.fence.sync.aligned": "tensor-core",
    "tcgen05.alloc.cta_group::1.sync.aligned.b32": "tensor-core",
    "tex.2d.v4.f32.f32": "texture",
    "sust.b.2d.b32.trap": "texture",
    "txq.width.b32": "texture",
    "cp.async.bulk.tensor.1d.global.shared::cta.bulk_group": "unsupported-instruction",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster": (
        "unsupported-instruction"
    ),
    "barrier.cluster.arrive": "unsupported-instruction",
    "mapa.u64": "unsupported-instruction",
    "multimem.red.add.f32": "unsupported-instruction",
}


def instruction(text: str) -> ptx.Instruction:
    registers = tuple(ptx.Register(f"%r{i}") for i in range(3))
    return ptx.Instruction(ptx.opcode(text), registers, line=42)


def thread() -> Thread:
    e = Emitter(IRModule(), "define void @f()")
    return Thread(e, {f"%r{i}": "i32" for i in range(9)}, ArrayAddresses())


@pytest.mark.parametrize("text", REFUSED)
def test_refused_with_reason_instruction_and_line(text: str) -> None:
    error = unsupported_error(instruction(text))
    assert error is not None
    assert error.reason == REFUSED[text]
    assert error.reason in REJECTIONS
    assert (error.instruction, error.line) == (text, 42)
    with pytest.raises(KernelRejected):
        lower(thread(), instruction(text))


@pytest.mark.parametrize("text", ["add.s32", "cp.async.wait_all", "barrier.sync", "ld.global.f32"])
def test_ordinary_instructions_are_not_refused(text: str) -> None:
    assert unsupported_error(instruction(text)) is None


@pytest.mark.parametrize(
    "text",
    [
        "frobnicate.u32",  # no such opcode
        "add.q32",  # no such type
        "add",  # no type at all
        "add.rn.s32",  # a modifier of another type
        "add.ftz.f64",
        "fma.rs.f32",  # an unknown rounding
        "min.ftz.f64",
        "cvt.s32.f32",  # the rounding is missing
        "mul.s32",  # .lo, .hi or .wide is missing
        "setp.foo.s32",
        "shf.l.b32",
        "div.f32",
        "fma.rn.oob.f16",
        "fma.f32",  # the rounding is missing
        "fma.bf16",
        "min.abs.f32",  # .xorsign is missing
        "add.sat.u32",
        "add.cc.s16",
        "mad.lo.sat.s32",
        "max.relu.s64",
        "ld.release.gpu.global.u32",
        "st.acquire.gpu.global.u32",
        "st.global.nc.u32",
        "fence.acq_rel.frobnicate",
        "fence.proxy.frobnicate",
        "membar.acq_rel.gl",
    ],
)
def test_unknown_forms_name_the_instruction_and_the_line(text: str) -> None:
    with pytest.raises(KernelRejected) as caught:
        lower(thread(), instruction(text))
    assert caught.value.instruction == text
    assert caught.value.line == 42
    assert caught.value.reason == "unsupported-instruction"


MEMORY_FORMS = """
    atom.global.add.b32 atom.global.inc.s32 atom.local.add.u32 atom.global.add.f16
    atom.global.add.noftz.f32 atom.global.max.f32 atom.global.max.noftz.f16 atom.global.exch.f32
    atom.global.v2.add.u32 atom.shared.v2.add.f32 red.exch.b32 ld.global.v3.u32 ld.gpu.global.u32
    ld.global.pred ld.global.async.u32 ld.global
"""


@pytest.mark.parametrize("text", MEMORY_FORMS.split())
def test_forms_of_accesses_that_do_not_exist_are_refused(text: str) -> None:
    loads = text.startswith("ld")
    operands = ["%d0", address("%a0")] if loads else ["%d0", address("%a0"), "%a1"]
    with pytest.raises(KernelRejected, match=text):
        Instructions().define(text, "u4", "u8" if loads else "u8 u4", operands)


def test_no_lowering_is_also_refused() -> None:
    for base in LOWERINGS:
        assert unsupported_error(instruction(base)) is None


def given(text: str, *numbers: int) -> ptx.Instruction:
    return ptx.Instruction(ptx.opcode(text), tuple(ptx.Immediate(str(n), n) for n in numbers))


@pytest.mark.parametrize(
    "text",
    [
        "shfl.sync.sideways.b32",
        "shfl.sync.up.b64",
        "vote.sync.none.pred",
        "vote.sync.all.b32",
        "match.some.sync.b32",
        "redux.sync.add.f32",
        "redux.sync.min.abs.s32",
        "redux.sync.and.u32",
        "activemask.u32",
        "elect.sync.b32",
        "bar.warp.arrive",
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8",
        "setmaxnreg.inc.sync.aligned.u32",
    ],
)
def test_collectives_that_do_not_exist_are_refused(text: str) -> None:
    with pytest.raises(KernelRejected, match=text):
        collective_kind(instruction(text))


@pytest.mark.parametrize(
    "barrier",
    [
        given("bar.sync", 16),
        given("barrier.sync", 0, 33),
        given("bar.arrive", 1),
        given("barrier.sync.unaligned", 0),
        given("bar.red.add.u32", 0, 0, 1),
        given("bar.red.popc.pred", 0, 0, 1),
    ],
    ids=lambda ins: ins.opcode.text,
)
def test_barriers_that_do_not_exist_are_refused(barrier: ptx.Instruction) -> None:
    with pytest.raises(KernelRejected, match=barrier.opcode.text):
        check_barrier(barrier)
