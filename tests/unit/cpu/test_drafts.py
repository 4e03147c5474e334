"""Kernels that begin in draft code, and are finished while they run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from gpud.compiler.pipeline import compile_program
from gpud.device.cpu.codegen.artifact import ENTRY_POINTS
from gpud.device.cpu.device import CPUDevice
from gpud.device.cpu.program import kernel_compiler
from gpud.device.cpu.program.compile_request import CompileRequest, CompileResult
from gpud.device.cpu.program.drafts import replace_words
from gpud.device.cpu.scheduling.persistent_block import word_of
from gpud.device.interface import LaunchSpec
from gpud.errors import CompileError
from tests.support.resizable_run import ResizableRun
from tests.support.waiting import until
from tests.unit.cpu.device_helpers import TIMEOUT_S

SOURCE = r"""
extern "C" __global__ void k(int* ran, int* out, int loops, volatile int* open) {
    __shared__ int sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    int mine = threadIdx.x;
    for (int k = 0; k < loops; k++) {
        mine = mine * 5 + k;
        if (mine % (threadIdx.x + 2) == 0) atomicAdd(&sum, 1);  // lanes diverge
        __syncthreads();
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = mine + sum;
    if (threadIdx.x == 0) atomicAdd(ran + blockIdx.x, 1);
}
"""
THREADS = 64


class Compilers:
    """Compiles in this process; the final code waits until it is let through."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.asked: list[bool] = []
        self.error: CompileError | None = None

    def __call__(self, wanted: CompileRequest) -> CompileResult:
        self.asked.append(wanted.draft)
        if not wanted.draft:
            assert self.open.wait(TIMEOUT_S)
            if self.error is not None:
                raise self.error
        return kernel_compiler.compile_kernel(wanted)

    def warm_up(self) -> None:
        """Do nothing."""


@pytest.fixture
def compilers(monkeypatch: pytest.MonkeyPatch) -> Compilers:
    monkeypatch.setattr(kernel_compiler, "DRAFT_LINES", 0)
    return Compilers()


@contextmanager
def device_of(compilers: Compilers) -> Iterator[CPUDevice]:
    with CPUDevice(2, compiler=compilers, finishes=compilers) as device:
        yield device


class World:
    """The kernel with its arrays."""

    def __init__(self, device: CPUDevice, blocks: int, loops: int) -> None:
        program = compile_program(SOURCE, bounds_checks=False, kill=False)
        self.device = device
        self.kernel = device.load(program.ptx).kernel("k")
        self.ran, self.out = device.allocate(4 * blocks), device.allocate(4 * blocks * THREADS)
        values = b"".join(
            (self.ran.address.to_bytes(8, "little"), self.out.address.to_bytes(8, "little"),
             loops.to_bytes(8, "little"), bytes(8))
        )  # fmt: skip
        self.specs = [
            LaunchSpec(self.kernel, "persistent", (blocks, 1, 1), (THREADS, 1, 1), values)
        ]

    @property
    def code(self) -> Any:
        return self.kernel.compiled((THREADS, 1, 1)).code

    def headers(self) -> list[dict[str, int]]:
        """The functions that the headers of blocks point to which have begun."""
        found = []
        for block in self.device.scheduler._pool.by_address.values():
            if block.run is not None:
                words = {name: word_of(name) for name in ENTRY_POINTS}
                found.append(
                    {name: block.words[at] | block.words[at + 1] << 32
                     for name, at in words.items()}
                )  # fmt: skip
        return [one for one in found if one["run_lockstep"]]  # the others have not begun


def test_blocks_begin_in_the_draft_and_go_on_in_the_final_code(compilers: Compilers) -> None:
    with device_of(compilers) as device:
        world = World(device, 400, 3000)
        job = ResizableRun(device, world.specs)
        draft = world.code
        job.resize(2)
        until(lambda: world.headers() and job.progress[1] >= 2)
        assert job.progress[1] < 100, "the block is long enough to be changed in the middle"
        assert all(one == draft.addresses for one in world.headers())
        compilers.open.set()
        until(lambda: world.code is not draft)
        until(lambda: all(one == world.code.addresses for one in world.headers()))
        assert not job.done, "the blocks that ran were changed"
        job.result(TIMEOUT_S)
        assert compilers.asked == [True, False]
        assert world.ran.view.view(np.int32)[:400].tolist() == [1] * 400
        changed = world.out.view.copy()
        again = ResizableRun(device, world.specs)
        again.resize(2)
        again.result(TIMEOUT_S)
        assert np.array_equal(world.out.view, changed), "both codes compute the same"


def test_later_launches_begin_in_the_final_code(compilers: Compilers) -> None:
    with device_of(compilers) as device:
        world = World(device, 2, 1)
        sequence = device.prepare(world.specs)  # its templates have the draft's functions
        draft = world.code
        compilers.open.set()
        until(lambda: world.code is not draft)
        until(lambda: bool(world.kernel.replaced))
        for launches in (sequence, device.prepare(world.specs)):
            layout: Any = launches.layout
            for name in ENTRY_POINTS:
                assert layout._templates[name] == world.code.addresses[name]


def test_a_kernel_whose_final_code_cannot_be_made_keeps_its_draft(compilers: Compilers) -> None:
    with device_of(compilers) as device:
        compilers.error = CompileError("it takes too long")
        compilers.open.set()
        first, second = World(device, 20, 50), World(device, 20, 50)
        for world in (first, second):
            draft = world.code
            job = ResizableRun(device, world.specs)
            job.resize(2)
            job.result(TIMEOUT_S)
            assert world.code is draft
        until(lambda: compilers.asked.count(False) == 2)


def test_short_kernels_have_no_draft(compilers: Compilers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_compiler, "DRAFT_LINES", 10**6)
    with device_of(compilers) as device:
        world = World(device, 2, 1)
        assert world.code.addresses
        assert compilers.asked == [True]


def test_only_words_with_the_old_value_are_replaced() -> None:
    words = np.array([1, 2, 3], np.uint64)
    at = words.ctypes.data
    replace_words([at, at + 8, at + 16], [(1, 10), (7, 70), (3, 2**63)])
    assert words.tolist() == [10, 2, 2**63]
