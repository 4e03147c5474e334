"""The kernels of the demo: CUDA C++ sources, their arguments, and what NumPy says of the result.

Each kernel adds 1 to ``runs[task block]`` once in every task block, so that a task block that was
lost or run twice shows in what the kernel itself wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Example", "examples"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Example:
    """A kernel with one problem for it.

    Attributes:
        name: the kernel's name in ``source``.
        what: what it computes, for people.
        source: CUDA C++.
        grid: task blocks in x, y, z.
        block: threads of a block in x, y, z.
        arguments: in the kernel's order; arrays are copied to the device, the last one counts the
            runs of each task block.
        output: position of the array that holds the result.
        expected: that array as NumPy computes it.
        tolerance: largest relative difference allowed; 0 means identical.
    """

    name: str
    what: str
    source: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Array | np.generic, ...]
    output: int
    expected: Array
    tolerance: float = 0.0

    @property
    def total(self) -> int:
        """Task blocks of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]


def examples(*, small: bool = False) -> tuple[Example, ...]:
    """The demo's examples: about a second each on two cores, or ``small``: milliseconds."""
    if small:
        return (_matmul(256), _pricer(200), _scan(200))
    return (_matmul(2304), _pricer(12288), _scan(12288))


# -- matrix product in tiles: two barriers for every tile ----------------------------------------

_MATMUL = r"""
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n,
                                  unsigned* runs) {
    __shared__ float left[16][16], right[16][16];
    int x = threadIdx.x, y = threadIdx.y;
    int row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
    float sum = 0;
    for (int k = 0; k < n; k += 16) {
        left[y][x] = a[row * n + k + x];
        right[y][x] = b[(k + y) * n + column];
        __syncthreads();
        for (int i = 0; i < 16; i++) sum += left[y][i] * right[i][x];
        __syncthreads();
    }
    c[row * n + column] = sum;
    if (x == 0 && y == 0) atomicAdd(&runs[blockIdx.y * gridDim.x + blockIdx.x], 1u);
}"""


