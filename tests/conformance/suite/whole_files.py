"""Files as programs have them: host functions, launches and ``main`` around the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Args, Rng
from .cases import Cases

CASES = Cases()


HISTOGRAM = r"""
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <vector>
#include <cuda.h>
#define BINS 32
#define CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { \
    fprintf(stderr, "%s}\n", cudaGetErrorString(e)); exit(1); } } while (0)
static const char *title = "histogram {";
std::vector<unsigned> reference;
typedef struct { int low, high; } Range;
constexpr int bin_of(int value, int low) { return (value - low) % BINS; }
struct Clock {
    double start;
    Clock() : start(now()) {}
    double now() const;
};
template <class T> void fill(std::vector<T>& all) { for (auto& one : all) one = rand() % 1000; }
extern "C" __global__ void histogram(const int* values, unsigned* bins, int n, Range range,
                                     unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ unsigned mine[BINS];
    for (uint b = threadIdx.x; b < BINS; b += blockDim.x) mine[b] = 0;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && values[i] >= range.low && values[i] < range.high)
        atomicAdd(&mine[bin_of(values[i], range.low)], 1u);
    __syncthreads();
    for (uint b = threadIdx.x; b < BINS; b += blockDim.x) atomicAdd(&bins[b], mine[b]);
}
int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 1 << 20, *values;
    unsigned *bins;
    std::vector<int> host(n);
    fill(host);
    CHECK(cudaMalloc(&values, n * sizeof(int)));
    CHECK(cudaMalloc(&bins, BINS * sizeof(unsigned)));
    CHECK(cudaMemcpy(values, host.data(), n * sizeof(int), cudaMemcpyHostToDevice));
    Range range = {100, 900};
    histogram<<<(n + 127) / 128, 128>>>(values, bins, n, range, nullptr);
    std::cout << title << std::endl;
    return 0;
}
"""


def _make(rng: Rng) -> Args:
    n = 1500
    values = rng.integers(0, 1000, n).astype(np.int32)
    limits = np.array([100, 900], np.int32).tobytes()
    return [values, np.zeros(32, np.uint32), np.int32(n), limits]


@CASES.cuda("histogram_file", HISTOGRAM, 12, 128, _make, "host-code", kernel="histogram")
def _expect(args: Args) -> dict[int | str, Any]:
    values = args[0]
    inside = values[(values >= 100) & (values < 900)]
    return {1: np.bincount((inside - 100) % 32, minlength=32).astype(np.uint32)}
