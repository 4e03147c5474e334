"""Kernels of many kinds with one signature, for measuring the cost of the rewritten form on a GPU.

Problem: a mean over kernels is meaningful only if they differ: in what bounds them (memory,
arithmetic, latency), in barriers, shared memory, warp collectives, atomics, branches, early exits
and grids. Approach: each is ``NAME(const float* a, const float* b, float* out, int n)`` over arrays
of n elements, so that a kernel is its text and its launch, and nothing else.

Properties: deterministic: the forms of a kernel must leave identical bytes in ``out``; ``n`` is a
multiple of `ELEMENTS`, a square of a multiple of 32 for the kernels on pictures.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["ELEMENTS", "KERNELS", "OneKernel", "inputs"]

ELEMENTS: Final = 4096

Dim3 = tuple[int, int, int]

_HEAD = 'extern "C" __global__ void {}(const float* __restrict__ a, const float* __restrict__ b, '
_HEAD += "float* __restrict__ out, int n) {{\n"
_INDEX = "int i = blockIdx.x * blockDim.x + threadIdx.x;\n"


def _flat(n: int) -> Dim3:
    return n // 256, 1, 1


def _rows(n: int) -> Dim3:
    """Return a block for each row of 1024 elements."""
    return n // 1024, 1, 1


def _picture(n: int) -> Dim3:
    side = math.isqrt(n)
    return side // 32, side // 8, 1


def _volume(n: int) -> Dim3:
    """Cubes of 32x8x1 threads; the volume is 64 x 64 x n / 4096."""
    return 2, 8, n // 4096


def _few(n: int) -> Dim3:
    return max(1, n // 16384), 1, 1


@dataclass(frozen=True)
class OneKernel:
    """A kernel; ``weight`` makes n smaller for those that do more for each element."""

    name: str
    what: str
    body: str
    grid: Callable[[int], Dim3] = _flat
    block: Dim3 = (256, 1, 1)
    weight: int = 1
    before: str = ""

    @property
    def source(self) -> str:
        """CUDA C++."""
        index = _INDEX if self.block[1] == 1 else ""
        return f"{self.before}{_HEAD.format(self.name)}{index}{self.body}\n}}\n"


@functools.lru_cache(maxsize=2)
def inputs(n: int) -> list[npt.NDArray[Any]]:
    """Return ``a``, ``b`` and ``out`` for n elements, not to be changed; ``out`` is poisoned."""
    rng = np.random.default_rng(17)
    a, b = rng.standard_normal((2, n), np.float32)
    return [a, b, np.full(n, -7.5, np.float32)]


_SCAN = r"""
__shared__ float s[256];
int t = threadIdx.x;
s[t] = a[i];
__syncthreads();
for (int d = 1; d < 256; d <<= 1) {
    float add = t >= d ? s[t - d] : 0.0f;
    __syncthreads();
    s[t] += add;
    __syncthreads();
}
out[i] = s[t];"""

_BITONIC = r"""
__shared__ float s[256];
int t = threadIdx.x;
s[t] = a[i];
for (int k = 2; k <= 256; k <<= 1)
    for (int j = k >> 1; j > 0; j >>= 1) {
        __syncthreads();
        int other = t ^ j;
        if (other > t) {
            bool up = (t & k) == 0;
            float x = s[t], y = s[other];
            if ((x > y) == up) { s[t] = y; s[other] = x; }
        }
    }
