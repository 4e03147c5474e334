"""Pairs that read memory once: saxpy, Black-Scholes, block reduction, transpose, histogram."""

from __future__ import annotations

import math

import numpy as np

from bench.kernel_pairs.pair import FAST, Pair, Problem

__all__ = ["STREAMING"]

_SAXPY_CUDA = r"""
extern "C" __global__ void saxpy(float a, const float* __restrict__ x, float* __restrict__ y,
                                 int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""
_SAXPY_OPENCL = r"""
__kernel void saxpy(float a, __global const float* restrict x, __global float* restrict y, int n) {
    int i = get_group_id(0) * get_local_size(0) + get_local_id(0);
    if (i < n) y[i] = a * x[i] + y[i];
}
"""


def _saxpy(n: int) -> Problem:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, n), np.float32)
    result = 1.5 * x.astype(np.float64) + y
    return Problem(
        grid=(-(-n // 256), 1, 1),
        arguments=(np.float32(1.5), x, y, np.int32(n)),
        expect={2: (..., result)},
        operations=2.0 * n,
        bytes=12.0 * n,
    )


# Cumulative normal distribution: Abramowitz and Stegun, formula 26.2.17 (error below 7.5e-8).
_BLACK_SCHOLES_CUDA = r"""
__device__ float normal(float x) {
    float t = 1.0f / (1.0f + 0.2316419f * fabsf(x));
    float poly = t * (0.31938153f + t * (-0.356563782f + t * (1.781477937f
               + t * (-1.821255978f + t * 1.330274429f))));
    float tail = 0.39894228f * expf(-0.5f * x * x) * poly;
    return x > 0.0f ? 1.0f - tail : tail;
}
extern "C" __global__ void black_scholes(const float* __restrict__ price,
        const float* __restrict__ strike, const float* __restrict__ years,
        float* __restrict__ call, float* __restrict__ put, float rate, float sigma, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float s = price[i], k = strike[i], t = years[i];
    float root = sqrtf(t);
    float d1 = (logf(s / k) + (rate + 0.5f * sigma * sigma) * t) / (sigma * root);
    float d2 = d1 - sigma * root;
    float n1 = normal(d1), n2 = normal(d2);
    float discounted = k * expf(-rate * t);
    call[i] = s * n1 - discounted * n2;
    put[i] = discounted * (1.0f - n2) - s * (1.0f - n1);
}
"""
_BLACK_SCHOLES_OPENCL = (
    FAST
    + r"""
