"""Reductions, scans, sorts and searches: blocks that work together, and blocks that wait.

Integer data throughout, so that any order of the same operations gives the same bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Case, Within

Args = list[Any]
Rng = np.random.Generator


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


def _histogram_expect(args: Args) -> dict[int | str, Any]:
    return {1: np.bincount(args[0], minlength=256).astype(np.uint32)}


# -- bitonic sort of each block's keys ---------------------------------------------------------

BITONIC_SORT = r"""
extern "C" __global__ void bitonic_sort(unsigned long long* keys, unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ unsigned long long s[512];
    unsigned long long* mine = keys + blockIdx.x * 512;
    s[threadIdx.x] = mine[threadIdx.x];
    s[threadIdx.x + 256] = mine[threadIdx.x + 256];
    for (unsigned size = 2; size <= 512; size <<= 1)
        for (unsigned stride = size / 2; stride; stride >>= 1) {
            __syncthreads();
            unsigned low = 2 * threadIdx.x - (threadIdx.x & (stride - 1));
            bool up = (low & size) == 0;
            unsigned long long a = s[low], b = s[low + stride];
            if ((a > b) == up) {
                s[low] = b;
                s[low + stride] = a;
            }
        }
    __syncthreads();
    mine[threadIdx.x] = s[threadIdx.x];
    mine[threadIdx.x + 256] = s[threadIdx.x + 256];
}
"""


def _bitonic_make(rng: Rng) -> Args:
    return [rng.integers(0, 2**63, (9, 512)).astype(np.uint64) * np.uint64(2)]


def _bitonic_expect(args: Args) -> dict[int | str, Any]:
    return {0: np.sort(args[0], axis=1)}


# -- one pass of a radix sort: a stable split of each block by one digit -----------------------

RADIX_PASS = r"""
extern "C" __global__ void radix_pass(const unsigned* in, unsigned* out, unsigned* counts,
                                      int shift, unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ unsigned count[16][8];
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    unsigned key = in[blockIdx.x * 256 + threadIdx.x], digit = key >> shift & 15;
    if (threadIdx.x < 128) count[threadIdx.x / 8][threadIdx.x % 8] = 0;
    __syncthreads();
    unsigned peers = __match_any_sync(0xffffffffu, digit);
    unsigned before = __popc(peers & ((1u << lane) - 1));
    if (before == 0) count[digit][warp] = __popc(peers);
    __syncthreads();
    unsigned rank = before;
    for (unsigned d = 0; d < 16; ++d)
        for (unsigned w = 0; w < 8; ++w)
            if (d < digit || (d == digit && w < warp)) rank += count[d][w];
    out[blockIdx.x * 256 + rank] = key;
    if (threadIdx.x < 16) {
        unsigned sum = 0;
        for (unsigned w = 0; w < 8; ++w) sum += count[threadIdx.x][w];
        counts[threadIdx.x * gridDim.x + blockIdx.x] = sum;
    }
}
"""


def _radix_make(rng: Rng) -> Args:
    blocks = 11
    keys = rng.integers(0, 2**32, (blocks, 256)).astype(np.uint32)
    return [keys, np.zeros_like(keys), np.zeros((16, blocks), np.uint32), np.int32(8)]


def _radix_expect(args: Args) -> dict[int | str, Any]:
    keys, _, _, shift = args
    digits = keys >> np.uint32(shift) & 15
    order = np.argsort(digits, axis=1, kind="stable")
    counts = np.stack([np.bincount(row, minlength=16) for row in digits], axis=1)
    return {1: np.take_along_axis(keys, order, axis=1), 2: counts.astype(np.uint32)}


# -- merge of two sorted arrays along diagonals ------------------------------------------------

MERGE_PATH = r"""
extern "C" __global__ void merge_path(const short* a, int na, const short* b, int nb, short* out,
                                      int chunk, unsigned* runs) {
    GPUD_COUNT(runs);
    int first = (blockIdx.x * blockDim.x + threadIdx.x) * chunk;
    if (first >= na + nb) return;
    int low = max(0, first - nb), high = min(first, na);
    while (low < high) {
        int middle = (low + high) / 2;
        if (a[middle] <= b[first - middle - 1]) low = middle + 1;
        else high = middle;
    }
    int i = low, j = first - low;
    for (int k = first; k < min(first + chunk, na + nb); ++k)
        out[k] = j >= nb || (i < na && a[i] <= b[j]) ? a[i++] : b[j++];
}
"""


def _merge_make(rng: Rng) -> Args:
    na, nb = 3_001, 2_222
    a, b = (np.sort(rng.integers(-(2**15), 2**15, n)).astype(np.int16) for n in (na, nb))
    return [a, np.int32(na), b, np.int32(nb), np.zeros(na + nb, np.int16), np.int32(5)]


def _merge_expect(args: Args) -> dict[int | str, Any]:
    return {4: np.sort(np.concatenate([args[0], args[2]]))}


# -- one step of a breadth-first search --------------------------------------------------------

BFS_STEP = r"""
extern "C" __global__ void bfs_step(const int* start, const int* to, int* level, int depth,
                                    unsigned* next_size, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    int node = blockIdx.x * blockDim.x + threadIdx.x;
    if (node >= n || level[node] != depth) return;
    for (int i = start[node]; i < start[node + 1]; ++i)
        if (atomicCAS(&level[to[i]], -1, depth + 1) == -1) atomicAdd(next_size, 1u);
}
"""


def _bfs_make(rng: Rng) -> Args:
    n = 700
    degree = rng.integers(0, 6, n)
    start = np.concatenate([[0], np.cumsum(degree)]).astype(np.int32)
    to = rng.integers(0, n, start[-1]).astype(np.int32)
    level = np.full(n, -1, np.int32)
    level[rng.choice(n, 60, replace=False)] = 3
    level[rng.choice(n, 40, replace=False)] = 1
    return [start, to, level, np.int32(3), np.zeros(1, np.uint32), np.int32(n)]


def _bfs_expect(args: Args) -> dict[int | str, Any]:
    start, to, level, depth, _, n = args
    after = level.copy()
    for node in range(n):
        if level[node] == depth:
            for neighbour in to[start[node] : start[node + 1]]:
                if after[neighbour] == -1:
                    after[neighbour] = depth + 1
    found = np.count_nonzero(after != level)
    return {2: after, 4: np.array([found], np.uint32)}


CASES: tuple[Case, ...] = (
    Case(
        "block_reduce",
        BLOCK_REDUCE,
        (34,),
        (256,),
        _block_reduce_make,
        _block_reduce_expect,
        covers=frozenset({"bar.sync", "barrier.loop"}),
    ),
    Case(
        "last_block_reduce",
        LAST_BLOCK_REDUCE,
        (37,),
        (192,),
        _last_block_make,
        _last_block_expect,
        launches=2,
        covers=frozenset({"atom.inc", "nctaid", "state-outlives-launch", "bar.sync", "membar"}),
    ),
    Case(
        "lookback_scan",
        LOOKBACK_SCAN,
        (59,),
        (256,),
        _lookback_make,
        _lookback_expect,
        covers=frozenset({"waits-for-lower-blocks", "bar.sync", "ld.volatile"}),
        deterministic=True,
    ),
    Case(
        "blelloch_scan",
        BLELLOCH_SCAN,
        (20,),
        (64,),
        _blelloch_make,
        _blelloch_expect,
        shared=512,
        covers=frozenset({"shared.dynamic", "bar.sync"}),
    ),
    Case(
        "histogram",
        HISTOGRAM,
        (15,),
        (192,),
        _histogram_make,
        _histogram_expect,
        covers=frozenset({"atom.shared", "atom.global"}),
    ),
    Case("bitonic_sort", BITONIC_SORT, (9,), (256,), _bitonic_make, _bitonic_expect),
    Case(
        "radix_pass",
        RADIX_PASS,
        (11,),
        (256,),
        _radix_make,
        _radix_expect,
        covers=frozenset({"match.sync", "bar.sync", "nctaid"}),
    ),
    Case("merge_path", MERGE_PATH, (9,), (120,), _merge_make, _merge_expect),
    Case(
        "bfs_step",
        BFS_STEP,
        (8,),
        (96,),
        _bfs_make,
        _bfs_expect,
        covers=frozenset({"atom.cas"}),
    ),
)
