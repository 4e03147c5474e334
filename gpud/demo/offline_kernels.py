"""The demo's offline kernels: CUDA C++ sources, their arguments, and checks of their results.

Three typical batch kernels: a Monte Carlo option pricer, a tiled matrix product and an n-body step.
Each has a number of *rounds* that determines only how long a task block takes. Each adds 1 to
``runs[task block]`` once in every task block, so that a lost or repeated task block shows in the
kernel's own output. All are deterministic: two jobs with equal arguments write equal bytes,
whatever their share was while they ran.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["OFFLINE", "Array", "OfflineKernel", "Problem", "differences", "runs_wrong"]

Array = npt.NDArray[Any]
Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Problem:
    """The launch parameters of one job, with the check of its result.

    Attributes:
        arguments: in the kernel's order; arrays are copied to the device, the last one counts the
            runs of each task block.
        output: index of the argument that holds the result.
        wrong: returns what is wrong with a result, by NumPy or a closed form; empty if correct.
    """

    grid: Dim3
    arguments: tuple[Array | np.generic, ...]
    output: int
    wrong: Callable[[Array], str]

    @property
    def total(self) -> int:
        """The number of task blocks of the grid."""
        return math.prod(self.grid)


@dataclass(frozen=True)
class OfflineKernel:
    """A kernel, with a generator of its problems.

    Attributes:
        name: the kernel's name in ``source``.
        what: what it computes, human-readable.
        block: threads of a block in x, y, z.
        make: returns a problem for (task blocks, rounds), with that many task blocks or a few more.
        least_rounds: minimum number of rounds.
        take_turns: the blocks of one SM take turns within a task block, at its barriers, so that a
            task block takes M times its SM time.
    """

    name: str
    what: str
    source: str
    block: Dim3
    make: Callable[[int, int], Problem]
    least_rounds: int = 1
    take_turns: bool = False


def runs_wrong(runs: Array, jobs: int) -> str:
    """Return what is wrong with the task blocks' counts after ``jobs`` jobs; empty if nothing."""
    missed, doubled = int((runs < jobs).sum()), int((runs > jobs).sum())
    if missed or doubled:
        return f"{missed} task blocks ran too seldom, {doubled} too often"
    return ""


def differences(result: Array, expected: Array, rtol: float, atol: float = 0.0) -> str:
    """Return how many elements differ by more than the tolerances; empty if none does."""
    # Negated, so that NaN counts as different.
    close = np.abs(result - expected) <= atol + rtol * np.abs(expected)
    if close.all():
        return ""
    first = tuple(int(index) for index in np.argwhere(~close)[0])
    return (
        f"{int((~close).sum())} of {close.size} results are wrong, the first at {first}: "
        f"{result[first]} instead of {expected[first]}"
    )


# -- Monte Carlo: every task block prices one option ---------------------------------------------

_SPOT, _RATE, _VOLATILITY, _YEARS = 100.0, 0.03, 0.25, 1.0

_PRICER = r"""
__device__ unsigned draw(unsigned& state) {
    state ^= state << 13; state ^= state >> 17; state ^= state << 5;
    return state;
}
__device__ float total(float value, float* parts) {          // of the block, right in thread 0
    for (int step = 16; step; step /= 2) value += __shfl_down_sync(~0u, value, step);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int warp = 1; warp < blockDim.x / 32; warp++) value += parts[warp];
    return value;
}
extern "C" __global__ void pricer(const float* strikes, float2* prices, int rounds, float spot,
                                  float drift, float spread, float discount, unsigned* runs) {
    __shared__ float parts[2][32];
    unsigned state = (blockIdx.x * blockDim.x + threadIdx.x + 1) * 2654435761u;
    state = (state ^ state >> 15) * 2246822519u;
    state = (state ^ state >> 13) | 1u;
    float strike = strikes[blockIdx.x], sum = 0, squares = 0;
    for (int path = 0; path < 4 * rounds; path++) {
        float u = ((draw(state) >> 8) + 0.5f) * (1.0f / 16777216);
        float v = (draw(state) >> 8) * (1.0f / 16777216);
        float normal = sqrtf(-2.0f * logf(u)) * cosf(6.2831853f * v);
        float payoff = discount * fmaxf(spot * expf(drift + spread * normal) - strike, 0.0f);
        sum += payoff;
        squares += payoff * payoff;
    }
    sum = total(sum, parts[0]);
    squares = total(squares, parts[1]);
    if (threadIdx.x == 0) {
        float n = 4.0f * rounds * blockDim.x, mean = sum / n;
        prices[blockIdx.x] = make_float2(mean, sqrtf(fmaxf(squares / n - mean * mean, 0.0f) / n));
        atomicAdd(&runs[blockIdx.x], 1u);
    }
}"""


