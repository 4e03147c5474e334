"""Pairs that compute more than they read: n-body step, Monte Carlo, Mandelbrot set."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bench.kernel_pairs.pair import FAST, Pair, Problem

__all__ = ["SIMULATION", "nbody"]

_NBODY_CUDA = r"""
extern "C" __global__ void nbody(const float4* __restrict__ body, float4* __restrict__ force,
                                 int n, float softening) {
    __shared__ float4 tile[256];
    int t = threadIdx.x, i = blockIdx.x * 256 + t;
    float4 me = body[i];
    float fx = 0.0f, fy = 0.0f, fz = 0.0f;
    for (int base = 0; base < n; base += 256) {
        tile[t] = body[base + t];
        __syncthreads();
        for (int j = 0; j < 256; j++) {
            float4 other = tile[j];
            float dx = other.x - me.x, dy = other.y - me.y, dz = other.z - me.z;
            float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + softening);
            float scale = other.w * inverse * inverse * inverse;
            fx += dx * scale;
            fy += dy * scale;
            fz += dz * scale;
        }
        __syncthreads();
    }
    force[i] = make_float4(fx, fy, fz, 0.0f);
}
"""
_NBODY_OPENCL = (
    FAST
    + r"""
__kernel void nbody(__global const float4* restrict body, __global float4* restrict force,
                    int n, float softening) {
    __local float4 tile[256];
    int t = get_local_id(0), i = get_group_id(0) * 256 + t;
    float4 me = body[i];
    float fx = 0.0f, fy = 0.0f, fz = 0.0f;
    for (int base = 0; base < n; base += 256) {
        tile[t] = body[base + t];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int j = 0; j < 256; j++) {
            float4 other = tile[j];
            float dx = other.x - me.x, dy = other.y - me.y, dz = other.z - me.z;
            float inverse = rsqrt(dx * dx + dy * dy + dz * dz + softening);
            float scale = other.w * inverse * inverse * inverse;
            fx += dx * scale;
            fy += dy * scale;
            fz += dz * scale;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    force[i] = (float4)(fx, fy, fz, 0.0f);
}
"""
)


def nbody(n: int) -> Problem:
    """One step of the all-pairs method for ``n`` bodies, a multiple of 256."""
    body = np.random.default_rng(9).standard_normal((n, 4), np.float32)
    body[:, 3] = np.abs(body[:, 3])
    some = slice(None, None, max(1, n // 64))
    b = body.astype(np.float64)
    d = b[None, :, :3] - b[some, None, :3]
    scale = b[None, :, 3] * ((d * d).sum(axis=2) + 0.01) ** -1.5
    force = np.zeros((scale.shape[0], 4))
    force[:, :3] = (d * scale[:, :, None]).sum(axis=1)
    return Problem(
        grid=(n // 256, 1, 1),
        arguments=(body, np.zeros_like(body), np.int32(n), np.float32(0.01)),
        expect={1: (some, force)},
        operations=20.0 * n * n,
        bytes=32.0 * n,
        rtol=1e-3,
        atol=1e-3 * n**0.5,
    )


_MONTE_CARLO_CUDA = r"""
extern "C" __global__ void monte_carlo(float* __restrict__ payoff, float price, float strike,
                                       float drift, float spread, int paths) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned int state = i * 2654435761u + 12345u;
    if (state == 0) state = 1;
    float sum = 0.0f;
    for (int p = 0; p < paths; p++) {
        state ^= state << 13; state ^= state >> 17; state ^= state << 5;
        float u = ((state >> 8) + 1) * (1.0f / 16777217.0f);
        state ^= state << 13; state ^= state >> 17; state ^= state << 5;
        float v = (state >> 8) * (1.0f / 16777216.0f);
        float z = sqrtf(-2.0f * logf(u)) * cosf(6.2831853f * v);
        float end = price * expf(drift + spread * z);
        sum += fmaxf(end - strike, 0.0f);
    }
    payoff[i] = sum / paths;
}
"""
_MONTE_CARLO_OPENCL = (
    FAST
    + r"""
__kernel void monte_carlo(__global float* restrict payoff, float price, float strike,
                          float drift, float spread, int paths) {
    int i = get_group_id(0) * get_local_size(0) + get_local_id(0);
    unsigned int state = i * 2654435761u + 12345u;
    if (state == 0) state = 1;
    float sum = 0.0f;
    for (int p = 0; p < paths; p++) {
        state ^= state << 13; state ^= state >> 17; state ^= state << 5;
        float u = ((state >> 8) + 1) * (1.0f / 16777217.0f);
        state ^= state << 13; state ^= state >> 17; state ^= state << 5;
        float v = (state >> 8) * (1.0f / 16777216.0f);
        float z = sqrt(-2.0f * log(u)) * cos(6.2831853f * v);
        float end = price * exp(drift + spread * z);
        sum += fmax(end - strike, 0.0f);
    }
    payoff[i] = sum / paths;
}
"""
)
_PATHS = 64


def _step(state: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Marsaglia's xorshift with 32 bits of state (Xorshift RNGs, 2003)."""
    state = state ^ (state << np.uint32(13))
    state = state ^ (state >> np.uint32(17))
    return state ^ (state << np.uint32(5))


