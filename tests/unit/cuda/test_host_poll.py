"""Kernels that poll host memory now and then: run on the CPU device, and assembled."""

from __future__ import annotations

import numpy as np
import pytest

from gpud.compiler.abi import control_words as cw
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.pipeline import compile_program
from gpud.compiler.ptx.model import Module
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module
from gpud.compiler.toolchain.ptxas import assemble, find_ptxas
from gpud.device.cpu.device import CPUDevice
from gpud.device.cuda.program import host_poll
from gpud.device.cuda.program.by_value import encode_addresses, job_values, pass_by_value
from gpud.device.cuda.program.report_blocks import report_blocks
from tests.unit.cpu.device_helpers import TIMEOUT_S

SOURCE = r"""
extern "C" __global__ void k(unsigned* p) {
    __shared__ unsigned sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, threadIdx.x + blockIdx.x);
    __syncthreads();
    if (threadIdx.x == 0) p[blockIdx.x] = sum + 1;
}
"""
TOTAL, BLOCKS = 12, 2


def program(*, sees: bool = True) -> Module:
    plain = flatten_module(parse(compile_program(SOURCE, bounds_checks=False).ptx))
    return pass_by_value(report_blocks(host_poll.add_host_poll(plain) if sees else plain))


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("halt", [False, True])
@pytest.mark.parametrize("period", [0, 1 << 31])
def test_obeyed(monkeypatch: pytest.MonkeyPatch, period: int, halt: bool, ahead: int) -> None:
    monkeypatch.setattr(host_poll, "PERIOD", period)
    with CPUDevice(2) as device:
        kernel = device.load(print_module(program())).kernel("k")
        memory, data = device.allocate(512), device.allocate(4 * TOTAL)
        job, launch, status = (memory.address + at for at in (0, 128, 256))
        records = cw.job_record((TOTAL, 1, 1), cw.Claims(1, ahead)) + cw.launch_record(
            job, status, BLOCKS
        )
        memory.view[: len(records)] = np.frombuffer(records, np.uint8)
        said = memory.view[256:].view(np.uint32)
        said[cw.HALT // 4] = halt
        structure = encode_addresses(job, status, 0) + job_values(records)
        values = data.address.to_bytes(8, "little") + structure + launch.to_bytes(8, "little")
        device.launch(kernel, (BLOCKS, 1, 1), (32, 1, 1), values).result(TIMEOUT_S)
        done, claimed = (int(memory.view[at]) for at in (cw.DONE, cw.NEXT))
        assert memory.view[256 + cw.left_at(BLOCKS) :][:BLOCKS].all()
        if halt and not period:
            assert (done, claimed) == (0, 0)
        elif not halt:
            assert done == TOTAL
            assert data.view.view(np.uint32)[:TOTAL].all()


def test_other_forms_stay() -> None:
    plain = flatten_module(parse(compile_program(SOURCE, form="sliced").ptx))
    assert host_poll.add_host_poll(plain) is plain


@pytest.mark.skipif(find_ptxas() is None, reason="there is no ptxas")
@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_100"])
def test_it_assembles_and_leaves_room_for_all_threads_of_an_sm(arch: str) -> None:
    usage = assemble(print_module(program()), arch)["k"]
    assert usage.registers <= 32
    assert usage.spill_bytes == 0