def black_scholes(strikes: Array) -> Array:
    """Return the prices of European calls at ``strikes``, in closed form, float64."""
    spread = _VOLATILITY * math.sqrt(_YEARS)
    discount = math.exp(-_RATE * _YEARS)
    upper = (np.log(_SPOT / strikes) + (_RATE + _VOLATILITY**2 / 2) * _YEARS) / spread
    return np.asarray(_SPOT * _normal(upper) - strikes * discount * _normal(upper - spread))


def _normal(x: Array) -> Array:
    return np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in x])


def _pricer(task_blocks: int, rounds: int) -> Problem:
    """Make a problem of European calls, one strike for each task block."""
    strikes = np.linspace(70, 130, task_blocks, dtype=np.float32)
    exact = black_scholes(strikes.astype(np.float64))
    drift = (_RATE - _VOLATILITY**2 / 2) * _YEARS
    spread = _VOLATILITY * math.sqrt(_YEARS)
    discount = math.exp(-_RATE * _YEARS)

    def wrong(prices: Array) -> str:
        price, error = prices.astype(np.float64).T
        far = ~((np.abs(price - exact) <= 6 * error + 1e-3) & (error > 0))
        if not far.any():
            return ""
        first = int(np.flatnonzero(far)[0])
        return (
            f"{int(far.sum())} of {task_blocks} prices are over 6 standard errors from the closed "
            f"form, the first for strike {strikes[first]}: {price[first]} and not {exact[first]:.6}"
        )

    numbers = (_SPOT, drift, spread, discount)
    return Problem(
        (task_blocks, 1, 1),
        (
            *(strikes, np.zeros((task_blocks, 2), np.float32), np.int32(rounds)),
            *(np.float32(number) for number in numbers),
            np.zeros(task_blocks, np.uint32),
        ),
        output=1,
        wrong=wrong,
    )


# -- matrix product in tiles: two barriers for every tile ----------------------------------------

_TILE, _DEPTH = 32, 64

_MATMUL = r"""
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int depth, int rounds,
                                  unsigned* runs) {
    __shared__ float left[32][32], right[32][32];
    int x = threadIdx.x, y = threadIdx.y, width = gridDim.x * 32;
    int row = blockIdx.y * 32 + y, column = blockIdx.x * 32 + x;
    float sum = 0;
    for (int round = 0; round < rounds; round++)
        for (int k = 0; k < depth; k += 32) {
            left[y][x] = a[row * depth + k + x];
            right[y][x] = b[(k + y) * width + column];
            __syncthreads();
            for (int i = 0; i < 32; i++) sum += left[y][i] * right[i][x];
            __syncthreads();
        }
    c[row * width + column] = sum;
    if (x == 0 && y == 0) atomicAdd(&runs[blockIdx.y * gridDim.x + blockIdx.x], 1u);
}"""


