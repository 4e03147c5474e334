"""Kernels that include CUDA's own headers: half precision, cooperative groups, CUB.

They bring thousands of lines of templates, inline PTX in the headers' spelling and hundreds of
unused constants. They compile where the headers of the ``daemon`` extra are installed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Args, Rng, Within
from .cases import Cases
from .reference import fma32

CASES = Cases()


# -- cuda_fp16.h and cuda_bf16.h ---------------------------------------------------------------

HALF_HEADER = r"""
#include <cuda_fp16.h>
extern "C" __global__ void half_header(const __half2* x, const __half* y, __half2* sums,
                                       float* wide, unsigned char* flags, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __half2 v = x[i], w = __half2half2(y[i]);
    sums[i] = __hfma2(v, w, __float2half2_rn(0.5f));
    __half m = __hmax(__low2half(v), __high2half(v));
    wide[i] = __half2float(m) * 2 + (float)__half2int_rn(y[i]);
    flags[i] = __hlt(y[i], m) + 2 * __hisnan(m) + 4 * (__hgt(y[i], __float2half(0.f)));
}
"""


def _half_make(rng: Rng) -> Args:
    n = 300
    x = rng.standard_normal((n, 2)).astype(np.float16)
    y = (4 * rng.standard_normal(n)).astype(np.float16)
    blank = np.zeros(n, np.uint8)
    return [x, y, np.zeros((n, 2), np.float16), np.zeros(n, np.float32), blank, np.int32(n)]


@CASES.cuda("half_header", HALF_HEADER, 4, 96, _half_make, "cuda-headers f16 f16x2", headers=True)
def _half_expect(args: Args) -> dict[int | str, Any]:
    x, y = args[0].astype(np.float64), args[1].astype(np.float64)
    m = x.max(axis=1)
    flags = (y < m) + 4 * (y > 0)
    return {
        2: (x * y[:, None] + 0.5).astype(np.float16),
        3: (2 * m + np.rint(y)).astype(np.float32),
        4: flags.astype(np.uint8),
    }


BRAIN_HEADER = r"""
#include <cuda_bf16.h>
extern "C" __global__ void brain_header(const float* x, __nv_bfloat16* narrow, float* product,
                                        int n, unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __nv_bfloat16 a = __float2bfloat16(x[i]), b = __float2bfloat16(x[n - 1 - i]);
    narrow[i] = a;
    product[i] = __bfloat162float(__hmul(a, b));
}
"""


def _brain(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rounded to bfloat16, nearest even; no NaNs here."""
    bits = x.astype(np.float32).view(np.uint32)
    rounded: np.ndarray[Any, Any] = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return rounded


def _brain_make(rng: Rng) -> Args:
    x = rng.standard_normal(250).astype(np.float32)
    return [x, np.zeros(250, np.uint16), np.zeros(250, np.float32), np.int32(250)]


@CASES.cuda(
    "brain_header",
    BRAIN_HEADER,
    8,
    32,
    _brain_make,
    "cuda-headers bf16",
    arch="compute_80",
    headers=True,
)
def _brain_expect(args: Args) -> dict[int | str, Any]:
    bits = _brain(args[0])
    a = bits.view(np.float32)
    return {1: (bits >> 16).astype(np.uint16), 2: _brain(a * a[::-1]).view(np.float32)}


# -- cooperative_groups.h ----------------------------------------------------------------------

GROUPS = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
extern "C" __global__ void cooperative(const int* in, int* out, int* big, unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ int s[128];
    cg::thread_block block = cg::this_thread_block();
    auto tile = cg::tiled_partition<8>(block);
    auto warp = cg::tiled_partition<32>(block);
    int i = block.group_index().x * block.size() + block.thread_rank();
    int v = in[i];
    int eight = cg::reduce(tile, v, cg::plus<int>());
    int most = cg::reduce(warp, v, cg::greater<int>());
    s[block.thread_rank()] = tile.shfl(v, 7 - tile.thread_rank());
    block.sync();
    int other = s[block.thread_rank() ^ 1];
    if (v > 0) {
        auto together = cg::coalesced_threads();
        int base = 0;
        if (together.thread_rank() == 0) base = atomicAdd(big, (int)together.size());
        base = together.shfl(base, 0);
        if (base < 0) other = 0;
    }
    tile.sync();
    out[3 * i] = eight;
    out[3 * i + 1] = most;
    out[3 * i + 2] = other + (int)warp.meta_group_rank() * 1000000 + tile.any(v == 7);
}
"""


def _groups_make(rng: Rng) -> Args:
    values = rng.integers(-50, 50, (6, 128)).astype(np.int32)
    return [values, np.zeros((6, 128, 3), np.int32), np.zeros(1, np.int32)]


# coalesced_threads() in a branch
@CASES.cuda(
    "cooperative",
    GROUPS,
    6,
    128,
    _groups_make,
    "cuda-headers cooperative-groups barrier.sync shfl.sync",
    headers=True,
    forms="unmodified sliced",
    expected_form="sliced",
)
def _groups_expect(args: Args) -> dict[int | str, Any]:
    v = args[0]
    eights, warps = v.reshape(6, 16, 8), v.reshape(6, 4, 32)
    out = np.zeros_like(args[1])
    out[:, :, 0] = np.repeat(eights.sum(axis=2), 8, axis=1)
    out[:, :, 1] = np.repeat(warps.max(axis=2), 32, axis=1)
    turned = eights[:, :, ::-1].reshape(6, 128)
    t = np.arange(128)
    seven = np.repeat((eights == 7).any(axis=2), 8, axis=1)
    out[:, :, 2] = turned[:, t ^ 1] + (t // 32) * 1_000_000 + seven
    return {1: out, 2: np.array([np.count_nonzero(v > 0)], np.int32)}


# -- cooperative_groups.h: a grid that is synchronised, its group in a function's hands ----------

GRID_GROUP = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;
__noinline__ __device__ void meet(const cg::grid_group& grid) { grid.sync(); }
extern "C" __global__ void grid_scan(unsigned* values, unsigned* sums, int each, unsigned* runs) {
    GPUD_COUNT_2D(runs);
    __shared__ unsigned warps[4];
    cg::grid_group grid = cg::this_grid();
    auto block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    unsigned long long first = grid.thread_rank() * each;
    unsigned mine = 0;
    for (int k = 0; k < each; ++k) mine += values[first + k];
    unsigned before = cg::exclusive_scan(warp, mine);
    if (warp.thread_rank() == 31) warps[warp.meta_group_rank()] = before + mine;
    block.sync();
    for (unsigned w = 0; w < warp.meta_group_rank(); ++w) before += warps[w];
    if (block.thread_rank() == block.size() - 1) sums[grid.block_rank()] = before + mine;
    meet(grid);
    if (grid.thread_rank() == 0) {
        unsigned total = 0;
        for (unsigned b = 0; b < grid.num_blocks(); ++b) {
            unsigned one = sums[b];
            sums[b] = total;
            total += one;
        }
    }
    auto arrived = grid.barrier_arrive();
    grid.barrier_wait(std::move(arrived));
    before += sums[grid.block_rank()];
    for (int k = 0; k < each; ++k) values[first + k] = before += values[first + k];
}
"""


