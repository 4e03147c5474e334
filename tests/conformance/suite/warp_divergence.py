"""Warp collectives of diverged lanes, and of warps in which lanes have exited.

Source: PTX ISA 9.0, sections 9.7.9.6 (``shfl.sync``) and 9.7.13.9 to 9.7.13.12 (``vote.sync``,
``activemask``). A collective names in its mask the lanes that take part; others may be elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Args, Array, Rng, Satisfies
from .cases import Cases

CASES = Cases()


def _words(rng: Rng, shape: Any) -> Array:
    words: Array = rng.integers(0, 2**32, shape).astype(np.uint32)
    return words


def _ballot(bits: Array) -> int:
    return sum(1 << int(k) for k in np.flatnonzero(bits))


# -- lanes that part: each side votes and reduces among itself ---------------------------------

PARTED = r"""
extern "C" __global__ void votes_parted(const unsigned* in, unsigned* out, unsigned* runs) {
    GPUD_COUNT(runs);
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, v = in[i], lane = threadIdx.x & 31;
    unsigned side = __ballot_sync(0xffffffffu, lane % 3 == 0), got;
    if (lane % 3 == 0) got = __ballot_sync(side, v & 2);
    else got = __ballot_sync(~side, v & 4);
    for (unsigned k = 0; k < lane % 4; ++k)
        // Each round has fewer lanes, and only those that are still here are named.
        got += __shfl_xor_sync(k == 0 ? 0xeeeeeeeeu : k == 1 ? 0xccccccccu : 0x88888888u, v, 16);
    out[i] = got;
}
"""


def _parted_make(rng: Rng) -> Args:
    values = _words(rng, (5, 64))
    return [values, np.zeros_like(values)]


# lanes go around collectives of others
@CASES.cuda(
    "votes_parted",
    PARTED,
    5,
    64,
    _parted_make,
    "vote.sync shfl.sync mask.ballot",
    forms="unmodified sliced",
    expected_form="sliced",
)
def _parted_expect(args: Args) -> dict[int | str, Any]:
    warps = args[0].reshape(-1, 32)
    out = np.zeros_like(warps)
    lane = np.arange(32)
    third = lane % 3 == 0
    for v, row in zip(warps, out, strict=True):
        low, high = _ballot(third & ((v & 2) != 0)), _ballot(~third & ((v & 4) != 0))
        row[:] = np.where(third, low, high) + (lane % 4).astype(np.uint32) * v[lane ^ 16]
    return {1: out.reshape(args[0].shape)}


# -- full masks in warps that lack lanes -------------------------------------------------------

PARTIAL_WARP = r"""
extern "C" __global__ void partial_warp(const int* in, int* out, unsigned* runs) {
    GPUD_COUNT(runs);
    // 56 threads: the second warp has 24 lanes, and the kernel names all 32 all the same.
    int i = blockIdx.x * blockDim.x + threadIdx.x, v = in[i], lane = threadIdx.x & 31;
    int sum = v;
    for (int step = 1; step < 32; step <<= 1) {
        int other = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) sum += other;
    }
    unsigned odd = __ballot_sync(0xffffffffu, v & 1);
    __syncwarp();
    out[2 * i] = sum;
    out[2 * i + 1] = odd;
}
"""


def _partial_make(rng: Rng) -> Args:
    values = rng.integers(-1000, 1000, (9, 56)).astype(np.int32)
    return [values, np.zeros((9, 56, 2), np.int32)]


@CASES.cuda(
    "partial_warp", PARTIAL_WARP, 9, 56, _partial_make, "shfl.sync vote.sync block.partial-warp"
)
def _partial_expect(args: Args) -> dict[int | str, Any]:
    out = np.zeros((9, 56, 2), np.int32)
    for part in (slice(0, 32), slice(32, 56)):
        v = args[0][:, part]
        out[:, part, 0] = np.cumsum(v, axis=1)
        weights = np.uint32(1) << np.arange(v.shape[1], dtype=np.uint32)
        ballots = ((v & 1).astype(np.uint32) * weights).sum(axis=1, dtype=np.uint32)
        out[:, part, 1] = ballots.view(np.int32)[:, None]
    return {1: out}


# -- aggregated increments with the active mask ------------------------------------------------

AGGREGATE = r"""
extern "C" __global__ void aggregate(const int* in, unsigned* count, unsigned* kept,
                                     unsigned* lanes, unsigned* runs) {
    GPUD_COUNT(runs);
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, below;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(below));
    if (in[i] > 0) {
        // Whichever lanes happen to be together share one atomic; any split gives the same set.
        unsigned together = __activemask(), leader = __ffs(together) - 1, base = 0;
        if ((threadIdx.x & 31) == leader) base = atomicAdd(count, __popc(together));
        base = __shfl_sync(together, base, leader);
        kept[base + __popc(together & below)] = i;
    }
    unsigned eq, le, gt, ge;
    asm("mov.u32 %0, %%lanemask_eq; mov.u32 %1, %%lanemask_le; mov.u32 %2, %%lanemask_gt;"
        " mov.u32 %3, %%lanemask_ge;" : "=r"(eq), "=r"(le), "=r"(gt), "=r"(ge));
    lanes[i] = (eq ^ le) + (gt ^ ge) + (below == (le ^ eq)) + 2 * (gt == ~le);
}
"""


def _aggregate_make(rng: Rng) -> Args:
    values = rng.integers(-50, 50, 7 * 96).astype(np.int32)
    blank = np.zeros(values.size, np.uint32)
    return [values, np.zeros(1, np.uint32), blank, blank.copy()]


@CASES.cuda(
    "aggregate",
    AGGREGATE,
    7,
    96,
    _aggregate_make,
    "activemask lanemask shfl.sync",
    deterministic=False,
    forms="unmodified sliced",
    expected_form="sliced",
)
def _aggregate_expect(args: Args) -> dict[int | str, Any]:
    wanted = np.flatnonzero(args[0] > 0)

    def same_set(actual: Array) -> bool:
        kept = actual[: wanted.size]
        return np.array_equal(np.sort(kept), wanted) and not actual[wanted.size :].any()

    lane = np.arange(args[0].size) % 32
    masks = ((1 << lane) - 1) + (1 << lane) + 3
    return {
        1: np.array([wanted.size], np.uint32),
        2: Satisfies(same_set, "the numbers of the positive elements"),
        3: masks.astype(np.uint32),
    }


# -- an early return before a shuffle: with a mask of those who stay, and with the full mask ----

EXIT_BEFORE_SHUFFLE = r"""
extern "C" __global__ void NAME(const int* in, int* out, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned mask = MASK;
    if (i >= n) return;
    int v = in[i];
    for (int step = 16; step; step >>= 1) {
        int other = __shfl_down_sync(mask, v, step);
        if ((threadIdx.x & 31) + step < 32 && i + step < n) v = max(v, other);
    }
    if ((threadIdx.x & 31) == 0) out[i / 32] = v;
}
"""


def _exit_make(rng: Rng) -> Args:
    n = 96 * 5 + 41
    return [rng.integers(-(2**31), 2**31, n).astype(np.int32), np.zeros(20, np.int32), np.int32(n)]


def _exit_expect(args: Args) -> dict[int | str, Any]:
    out = np.zeros(20, np.int32)
    peaks = np.maximum.reduceat(args[0], np.arange(0, args[0].size, 32))
    out[: peaks.size] = peaks
    return {1: out}


CASES.cuda(
    "exit_before_shuffle",
    EXIT_BEFORE_SHUFFLE.replace("NAME", "exit_before_shuffle").replace(
        "MASK", "__ballot_sync(0xffffffffu, i < n)"
    ),
    6,
    96,
    _exit_make,
    "shfl.sync exit-before-collective mask.ballot",
)(_exit_expect)
# the mask names lanes that have left
CASES.cuda(
    "exit_before_full_mask",
    EXIT_BEFORE_SHUFFLE.replace("NAME", "exit_before_full_mask").replace("MASK", "0xffffffffu"),
    6,
    96,
    _exit_make,
    "shfl.sync exit-before-collective",
    forms="unmodified sliced",
    expected_form="sliced",
)(_exit_expect)


# -- lanes that take no part -------------------------------------------------------------------

ABSENT_LANES = r"""
__device__ __forceinline__ int down(unsigned mask, int v) {
    for (int step = 16; step; step >>= 1) v += __shfl_down_sync(mask, v, step);
    return v;
}
// The last warp's sum adds what lanes outside of the mask give.
extern "C" __global__ void absent_lanes(const int* in, int* out, int wide, unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ int sums[32];
    int t = threadIdx.x, warps = blockDim.x / 32;
    int v = down(0xffffffffu, in[blockIdx.x * blockDim.x + t]);
    if (t % 32 == 0) sums[t / 32] = v;
    __syncthreads();
    unsigned mask = __ballot_sync(0xffffffffu, t < warps);
    if (t < warps) v = down(mask, sums[t]);
    if (t == 0) out[3 * blockIdx.x] = v;
    // Known masks, and a lane that is known at run time only.
    if (t < 4) v = __shfl_sync(0xfu, t + 10, wide) * 100 + __shfl_xor_sync(0xfu, t + 1, 8);
    if (t < 4) v += 7 * __shfl_up_sync(0xfu, 5 - t, 1);
    if (t == 0) out[3 * blockIdx.x + 1] = v;
    if (t == 3) out[3 * blockIdx.x + 2] = v;
}
"""


def _absent_make(rng: Rng) -> Args:
    values = rng.integers(-1000, 1000, (7, 256)).astype(np.int32)
    return [values, np.zeros((7, 3), np.int32), np.int32(20)]


@CASES.cuda(
    "absent_lanes",
    ABSENT_LANES,
    7,
    256,
    _absent_make,
    "shfl.sync mask.ballot mask.absent",
    forms="unmodified sliced",
    expected_form="sliced",
)
def _absent_expect(args: Args) -> dict[int | str, Any]:
    out = np.zeros((7, 3), np.int32)
    out[:, 0] = args[0].sum(axis=1)
    out[:, 1:] = 7 * 5, 7 * 3
    return {1: out}