def _matmul(n: int) -> Example:
    """``n`` by ``n`` float32; small whole numbers, so that every order of summing is exact."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, (n, n)).astype(np.float32) for _ in range(2))
    tiles = n // 16
    return Example(
        "matmul",
        f"product of two {n} x {n} matrices in 16 x 16 tiles",
        _MATMUL,
        (tiles, tiles, 1),
        (16, 16, 1),
        (a, b, np.zeros_like(a), np.int32(n), np.zeros(tiles * tiles, np.uint32)),
        output=2,
        expected=a @ b,
    )


# -- Monte Carlo: every task block prices one option ---------------------------------------------

_PATHS = 64  # of one thread
_THREADS = 128
_SPOT, _RATE, _VOLATILITY, _YEARS = 100.0, 0.03, 0.25, 1.0

_PRICER = r"""
__device__ unsigned draw(unsigned& state) {
    state ^= state << 13; state ^= state >> 17; state ^= state << 5;
    return state;
}
extern "C" __global__ void pricer(const float* strikes, float* prices, int paths, float spot,
                                  float drift, float spread, float discount, unsigned* runs) {
    __shared__ float parts[32];
    unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned state = thread * 2654435761u + 1u;
    float strike = strikes[blockIdx.x], sum = 0;
    for (int path = 0; path < paths; path++) {
        float u = ((draw(state) >> 8) + 0.5f) * (1.0f / 16777216);
        float v = (draw(state) >> 8) * (1.0f / 16777216);
        float normal = sqrtf(-2.0f * logf(u)) * cosf(6.2831853f * v);
        sum += fmaxf(spot * expf(drift + spread * normal) - strike, 0.0f);
    }
    for (int step = 16; step; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int warp = 1; warp < blockDim.x / 32; warp++) sum += parts[warp];
        prices[blockIdx.x] = discount * sum / (paths * blockDim.x);
        atomicAdd(&runs[blockIdx.x], 1u);
    }
}"""


def _pricer(options: int) -> Example:
    """European calls at ``options`` strikes, 8,192 paths each."""
    strikes = np.linspace(60, 140, options, dtype=np.float32)
    drift = (_RATE - _VOLATILITY**2 / 2) * _YEARS
    spread = _VOLATILITY * _YEARS**0.5
    discount = float(np.exp(-_RATE * _YEARS))
    state = np.arange(options * _THREADS, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(1)
    payoff = np.zeros(state.shape, np.float32)
    strike = np.repeat(strikes, _THREADS)

    def draw() -> npt.NDArray[np.float32]:
        for shift, left in ((13, True), (17, False), (5, True)):
            state[:] ^= state << np.uint32(shift) if left else state >> np.uint32(shift)
        return (state >> np.uint32(8)).astype(np.float32)

    for _ in range(_PATHS):
        u, v = (draw() + np.float32(0.5)) / np.float32(1 << 24), draw() / np.float32(1 << 24)
        normal = np.sqrt(np.float32(-2) * np.log(u)) * np.cos(np.float32(6.2831853) * v)
        end = np.float32(_SPOT) * np.exp(np.float32(drift) + np.float32(spread) * normal)
        payoff += np.maximum(end - strike, np.float32(0))
    sums = payoff.astype(np.float64).reshape(options, _THREADS).sum(axis=1)
    return Example(
        "pricer",
        f"{options} options by Monte Carlo, {_PATHS * _THREADS} paths each",
        _PRICER,
        (options, 1, 1),
        (_THREADS, 1, 1),
        (
            *(strikes, np.zeros(options, np.float32), np.int32(_PATHS), np.float32(_SPOT)),
            *(np.float32(drift), np.float32(spread), np.float32(discount)),
            np.zeros(options, np.uint32),
        ),
        output=1,
        expected=(discount * sums / (_PATHS * _THREADS)).astype(np.float32),
        tolerance=1e-4,
    )


# -- running sum in one pass: every task block waits for those before it -------------------------

_ROUNDS = 128
_PER_BLOCK = 1024

_SCAN = r"""
extern "C" __global__ void scan(const unsigned* in, unsigned* out, volatile unsigned* sums,
                                volatile unsigned* ready, int rounds, unsigned* runs) {
    __shared__ unsigned warps[32], before;
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned step = in[i];
    for (int r = 0; r < rounds; r++) step = step * 1664525u + 1013904223u;
    unsigned sum = step;
    for (int d = 1; d < 32; d *= 2) {
        unsigned other = __shfl_up_sync(~0u, sum, d);
        if (lane >= d) sum += other;
    }
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned own = 0;
        for (int w = 0; w < blockDim.x / 32; w++) {
            unsigned one = warps[w];
            warps[w] = own;
            own += one;
        }
        unsigned earlier = 0;
        if (blockIdx.x > 0) {
            while (!ready[blockIdx.x - 1]) { }
            __threadfence();
            earlier = sums[blockIdx.x - 1];
        }
        sums[blockIdx.x] = earlier + own;
        __threadfence();
        ready[blockIdx.x] = 1;
        before = earlier;
        atomicAdd(&runs[blockIdx.x], 1u);
    }
    __syncthreads();
    out[i] = before + warps[warp] + sum;
}"""


def _scan(blocks: int) -> Example:
    """Sums modulo 2**32 of ``blocks`` times 1,024 pseudo-random numbers."""
    n = blocks * _PER_BLOCK
    values = np.random.default_rng(2).integers(0, 2**32, n, dtype=np.uint32)
    steps = values.copy()
    for _ in range(_ROUNDS):
        steps *= np.uint32(1664525)
        steps += np.uint32(1013904223)
    return Example(
        "scan",
        f"running sum of {n} numbers in one pass; each task block waits for the one before it",
        _SCAN,
        (blocks, 1, 1),
        (_PER_BLOCK, 1, 1),
        (
            *(values, np.zeros(n, np.uint32), np.zeros(blocks, np.uint32)),
            *(np.zeros(blocks, np.uint32), np.int32(_ROUNDS), np.zeros(blocks, np.uint32)),
        ),
        output=1,
        expected=np.cumsum(steps, dtype=np.uint32),
    )
