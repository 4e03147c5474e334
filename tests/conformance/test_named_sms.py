"""Persistent blocks on named SMs leave, by the control words and PTX that a GPU uses, too.

The rewritten kernel is launched as a plain grid, with control words in memory that the test writes:
as `gpud.device.cuda` does, and as `gpud.device.cpu` on its own would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gpud.compiler.abi import control_words as cw
from gpud.device.cpu.device import CPUDevice
from gpud.device.interface import pack_parameters
from tests.support.waiting import until
from tests.unit.cpu.device_helpers import OPEN, TIMEOUT_S, cuda, pointer, rewritten, words

SOURCE = r"""
extern "C" __global__ void work(unsigned* gate, unsigned* where, unsigned* out) {
    __shared__ unsigned sum;
    if (threadIdx.x == 0) {
        unsigned sm;
        asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
        where[blockIdx.x] = sm;
        unsigned ticket = atomicAdd(gate + 1, 1);
        while (*(volatile unsigned*)gate <= ticket) {}
        sum = 0;
    }
    __syncthreads();
    atomicAdd(&sum, threadIdx.x * blockIdx.x);
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum + threadIdx.x;
}
"""
TOTAL, THREADS, BLOCKS = 40, 64, 6
NOWHERE = 99


@pytest.fixture
def device() -> Iterator[CPUDevice]:
    with CPUDevice(2) as one:
        yield one


class Run:
    """The kernel's arrays, and its launch."""

    def __init__(self, device: CPUDevice) -> None:
        self.device = device
        self.door, self.gate = words(device, 2)
        self.places, self.where = words(device, TOTAL)
        self.memory, self.out = words(device, TOTAL * THREADS)
        self.where[:] = NOWHERE

    def launch(self, text: str, blocks: int, *more: bytes) -> Any:
        kernel = self.device.load(text).kernel("work")
        values = [pointer(self.door), pointer(self.places), pointer(self.memory), *more]
        buffer = pack_parameters(kernel.parameters, values)
        return self.device.launch(kernel, (blocks,), (THREADS,), buffer)


def test_blocks_on_a_named_sm_leave_and_the_others_run_the_rest(device: CPUDevice) -> None:
    plain = Run(device)
    plain.gate[0] = OPEN
    plain.launch(cuda(SOURCE), TOTAL).result(TIMEOUT_S)

    run = Run(device)
    control = device.allocate(512)
    record, status, bitmap = (control.address + at for at in (cw.JOB_BYTES, 256, 384))
    named = control.view[384 : 384 + cw.NAMED_BYTES]
    job = cw.job_record((TOTAL, 1, 1))
    first = job + cw.launch_record(control.address, status, BLOCKS, named=bitmap)
    control.view[: len(first)] = np.frombuffer(first, np.uint8)
    live = control.view[256 + cw.LIVE :][:4].view(np.uint32)
    live[0] = BLOCKS
    done = control.view[cw.DONE :][:4].view(np.uint32)
    launch = run.launch(rewritten(SOURCE, "persistent").ptx, BLOCKS, record.to_bytes(8, "little"))
    until(lambda: int(run.gate[1]) == BLOCKS)
    on_one = int((run.where[:BLOCKS] == 1).sum())
    assert 0 < on_one < BLOCKS, "the blocks are on one SM, so nothing can be seen"
    named[:] = np.frombuffer(cw.named_sms([1]), np.uint8)
    run.gate[0] = BLOCKS
    until(lambda: int(live[0]) == BLOCKS - on_one)
    assert int(done[0]) < TOTAL
    run.gate[0] = OPEN
    launch.result(TIMEOUT_S)
    assert (int(live[0]), int(done[0])) == (0, TOTAL)
    assert set(run.where[BLOCKS:].tolist()) == {0}
    assert run.out.tobytes() == plain.out.tobytes()
