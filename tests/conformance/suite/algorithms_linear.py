"""Linear algebra and grids: the kernels that people try a GPU with first.

Inputs are small integers wherever a sum is formed in an order that NumPy does not share, so that
every partial sum is exact and the comparison is bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Args, Rng, Within
from .cases import Cases
from .reference import fma32

CASES = Cases()


def _integers(rng: Rng, shape: tuple[int, ...] | int, dtype: Any, bound: int = 8) -> Any:
    return rng.integers(-bound, bound + 1, shape).astype(dtype)


# -- saxpy -------------------------------------------------------------------------------------

SAXPY = r"""
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""


def _saxpy_make(rng: Rng) -> Args:
    n = 9_999
    x, y = (rng.standard_normal(n).astype(np.float32) for _ in range(2))
    return [np.float32(1.7), x, y, np.int32(n)]


@CASES.cuda("saxpy", SAXPY, 40, 256, _saxpy_make)
def _saxpy_expect(args: Args) -> dict[int | str, Any]:
    return {2: fma32(args[0], args[1], args[2])}


# -- vector sum with a grid-stride loop --------------------------------------------------------

ADD_STRIDED = r"""
extern "C" __global__ void add_strided(const int* a, const int* b, int* c, unsigned n,
                                       unsigned* runs) {
    GPUD_COUNT(runs);
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        c[i] = a[i] + b[i];
}
"""


def _add_strided_make(rng: Rng) -> Args:
    n = 10_007
    a, b = (rng.integers(-(2**31), 2**31, n).astype(np.int32) for _ in range(2))
    return [a, b, np.zeros(n, np.int32), np.uint32(n)]


@CASES.cuda("add_strided", ADD_STRIDED, 13, 192, _add_strided_make)
def _add_strided_expect(args: Args) -> dict[int | str, Any]:
    return {2: args[0] + args[1]}


# -- tiled matrix product ----------------------------------------------------------------------

MATMUL_TILED = r"""
#define T 16
extern "C" __global__ void matmul_tiled(const float* a, const float* b, float* c,
                                        int m, int n, int k, unsigned* runs) {
    GPUD_COUNT_2D(runs);
    __shared__ float ta[T][T], tb[T][T];
    int row = blockIdx.y * T + threadIdx.y, column = blockIdx.x * T + threadIdx.x;
    float sum = 0;
    for (int t = 0; t < k; t += T) {
        ta[threadIdx.y][threadIdx.x] =
            row < m && t + threadIdx.x < k ? a[row * k + t + threadIdx.x] : 0.f;
        tb[threadIdx.y][threadIdx.x] =
            t + threadIdx.y < k && column < n ? b[(t + threadIdx.y) * n + column] : 0.f;
        __syncthreads();
        for (int i = 0; i < T; ++i) sum += ta[threadIdx.y][i] * tb[i][threadIdx.x];
        __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = sum;
}
"""


def _matmul_make(rng: Rng) -> Args:
    m, n, k = 50, 45, 70
    a, b = _integers(rng, (m, k), np.float32), _integers(rng, (k, n), np.float32)
    return [a, b, np.zeros((m, n), np.float32), np.int32(m), np.int32(n), np.int32(k)]


@CASES.cuda(
    "matmul_tiled",
    MATMUL_TILED,
    (3, 4),
    (16, 16),
    _matmul_make,
    "bar.sync shared.static grid.2d block.2d",
)
def _matmul_expect(args: Args) -> dict[int | str, Any]:
    return {2: args[0] @ args[1]}


# -- tiled transpose ---------------------------------------------------------------------------

TRANSPOSE = r"""
extern "C" __global__ void transpose(const double* in, double* out, int width, int height,
                                     unsigned* runs) {
    GPUD_COUNT_2D(runs);
    __shared__ double tile[32][33];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8)
        if (x < width && y + j < height)
            tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * width + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x;
    y = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8)
        if (x < height && y + j < width)
            out[(y + j) * height + x] = tile[threadIdx.x][threadIdx.y + j];
}
"""


def _transpose_make(rng: Rng) -> Args:
    height, width = 77, 100
    return [
        rng.standard_normal((height, width)),
        np.zeros((width, height)),
        np.int32(width),
        np.int32(height),
    ]


@CASES.cuda(
    "transpose", TRANSPOSE, (4, 3), (32, 8), _transpose_make, "bar.sync shared.static grid.2d"
)
def _transpose_expect(args: Args) -> dict[int | str, Any]:
    return {1: np.ascontiguousarray(args[0].T)}


# -- triangular solve: each row waits for the rows that it needs -------------------------------

TRIANGULAR_SOLVE = r"""
extern "C" __global__ void triangular_solve(const int* start, const int* column,
                                            const double* value, const double* b,
                                            volatile double* x, volatile int* ready, int rows,
                                            unsigned* runs) {
    GPUD_COUNT(runs);
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    double sum = b[row];
    int last = start[row + 1] - 1;
    for (int i = start[row]; i < last; ++i) {
        while (!ready[column[i]]) {}
        __threadfence();
        sum -= value[i] * x[column[i]];
    }
    x[row] = sum / value[last];
    __threadfence();
    ready[row] = 1;
}
"""


def _triangular_make(rng: Rng) -> Args:
    rows = 150
    dense = np.tril(_integers(rng, (rows, rows), np.float64, 3) * (rng.random((rows, rows)) < 0.03))
    np.fill_diagonal(dense, rng.choice([1.0, -1.0, 2.0], rows))
    solution = _integers(rng, rows, np.float64, 50)
    start = np.concatenate([[0], np.cumsum(np.count_nonzero(dense, axis=1))]).astype(np.int32)
    column = np.nonzero(dense)[1].astype(np.int32)
    return [
        start,
        column,
        dense[np.nonzero(dense)],
        dense @ solution,
        np.full(rows, np.nan),
        np.zeros(rows, np.int32),
        np.int32(rows),
    ]


@CASES.cuda(
    "triangular_solve",
    TRIANGULAR_SOLVE,
    5,
    32,
    _triangular_make,
    "waits-for-lower-blocks independent-lanes ld.volatile",
    progress="independent",  # rows wait for the rows above: nothing but the data says so
)
def _triangular_expect(args: Args) -> dict[int | str, Any]:
    start, column, value, b, x, ready, _ = args
    dense = np.zeros((x.size, x.size))
    dense[np.repeat(np.arange(x.size), np.diff(start)), column] = value
    solution = np.rint(np.linalg.solve(dense, b))
    assert np.array_equal(dense @ solution, b)
    # A solution of 0 may come out as -0.
    return {4: Within(solution, atol=1e-300), 5: np.ones_like(ready)}
