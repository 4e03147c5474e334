"""Jobs for tests: task blocks that count themselves and wait at a gate.

A *gate* is a word in device memory: with n in it, the first n task blocks to start may end. So a
test controls a job's progress, and nothing depends on timing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from gpud.device.cpu.device import CPUDevice
from gpud.device.cpu.program.module import CPUKernel
from gpud.device.interface import Form, LaunchSpec, Memory
from tests.support.resizable_run import ResizableRun
from tests.support.waiting import until
from tests.unit.cpu.device_helpers import OPEN, TIMEOUT_S, Array, cuda, pointer, rewritten, words

SOURCE = r"""
extern "C" __device__ int printf(const char*, ...);
extern "C" __global__ void work(unsigned* runs, unsigned* gate) {
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    if (threadIdx.x == 0) {
        unsigned ticket = atomicAdd(gate + 1, 1);
        while (*(volatile unsigned*)gate <= ticket) {}
        atomicAdd(&runs[block], 1);
    }
}
extern "C" __global__ void says() {
    if (threadIdx.x == 0) printf("block %d\n", (int)blockIdx.x);
}
"""

FORMS: tuple[Form, ...] = ("persistent", "sliced", "whole", "unmodified")
RESIZABLE: tuple[Form, ...] = ("persistent", "sliced")
TOTAL = 20


class Work(NamedTuple):
    """A job of `work`, how often each task block ran, and its gate."""

    job: ResizableRun
    kernel: CPUKernel
    runs: Array
    gate: Array
    memories: tuple[Memory, ...]

    def begun(self, count: int) -> None:
        """Wait until so many task blocks have begun."""
        until(lambda: int(self.gate[1]) >= count)

    def step(self) -> None:
        """Let the task blocks end that have begun."""
        self.gate[0] = self.gate[1]

    def finish(self) -> None:
        """Let it run to its end; every task block ran once."""
        self.gate[0] = OPEN
        self.job.result(TIMEOUT_S)
        assert self.runs.tolist() == [1] * self.runs.size

    def end(self) -> None:
        """End it where it is."""
        self.job.end()
        self.gate[0] = OPEN
        assert self.job.wait(TIMEOUT_S)


_loaded: dict[tuple[int, Form], CPUKernel] = {}


def make(
    device: CPUDevice,
    form: Form,
    grid: int | tuple[int, ...] = TOTAL,
    *,
    gate: int = OPEN,
    priority: int = 0,
    block: int = 32,
    exclusive: int = 0,
) -> Work:
    total = math.prod((grid,) if isinstance(grid, int) else grid)
    key = (id(device), form)
    if key not in _loaded:
        text = cuda(SOURCE) if form == "unmodified" else rewritten(SOURCE, form).ptx
        _loaded[key] = device.load(text).kernel("work")
    runs, counts = words(device, total)
    door, opening = words(device, 2)
    opening[0] = gate
    values = [pointer(runs), pointer(door)]
    launch = LaunchSpec.of(_loaded[key], form, grid, block, values)
    job = ResizableRun(device, [launch], priority=priority, exclusive=exclusive)
    return Work(job, _loaded[key], counts, opening, (runs, door))
