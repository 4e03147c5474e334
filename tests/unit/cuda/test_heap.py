"""The heap of checked programs on the CUDA device: its functions, run by many threads.

The PTX functions run unmodified, on the CPU device behind the model of the driver; not on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module
from gpud.compiler.toolchain.ptxas import assemble, find_ptxas
from gpud.device.cpu.device import CPUDevice
from gpud.device.cuda.device import CUDADevice
from gpud.device.cuda.driver.calls import Driver
from gpud.device.cuda.program.heap import HEAP_BYTES, with_own_heap
from tests.driver_model import CPUDriver
from tests.unit.cpu.device_helpers import Array, rewritten
from tests.unit.printing import ARENA, load, run

SOURCE = r"""
extern "C" __global__ void churn(unsigned* bad, int rounds) {
    unsigned me = blockIdx.x * blockDim.x + threadIdx.x, state = me * 2654435761u + 1;
    unsigned* held[4] = {0, 0, 0, 0};
    unsigned sizes[4] = {0, 0, 0, 0};
    for (int i = 0; i < rounds; i++) {  // each call is compiled where it stands: keep them few
        state = state * 1664525u + 1013904223u;
        unsigned slot = state >> 30, size = 4 + 4 * ((state >> 8) % 40);
        if (held[slot]) {
            #pragma unroll 1
            for (unsigned w = 0; w < sizes[slot] / 4; w++)
                if (held[slot][w] != me) atomicAdd(bad, 1u);
            free(held[slot]);
            held[slot] = 0;
        } else {
            held[slot] = (unsigned*)malloc(size);
            sizes[slot] = size;
            if (!held[slot]) { atomicAdd(bad + 1, 1u); continue; }
            if ((size_t)held[slot] % 16) atomicAdd(bad + 2, 1u);
            #pragma unroll 1
            for (unsigned w = 0; w < size / 4; w++) held[slot][w] = me;
        }
    }
}
extern "C" __global__ void take(unsigned long long* found, unsigned long long size) {
    int n = 0;
    while (void* p = malloc(size)) found[n++] = (unsigned long long)p;
    found[n] = 0;
}
extern "C" __global__ void give(unsigned long long* found, int every) {
    for (int i = 0; found[i]; i += every) {
        #pragma unroll 1
        for (int off = -1; off < 3; off++)  // twice, what lies inside, and what is nothing
            free(off < 2 ? (char*)found[i] + (off > 0 ? 16 : 0) : (char*)-16);
    }
}
extern "C" __global__ void outside(unsigned long long* found) {
    char* p = (char*)malloc(8);
    found[0] = (unsigned long long)p;
    found[1] = (unsigned char)p[0];
}
"""


class World:
    """The program on the device, and its session's memory."""

    def __init__(self, cuda: CUDADevice, cpu: CPUDevice) -> None:
        self.device = cuda
        self.memory = cpu.allocate(ARENA)
        self.module = load(cuda, SOURCE, self.memory)

    def run(self, name: str, *values: int, blocks: int = 1, threads: int = 1) -> Array:
        """Run a kernel; the session's memory as 64-bit words."""
        sizes = [one.size for one in self.module.kernel(name).parameters[1:-1]]
        raw = [value.to_bytes(size, "little") for value, size in zip(values, sizes, strict=True)]
        first = int(self.memory.address).to_bytes(8, "little")
        run(self.device, self.module.kernel(name), first, *raw, blocks=blocks, threads=threads)
        return self.memory.view.view(np.uint64)


@pytest.fixture
def world() -> Iterator[World]:
    with CPUDevice(2) as cpu, CUDADevice(driver=Driver(CPUDriver(cpu))) as cuda:
        yield World(cuda, cpu)


def test_threads_that_take_and_give_at_once_share_nothing(world: World) -> None:
    found = world.run("churn", 300, blocks=6, threads=32).view(np.uint32)
    assert found[:3].tolist() == [0, 0, 0]
    taken = world.run("take", 1 << 20)  # and what they gave back is whole
    assert taken[0] != 0


def test_all_of_it_is_handed_out_once_and_taken_back(world: World) -> None:
    size = 40_000
    words = world.run("take", size)
    first = words[: int(np.argmin(words != 0))].copy()
    assert len(first) == HEAP_BYTES // 40_960  # rounded to 5 * 8 KiB
    assert np.diff(np.sort(first)).min() >= size
    assert first.max() + size <= first.min() + HEAP_BYTES
    world.run("give", 1, blocks=4, threads=3)  # each of them by many threads, and twice
    words = world.run("take", size)
    again = words[: int(np.argmin(words != 0))]
    assert sorted(again.tolist()) == sorted(first.tolist())


def test_invalid_sizes_get_a_null_pointer(world: World) -> None:
    for size in (0, HEAP_BYTES + 1, 1 << 63, (1 << 64) - 1):
        assert world.run("take", size)[0] == 0


def test_it_reads_as_zero_at_first(world: World) -> None:
    words = world.run("outside")
    assert words[0] != 0
    assert words[1] == 0


@pytest.mark.skipif(find_ptxas() is None, reason="there is no ptxas")
@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_100"])
def test_it_assembles(arch: str) -> None:
    program = with_own_heap(flatten_module(parse(rewritten(SOURCE).ptx)))
    text = print_module(program)
    assert "malloc, (" not in text
    assert "churn" in assemble(text, arch)