def _monte_carlo(blocks: int) -> Problem:
    threads = blocks * 256
    some = slice(None, None, max(1, blocks // 8))
    state = np.arange(threads, dtype=np.uint32)[some] * np.uint32(2654435761) + np.uint32(12345)
    state[state == 0] = 1
    price, strike, drift, spread = 100.0, 95.0, 0.03, 0.2
    total = np.zeros(len(state))
    for _ in range(_PATHS):
        state = _step(state)
        u = ((state >> np.uint32(8)) + 1.0) / 16777217.0
        state = _step(state)
        v = (state >> np.uint32(8)) / 16777216.0
        z = np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v)
        total += np.maximum(price * np.exp(drift + spread * z) - strike, 0)
    numbers = tuple(np.float32(x) for x in (price, strike, drift, spread))
    return Problem(
        grid=(blocks, 1, 1),
        arguments=(np.zeros(threads, np.float32), *numbers, np.int32(_PATHS)),
        expect={0: (some, total / _PATHS)},
        operations=60.0 * threads * _PATHS,
        bytes=4.0 * threads,
        rtol=1e-3,
        atol=1e-3,
    )


_MANDELBROT_CUDA = r"""
extern "C" __global__ void mandelbrot(int* __restrict__ count, int width, int height, int limit) {
    int px = blockIdx.x * 16 + threadIdx.x, py = blockIdx.y * 16 + threadIdx.y;
    if (px >= width || py >= height) return;
    float cx = -2.0f + 3.0f * px / width, cy = -1.5f + 3.0f * py / height;
    float x = 0.0f, y = 0.0f;
    int k = 0;
    while (k < limit && x * x + y * y < 4.0f) {
        float next = x * x - y * y + cx;
        y = 2.0f * x * y + cy;
        x = next;
        k++;
    }
    count[py * width + px] = k;
}
"""
_MANDELBROT_OPENCL = r"""
__kernel void mandelbrot(__global int* restrict count, int width, int height, int limit) {
    int px = get_group_id(0) * 16 + get_local_id(0), py = get_group_id(1) * 16 + get_local_id(1);
    if (px >= width || py >= height) return;
    float cx = -2.0f + 3.0f * px / width, cy = -1.5f + 3.0f * py / height;
    float x = 0.0f, y = 0.0f;
    int k = 0;
    while (k < limit && x * x + y * y < 4.0f) {
        float next = x * x - y * y + cx;
        y = 2.0f * x * y + cy;
        x = next;
        k++;
    }
    count[py * width + px] = k;
}
"""
_ITERATIONS = 256


def _mandelbrot(n: int) -> Problem:
    # Every seventh pixel in each direction; in float64, so that pixels on the edge may differ.
    step = 7 if n > 256 else 1
    px, py = np.meshgrid(np.arange(0, n, step), np.arange(0, n, step))
    c = (-2 + 3 * px / n) + 1j * (-1.5 + 3 * py / n)
    z = np.zeros_like(c)
    count = np.zeros(c.shape, np.int32)
    inside = np.ones(c.shape, bool)
    for _ in range(_ITERATIONS):
        inside &= (z.real**2 + z.imag**2) < 4
        count += inside
        z = np.where(inside, z * z + c, z)
    return Problem(
        grid=(-(-n // 16), -(-n // 16), 1),
        arguments=(np.zeros((n, n), np.int32), np.int32(n), np.int32(n), np.int32(_ITERATIONS)),
        expect={0: (np.s_[::step, ::step], count)},
        operations=10.0 * float(count.mean()) * n * n,
        bytes=4.0 * n * n,
        strays=0.03,
    )


SIMULATION = (
    Pair("nbody", "all pairs, tiles of 256 bodies, rsqrt", _NBODY_CUDA, _NBODY_OPENCL,
         (256, 1, 1), nbody, tiny=512, full=8192),
    Pair("monte_carlo", "xorshift, Box-Muller: log, cos, exp, sqrt",
         _MONTE_CARLO_CUDA, _MONTE_CARLO_OPENCL, (256, 1, 1), _monte_carlo, tiny=2, full=512),
    Pair("mandelbrot", "threads leave their loop at different times",
         _MANDELBROT_CUDA, _MANDELBROT_OPENCL, (16, 16, 1), _mandelbrot, tiny=40, full=1024),
)  # fmt: skip
