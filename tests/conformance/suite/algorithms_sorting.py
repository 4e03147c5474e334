"""Sorts, merges and searches.

Integer data throughout, so that any order of the same operations gives the same bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Args, Rng
from .cases import Cases

CASES = Cases()


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


@CASES.cuda("bitonic_sort", BITONIC_SORT, 9, 256, _bitonic_make, long=True)
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


@CASES.cuda("radix_pass", RADIX_PASS, 11, 256, _radix_make, "match.sync bar.sync nctaid", long=True)
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


@CASES.cuda("merge_path", MERGE_PATH, 9, 120, _merge_make, long=True)
def _merge_expect(args: Args) -> dict[int | str, Any]:
    return {4: np.sort(np.concatenate([args[0], args[2]]))}
