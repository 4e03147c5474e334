"""Accesses that need care: through functions, to memory that is no array, and without an arena.

All kinds of accesses, from all places: ``tests/faults/test_out_of_bounds.py``.
"""

from __future__ import annotations

import numpy as np
import pytest

from gpud.compiler.analysis.effects import ATOMIC, MEMORY_READ, MEMORY_WRITE, flags
from gpud.compiler.ptx.model import opcode
from gpud.device.cpu.device import CPUDevice
from gpud.device.cpu.lower import LOWERINGS
from gpud.device.interface import Form
from gpud.errors import GpudError, IllegalAddress, KernelTrap
from tests.unit.cpu.codegen.checked_arena import HEAD, Arena, ptx


def test_every_lowering_that_accesses_memory_is_listed() -> None:
    """A new one must come with its check: `bounds.accesses`, `analysis.accesses` and a test."""
    spellings = {"cp": "cp.async.ca.shared.global", "mbarrier": "mbarrier.init.shared.b64"}
    touching = {
        base
        for base in LOWERINGS
        if flags(opcode(spellings.get(base, base))) & (MEMORY_READ | MEMORY_WRITE | ATOMIC)
    }
    assert touching == {"ld", "ldu", "st", "atom", "red", "cp", "mbarrier"}


SHUFFLED = r"""
extern "C" __global__ void k(int* a) { a[(threadIdx.x * 37) & 255] = 1; }
"""
PLAIN = (
    f"{HEAD}.visible .entry k(.param .u64 p) {{ .reg .u32 %r; .reg .u64 %rd; "
    "ld.param.u64 %rd, [p]; ld.global.u32 %r, [%rd]; ret; }"
)


def test_addresses_that_are_not_affine(world: Arena) -> None:
    block = 256
    assert world.run(SHUFFLED, world.end - 4 * block, block=block) is None
    error = world.run(SHUFFLED, world.end - 4 * (block - 1), block=block)
    assert isinstance(error, IllegalAddress)
    (thread,) = [t for t in range(block) if t * 37 & 255 == 255]
    assert (error.address, error.thread) == (world.end, (thread, 0, 0))


# -- functions, other memories -----------------------------------------------------------------

CALLED = r"""
__device__ int table[16];
__constant__ int fixed[4] = {1, 2, 3, 4};
struct Big { int v[8]; };
struct Pair { int* at; long long by; };
__device__ __noinline__ Pair pair(int* p, int by) {
    Pair made;
    made.at = p + by;
    made.by = by;
    return made;
}
extern "C" __global__ void returned(int* a, int by, int n) {
    for (int k = 0; k < n; k++) {
        Pair made = pair(a, by * k + (int)threadIdx.x);
        *made.at = (int)made.by;
        __syncthreads();
    }
}
__device__ __noinline__ void put(int* p, int i, int v) { p[i] = v; }
__device__ __noinline__ int depth(int* p, int n) {
    int local[4] = {n, n + 1, n + 2, n + 3};
    if (n == 0) return p[0] + local[n & 3];
    return depth(p, n - 1) + local[n & 3];
}
__device__ __noinline__ int total(const Big b, int i) { return b.v[i]; }
__device__ __noinline__ void fill(int* p, int n) { for (int i = 0; i < n; i++) p[i] = i; }
extern "C" __global__ void sinks(int* a, int n, unsigned block, unsigned thread) {
    if (blockIdx.x + gridDim.x * blockIdx.y != block) return;
    if (threadIdx.x + blockDim.x * threadIdx.y == thread) a[1] = depth(a, n);
}
extern "C" __global__ void points(int* a, int which, int i) {
    __shared__ int box[32];
    int own[4] = {0, 0, 0, 0};
    int* p = which == 0 ? table : which == 1 ? (int*)fixed : which == 2 ? box : own;
    put(p, i, 5);
    a[threadIdx.x] = own[i & 3] + box[i & 31];
}
extern "C" __global__ void structs(int* a, Big b, int i) { a[0] = total(b, i); }
extern "C" __global__ void frames(int* a, int n) {
    int own[8];
    fill(own, n);
    a[0] = own[n & 7];
}
extern "C" __global__ void heap(int* a, int n) {
    int* p = (int*)malloc(64);
    p[n] = 3;
    a[0] = p[n];
    free(p);
    free(a);
    free(p);
}
"""