__syncthreads();
out[i] = s[t];"""

_ROW_SUM = r"""
__device__ float row_sum(float x) {
    __shared__ float part[8];
    __shared__ float whole;
    for (int d = 16; d > 0; d >>= 1) x += __shfl_down_sync(0xffffffffu, x, d);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = x;
    __syncthreads();
    if (threadIdx.x == 0) {
        float sum = 0.0f;
        for (int w = 0; w < 8; w++) sum += part[w];
        whole = sum;
    }
    __syncthreads();
    float result = whole;
    __syncthreads();
    return result;
}
"""

_SOFTMAX = r"""
int t = threadIdx.x, base = blockIdx.x * 1024 + t;
float x[4], sum = 0.0f;
for (int k = 0; k < 4; k++) { x[k] = expf(a[base + 256 * k]); sum += x[k]; }
sum = row_sum(sum);
for (int k = 0; k < 4; k++) out[base + 256 * k] = x[k] / sum;"""

_LAYER_NORM = r"""
int t = threadIdx.x, base = blockIdx.x * 1024 + t;
float x[4], sum = 0.0f, squares = 0.0f;
for (int k = 0; k < 4; k++) { x[k] = a[base + 256 * k]; sum += x[k]; }
float mean = row_sum(sum) / 1024;
for (int k = 0; k < 4; k++) squares += (x[k] - mean) * (x[k] - mean);
float scale = rsqrtf(row_sum(squares) / 1024 + 1e-5f);
for (int k = 0; k < 4; k++) out[base + 256 * k] = (x[k] - mean) * scale * b[base + 256 * k];"""

_MATVEC = r"""
int t = threadIdx.x, base = blockIdx.x * 1024 + t;
float sum = 0.0f;
for (int k = 0; k < 4; k++) sum += a[base + 256 * k] * b[t + 256 * k];
sum = row_sum(sum);
for (int k = 0; k < 4; k++) out[base + 256 * k] = sum;"""

_MEDIAN = r"""
int width = gridDim.x * 32, height = gridDim.y * 8;
int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y;
float v[9];
for (int k = 0; k < 9; k++) {
    int u = min(max(x + k % 3 - 1, 0), width - 1), w = min(max(y + k / 3 - 1, 0), height - 1);
    v[k] = a[w * width + u];
}
for (int j = 0; j < 5; j++)
    for (int k = 0; k < 8 - j; k++) {
        float low = fminf(v[k], v[k + 1]), high = fmaxf(v[k], v[k + 1]);
        v[k] = low;
        v[k + 1] = high;
    }