float normal(float x) {
    float t = 1.0f / (1.0f + 0.2316419f * fabs(x));
    float poly = t * (0.31938153f + t * (-0.356563782f + t * (1.781477937f
               + t * (-1.821255978f + t * 1.330274429f))));
    float tail = 0.39894228f * exp(-0.5f * x * x) * poly;
    return x > 0.0f ? 1.0f - tail : tail;
}
__kernel void black_scholes(__global const float* restrict price,
        __global const float* restrict strike, __global const float* restrict years,
        __global float* restrict call, __global float* restrict put, float rate, float sigma,
        int n) {
    int i = get_group_id(0) * get_local_size(0) + get_local_id(0);
    if (i >= n) return;
    float s = price[i], k = strike[i], t = years[i];
    float root = sqrt(t);
    float d1 = (log(s / k) + (rate + 0.5f * sigma * sigma) * t) / (sigma * root);
    float d2 = d1 - sigma * root;
    float n1 = normal(d1), n2 = normal(d2);
    float discounted = k * exp(-rate * t);
    call[i] = s * n1 - discounted * n2;
    put[i] = discounted * (1.0f - n2) - s * (1.0f - n1);
}
"""
)


def _black_scholes(n: int) -> Problem:
    rng = np.random.default_rng(2)
    price = rng.uniform(5, 30, n).astype(np.float32)
    strike = rng.uniform(1, 100, n).astype(np.float32)
    years = rng.uniform(0.25, 10, n).astype(np.float32)
    empty = np.zeros(n, np.float32)
    rate, sigma = 0.02, 0.30
    some = slice(None, None, max(1, n // 4096))
    s, k, t = (a[some].astype(np.float64) for a in (price, strike, years))
    d1 = (np.log(s / k) + (rate + 0.5 * sigma**2) * t) / (sigma * np.sqrt(t))
    d2 = d1 - sigma * np.sqrt(t)
    cdf = np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)))
    discounted = k * np.exp(-rate * t)
    call = s * cdf(d1) - discounted * cdf(d2)
    put = discounted * cdf(-d2) - s * cdf(-d1)
    return Problem(
        grid=(-(-n // 256), 1, 1),
        arguments=(
            *(price, strike, years, empty, empty),
            *(np.float32(rate), np.float32(sigma), np.int32(n)),
        ),
        expect={3: (some, call), 4: (some, put)},
        operations=60.0 * n,
        bytes=20.0 * n,
        rtol=1e-3,
        atol=2e-4,
    )


_REDUCTION_CUDA = r"""
extern "C" __global__ void reduction(const float* __restrict__ x, float* __restrict__ sums) {
    __shared__ float part[256];
    int t = threadIdx.x, base = blockIdx.x * 2048 + t;
    float sum = 0.0f;
    for (int k = 0; k < 8; k++) sum += x[base + k * 256];
    part[t] = sum;
    __syncthreads();
    for (int s = 128; s > 0; s >>= 1) {
        if (t < s) part[t] += part[t + s];
        __syncthreads();
    }
    if (t == 0) sums[blockIdx.x] = part[0];
}
"""
_REDUCTION_OPENCL = r"""
__kernel void reduction(__global const float* restrict x, __global float* restrict sums) {
    __local float part[256];
    int t = get_local_id(0), base = get_group_id(0) * 2048 + t;
    float sum = 0.0f;
    for (int k = 0; k < 8; k++) sum += x[base + k * 256];
    part[t] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int s = 128; s > 0; s >>= 1) {
        if (t < s) part[t] += part[t + s];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (t == 0) sums[get_group_id(0)] = part[0];
}
"""


def _reduction(blocks: int) -> Problem:
    rng = np.random.default_rng(3)
    x = rng.standard_normal(blocks * 2048, np.float32)
    sums = x.astype(np.float64).reshape(blocks, 2048).sum(axis=1)
    return Problem(
        grid=(blocks, 1, 1),
        arguments=(x, np.zeros(blocks, np.float32)),
        expect={1: (..., sums)},
        operations=2048.0 * blocks,
        bytes=8192.0 * blocks,
        atol=1e-3,
    )


_TRANSPOSE_CUDA = r"""
extern "C" __global__ void transpose(const float* __restrict__ in, float* __restrict__ out,
                                     int n) {
    __shared__ float tile[32][33];
    int tx = threadIdx.x, ty = threadIdx.y;
    int x = blockIdx.x * 32 + tx, y = blockIdx.y * 32 + ty;
    for (int j = 0; j < 32; j += 8) tile[ty + j][tx] = in[(y + j) * n + x];
    __syncthreads();
    x = blockIdx.y * 32 + tx;
    y = blockIdx.x * 32 + ty;
    for (int j = 0; j < 32; j += 8) out[(y + j) * n + x] = tile[tx][ty + j];
}
"""
_TRANSPOSE_OPENCL = r"""
__kernel void transpose(__global const float* restrict in, __global float* restrict out, int n) {
    __local float tile[32][33];
    int tx = get_local_id(0), ty = get_local_id(1);
    int x = get_group_id(0) * 32 + tx, y = get_group_id(1) * 32 + ty;
    for (int j = 0; j < 32; j += 8) tile[ty + j][tx] = in[(y + j) * n + x];
    barrier(CLK_LOCAL_MEM_FENCE);
    x = get_group_id(1) * 32 + tx;
    y = get_group_id(0) * 32 + ty;
    for (int j = 0; j < 32; j += 8) out[(y + j) * n + x] = tile[tx][ty + j];
}
"""


def _transpose(n: int) -> Problem:
    x = np.random.default_rng(4).standard_normal((n, n), np.float32)
    return Problem(
        grid=(n // 32, n // 32, 1),
        arguments=(x, np.zeros_like(x), np.int32(n)),
        expect={1: (..., x.T.astype(np.float64))},
        operations=1.0 * n * n,
        bytes=8.0 * n * n,
    )


_HISTOGRAM_CUDA = r"""
extern "C" __global__ void histogram(const unsigned char* __restrict__ data,
                                     unsigned int* __restrict__ bins, int n) {
    __shared__ unsigned int local[256];
    int t = threadIdx.x;
    local[t] = 0;
    __syncthreads();
    for (int i = blockIdx.x * 256 + t; i < n; i += gridDim.x * 256) atomicAdd(&local[data[i]], 1u);
    __syncthreads();
    atomicAdd(&bins[t], local[t]);
}
"""
_HISTOGRAM_OPENCL = r"""
__kernel void histogram(__global const uchar* restrict data, __global uint* restrict bins, int n) {
    __local uint part[256];
    int t = get_local_id(0);
    part[t] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = get_group_id(0) * 256 + t; i < n; i += get_num_groups(0) * 256)
        atomic_add(&part[data[i]], 1u);
    barrier(CLK_LOCAL_MEM_FENCE);
    atomic_add(&bins[t], part[t]);
}
"""


def _histogram(blocks: int) -> Problem:
    n = blocks * 256 * 64 - 100
    data = np.random.default_rng(5).binomial(255, 0.4, n).astype(np.uint8)
    return Problem(
        grid=(blocks, 1, 1),
        arguments=(data, np.zeros(256, np.uint32), np.int32(n)),
        expect={1: (..., np.bincount(data, minlength=256).astype(np.uint32))},
        operations=1.0 * n,
        bytes=1.0 * n,
    )


STREAMING = (
    Pair("saxpy", "y = a x + y", _SAXPY_CUDA, _SAXPY_OPENCL,
         (256, 1, 1), _saxpy, tiny=1000, full=1 << 24),
    Pair("black_scholes", "option prices: exp, log, sqrt, division",
         _BLACK_SCHOLES_CUDA, _BLACK_SCHOLES_OPENCL,
         (256, 1, 1), _black_scholes, tiny=1000, full=1 << 21),
    Pair("reduction", "sums of 2,048 elements, tree with 8 barriers",
         _REDUCTION_CUDA, _REDUCTION_OPENCL, (256, 1, 1), _reduction, tiny=3, full=8192),
    Pair("transpose", "32x32 tiles through shared memory", _TRANSPOSE_CUDA, _TRANSPOSE_OPENCL,
         (32, 8, 1), _transpose, tiny=64, full=2048),
    Pair("histogram", "256 bins, shared atomics", _HISTOGRAM_CUDA, _HISTOGRAM_OPENCL,
         (256, 1, 1), _histogram, tiny=2, full=512),
)  # fmt: skip
