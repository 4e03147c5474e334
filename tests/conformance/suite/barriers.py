"""Block-wide barriers: reductions, ids, counts, arrivals, and threads that are no longer there.

Source: PTX ISA 9.0, section 9.7.13.1 (``bar``, ``barrier``). A thread that has exited counts as
arrived at every later ``bar.sync`` of its block; CUDA C++ Programming Guide 13.0 leaves that open
for ``__syncthreads``, but kernels in the wild rely on it and hardware since Volta honours it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Case
from .ptx_text import kernel

Args = list[Any]
Rng = np.random.Generator


def _integers(rng: Rng, shape: Any, bound: int = 1000) -> Any:
    return rng.integers(-bound, bound, shape).astype(np.int32)


# -- reductions by the barrier itself ----------------------------------------------------------

BARRIER_REDUCE = r"""
extern "C" __global__ void barrier_reduce(const int* in, int* out, unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x, v = in[i];
    int positive = __syncthreads_count(v > 0);
    int all = __syncthreads_and(v > -990);
    int any = __syncthreads_or(v > 990);
    out[i] = positive + 10000 * (all != 0) + 100000 * (any != 0);
}
"""


def _reduce_make(rng: Rng) -> Args:
    values = rng.integers(-992, 992, (20, 120)).astype(np.int32)
    return [values, np.zeros_like(values)]


def _reduce_expect(args: Args) -> dict[int | str, Any]:
    v = args[0]
    row = (v > 0).sum(axis=1) + 10_000 * (v > -990).all(axis=1) + 100_000 * (v > 990).any(axis=1)
    return {1: np.repeat(row[:, None], v.shape[1], axis=1).astype(np.int32)}


# -- ids, counts and arrivals: a producer and a consumer ---------------------------------------

_PIPELINE_BODY = """
    .shared .align 4 .b32 %box[64];
    .reg .b32 %slot, %v, %lane, %round, %sum; .reg .b64 %p; .reg .pred %producer, %more;
    // Threads 0..63 produce, 64..127 consume; barrier 1 says "full", barrier 2 says "empty".
    mov.u32 %slot, %box;
    and.b32 %lane, %thread, 63;
    shl.b32 %v, %lane, 2;
    add.u32 %slot, %slot, %v;
    mov.b32 %round, 0;
    mov.b32 %sum, 0;
    setp.lt.u32 %producer, %thread, 64;
    @!%producer bra CONSUME;
PRODUCE:
    bar.sync 2, 128;
    mad.lo.u32 %v, %i, 7, %round;
    st.shared.u32 [%slot], %v;
    barrier.cta.arrive 1, 128;
    add.u32 %round, %round, 1;
    setp.lt.u32 %more, %round, 5;
    @%more bra PRODUCE;
    bra.uni DONE;
CONSUME:
    bar.arrive 2, 128;
    barrier.sync 1, 128;
    ld.shared.u32 %v, [%slot];
    add.u32 %sum, %sum, %v;
    add.u32 %round, %round, 1;
    setp.lt.u32 %more, %round, 5;
    @%more bra CONSUME;
    mad.wide.u32 %p, %i, 4, %out;
    st.global.u32 [%p], %sum;
DONE:
    ret;
"""


def _pipeline_make(rng: Rng) -> Args:
    return [np.zeros((9, 128), np.uint32)]


def _pipeline_expect(args: Args) -> dict[int | str, Any]:
    i = np.arange(9 * 128, dtype=np.uint32).reshape(9, 128)
    out = np.zeros_like(i)
    out[:, 64:] = 5 * 7 * i[:, :64] + sum(range(5))
    return {0: out}


# -- barriers with ids in registers and parts of the block -------------------------------------

_PARTS_BODY = """
    .shared .align 4 .b32 %seen[96];
    .reg .b32 %slot, %v, %w, %part, %id, %lane; .reg .b64 %p; .reg .pred %q, %r;
    // Each group of 32 threads meets at a barrier of its own, several times.
    shr.u32 %part, %thread, 5;
    add.u32 %id, %part, 3;
    and.b32 %lane, %thread, 31;
    mov.u32 %slot, %seen;
    shl.b32 %v, %thread, 2;
    add.u32 %slot, %slot, %v;
    mad.wide.u32 %p, %i, 4, %in;
    ld.global.u32 %w, [%p];
    st.shared.u32 [%slot], %w;
    barrier.sync %id, 32;
    xor.b32 %v, %v, 124;
    mov.u32 %slot, %seen;
    add.u32 %slot, %slot, %v;
    ld.shared.u32 %v, [%slot];
    setp.gt.u32 %q, %v, %w;
    barrier.red.popc.u32 %w, %id, 32, %q;
    setp.ne.u32 %r, %lane, 0;
    barrier.red.and.pred %q, %id, 32, %r;
    @%q add.u32 %w, %w, 1000;
    barrier.red.or.pred %q, %id, 32, !%r;
    @%q add.u32 %w, %w, 2000;
    bar.sync 0;
    bar.red.popc.u32 %v, 0, %r;
    mad.lo.u32 %w, %v, 10000, %w;
    bar.red.or.pred %q, 1, 96, %r;
    @%q add.u32 %w, %w, 100;
    mad.wide.u32 %p, %i, 4, %out;
    st.global.u32 [%p], %w;
    ret;
