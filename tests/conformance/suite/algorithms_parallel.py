"""Reductions, scans, sorts and searches: blocks that work together, and blocks that wait.

Integer data throughout, so that any order of the same operations gives the same bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Args, Rng, Within
from .cases import Cases

CASES = Cases()


# -- block reduction, one result a block -------------------------------------------------------

BLOCK_REDUCE = r"""
extern "C" __global__ void block_reduce(const float* in, float* out, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ float part[256];
    int i = blockIdx.x * 512 + threadIdx.x;
    float sum = i < n ? in[i] : 0.f;
    if (i + 256 < n) sum += in[i + 256];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half; half >>= 1) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
"""


def _block_reduce_make(rng: Rng) -> Args:
    n = 17_001
    blocks = -(-n // 512)
    return [rng.standard_normal(n).astype(np.float32), np.zeros(blocks, np.float32), np.int32(n)]


@CASES.cuda("block_reduce", BLOCK_REDUCE, 34, 256, _block_reduce_make, "bar.sync barrier.loop")
def _block_reduce_expect(args: Args) -> dict[int | str, Any]:
    starts = np.arange(0, args[0].size, 512)
    sums = np.add.reduceat(args[0].astype(np.float64), starts)
    return {1: Within(sums.astype(np.float32), atol=2e-4)}


# -- whole-grid reduction: the last block, found by a wrapping counter, adds up ----------------

LAST_BLOCK_REDUCE = r"""
__device__ unsigned arrived;
extern "C" __global__ void last_block_reduce(const int* in, volatile int* part, int* out, int n,
                                             unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ int sum[192];
    __shared__ bool last;
    int mine = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        mine += in[i];
    sum[threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x == 0) {
        int total = 0;
        for (int i = 0; i < 192; ++i) total += sum[i];
        part[blockIdx.x] = total;
        __threadfence();
        last = atomicInc(&arrived, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        int total = 0;
        for (int i = 0; i < gridDim.x; ++i) total += part[i];
        *out += total;
    }
}
"""


def _last_block_make(rng: Rng) -> Args:
    n = 20_011
    return [
        rng.integers(-1000, 1000, n).astype(np.int32),
        np.zeros(37, np.int32),
        np.zeros(1, np.int32),
        np.int32(n),
    ]


@CASES.cuda(
    "last_block_reduce",
    LAST_BLOCK_REDUCE,
    37,
    192,
    _last_block_make,
    "atom.inc nctaid state-outlives-launch bar.sync membar",
    launches=2,
)
def _last_block_expect(args: Args) -> dict[int | str, Any]:
    values = args[0]
    padded = np.zeros(-(-values.size // (37 * 192)) * 37 * 192, np.int32)
    padded[: values.size] = values
    parts = padded.reshape(-1, 37, 192).sum(axis=(0, 2), dtype=np.int32)
    total = np.array([2 * values.sum(dtype=np.int32)], np.int32)
    return {1: parts, 2: total, "arrived": np.zeros(1, np.uint32)}


# -- scan in one pass: each block looks back at the blocks before it ---------------------------

LOOKBACK_SCAN = r"""
/* status[b] is 0 until block b knows its own sum (1) and then its prefix (2). */
extern "C" __global__ void lookback_scan(const int* in, int* out, volatile int* status,
                                         volatile int* sums, volatile int* prefixes, int n,
                                         unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ int s[256];
    __shared__ int before;
    int i = blockIdx.x * 256 + threadIdx.x;
    s[threadIdx.x] = i < n ? in[i] : 0;
    __syncthreads();
    for (int step = 1; step < 256; step <<= 1) {
        int other = threadIdx.x >= step ? s[threadIdx.x - step] : 0;
        __syncthreads();
        s[threadIdx.x] += other;
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = s[255];
        __threadfence();
        status[blockIdx.x] = 1;
        int total = 0;
        for (int b = (int)blockIdx.x - 1; b >= 0; --b) {
            int state;
            while ((state = status[b]) == 0) {}
            __threadfence();
            if (state == 2) {
                total += prefixes[b];
                break;
            }
            total += sums[b];
        }
        before = total;
        prefixes[blockIdx.x] = total + s[255];
        __threadfence();
        status[blockIdx.x] = 2;
    }
    __syncthreads();
    if (i < n) out[i] = before + s[threadIdx.x];
}
"""


def _lookback_make(rng: Rng) -> Args:
    n = 15_000
    blocks = -(-n // 256)
    return [
        rng.integers(-100, 100, n).astype(np.int32),
        np.zeros(n, np.int32),
        np.zeros(blocks, np.int32),
        np.zeros(blocks, np.int32),
        np.zeros(blocks, np.int32),
        np.int32(n),
    ]


@CASES.cuda(
    "lookback_scan",
    LOOKBACK_SCAN,
    59,
    256,
    _lookback_make,
    "waits-for-lower-blocks bar.sync ld.volatile",
    deterministic=True,
)
def _lookback_expect(args: Args) -> dict[int | str, Any]:
    values, _, status, *_ = args
    sums = np.add.reduceat(values, np.arange(0, values.size, 256)).astype(np.int32)
    return {
        1: np.cumsum(values, dtype=np.int32),
        2: np.full_like(status, 2),
        3: sums,
        4: np.cumsum(sums, dtype=np.int32),
    }


# -- Blelloch scan of each block in dynamic shared memory --------------------------------------

BLELLOCH_SCAN = r"""
extern "C" __global__ void blelloch_scan(unsigned* data, unsigned* runs) {
    GPUD_COUNT(runs);
    extern __shared__ unsigned s[];
    unsigned n = 2 * blockDim.x, t = threadIdx.x, step = 1;
    unsigned* mine = data + blockIdx.x * n;
    s[2 * t] = mine[2 * t];
    s[2 * t + 1] = mine[2 * t + 1];
    for (unsigned d = n >> 1; d; d >>= 1, step <<= 1) {
        __syncthreads();
        if (t < d) s[step * (2 * t + 2) - 1] += s[step * (2 * t + 1) - 1];
    }
    if (t == 0) s[n - 1] = 0;
    for (unsigned d = 1; d < n; d <<= 1) {
        step >>= 1;
        __syncthreads();
        if (t < d) {
            unsigned low = step * (2 * t + 1) - 1, high = step * (2 * t + 2) - 1, old = s[low];
            s[low] = s[high];
            s[high] += old;
        }
    }
    __syncthreads();
    mine[2 * t] = s[2 * t];
    mine[2 * t + 1] = s[2 * t + 1];
}
"""


def _blelloch_make(rng: Rng) -> Args:
    return [rng.integers(0, 2**32, (20, 128)).astype(np.uint32)]


@CASES.cuda(
    "blelloch_scan", BLELLOCH_SCAN, 20, 64, _blelloch_make, "shared.dynamic bar.sync", shared=512
)
def _blelloch_expect(args: Args) -> dict[int | str, Any]:
    data = args[0]
    return {0: np.cumsum(data, axis=1, dtype=np.uint32) - data}


# -- histogram: shared atomics, then global atomics --------------------------------------------

HISTOGRAM = r"""
extern "C" __global__ void histogram(const unsigned char* in, unsigned* bins, unsigned n,
                                     unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ unsigned local[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
    __syncthreads();
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&local[in[i]], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        if (local[i]) atomicAdd(&bins[i], local[i]);
}
"""


def _histogram_make(rng: Rng) -> Args:
    n = 30_001
    values = np.minimum(rng.geometric(0.03, n), 255).astype(np.uint8)
    return [values, np.zeros(256, np.uint32), np.uint32(n)]


@CASES.cuda("histogram", HISTOGRAM, 15, 192, _histogram_make, "atom.shared atom.global", long=True)
def _histogram_expect(args: Args) -> dict[int | str, Any]:
    return {1: np.bincount(args[0], minlength=256).astype(np.uint32)}