def _scan_make(rng: Rng) -> Args:
    values = rng.integers(0, 2**32, 6 * 128 * 5).astype(np.uint32)
    return [values, np.zeros(6, np.uint32), np.int32(5)]


@CASES.cuda(
    "grid_scan",
    GRID_GROUP,
    (3, 2),
    128,
    _scan_make,
    "cuda-headers cooperative-groups envreg",
    headers=True,
    forms="whole",
    expected_form="whole",
    resident=6,
)
def _scan_expect(args: Args) -> dict[int | str, Any]:
    sums = np.cumsum(args[0], dtype=np.uint32)
    return {0: sums, 1: np.concatenate(([0], sums[639:-1:640])).astype(np.uint32)}


# -- CUB: a block-wide radix sort and a block-wide sum -----------------------------------------

CUB = r"""
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
extern "C" __global__ void cub_sort(unsigned* keys, unsigned* sums, unsigned* runs) {
    GPUD_COUNT(runs);
    using Sort = cub::BlockRadixSort<unsigned, 64, 4>;
    using Sum = cub::BlockReduce<unsigned, 64>;
    __shared__ union { Sort::TempStorage sort; Sum::TempStorage sum; } storage;
    unsigned mine[4];
    for (int k = 0; k < 4; ++k) mine[k] = keys[blockIdx.x * 256 + threadIdx.x * 4 + k];
    Sort(storage.sort).Sort(mine);
    __syncthreads();
    unsigned total = Sum(storage.sum).Sum(mine[0] + mine[1] + mine[2] + mine[3]);
    for (int k = 0; k < 4; ++k) keys[blockIdx.x * 256 + threadIdx.x * 4 + k] = mine[k];
    if (threadIdx.x == 0) sums[blockIdx.x] = total;
}
"""


def _cub_make(rng: Rng) -> Args:
    return [rng.integers(0, 2**32, (7, 256)).astype(np.uint32), np.zeros(7, np.uint32)]


@CASES.cuda(
    "cub_sort",
    CUB,
    7,
    64,
    _cub_make,
    "cuda-headers cub many-globals bar.sync",
    headers=True,
    long=True,
)
def _cub_expect(args: Args) -> dict[int | str, Any]:
    return {0: np.sort(args[0], axis=1), 1: args[0].sum(axis=1, dtype=np.uint32)}


# -- cuda/std: the standard library on the device ----------------------------------------------

STANDARD = r"""
#include <cuda/std/array>
#include <cuda/atomic>
#include <cuda/std/complex>
extern "C" __global__ void standard_library(const float2* in, float2* out, int* most, int n,
                                            unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    cuda::std::complex<float> z(in[i].x, in[i].y), w = z * z + cuda::std::complex<float>(1, 0);
    cuda::std::array<float, 4> a = {w.real(), w.imag(), 2, 3};
    out[i] = make_float2(a[i & 1], a[1 - (i & 1)] + a[2 + (i & 1)]);
    cuda::atomic_ref<int, cuda::thread_scope_device> seen(most[0]);
    seen.fetch_max(i, cuda::memory_order_relaxed);
}
"""


def _standard_make(rng: Rng) -> Args:
    n = 140
    z = rng.integers(-9, 9, (n, 2)).astype(np.float32)
    return [z, np.zeros((n, 2), np.float32), np.zeros(1, np.int32), np.int32(n)]


@CASES.cuda(
    "standard_library",
    STANDARD,
    5,
    32,
    _standard_make,
    "cuda-headers many-globals",
    headers=True,
    long=True,
)
def _standard_expect(args: Args) -> dict[int | str, Any]:
    x, y = args[0].T
    real = fma32(x, x, -y * y) + np.float32(1)
    imaginary = 2 * x * y
    odd = np.arange(x.size) % 2
    first = np.where(odd, imaginary, real)
    second = np.where(odd, real + 3, imaginary + 2)
    exact = np.stack([first, second], axis=1).astype(np.float32)
    return {1: Within(exact, atol=1e-30), 2: np.array([x.size - 1], np.int32)}
