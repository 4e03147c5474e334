"""Block-wide barriers: reductions, ids, counts, arrivals, and threads that have exited.

Source: PTX ISA 9.0, section 9.7.13.1 (``bar``, ``barrier``). A thread that has exited counts as
arrived at every later ``bar.sync`` of its block; CUDA C++ Programming Guide 13.0 leaves that open
for ``__syncthreads``, but kernels in the wild rely on it and hardware since Volta honours it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Args, Rng
from .cases import Cases

CASES = Cases()


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


@CASES.cuda("barrier_reduce", BARRIER_REDUCE, 20, 120, _reduce_make, "bar.red")
def _reduce_expect(args: Args) -> dict[int | str, Any]:
    v = args[0]
    row = (v > 0).sum(axis=1) + 10_000 * (v > -990).all(axis=1) + 100_000 * (v > 990).any(axis=1)
    return {1: np.repeat(row[:, None], v.shape[1], axis=1).astype(np.int32)}


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


@CASES.cuda(
    "guarded_barrier", GUARDED, 13, 96, _guarded_make, "bar.sync barrier.guarded barrier.loop"
)
def _guarded_expect(args: Args) -> dict[int | str, Any]:
    out = args[1].copy()
    for mode, row in zip(args[0].tolist(), out, strict=True):
        if mode & 1:
            row[:] = row + row[::-1]
        s = row.copy()
        for k in range(mode):
            row[:] = row + np.roll(s, -k)
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


@CASES.cuda(
    "barrier_spellings",
    SPELLINGS,
    10,
    128,
    _spellings_make,
    "bar.sync barrier.sync bar.warp.sync barrier.count",
)
def _spellings_expect(args: Args) -> dict[int | str, Any]:
    t = np.arange(128)
    s = args[0]
    s = s[:, t ^ 64] + 1
    v = s[:, t ^ 1] * 3
    v = v + v[:, ::-1]
    return {0: (v[:, t ^ 2] - v).astype(np.int32)}


_EARLY = "bar.sync exit-before-barrier"

CASES.cuda(
    "early_return",
    EARLY_RETURN,
    10,
    128,
    _early_make,
    expected_form="persistent-exit-aware",
    covers=_EARLY,
)(_early_expect)
CASES.cuda(
    "leaving_loop",
    LEAVING_LOOP,
    11,
    56,
    _leaving_make,
    expected_form="persistent-exit-aware",
    covers=_EARLY + " barrier.loop atom.shared",
    long=True,
)(_leaving_expect)
