"""Kernels with task blocks of adjustable duration, to measure the cost of each task block.

One integer, its *size*, makes the task blocks of a `Workload` longer; the number of task blocks is
free. All are deterministic: the forms of one kernel must leave identical bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["WORKLOADS", "Argument", "Dim3", "Problem", "Workload"]

Argument: TypeAlias = npt.NDArray[Any] | np.generic
"""An array is a buffer in device memory, a NumPy scalar is passed by value."""

Dim3: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True)
class Problem:
    """One launch: blocks in x, y, z, and the arguments in the kernel's order."""

    grid: Dim3
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Workload:
    """A kernel, and its launch as a function of the size and the number of task blocks.

    Attributes:
        output: index of the argument that the kernel writes.
        step: sizes are multiples of it.
        targets_us: block times to measure at; empty: one size only, `step`.
    """

    name: str
    what: str
    cuda: str
    block: Dim3
    make: Callable[[int, int], Problem]
    output: int
    step: int = 1
    targets_us: tuple[float, ...] = ()


_SPIN = r"""
extern "C" __global__ void spin(float* __restrict__ out, float a, float b, int loops) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float x = i & 1023;
    for (int k = 0; k < loops; k++) x = x * a + b;
    out[i] = x;
}
"""


def _spin(loops: int, blocks: int) -> Problem:
    out = np.zeros(blocks * 256, np.float32)
    return _problem((blocks, 1, 1), out, np.float32(0.999), np.float32(0.5), np.int32(loops))


_RELAY = r"""
extern "C" __global__ void relay(float* __restrict__ out, float a, int loops) {
    __shared__ float s[256];
    int t = threadIdx.x, i = blockIdx.x * 256 + t;
    float x = i & 1023;
    for (int k = 0; k < loops; k++) {
        s[t] = x;
        __syncthreads();
        x = a * x + (1.0f - a) * s[(t + 1) & 255];
        __syncthreads();
    }
    out[i] = x;
}
"""


def _relay(loops: int, blocks: int) -> Problem:
    out = np.zeros(blocks * 256, np.float32)
    return _problem((blocks, 1, 1), out, np.float32(0.75), np.int32(loops))


_MATMUL = r"""
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


def _matmul(depth: int, blocks: int) -> Problem:
    across = max(1, math.isqrt(blocks))
    down = -(-blocks // across)
    rows, cols = 16 * down, 16 * across
    rng = np.random.default_rng(11)
    a = rng.standard_normal((rows, depth), np.float32)
    b = rng.standard_normal((depth, cols), np.float32)
    shape = (np.int32(rows), np.int32(cols), np.int32(depth))
    return _problem((across, down, 1), a, b, np.zeros((rows, cols), np.float32), *shape)


_NBODY = r"""
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


def _nbody(bodies: int, blocks: int) -> Problem:
    # The kernel sums over the first ``bodies`` and writes the force on one body a thread.
    body = _positions(max(bodies, 256 * blocks))
    force = np.zeros((256 * blocks, 4), np.float32)
    return _problem((blocks, 1, 1), body, force, np.int32(bodies), np.float32(0.01))


def _positions(count: int) -> npt.NDArray[np.float32]:
    body = np.random.default_rng(12).standard_normal((count, 4), np.float32)
    body[:, 3] = np.abs(body[:, 3])
    return body


_STENCIL = r"""
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


def _stencil(_: int, blocks: int) -> Problem:
    width, height = 32 * 64, 8 * -(-blocks // 64)
    field = np.random.default_rng(13).standard_normal((height + 2, width + 2), np.float32)
    sizes = (np.int32(width), np.int32(height))
    return _problem((64, height // 8, 1), field, np.zeros_like(field), *sizes)


def _problem(grid: Dim3, *arguments: Argument) -> Problem:
    return Problem(grid, arguments)


_ALL = (5.0, 10.0, 20.0, 60.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)

WORKLOADS = (
    Workload("spin", "multiply-add chain, no barrier", _SPIN, (256, 1, 1), _spin,
             output=0, step=4, targets_us=_ALL),
    Workload("relay", "shared memory and two barriers a step", _RELAY, (256, 1, 1), _relay,
             output=0, targets_us=_ALL),
    Workload("matmul_tiled", "16x16 tiles", _MATMUL, (16, 16, 1), _matmul,
             output=2, step=16, targets_us=(5.0, 10.0, 20.0, 60.0, 100.0, 200.0)),
    Workload("nbody", "tiles of 256 bodies", _NBODY, (256, 1, 1), _nbody,
             output=1, step=256, targets_us=(60.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)),
    Workload("stencil", "5-point, 32x8 tile", _STENCIL, (32, 8, 1), _stencil, output=1),
)  # fmt: skip