def _matmul(task_blocks: int, rounds: int) -> Problem:
    """Make a problem of ``rounds`` times A B; with small integers, sums are exact in any order."""
    across = max(1, math.isqrt(task_blocks))
    down = -(-task_blocks // across)
    rng = np.random.default_rng(1)
    a = rng.integers(-2, 3, (down * _TILE, _DEPTH)).astype(np.float32)
    b = rng.integers(-2, 3, (_DEPTH, across * _TILE)).astype(np.float32)
    exact = (a.astype(np.float64) @ b) * rounds
    if float(np.abs(a).sum(axis=1).max()) * 2 * rounds >= 1 << 24:
        raise ValueError(f"{rounds} rounds could leave whole numbers that float32 cannot hold")
    return Problem(
        (across, down, 1),
        (
            *(a, b, np.zeros(exact.shape, np.float32), np.int32(_DEPTH), np.int32(rounds)),
            np.zeros(across * down, np.uint32),
        ),
        output=2,
        wrong=lambda c: differences(c, exact, rtol=0),
    )


# -- n-body: a step of light bodies in the field of heavy ones -----------------------------------

_BODIES_PER_BLOCK, _SOURCES_PER_ROUND = 256, 64
_SOFTENING, _STEP = 0.05, 0.01

_NBODY = r"""
extern "C" __global__ void nbody(const float4* __restrict__ heavy, const float4* place,
                                 const float4* speed, float4* moved, int rounds,
                                 float softening, float step, unsigned* runs) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 me = place[i], v = speed[i];
    float fx = 0, fy = 0, fz = 0;
    for (int j = 0; j < 64 * rounds; j++) {
        float4 other = heavy[j];
        float dx = other.x - me.x, dy = other.y - me.y, dz = other.z - me.z;
        float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + softening);
        float scale = other.w * inverse * inverse * inverse;
        fx += dx * scale; fy += dy * scale; fz += dz * scale;
    }
    v.x += step * fx; v.y += step * fy; v.z += step * fz;
    moved[i] = make_float4(me.x + step * v.x, me.y + step * v.y, me.z + step * v.z, me.w);
    __syncthreads();                                   // a task block counts when all have moved
    if (threadIdx.x == 0) atomicAdd(&runs[blockIdx.x], 1u);
}"""


def _nbody(task_blocks: int, rounds: int) -> Problem:
    """Make a problem of one step of 256 light bodies per task block, 64 heavy ones per round."""
    rng = np.random.default_rng(3)
    light, heavy = task_blocks * _BODIES_PER_BLOCK, rounds * _SOURCES_PER_ROUND
    sources, place, speed = (rng.standard_normal((n, 4), np.float32) for n in (heavy, light, light))
    sources[:, 3] = np.abs(sources[:, 3]) / heavy
    some = slice(None, None, max(1, light // 256))
    moved = _step(sources, place[some], speed[some])
    return Problem(
        (task_blocks, 1, 1),
        (
            *(sources, place, speed, np.zeros_like(place), np.int32(rounds)),
            *(np.float32(_SOFTENING), np.float32(_STEP)),
            np.zeros(task_blocks, np.uint32),
        ),
        output=3,
        wrong=lambda found: differences(found[some], moved, rtol=1e-4, atol=1e-4),
    )


def _step(sources: Array, place: Array, speed: Array) -> Array:
    moved = place.astype(np.float64)
    for body, (at, velocity) in enumerate(zip(place, speed, strict=True)):
        away = sources[:, :3].astype(np.float64) - at[:3]
        scale = sources[:, 3] * ((away**2).sum(axis=1) + _SOFTENING) ** -1.5
        moved[body, :3] += _STEP * (velocity[:3] + _STEP * (away * scale[:, None]).sum(axis=0))
    return moved


OFFLINE: tuple[OfflineKernel, ...] = (
    OfflineKernel("pricer", "Monte Carlo option prices", _PRICER, (128, 1, 1), _pricer, 8),
    OfflineKernel(
        *("matmul", "matrix product in 32 x 32 tiles", _MATMUL, (32, 32, 1), _matmul),
        take_turns=True,
    ),
    OfflineKernel("nbody", "n-body step", _NBODY, (_BODIES_PER_BLOCK, 1, 1), _nbody),
)
"""The kernels that keep the device full, with one job of each at any time."""
