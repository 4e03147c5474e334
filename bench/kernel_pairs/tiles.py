"""Pairs on neighbourhoods and tiles: matrix products, stencil, convolution."""

from __future__ import annotations

import numpy as np

from bench.kernel_pairs.pair import Pair, Problem

__all__ = ["TILES"]

_TILED_CUDA = r"""
extern "C" __global__ void matmul_tiled(const float* __restrict__ a, const float* __restrict__ b,
                                        float* __restrict__ c, int rows, int cols, int depth) {
    __shared__ float as[16][16], bs[16][16];
    int tx = threadIdx.x, ty = threadIdx.y;
    int row = blockIdx.y * 16 + ty, col = blockIdx.x * 16 + tx;
    float sum = 0.0f;
    for (int k0 = 0; k0 < depth; k0 += 16) {
        as[ty][tx] = a[row * depth + k0 + tx];
        bs[ty][tx] = b[(k0 + ty) * cols + col];
        __syncthreads();
        for (int k = 0; k < 16; k++) sum += as[ty][k] * bs[k][tx];
        __syncthreads();
    }
    c[row * cols + col] = sum;
}
"""
_TILED_OPENCL = r"""
__kernel void matmul_tiled(__global const float* restrict a, __global const float* restrict b,
                           __global float* restrict c, int rows, int cols, int depth) {
    __local float as[16][16], bs[16][16];
    int tx = get_local_id(0), ty = get_local_id(1);
    int row = get_group_id(1) * 16 + ty, col = get_group_id(0) * 16 + tx;
    float sum = 0.0f;
    for (int k0 = 0; k0 < depth; k0 += 16) {
        as[ty][tx] = a[row * depth + k0 + tx];
        bs[ty][tx] = b[(k0 + ty) * cols + col];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int k = 0; k < 16; k++) sum += as[ty][k] * bs[k][tx];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    c[row * cols + col] = sum;
}
"""
_NAIVE_CUDA = r"""
extern "C" __global__ void matmul_naive(const float* __restrict__ a, const float* __restrict__ b,
                                        float* __restrict__ c, int rows, int cols, int depth) {
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows || col >= cols) return;
    float sum = 0.0f;
    for (int k = 0; k < depth; k++) sum += a[row * depth + k] * b[k * cols + col];
    c[row * cols + col] = sum;
}
"""
_NAIVE_OPENCL = r"""
__kernel void matmul_naive(__global const float* restrict a, __global const float* restrict b,
                           __global float* restrict c, int rows, int cols, int depth) {
    int row = get_group_id(1) * get_local_size(1) + get_local_id(1);
    int col = get_group_id(0) * get_local_size(0) + get_local_id(0);
    if (row >= rows || col >= cols) return;
    float sum = 0.0f;
    for (int k = 0; k < depth; k++) sum += a[row * depth + k] * b[k * cols + col];
    c[row * cols + col] = sum;
}
"""