"""


def _parts_make(rng: Rng) -> Args:
    values = rng.integers(0, 2**32, (7, 96)).astype(np.uint32)
    return [values, np.zeros_like(values)]


def _parts_expect(args: Args) -> dict[int | str, Any]:
    groups = args[0].reshape(7, 3, 32)
    mirrored = groups[:, :, ::-1]
    count = (mirrored > groups).sum(axis=2)
    # Not every lane is nonzero, one lane is zero, and 93 of the block's threads are nonzero.
    value = count + 2000 + 100 + 10_000 * 93
    return {1: np.repeat(value, 32, axis=1).reshape(7, 96).astype(np.uint32)}


# -- threads that return by index before a barrier that the rest still reach -------------------

EARLY_RETURN = r"""
extern "C" __global__ void early_return(const int* in, int* out, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ int s[128];
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= n) return;
    s[threadIdx.x] = in[i];
    __syncthreads();
    int next = threadIdx.x + 1 < 128 && i + 1 < n ? s[threadIdx.x + 1] : 0;
    __syncthreads();
    s[threadIdx.x] = next * 2;
    __syncthreads();
    out[i] = s[threadIdx.x ? threadIdx.x - 1 : 0] + in[i];
}
"""


def _early_make(rng: Rng) -> Args:
    n = 128 * 9 + 45
    return [_integers(rng, n), np.zeros(n, np.int32), np.int32(n)]


def _early_expect(args: Args) -> dict[int | str, Any]:
    values = args[0]
    n = values.size
    out = []
    for start in range(0, n, 128):
        row = values[start : start + 128]
        doubled = 2 * np.append(row[1:], 0)
        out.append(np.concatenate([doubled[:1], doubled[:-1]]) + row)
    return {1: np.concatenate(out).astype(np.int32)}


# -- a loop with a barrier that threads leave at different rounds, and then return -------------

LEAVING_LOOP = r"""
extern "C" __global__ void leaving_loop(const int* rounds, int* out, unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ int alive[64];
    int i = blockIdx.x * blockDim.x + threadIdx.x, mine = rounds[i], total = 0;
    for (int round = 0; round < 64; ++round) {
        if (threadIdx.x == 0) alive[round] = 0;
        __syncthreads();
        if (round == mine) {
            out[i] = total;
            return;
        }
        atomicAdd(&alive[round], 1);
        __syncthreads();
        total = total * 3 + alive[round];
    }
    out[i] = -total;
}
"""


def _leaving_make(rng: Rng) -> Args:
    rounds = rng.integers(1, 12, (11, 56)).astype(np.int32)
    rounds[:, 0] = rng.integers(14, 20, 11)  # thread 0 resets the counters: it stays longest
    rounds[3, 0] = rounds[7, 0] = 99
    rounds[4] = 5
    return [rounds, np.zeros_like(rounds)]


def _leaving_expect(args: Args) -> dict[int | str, Any]:
    out = np.zeros_like(args[0])
    for row, result in zip(args[0], out, strict=True):
        for k, mine in enumerate(row.tolist()):
            total = 0
            for step in range(min(mine, 64)):
                total = (total * 3 + int((row > step).sum())) & 0xFFFFFFFF
            total = -total & 0xFFFFFFFF if mine >= 64 else total
            result[k] = np.array(total, np.uint32).view(np.int32)
    return {1: out}


# -- a barrier guarded by a value that is loaded, and uniform only in fact ---------------------

GUARDED = r"""
extern "C" __global__ void guarded_barrier(const int* mode, const int* in, int* out,
                                           unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ int s[96];
    int i = blockIdx.x * 96 + threadIdx.x, v = in[i];
    s[threadIdx.x] = v;
    if (mode[blockIdx.x] & 1) {
        __syncthreads();
        v += s[95 - threadIdx.x];
        __syncthreads();
        s[threadIdx.x] = v;
    }
    for (int k = 0; k < mode[blockIdx.x]; ++k) {
        __syncthreads();
        v += s[(threadIdx.x + k) % 96];
    }
    out[i] = v;
}
"""


def _guarded_make(rng: Rng) -> Args:
    mode = rng.integers(0, 6, 13).astype(np.int32)
    values = _integers(rng, (13, 96))
    return [mode, values, np.zeros_like(values)]


def _guarded_expect(args: Args) -> dict[int | str, Any]:
    out = args[1].copy()
    for mode, v in zip(args[0].tolist(), out, strict=True):
        if mode & 1:
            v += v[::-1].copy()
        s = v.copy()
        for k in range(mode):
            v += np.roll(s, -k)
    return {2: out}


# -- several spellings of one barrier ----------------------------------------------------------

SPELLINGS = r"""
__device__ __forceinline__ void group_sync() { asm volatile("barrier.sync 0;" ::: "memory"); }
__device__ __forceinline__ void named_sync() { asm volatile("bar.sync 1, 128;" ::: "memory"); }
extern "C" __global__ void barrier_spellings(int* data, unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ int s[128];
    int t = threadIdx.x;
    int* mine = data + blockIdx.x * 128;
    s[t] = mine[t];
    __syncthreads();
    int v = s[t ^ 64];
    group_sync();
    s[t] = v + 1;
    __syncwarp();
    v = s[t ^ 1] * 3;
    named_sync();
    s[t] = v;
    asm volatile("barrier.cta.sync.aligned 0;" ::: "memory");
    v += s[127 - t];
    asm volatile("bar.cta.sync 0;" ::: "memory");
    s[t] = v;
    __syncwarp(0xffffffffu);
    mine[t] = s[t ^ 2] - s[t];
}
"""


def _spellings_make(rng: Rng) -> Args:
    return [_integers(rng, (10, 128))]


def _spellings_expect(args: Args) -> dict[int | str, Any]:
    t = np.arange(128)
    s = args[0]
    s = s[:, t ^ 64] + 1
    v = s[:, t ^ 1] * 3
    v = v + v[:, ::-1]
    return {0: (v[:, t ^ 2] - v).astype(np.int32)}


# -- early return before a counted barrier: cannot be made persistent --------------------------

COUNTED_EXIT = r"""
extern "C" __global__ void counted_after_exit(const int* in, int* out, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ int s[128];
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= n) return;
    s[threadIdx.x] = in[i];
    if (threadIdx.x < 64) asm volatile("bar.sync 1, 64;" ::: "memory");
    else asm volatile("bar.sync 2, 64;" ::: "memory");
    out[i] = s[threadIdx.x ^ 32];
}
"""


def _counted_make(rng: Rng) -> Args:
    # The last block keeps its first 64 threads, which are all that barrier 1 counts.
    n = 128 * 6 + 64
    return [_integers(rng, n), np.zeros(n, np.int32), np.int32(n)]


def _counted_expect(args: Args) -> dict[int | str, Any]:
    i = np.arange(args[0].size)
    return {1: args[0][i ^ 32]}


_EARLY = frozenset({"bar.sync", "exit-before-barrier"})

CASES: tuple[Case, ...] = (
    Case(
        "barrier_reduce",
        BARRIER_REDUCE,
        (20,),
        (120,),
        _reduce_make,
        _reduce_expect,
        covers=frozenset({"bar.red"}),
    ),
    Case(
        "barrier_pipeline",
        kernel("barrier_pipeline", ("u64 out",), _PIPELINE_BODY, attributes=".reqntid 128, 1, 1"),
        (9,),
        (128,),
        _pipeline_make,
        _pipeline_expect,
        covers=frozenset({"barrier.count", "barrier.arrive", "barrier.id", "reqntid"}),
    ),
    Case(
        "barrier_parts",
        kernel("barrier_parts", ("u64 in", "u64 out"), _PARTS_BODY),
        (7,),
        (96,),
        _parts_make,
        _parts_expect,
        forms=frozenset({"unmodified", "sliced"}),
        expected_form="sliced",  # barrier ids in registers: none is known to be free
        covers=frozenset({"barrier.count", "barrier.id", "bar.red", "bar.sync"}),
    ),
    Case(
        "early_return",
        EARLY_RETURN,
        (10,),
        (128,),
        _early_make,
        _early_expect,
        expected_form="persistent-exit-aware",
        covers=_EARLY,
    ),
    Case(
        "leaving_loop",
        LEAVING_LOOP,
        (11,),
        (56,),
        _leaving_make,
        _leaving_expect,
        expected_form="persistent-exit-aware",
        covers=_EARLY | {"barrier.loop", "atom.shared"},
    ),
    Case(
        "guarded_barrier",
        GUARDED,
        (13,),
        (96,),
        _guarded_make,
        _guarded_expect,
        covers=frozenset({"bar.sync", "barrier.guarded", "barrier.loop"}),
    ),
    Case(
        "barrier_spellings",
        SPELLINGS,
        (10,),
        (128,),
        _spellings_make,
        _spellings_expect,
        covers=frozenset({"bar.sync", "barrier.sync", "bar.warp.sync", "barrier.count"}),
    ),
    Case(
        "counted_after_exit",
        COUNTED_EXIT,
        (7,),
        (128,),
        _counted_make,
        _counted_expect,
        forms=frozenset({"unmodified", "sliced"}),
        expected_form="sliced",
        covers=frozenset({"barrier.count", "exit-before-barrier"}),
    ),
)
