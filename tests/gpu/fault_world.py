"""A program with faulting and endless kernels on a GPU, and its jobs.

All that may wait for running kernels is done before the first launch: the program is loaded, its
kernels are found and their attributes set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpud.compiler.pipeline import Program, compile_program
from gpud.device.interface import LaunchSpec
from gpud.errors import GpudError
from tests.support.resizable_run import ResizableRun

TIMEOUT_S = 60.0
SOURCE = r"""
extern "C" __global__ void store(int* p, long long at) { p[at + threadIdx.x] = 7; }
extern "C" __global__ void traps(int* p) { if (blockIdx.x == 3 && threadIdx.x == 5) __trap(); }
extern "C" __global__ void breaks(int* p) {
    if (blockIdx.x == 3 && threadIdx.x == 5) asm volatile("brkpt;");
}
extern "C" __global__ void asserts(int* p) { assert(blockIdx.x != 3 || threadIdx.x != 5); }
extern "C" __global__ void endless(volatile int* p) { while (p[0] == 0) p[1] = 1; }
extern "C" __global__ void good(int* p) { atomicAdd(p, 1); }
"""
KILLABLE = "endless"
_BLOCK = (32, 1, 1)


class World:
    """A program, an array of 64 integers, and jobs."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.program: Program = compile_program(SOURCE)
        self.module = device.load(self.program.ptx)
        self.memory = device.allocate(256)
        for name in self.program.kernels:
            device.occupancy(self._kernel(name), _BLOCK)

    def ints(self) -> np.ndarray[Any, Any]:
        return np.frombuffer(self.memory.view.tobytes(), np.int32)

    def _kernel(self, name: str) -> Any:
        entry = self.program.kernels[name].entry_for(_BLOCK, killable=name == KILLABLE)
        return self.module.kernel(entry)

    def job(self, name: str, values: Sequence[bytes] = ()) -> ResizableRun:
        form: Any = str(self.program.kernels[name].form_for(_BLOCK))
        passed = [int(self.memory.address).to_bytes(8, "little"), *values]
        return ResizableRun(self.device, [LaunchSpec.of(self._kernel(name), form, 8, 32, passed)])

    def run(self, name: str, values: Sequence[bytes] = ()) -> GpudError | None:
        job = self.job(name, values)
        job.resize(2)
        assert job.wait(TIMEOUT_S), f"{name} did not end: {job.progress}"
        return job.error

    def lives(self) -> None:
        """Assert that the context still runs kernels."""
        self.memory.view[:] = 0
        assert self.run("good") is None
        assert self.ints()[0] == 8 * 32
