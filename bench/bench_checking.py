"""What the checking mode costs: kernels of ordinary size with it and without it.

    python bench/bench_checking.py [--rounds N]

Each kernel runs as a job on the CPU device of two private daemons, one that checks and one that
does not, in turns. Compared are the jobs' own run times (``job.stats``), and the times to compile a
kernel and to translate it for its block shape, which are measured once.

Prints the ratios of the medians.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "client"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import gpud_client as gc

N = 1 << 20
SIDE = 256
SAXPY = r"""
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}"""
TILED = r"""
extern "C" __global__ void tiled(const float* a, const float* b, float* c, int n) {
    __shared__ float x[16][16], y[16][16];
    int tx = threadIdx.x, ty = threadIdx.y;
    int row = blockIdx.y * 16 + ty, column = blockIdx.x * 16 + tx;
    float sum = 0;
    for (int k = 0; k < n; k += 16) {
        x[ty][tx] = a[row * n + k + tx];
        y[ty][tx] = b[(k + ty) * n + column];
        __syncthreads();
        for (int i = 0; i < 16; i++) sum += x[ty][i] * y[i][tx];
        __syncthreads();
    }
    c[row * n + column] = sum;
}"""
SUMS = r"""
extern "C" __global__ void sums(const float* x, float* y) {
    __shared__ float s[256];
    int t = threadIdx.x;
    s[t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    for (int k = 128; k; k /= 2) {
        if (t < k) s[t] += s[t + k];
        __syncthreads();
    }
    if (!t) y[blockIdx.x] = s[0];
}"""
COUNTS = r"""
extern "C" __global__ void counts(const unsigned char* x, int* y, int n) {
    __shared__ int h[256];
    h[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256)
        atomicAdd(&h[x[i]], 1);
    __syncthreads();
    atomicAdd(&y[threadIdx.x], h[threadIdx.x]);
}"""
ITERATED = r"""
extern "C" __global__ void iterated(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = x[i];
    for (int k = 0; k < n; k++) v = v * 0.999f + 0.001f;
    x[i] = v;
}"""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5, help="jobs of each kernel and side")
    rounds = parser.parse_args().rounds
    with gc.local("cpu:1") as plain, gc.local("cpu:1", check=True) as checking:
        print(f"{'kernel':<12}{'run time':>10}{'ready after':>14}   checked / not")
        both = [_kernels(gpu) for gpu in (plain, checking)]
        for name in both[0]:
            times: tuple[list[float], list[float]] = [], []
            for _ in range(rounds):
                for side, kernels in enumerate(both):
                    times[side].append(_run(*kernels[name][1:]))
            ran = statistics.median(times[1]) / statistics.median(times[0])
            ready = both[1][name][0] / both[0][name][0]
            print(f"{name:<12}{ran:>10.1f}{ready:>14.1f}", flush=True)
    return 0


def _kernels(gpu: gc.Session) -> dict[str, tuple[float, Any, Any, Any, Any]]:
    """Return for each kernel the seconds until it was ready, itself, grid, block and arguments."""
    rng = np.random.default_rng(0)
    x, y = (gpu.array(rng.random(N, np.float32)) for _ in range(2))
    a, b, c = (gpu.array(rng.random((SIDE, SIDE), np.float32)) for _ in range(3))
    letters = gpu.array(rng.integers(0, 256, N, dtype=np.uint8))
    found = gpu.zeros(256, np.int32)
    tiles = (SIDE // 16, SIDE // 16)
    wanted: dict[str, tuple[str, Any, Any, tuple[Any, ...]]] = {
        "saxpy": (SAXPY, N // 256, 256, (np.float32(2), x, y, N)),
        "tiled": (TILED, tiles, (16, 16), (a, b, c, SIDE)),
        "sums": (SUMS, N // 256, 256, (x, y)),
        "counts": (COUNTS, 64, 256, (letters, found, N)),
        "iterated": (ITERATED, 64, 256, (y, 10000)),
    }
    made = {}
    for name, (source, grid, block, arguments) in wanted.items():
        began = time.perf_counter()
        kernel = gpu.kernel(source, name, options=("-DBENCH",))
        kernel.submit(grid, block, arguments).result(timeout=300)
        made[name] = (time.perf_counter() - began, kernel, grid, block, arguments)
    return made


def _run(kernel: Any, grid: Any, block: Any, arguments: Any) -> float:
    job = kernel.submit(grid, block, arguments)
    job.result(timeout=300)
    return float(job.stats["run_s"])


if __name__ == "__main__":
    raise SystemExit(main())