out[y * width + x] = v[4];"""

_SOBEL = r"""
__shared__ float tile[10][34];
int width = gridDim.x * 32, height = gridDim.y * 8, tx = threadIdx.x, ty = threadIdx.y;
for (int k = ty * 32 + tx; k < 340; k += 256) {
    int u = (int)blockIdx.x * 32 + k % 34 - 1, w = (int)blockIdx.y * 8 + k / 34 - 1;
    bool inside = u >= 0 && w >= 0 && u < width && w < height;
    tile[k / 34][k % 34] = inside ? a[w * width + u] : 0.0f;
}
__syncthreads();
float (*p)[34] = (float(*)[34])&tile[ty][tx];
float gx = p[0][2] - p[0][0] + 2 * (p[1][2] - p[1][0]) + p[2][2] - p[2][0];
float gy = p[2][0] - p[0][0] + 2 * (p[2][1] - p[0][1]) + p[2][2] - p[0][2];
out[(blockIdx.y * 8 + ty) * width + blockIdx.x * 32 + tx] = sqrtf(gx * gx + gy * gy);"""

_STENCIL_3D = r"""
int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y, z = blockIdx.z;
int here = (z * 64 + y) * 64 + x;
float sum = -6.0f * a[here];
sum += a[x > 0 ? here - 1 : here] + a[x < 63 ? here + 1 : here];
sum += a[y > 0 ? here - 64 : here] + a[y < 63 ? here + 64 : here];
sum += a[z > 0 ? here - 4096 : here] + a[z < (int)gridDim.z - 1 ? here + 4096 : here];
out[here] = a[here] + 0.1f * sum;"""

_COMPACT = r"""
__shared__ int counts[8];
__shared__ float kept[256];
int t = threadIdx.x, lane = t & 31;
float x = a[i];
unsigned votes = __ballot_sync(0xffffffffu, x > 0.0f);
if (lane == 0) counts[t >> 5] = __popc(votes);
kept[t] = 0.0f;
__syncthreads();
int at = __popc(votes & ((1u << lane) - 1));
for (int w = 0; w < (t >> 5); w++) at += counts[w];
if (x > 0.0f) kept[at] = x;
__syncthreads();
out[i] = kept[t];"""

_COUNTS = r"""
__shared__ unsigned bins[64];
int t = threadIdx.x;
if (t < 64) bins[t] = 0;
__syncthreads();
int bin = (int)(a[i] * 8.0f) & 63;
atomicAdd(&bins[bin], 1u);
__syncthreads();
out[i] = (float)bins[t & 63];"""

_SWITCH = r"""
float x = a[i], y = b[i];
switch ((int)(x * 16.0f) & 7) {
    case 0: y = y * y + x; break;
    case 1: y = sqrtf(fabsf(y)); break;
    case 2: y = x / (1.0f + y * y); break;
    case 3: for (int k = 0; k < 9; k++) y = y * 0.5f + x; break;
    case 4: y = expf(-y * y); break;
    case 5: y = logf(1.0f + x * x); break;
    case 6: y = fmaxf(x, y) - fminf(x, y); break;
    default: y = sinf(x) * y;
}
out[i] = y;"""

_HASH = r"""
unsigned long long x = __float_as_uint(a[i]) | ((unsigned long long)__float_as_uint(b[i]) << 32);
for (int k = 0; k < 8; k++) {
    x ^= x >> 33; x *= 0xff51afd7ed558ccdull; x ^= x >> 29; x *= 0xc4ceb9fe1a85ec53ull;
}
out[i] = (float)(unsigned)(x >> 40);"""

_LOCAL = r"""
float kept[16];
unsigned h = __float_as_uint(a[i]);
for (int k = 0; k < 16; k++) kept[k] = b[(i + k * 37) % n];
float sum = 0.0f;
for (int k = 0; k < 16; k++) { h = h * 1664525u + 1013904223u; sum += kept[(h >> 20) & 15] * k; }
out[i] = sum;"""

_DIVIDE = r"""
unsigned x = __float_as_uint(a[i]), d = (__float_as_uint(b[i]) & 1023u) + 3u;
unsigned sum = 0;
for (int k = 0; k < 8; k++) { sum += x / d + x % d; x = x * 2654435761u + 1u; d += 2u; }
out[i] = (float)sum;"""

_LAST_BLOCK = r"""
float x = row_sum(a[i]);
if (threadIdx.x == 0) {
    partial[blockIdx.x & 65535] = x;
    __threadfence();
    ticket = atomicInc(&arrived, gridDim.x - 1);
}
out[i] = x;"""

KERNELS: tuple[OneKernel, ...] = (
    OneKernel("copy", "copy", "out[i] = a[i];"),
    OneKernel("triad", "a + s b", "out[i] = a[i] + 3.0f * b[i];"),
    OneKernel("gather", "reads a permutation", "out[i] = a[(int)((i * 40503LL) & (n - 1))];"),
    OneKernel("strided", "reads with stride 33", "out[i] = a[(int)((i * 33LL) % n)] + b[i];"),
    OneKernel("early_exit", "half of the threads leave", "if (a[i] < 0.0f) return; out[i] = b[i];"),
    OneKernel("polynomial", "arithmetic in single precision",
              "float x = a[i], y = b[i]; for (int k = 0; k < 256; k++) y = y * x + 0.25f;"
              " out[i] = y;", weight=4),
    OneKernel("doubles", "arithmetic in double precision",
              "double x = a[i], y = b[i]; for (int k = 0; k < 128; k++) y = y * x + 0.25;"
              " out[i] = (float)y;", weight=4),
    OneKernel("waves", "sine and cosine", "float s, c; sincosf(a[i] * 9.0f, &s, &c);"
              " out[i] = s * c + sinf(b[i]);", weight=2),
    OneKernel("exponents", "exponential, logarithm, power",
              "out[i] = powf(fabsf(a[i]) + 0.1f, b[i]) + logf(1.0f + a[i] * a[i]);", weight=2),
    OneKernel("grid_stride", "few blocks, each loops over the arrays",
              "for (; i < n; i += gridDim.x * blockDim.x) out[i] = a[i] * b[i];", grid=_few),
    OneKernel("switch_on_data", "branches by data", _SWITCH, weight=2),
    OneKernel("hash64", "64-bit multiplications", _HASH, weight=2),
    OneKernel("divide", "integer division and remainder", _DIVIDE, weight=4),
    OneKernel("local_array", "local memory, indexed by data", _LOCAL, weight=8),
    OneKernel("scan", "scan of a block, 16 barriers", _SCAN, weight=2),
    OneKernel("bitonic", "sort of a block, 36 barriers", _BITONIC, weight=4),
    OneKernel("compact", "ballots, counts, shared memory", _COMPACT, weight=2),
    OneKernel("block_counts", "atomics in shared memory", _COUNTS, weight=2),
    OneKernel("softmax", "rows: shuffles, 6 barriers", _SOFTMAX, grid=_rows, before=_ROW_SUM),
    OneKernel("layer_norm", "rows: two reductions", _LAYER_NORM, grid=_rows, before=_ROW_SUM),
    OneKernel("matvec", "rows times a vector", _MATVEC, grid=_rows, before=_ROW_SUM),
    OneKernel("median", "3x3 median of a picture", _MEDIAN, grid=_picture, block=(32, 8, 1),
              weight=4),
    OneKernel("sobel", "3x3 edges through shared memory", _SOBEL, grid=_picture,
              block=(32, 8, 1)),
    OneKernel("stencil_3d", "7 points in a grid of three dimensions", _STENCIL_3D, grid=_volume,
              block=(32, 8, 1)),
    OneKernel("last_block", "fence and a counter of all blocks", _LAST_BLOCK,
              before="__device__ float partial[65536];\n__device__ unsigned arrived, ticket;\n"
              + _ROW_SUM),
)  # fmt: skip
