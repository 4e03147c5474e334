"""Our own kernels of the classes that task sets are made of, with what they need and a check.

* ``matrix_product``: C = A B, in tiles of 16 x 16;
* ``stencil``: the mean of a point and its four neighbours, again and again, as heat spreads;
* ``graph_search``: distances from node 0 in a graph with four edges a node, level by level;
* ``detector``: an image detector's layers: convolutions with rectification, halving the image, then
  a score for each place.

A task gives the size (the side of a matrix, grid or image, or the number of nodes) and a seed. Its
results are compared with NumPy's, so that a task that ends as done has computed the right thing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["KERNELS", "OwnKernel", "Runner"]

Floats = npt.NDArray[np.float32]

SOURCE: Final = r"""
extern "C" __global__ void matrix_product(const float* a, const float* b, float* c, int n) {
    __shared__ float left[16][16], right[16][16];
    int i = threadIdx.x, j = threadIdx.y;
    int row = blockIdx.y * 16 + j, column = blockIdx.x * 16 + i;
    float sum = 0;
    for (int k = 0; k < n; k += 16) {
        left[j][i] = a[row * n + k + i];
        right[j][i] = b[(k + j) * n + column];
        __syncthreads();
        for (int m = 0; m < 16; m++) sum += left[j][m] * right[m][i];
        __syncthreads();
    }
    c[row * n + column] = sum;
}
extern "C" __global__ void stencil(const float* from, float* to, int n) {
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y, at = y * n + x;
    if (x == 0 || y == 0 || x == n - 1 || y == n - 1) to[at] = from[at];
    else to[at] = 0.2f * (from[at] + from[at - 1] + from[at + 1] + from[at - n] + from[at + n]);
}
extern "C" __global__ void graph_search(const int* edges, int* distance, int* changed, int level,
                                        int n) {
    int node = blockIdx.x * blockDim.x + threadIdx.x;
    if (node >= n || distance[node] != level) return;
    for (int k = 0; k < 4; k++) {
        int next = edges[4 * node + k];
        if (distance[next] < 0) {
            distance[next] = level + 1;  // all that write here write the same
            *changed = 1;
        }
    }
}
extern "C" __global__ void convolution(const float* image, const float* weights, float* out,
                                       int n, int inputs, int outputs) {
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y, half = n / 2;
    int channel = blockIdx.z;
    if (x >= half || y >= half) return;
    float sum = 0;
    for (int c = 0; c < inputs; c++)
        for (int j = 0; j < 3; j++)
            for (int i = 0; i < 3; i++) {
                int column = 2 * x + i - 1, row = 2 * y + j - 1;
                if (column >= 0 && row >= 0 && column < n && row < n)
                    sum += image[(c * n + row) * n + column] * weights[((channel * inputs + c) * 3 + j) * 3 + i];
            }
    out[(channel * half + y) * half + x] = fmaxf(sum, 0.0f);
}
"""  # noqa: E501

Runner = Callable[..., None]
"""Submits a kernel and waits: (kernel's name, grid, block, arguments)."""


@dataclass(frozen=True, slots=True)
class OwnKernel:
    """A kernel of ours.

    Attributes:
        memory_bytes: of its arrays, for a size.
        threads: of a block.
        multiple: what a size is a multiple of.
        run: (arrays' maker, runner, size, rng) computes, compares, and returns what is wrong.
    """

    memory_bytes: Callable[[int], int]
    threads: int
    multiple: int
    run: Callable[[Any, Runner, int, np.random.Generator], str]


def _differs(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> str:
    wrong = ~np.isclose(found, expected, rtol=2e-3, atol=1e-3)
    return f"{int(wrong.sum())} of {wrong.size} values are wrong" if wrong.any() else ""


def _matrix_product(make: Any, run: Runner, n: int, rng: np.random.Generator) -> str:
    a, b = (rng.random((n, n), np.float32) for _ in range(2))
    c = make(np.zeros((n, n), np.float32))
    run("matrix_product", (n // 16, n // 16), (16, 16), (make(a), make(b), c, np.int32(n)))
    return _differs(c.get(), a @ b)


_STEPS = 8


def _stencil(make: Any, run: Runner, n: int, rng: np.random.Generator) -> str:
    expected = rng.random((n, n), np.float32)
    old, new = make(expected), make(expected)
    for _ in range(_STEPS):
        run("stencil", (n // 16, n // 16), (16, 16), (old, new, np.int32(n)))
        old, new = new, old
        expected = expected.copy()
        around = expected[:-2, 1:-1] + expected[2:, 1:-1] + expected[1:-1, :-2]
        around += expected[1:-1, 2:] + expected[1:-1, 1:-1]
        expected[1:-1, 1:-1] = np.float32(0.2) * around
    return _differs(old.get(), expected)


def _graph_search(make: Any, run: Runner, n: int, rng: np.random.Generator) -> str:
    edges = rng.integers(0, n, (n, 4)).astype(np.int32)
    edges[:, 0] = (np.arange(n) + 1) % n  # every node can be reached
    start = np.full(n, -1, np.int32)
    start[0] = 0
    distance, changed, graph = make(start), make(np.zeros(1, np.int32)), make(edges)
    for level in range(n):
        changed.set(np.zeros(1, np.int32))
        arguments = (graph, distance, changed, np.int32(level), np.int32(n))
        run("graph_search", -(-n // 256), 256, arguments)
        if not changed.get()[0]:
            break
    expected, level = start, 0
    frontier: npt.NDArray[Any] = np.zeros(1, np.int64)
    while frontier.size:
        level += 1
        reached = np.unique(edges[frontier])
        frontier = reached[expected[reached] < 0]
        expected[frontier] = level
    return _differs(distance.get(), expected)


_CHANNELS = (3, 8, 16, 8)


def _detector(make: Any, run: Runner, n: int, rng: np.random.Generator) -> str:
    values = rng.random((_CHANNELS[0], n, n), np.float32)
    image, side = make(values), n
    for inputs, outputs in pairwise(_CHANNELS):
        scale = np.float32(1 / (9 * inputs))
        weights = (rng.standard_normal((outputs, inputs, 3, 3)) * scale).astype(np.float32)
        half = side // 2
        out = make(np.zeros((outputs, half, half), np.float32))
        sizes = tuple(np.int32(one) for one in (side, inputs, outputs))
        blocks = -(-half // 16)
        run("convolution", (blocks, blocks, outputs), (16, 16), (image, make(weights), out, *sizes))
        padded = np.pad(values, ((0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
        values = np.einsum("cyxji,ocji->oyx", windows[:, : 2 * half : 2, : 2 * half : 2], weights)
        values = np.maximum(values, 0)
        image, side = out, half
    return _differs(image.get(), values)


def _detector_bytes(n: int) -> int:
    layers = sum(channels * (n >> depth) ** 2 for depth, channels in enumerate(_CHANNELS))
    return 4 * layers + 4 * 9 * sum(a * b for a, b in pairwise(_CHANNELS))


KERNELS: Final[dict[str, OwnKernel]] = {
    "matrix_product": OwnKernel(lambda n: 12 * n * n, 256, 16, _matrix_product),
    "stencil": OwnKernel(lambda n: 8 * n * n, 256, 16, _stencil),
    "graph_search": OwnKernel(lambda n: 20 * n + 4, 256, 1, _graph_search),
    "detector": OwnKernel(_detector_bytes, 256, 16, _detector),
}