def matmul(rows: int, cols: int, depth: int) -> Problem:
    """Return a product of ``rows x depth`` and ``depth x cols`` in 16x16 blocks."""
    rng = np.random.default_rng(6)
    a = rng.standard_normal((rows, depth), np.float32)
    b = rng.standard_normal((depth, cols), np.float32)
    return Problem(
        grid=(-(-cols // 16), -(-rows // 16), 1),
        arguments=(
            *(a, b, np.zeros((rows, cols), np.float32)),
            *(np.int32(rows), np.int32(cols), np.int32(depth)),
        ),
        expect={2: (..., a.astype(np.float64) @ b.astype(np.float64))},
        operations=2.0 * rows * cols * depth,
        bytes=4.0 * (rows * depth + depth * cols + rows * cols),
        rtol=1e-4,
        atol=1e-3,
    )


def _square(n: int) -> Problem:
    return matmul(n, n, n)


_STENCIL_CUDA = r"""
extern "C" __global__ void stencil(const float* __restrict__ in, float* __restrict__ out,
                                   int width, int height) {
    __shared__ float tile[10][34];
    int tx = threadIdx.x + 1, ty = threadIdx.y + 1;
    int x = blockIdx.x * 32 + tx, y = blockIdx.y * 8 + ty;
    int pitch = width + 2;
    tile[ty][tx] = in[y * pitch + x];
    if (tx == 1) tile[ty][0] = in[y * pitch + x - 1];
    if (tx == 32) tile[ty][33] = in[y * pitch + x + 1];
    if (ty == 1) tile[0][tx] = in[(y - 1) * pitch + x];
    if (ty == 8) tile[9][tx] = in[(y + 1) * pitch + x];
    __syncthreads();
    out[y * pitch + x] = 0.5f * tile[ty][tx]
        + 0.125f * (tile[ty][tx - 1] + tile[ty][tx + 1] + tile[ty - 1][tx] + tile[ty + 1][tx]);
}
"""
_STENCIL_OPENCL = r"""
__kernel void stencil(__global const float* restrict in, __global float* restrict out,
                      int width, int height) {
    __local float tile[10][34];
    int tx = get_local_id(0) + 1, ty = get_local_id(1) + 1;
    int x = get_group_id(0) * 32 + tx, y = get_group_id(1) * 8 + ty;
    int pitch = width + 2;
    tile[ty][tx] = in[y * pitch + x];
    if (tx == 1) tile[ty][0] = in[y * pitch + x - 1];
    if (tx == 32) tile[ty][33] = in[y * pitch + x + 1];
    if (ty == 1) tile[0][tx] = in[(y - 1) * pitch + x];
    if (ty == 8) tile[9][tx] = in[(y + 1) * pitch + x];
    barrier(CLK_LOCAL_MEM_FENCE);
    out[y * pitch + x] = 0.5f * tile[ty][tx]
        + 0.125f * (tile[ty][tx - 1] + tile[ty][tx + 1] + tile[ty - 1][tx] + tile[ty + 1][tx]);
}
"""


def _stencil(n: int) -> Problem:
    field = np.random.default_rng(7).standard_normal((n + 2, n + 2), np.float32)
    f = field.astype(np.float64)
    inner = f[1:-1, 1:-1]
    around = f[1:-1, :-2] + f[1:-1, 2:] + f[:-2, 1:-1] + f[2:, 1:-1]
    return Problem(
        grid=(n // 32, n // 8, 1),
        arguments=(field, np.zeros_like(field), np.int32(n), np.int32(n)),
        expect={1: (np.s_[1:-1, 1:-1], 0.5 * inner + 0.125 * around)},
        operations=6.0 * n * n,
        bytes=8.0 * n * n,
    )


_CONVOLUTION_CUDA = r"""
extern "C" __global__ void convolution(const float* __restrict__ in,
        const float* __restrict__ filter, float* __restrict__ out, int n) {
    __shared__ float tile[256 + 16];
    int t = threadIdx.x, i = blockIdx.x * 256 + t;
    tile[t] = in[i];
    if (t < 16) tile[256 + t] = in[i + 256];
    __syncthreads();
    if (i >= n) return;
    float sum = 0.0f;
    for (int k = 0; k < 17; k++) sum += filter[k] * tile[t + k];
    out[i] = sum;
}
"""
_CONVOLUTION_OPENCL = r"""
__kernel void convolution(__global const float* restrict in, __global const float* restrict filter,
                          __global float* restrict out, int n) {
    __local float tile[256 + 16];
    int t = get_local_id(0), i = get_group_id(0) * 256 + t;
    tile[t] = in[i];
    if (t < 16) tile[256 + t] = in[i + 256];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (i >= n) return;
    float sum = 0.0f;
    for (int k = 0; k < 17; k++) sum += filter[k] * tile[t + k];
    out[i] = sum;
}
"""


def _convolution(blocks: int) -> Problem:
    rng = np.random.default_rng(8)
    n = blocks * 256 - 7
    signal = rng.standard_normal(blocks * 256 + 16, np.float32)
    taps = rng.standard_normal(17, np.float32)
    result = np.correlate(signal.astype(np.float64), taps.astype(np.float64), "valid")[:n]
    return Problem(
        grid=(blocks, 1, 1),
        arguments=(signal, taps, np.zeros(n, np.float32), np.int32(n)),
        expect={2: (..., result)},
        operations=34.0 * n,
        bytes=8.0 * n,
        rtol=1e-4,
        atol=1e-4,
    )


TILES = (
    Pair("matmul_tiled", "16x16 tiles, two barriers a tile", _TILED_CUDA, _TILED_OPENCL,
         (16, 16, 1), _square, tiny=48, full=512),
    Pair("matmul_naive", "one dot product a thread", _NAIVE_CUDA, _NAIVE_OPENCL,
         (16, 16, 1), _square, tiny=40, full=512),
    Pair("stencil", "5-point, 32x8 tile with halo", _STENCIL_CUDA, _STENCIL_OPENCL,
         (32, 8, 1), _stencil, tiny=64, full=2048),
    Pair("convolution", "17 taps, tile with halo", _CONVOLUTION_CUDA, _CONVOLUTION_OPENCL,
         (256, 1, 1), _convolution, tiny=3, full=16384),
)  # fmt: skip
