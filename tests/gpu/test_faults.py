"""Faulting kernels on a GPU: their job fails with the reason, the context and others continue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gpud.compiler.pipeline import Program, compile_program
from gpud.device.interface import LaunchSpec
from gpud.errors import GpudError, IllegalAddress, KernelTrap
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


class World:
    """A program, an array of 64 integers, and jobs."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.program: Program = compile_program(SOURCE)
        self.module = device.load(self.program.ptx)
        self.memory = device.allocate(256)

    def ints(self) -> np.ndarray[Any, Any]:
        return np.frombuffer(self.memory.view.tobytes(), np.int32)

    def job(
        self, name: str, values: Sequence[bytes] = (), *, killable: bool = False
    ) -> ResizableRun:
        info = self.program.kernels[name]
        kernel = self.module.kernel(info.entry_for((32, 1, 1), killable=killable))
        form: Any = str(info.form_for((32, 1, 1)))
        passed = [int(self.memory.address).to_bytes(8, "little"), *values]
        return ResizableRun(self.device, [LaunchSpec.of(kernel, form, 8, 32, passed)])

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


@pytest.fixture
def world(device: Any) -> World:
    return World(device)


@pytest.mark.gpu
@pytest.mark.parametrize("at", [1 << 28, 1 << 40, -(1 << 20)])
def test_a_store_out_of_the_arena(world: World, at: int) -> None:
    error = world.run("store", [at.to_bytes(8, "little", signed=True)])
    assert isinstance(error, IllegalAddress)
    assert not world.ints().any()
    world.lives()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["traps", "breaks", "asserts"])
def test_a_trap(world: World, name: str) -> None:
    assert isinstance(world.run(name), KernelTrap)
    world.lives()


@pytest.mark.gpu
def test_a_kernel_without_end_is_ended_alone(world: World) -> None:
    job = world.job("endless", killable=True)
    job.resize(2)
    neighbour = World(world.device)
    neighbour.lives()
    assert not job.done
    job.kill()
    assert job.wait(TIMEOUT_S)
    assert not job.complete
    world.lives()
    neighbour.lives()
