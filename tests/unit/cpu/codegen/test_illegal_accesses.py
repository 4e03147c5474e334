"""Illegal accesses are reported on the CPU device, legal ones run, nothing else changes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from gpud.compiler.analysis.effects import ATOMIC, MEMORY_READ, MEMORY_WRITE, flags
from gpud.compiler.ptx.model import opcode
from gpud.device.cpu.device import CPUDevice
from gpud.device.cpu.lower import LOWERINGS
from gpud.device.interface import Form
from gpud.errors import GpudError, IllegalAddress, KernelTrap
from tests.unit.cpu.codegen.checked_arena import HEAD, PARTED, Arena, ptx


class Kind(NamedTuple):
    """An access: its text, with the address in ``%rd1``, and its bytes and alignment."""

    text: str
    span: int
    align: int


KINDS = {
    "ld.u8": Kind("ld.global.u8 %r1, [%rd1];", 1, 1),
    "ld.s16": Kind("ld.global.s16 %r1, [%rd1];", 2, 2),
    "ld.u32": Kind("ld.global.u32 %r1, [%rd1];", 4, 4),
    "ld.f64": Kind("ld.global.f64 %fd1, [%rd1];", 8, 8),
    "ld.v2": Kind("ld.global.v2.u32 {%r1, %r2}, [%rd1];", 8, 8),
    "ld.v4": Kind("ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];", 16, 16),
    "ld.generic": Kind("ld.u32 %r1, [%rd1];", 4, 4),
    "ld.volatile": Kind("ld.volatile.global.u32 %r1, [%rd1];", 4, 4),
    "ld.acquire": Kind("ld.acquire.gpu.global.u32 %r1, [%rd1];", 4, 4),
    "ld.nc": Kind("ld.global.nc.u32 %r1, [%rd1];", 4, 4),
    "ldu": Kind("ldu.global.u32 %r1, [%rd1];", 4, 4),
    "st.u8": Kind("st.global.u8 [%rd1], 7;", 1, 1),
    "st.u32": Kind("st.global.u32 [%rd1], 7;", 4, 4),
    "st.v4": Kind("st.global.v4.u32 [%rd1], {7, 7, 7, 7};", 16, 16),
    "st.generic": Kind("st.u64 [%rd1], 7;", 8, 8),
    "st.release": Kind("st.release.gpu.global.u32 [%rd1], 7;", 4, 4),
    "atom.add": Kind("atom.global.add.u32 %r1, [%rd1], 1;", 4, 4),
    "atom.cas.b64": Kind("atom.global.cas.b64 %rd5, [%rd1], 0, 1;", 8, 8),
    "atom.generic": Kind("atom.add.f32 %f1, [%rd1], 0f3F800000;", 4, 4),
    "red.max": Kind("red.global.max.s32 [%rd1], 5;", 4, 4),
    "cp.async": Kind("cp.async.ca.shared.global [%r7], [%rd1], 8;", 8, 8),
    "with an offset": Kind("ld.global.u32 %r1, [%rd1+0];", 4, 4),
}

REGISTERS = """.reg .u32 %r<20>; .reg .u64 %rd<20>; .reg .f32 %f<8>; .reg .f64 %fd<4>;
    .reg .pred %p<8>; .shared .align 16 .b8 buffer[128];"""


def one_access(kind: str, *, parted: bool) -> str:
    """Thread t of eight makes the access at ``p + t * step``."""
    return f"""{HEAD}.visible .entry k(.param .u64 p, .param .u64 step)
    {{ {REGISTERS} ld.param.u64 %rd2, [p]; ld.param.u64 %rd3, [step]; mov.u32 %r3, %tid.x;
    mov.u32 %r7, buffer; {PARTED if parted else ""}
    cvt.u64.u32 %rd4, %r3; mad.lo.s64 %rd1, %rd4, %rd3, %rd2; {KINDS[kind].text} ret; }}"""


THREADS = 8


@pytest.mark.parametrize("parted", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_access_at_both_ends_of_the_arena(world: Arena, kind: str, parted: bool) -> None:
    program = one_access(kind, parted=parted)
    _, span, align = KINDS[kind]
    step = 16

    def run(first: int, by: int = step) -> IllegalAddress | None:
        error = world.run(program, first, by)
        assert error is None or isinstance(error, IllegalAddress)
        return error

    last = world.end - 16 - (THREADS - 1) * step
    assert run(world.base) is None
    assert run(last) is None
    assert run(last + 16 - span) is None
    assert run(world.end - 16, -step) is None
    for first, by, least in (
        (last + 16, step, 7),  # the last thread is just beyond the end
        (last + 16 - span + align, step, 7),  # half of its access is
        (world.end, step, 0),
        (world.base - align, 16 * align, 0),  # half, or just in front of the first byte
        (world.base - 16, 0, 0),
        (world.base + 16 * 6, -step, 7),  # downwards
        (0, 0, 0),
        (-16, 0, 0),
        (2**63, 0, 0),
    ):
        error = run(first, by)
        assert error is not None
        assert error.thread is not None
        # Diverged threads run in no particular order.
        thread = error.thread[0]
        assert thread >= least if parted else thread == least
        address = (first + thread * by) % 2**64
        assert (error.address, error.misaligned, error.space) == (address, False, "global")
        assert error.kernel == "k"
        assert error.site is not None
        where = ptx(program, "sliced").sites[error.site]
        assert where.instruction.strip().rstrip(";") in KINDS[kind].text.replace("+0", "")
    if align > 1:
        error = run(world.base + 3 * 16 + align // 2, 0)
        assert error is not None
        assert error.misaligned
        error = run(world.base, align // 2)
        assert error is not None
        assert error.misaligned
        assert error.thread is not None
        assert error.thread[0] % 2 == 1 if parted else error.thread[0] == 1


def test_every_lowering_that_accesses_memory_is_listed() -> None:
    """A new one must come with its check: `bounds.accesses`, `analysis.accesses` and a test."""
    spellings = {"cp": "cp.async.ca.shared.global", "mbarrier": "mbarrier.init.shared.b64"}
    touching = {
        base
        for base in LOWERINGS
        if flags(opcode(spellings.get(base, base))) & (MEMORY_READ | MEMORY_WRITE | ATOMIC)
    }
    assert touching == {"ld", "ldu", "st", "atom", "red", "cp", "mbarrier"}


# -- shapes of blocks and indices --------------------------------------------------------------

INDEXED = r"""
extern "C" __global__ void flat(int* a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) a[i] = i + 1;
}
extern "C" __global__ void flat_all(int* a, int shift) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    a[i + shift] = i + 1;
}
extern "C" __global__ void unsigned_all(int* a, unsigned shift) {
    unsigned i = threadIdx.x + shift;
    a[i] = 1;
}
extern "C" __global__ void plane(int* a, int pitch) {
    a[(int)threadIdx.y * pitch + (int)threadIdx.x] = 1;
}
extern "C" __global__ void space(int* a, int dy, int dz) {
    a[(int)threadIdx.z * dz + (int)threadIdx.y * dy - (int)threadIdx.x] = 1;
}
extern "C" __global__ void shuffled(int* a) { a[(threadIdx.x * 37) & 255] = 1; }
extern "C" __global__ void row(const int* a, int* out, int n, int pitch) {
    int sum = 0;
    for (int k = 0; k < n + (int)threadIdx.x; k++) sum += a[k * pitch];
    out[threadIdx.x] = sum;
}
extern "C" __global__ void gather(const int* index, int* a) { a[index[threadIdx.x]] = 1; }
extern "C" __global__ void walk(int* next, int* out) {
    int at = threadIdx.x;
    while (next[at] != -1) at = next[at];
    out[threadIdx.x] = at;
}
extern "C" __global__ void same(int* const* where, int* out) {
    out[threadIdx.x] = **where;
}
extern "C" __global__ void strides(int* p, int n) {
    for (int k = 0; k < n; k++) {
        p += threadIdx.x + k;
        *p = k;
        __syncthreads();
    }
}
extern "C" __global__ void halves(int* a, int n) {
    if (threadIdx.x < n) a[threadIdx.x] = a[threadIdx.x + n];
}
"""


@pytest.mark.parametrize("form", ["sliced", "persistent"])
def test_guarded_threads_beyond_the_array_at_the_arenas_end(world: Arena, form: Form) -> None:
    count = 1000
    world.bytes[:] = 0
    first = world.end - 4 * count
    error = world.run(INDEXED, first, np.int32(count), name="flat", form=form, grid=4, block=256)
    assert error is None
    assert (world.words()[-count:] == np.arange(1, count + 1)).all()
    error = world.run(
        INDEXED, first, np.int32(count + 1), name="flat", form=form, grid=4, block=256
    )
    assert isinstance(error, IllegalAddress)
    assert (error.address, error.task_block, error.thread) == (world.end, (3, 0, 0), (232, 0, 0))


def test_indices_below_zero_and_beyond_32_bits(world: Arena) -> None:
    middle = world.base + 4 * 1024
    assert world.run(INDEXED, middle, np.int32(-1024), name="flat_all", block=64) is None
    error = world.run(INDEXED, middle, np.int32(-1025), name="flat_all", block=64)
    assert isinstance(error, IllegalAddress)
    assert (error.address, error.thread) == (world.base - 4, (0, 0, 0))
    # i + shift wraps around between thread 9 and 10.
    error = world.run(INDEXED, middle, np.int32(2**31 - 10), name="flat_all", block=64)
    assert isinstance(error, IllegalAddress)
    assert error.address == middle + 4 * (2**31 - 10)
    # Unsigned: the threads after the wrap are in the arena, those before are not.
    error = world.run(INDEXED, middle, np.uint32(2**32 - 10), name="unsigned_all", block=64)
    assert isinstance(error, IllegalAddress)
    assert (error.address, error.thread) == (middle + 4 * (2**32 - 10), (0, 0, 0))
    # Both ends are in the arena, but not the addresses between them.
    far = middle - 4 * (2**32 - 10)
    error = world.run(INDEXED, far, np.uint32(2**32 - 10), name="unsigned_all", block=64)
    assert isinstance(error, IllegalAddress)
    assert (error.address, error.thread) == (far, (10, 0, 0))


def test_blocks_of_two_and_three_dimensions(world: Arena) -> None:
    def plane(first: int, pitch: int) -> object:
        return world.run(INDEXED, first, np.int32(pitch), name="plane", block=(32, 8))

    last = world.end - 4 * (7 * 100 + 32)
    assert plane(last, 100) is None
    assert plane(world.base + 4 * 700, -100) is None
    error = plane(last + 4, 100)
    assert isinstance(error, IllegalAddress)
    assert (error.address, error.thread) == (world.end, (31, 7, 0))
    # The corner where x is small and y is large: neither the first nor the last thread.
    error = plane(world.base + 4 * 690, -100)
    assert isinstance(error, IllegalAddress)
    assert error.thread == (0, 7, 0)

    def space(first: int, dy: int, dz: int) -> object:
        return world.run(INDEXED, first, np.int32(dy), np.int32(dz), name="space", block=(8, 4, 2))

    assert space(world.base + 4 * 7, 10, 100) is None
    error = space(world.base + 4 * 6, 10, 100)
    assert isinstance(error, IllegalAddress)
    assert (error.address, error.thread) == (world.base - 4, (7, 0, 0))
    error = space(world.end - 4 * 130, 10, 100)
    assert isinstance(error, IllegalAddress)
    assert error.thread == (0, 3, 1)


def test_addresses_that_are_not_affine(world: Arena) -> None:
    block = 256
    assert world.run(INDEXED, world.end - 4 * block, name="shuffled", block=block) is None
    error = world.run(INDEXED, world.end - 4 * (block - 1), name="shuffled", block=block)
    assert isinstance(error, IllegalAddress)
    (thread,) = [t for t in range(block) if t * 37 & 255 == 255]
    assert (error.address, error.thread) == (world.end, (thread, 0, 0))


def test_loops_that_each_thread_ends_by_itself(world: Arena) -> None:
    world.bytes[:] = 0
    out, count = world.base + 4096, 20
    first = world.end - 4 * 8 * (count + 7)

    def row(more: int) -> object:
        values = (first, out, np.int32(count + more), np.int32(8))
        return world.run(INDEXED, *values, name="row", block=8)

    assert row(0) is None
    error = row(1)
    assert isinstance(error, IllegalAddress)
    assert (error.address, error.thread) == (world.end, (7, 0, 0))


def test_addresses_that_were_loaded(world: Arena) -> None:
    world.bytes[:] = 0
    index, target = world.words(np.int32)[:64], world.base + 4096
    index[:] = np.arange(64)[::-1]
    assert world.run(INDEXED, world.base, target, name="gather", block=64) is None
    index[40] = (world.end - target) // 4
    error = world.run(INDEXED, world.base, target, name="gather", block=64)
    assert isinstance(error, IllegalAddress)
    assert (error.address, error.thread) == (world.end, (40, 0, 0))
    index[:] = np.append(np.arange(1, 64), -1)
    assert world.run(INDEXED, world.base, target, name="walk", block=32) is None
    index[50] = 1 << 28
    error = world.run(INDEXED, world.base, target, name="walk", block=32)
    assert isinstance(error, IllegalAddress)
    assert error.address == world.base + 4 * (1 << 28)


def test_a_uniform_load(world: Arena) -> None:
    world.bytes[:] = 0
    pointer = world.words(np.uint64)[:1]
    for bad in (0, world.end, world.base - 4, 2**64 - 4, 1 << 47):
        pointer[0] = bad
        error = world.run(INDEXED, world.base, world.base + 64, name="same", block=32)
        assert isinstance(error, IllegalAddress)
        assert error.address == bad
    pointer[0] = world.end - 4
    assert world.run(INDEXED, world.base, world.base + 64, name="same", block=32) is None


def test_pointers_that_each_thread_advances_by_itself(world: Arena) -> None:
    def strides(first: int, turns: int) -> object:
        return world.run(INDEXED, first, np.int32(turns), name="strides", block=64)

    turns = 5
    farthest = 4 * (63 * turns + sum(range(turns)))
    assert strides(world.end - 4 - farthest, turns) is None
    error = strides(world.end - farthest, turns)
    assert isinstance(error, IllegalAddress)
    assert (error.address, error.thread) == (world.end, (63, 0, 0))


def test_half_of_the_threads_at_the_arenas_end(world: Arena) -> None:
    world.bytes[:] = 0
    assert world.run(INDEXED, world.end - 4 * 64, np.int32(32), name="halves", block=256) is None
    error = world.run(INDEXED, world.end - 4 * 64, np.int32(33), name="halves", block=256)
    assert isinstance(error, IllegalAddress)
    assert error.thread == (31, 0, 0)


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
extern "C" __global__ void calls(int* a, int i) { put(a, (int)threadIdx.x + i, 1); }
extern "C" __global__ void recurses(int* a, int* out, int n) {
    *out = depth(a, n);
}
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
def test_an_access_in_a_function(world: Arena, form: Form) -> None:
    first = world.end - 4 * 8
    assert world.run(CALLED, first, np.int32(0), name="calls", form=form) is None
    error = world.run(CALLED, first, np.int32(3), name="calls", form=form)
    assert isinstance(error, IllegalAddress)
    assert (error.address, error.thread) == (world.end, (5, 0, 0))
    assert error.task_block == (0, 0, 0)


def test_recursion(world: Arena) -> None:
    def recurses(first: int, depth: int) -> object:
        values = (first, world.base + 64, np.int32(depth))
        return world.run(CALLED, *values, name="recurses", block=1)

    assert recurses(world.base, 20) is None
    error = recurses(world.end, 20)
    assert isinstance(error, IllegalAddress)
    assert error.address == world.end


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
        program = ptx(one_access("ld.u32", parted=False), "sliced").ptx
        assert device.load(program).checked_arena is None
        loaded = device.load(program, (beside.base, 4096))
        assert loaded.checked_arena == (beside.base, 4096)
        assert "gpud_arena" not in loaded.data.sizes
        text = one_access("ld.u32", parted=False)
        assert (
            device.load(ptx(text, "sliced", bounds_checks=False).ptx, (0, 4096)).checked_arena
            is None
        )