@pytest.mark.parametrize("form", ["sliced", "persistent"])
def test_endless_recursion(world: Arena, form: Form) -> None:
    # It finds no room for local variables, long before the OS thread's stack is full.
    def deep(depth: int, block: int, thread: int) -> GpudError | None:
        values = (world.base, np.int32(depth), np.uint32(block), np.uint32(thread))
        return world.run(CALLED, *values, name="sinks", form=form, grid=(3, 2), block=(4, 2))

    assert deep(20, 4, 6) is None
    error = deep(1 << 30, 4, 6)
    assert isinstance(error, KernelTrap)
    assert error.cause.startswith("stack exhausted")
    assert (error.kernel, error.task_block, error.thread) == ("sinks", (1, 1, 0), (2, 1, 0))
    assert deep(20, 4, 6) is None


MEETS = f"""{HEAD}
.func poke(.param .b64 at) {{
    .reg .b64 %at; ld.param.u64 %at, [at]; st.u32 [%at], 1; ret;
}}
.visible .entry store(.param .u64 offset) {{
    .reg .b32 %low, %high; .reg .b64 %at, %offset;
    mov.u32 %high, %envreg1; mov.u32 %low, %envreg2;
    mov.b64 %at, {{%low, %high}}; ld.param.u64 %offset, [offset];
    add.s64 %at, %at, %offset; st.global.u32 [%at], 1; ret;
}}
.visible .entry call(.param .u64 offset) {{
    .reg .b32 %low, %high; .reg .b64 %at, %offset; .param .b64 given;
    mov.u32 %high, %envreg1; mov.u32 %low, %envreg2;
    mov.b64 %at, {{%low, %high}}; ld.param.u64 %offset, [offset];
    add.s64 %at, %at, %offset; st.param.b64 [given], %at; call poke, (given); ret;
}}
"""


@pytest.mark.parametrize(("which", "length"), [(0, 16), (1, 4), (2, 32), (3, 4)])
def test_pointers_to_other_memory(world: Arena, which: int, length: int) -> None:
    def points(at: int) -> object:
        values = (world.base, np.int32(which), np.int32(at))
        return world.run(CALLED, *values, name="points", block=1)

    assert points(0) is None
    assert points(length - 1) is None
    for beyond in (1 << 28, -(1 << 28)):  # far from the program's heap too, wherever that is
        error = points(beyond)
        assert isinstance(error, IllegalAddress)
        assert error.space == "global"


def test_local_memory_of_functions_and_their_arguments(world: Arena) -> None:
    world.bytes[:] = 0
    big = np.arange(8, dtype=np.int32)
    assert world.run(CALLED, world.base, big, np.int32(5), name="structs", block=1) is None
    assert world.words()[0] == 5
    assert world.run(CALLED, world.base, np.int32(7), name="frames", block=1) is None
    error = world.run(CALLED, world.base, np.int32(1 << 20), name="frames", block=1)
    assert isinstance(error, IllegalAddress)


def test_pointers_that_functions_return(world: Arena) -> None:
    values = (world.end - 4 * 128, np.int32(32))
    assert world.run(CALLED, *values, np.int32(4), name="returned", block=32) is None
    error = world.run(CALLED, *values, np.int32(5), name="returned", block=32)
    assert isinstance(error, IllegalAddress)
    assert (error.address, error.thread) == (world.end, (0, 0, 0))


def test_the_heap_of_device_code(world: Arena) -> None:
    world.bytes[:] = 0
    assert world.run(CALLED, world.base, np.int32(15), name="heap", block=1) is None
    assert world.words()[0] == 3
    error = world.run(CALLED, world.base, np.int32(1 << 24), name="heap", block=1)
    assert isinstance(error, IllegalAddress)


@pytest.mark.parametrize("form", ["store", "call"])
def test_grid_synchronisation_words(world: Arena, form: str) -> None:
    def store(at: int) -> object:
        return world.run(MEETS, np.int64(at), name=form, form="whole", block=1)

    assert store(0) is None
    assert store(4) is None
    for beyond in (-4, 6, 8):
        assert isinstance(store(beyond), IllegalAddress)


def test_without_an_arena_nothing_is_checked() -> None:
    with CPUDevice(1) as device:
        beside = Arena(device)
        program = ptx(PLAIN, "sliced").ptx
        assert device.load(program).checked_arena is None
        loaded = device.load(program, (beside.base, 4096))
        assert loaded.checked_arena == (beside.base, 4096)
        assert "gpud_arena" not in loaded.data.sizes
        unchecked = ptx(PLAIN, "sliced", bounds_checks=False).ptx
        assert device.load(unchecked, (0, 4096)).checked_arena is None
