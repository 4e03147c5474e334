"""Stencils and filters on grids.

Inputs are small integers, so that every partial sum is exact and the comparison is bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Args, Rng
from .cases import Cases

CASES = Cases()


def _integers(rng: Rng, shape: tuple[int, ...] | int, dtype: Any, bound: int = 8) -> Any:
    return rng.integers(-bound, bound + 1, shape).astype(dtype)


# -- 7-point stencil on a 3-D grid of 3-D blocks -----------------------------------------------

STENCIL_3D = r"""
extern "C" __global__ void stencil_3d(const float* in, float* out, int nx, int ny, int nz,
                                      unsigned* runs) {
    GPUD_COUNT_3D(runs);
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    int z = blockIdx.z * blockDim.z + threadIdx.z;
    if (x >= nx || y >= ny || z >= nz) return;
    int i = (z * ny + y) * nx + x;
    if (x == 0 || y == 0 || z == 0 || x == nx - 1 || y == ny - 1 || z == nz - 1) {
        out[i] = in[i];
        return;
    }
    out[i] = in[i - 1] + in[i + 1] + in[i - nx] + in[i + nx] + in[i - nx * ny] + in[i + nx * ny]
             - 6.f * in[i];
}
"""


def _stencil_make(rng: Rng) -> Args:
    nz, ny, nx = 11, 13, 29
    grid = _integers(rng, (nz, ny, nx), np.float32, 100)
    return [grid, np.zeros_like(grid), np.int32(nx), np.int32(ny), np.int32(nz)]


@CASES.cuda(
    "stencil_3d",
    STENCIL_3D,
    (4, 4, 3),
    (8, 4, 4),
    _stencil_make,
    "grid.3d block.3d multiple-returns",
)
def _stencil_expect(args: Args) -> dict[int | str, Any]:
    u = args[0]
    out = u.copy()
    inner = (slice(1, -1),) * 3
    total = np.zeros_like(u[inner])
    for axis in range(3):
        for side in (slice(None, -2), slice(2, None)):
            where = list(inner)
            where[axis] = side
            total += u[tuple(where)]
    out[inner] = total - 6 * u[inner]
    return {1: out}


# -- 2-D convolution with the filter in constant memory ----------------------------------------

CONVOLUTION = r"""
__constant__ float taps[5][5];
extern "C" __global__ void convolution(const float* in, float* out, int width, int height,
                                       unsigned* runs) {
    GPUD_COUNT_2D(runs);
    __shared__ float tile[12][36];
    int x0 = blockIdx.x * 32 - 2, y0 = blockIdx.y * 8 - 2;
    for (int y = threadIdx.y; y < 12; y += 8)
        for (int x = threadIdx.x; x < 36; x += 32) {
            int u = min(max(x0 + x, 0), width - 1), v = min(max(y0 + y, 0), height - 1);
            tile[y][x] = in[v * width + u];
        }
    __syncthreads();
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y;
    if (x >= width || y >= height) return;
    float sum = 0;
    for (int j = 0; j < 5; ++j)
        for (int i = 0; i < 5; ++i) sum += taps[j][i] * tile[threadIdx.y + j][threadIdx.x + i];
    out[y * width + x] = sum;
}
"""
_TAPS = np.outer([1, 4, 6, 4, 1], [1, -2, 3, -2, 1]).astype(np.float32)


def _convolution_make(rng: Rng) -> Args:
    height, width = 45, 70
    image = _integers(rng, (height, width), np.float32, 255)
    return [image, np.zeros_like(image), np.int32(width), np.int32(height)]


@CASES.cuda(
    "convolution",
    CONVOLUTION,
    (3, 6),
    (32, 8),
    _convolution_make,
    "constant-bank shared.static module-symbol",
    symbols={"taps": _TAPS},
    long=True,
)
def _convolution_expect(args: Args) -> dict[int | str, Any]:
    image = np.pad(args[0], 2, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(image, (5, 5))
    return {1: np.einsum("yxji,ji->yx", windows, _TAPS).astype(np.float32), "taps": _TAPS}
