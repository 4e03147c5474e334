"""Simulations, transforms and statistics: floating-point work with the functions of CUDA's math
library, which arrive as long stretches of PTX with slow paths and tables.

References are in double precision; the tolerances follow CUDA C++ Programming Guide 13.0,
section "Mathematical Functions Appendix" (maximum ulp error of the single-precision functions),
plus the rounding of the sums around them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .case import Args, Rng, Within
from .cases import Cases

CASES = Cases()


# -- Black-Scholes option prices ---------------------------------------------------------------

BLACK_SCHOLES = r"""
__device__ double phi(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
extern "C" __global__ void black_scholes(const double* spot, const double* strike,
                                         const double* years, double rate, double volatility,
                                         double* call, double* put, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double s = spot[i], k = strike[i], t = years[i], spread = volatility * sqrt(t);
    double d1 = (log(s / k) + (rate + 0.5 * volatility * volatility) * t) / spread;
    double d2 = d1 - spread, discount = k * exp(-rate * t);
    call[i] = s * phi(d1) - discount * phi(d2);
    put[i] = discount * phi(-d2) - s * phi(-d1);
}
"""


def _black_scholes_make(rng: Rng) -> Args:
    n = 900
    spot, strike = rng.uniform(5, 30, n), rng.uniform(1, 100, n)
    years = rng.uniform(0.25, 10, n)
    zero = np.zeros(n)
    return [spot, strike, years, np.float64(0.02), np.float64(0.3), zero, zero.copy(), np.int32(n)]


@CASES.cuda("black_scholes", BLACK_SCHOLES, 10, 96, _black_scholes_make, "math.f64", long=True)
def _black_scholes_expect(args: Args) -> dict[int | str, Any]:
    def price(s: float, k: float, t: float) -> tuple[float, float]:
        def phi(x: float) -> float:
            return 0.5 * math.erfc(-x / math.sqrt(2))

        spread = volatility * math.sqrt(t)
        d1 = (math.log(s / k) + (rate + volatility**2 / 2) * t) / spread
        d2, discount = d1 - spread, k * math.exp(-rate * t)
        return s * phi(d1) - discount * phi(d2), discount * phi(-d2) - s * phi(-d1)

    rate, volatility = float(args[3]), float(args[4])
    prices = np.array([price(*row) for row in zip(*args[:3], strict=True)])
    return {5: Within(prices[:, 0], atol=1e-12), 6: Within(prices[:, 1], atol=1e-12)}


# -- FFT of 128 points in shared memory --------------------------------------------------------

FFT = r"""
extern "C" __global__ void fft(const float2* in, float2* out, unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ float2 s[128];
    int t = threadIdx.x;
    in += blockIdx.x * 128;
    out += blockIdx.x * 128;
    s[__brev(t) >> 25] = in[t];
    s[__brev(t + 64) >> 25] = in[t + 64];
    for (int half = 1; half < 128; half *= 2) {
        __syncthreads();
        int k = t & (half - 1), low = 2 * t - k;
        float c, d;
        sincospif(-(float)k / half, &d, &c);
        float2 a = s[low], b = s[low + half];
        float2 w = make_float2(b.x * c - b.y * d, b.x * d + b.y * c);
        s[low] = make_float2(a.x + w.x, a.y + w.y);
        s[low + half] = make_float2(a.x - w.x, a.y - w.y);
    }
    __syncthreads();
    out[t] = s[t];
    out[t + 64] = s[t + 64];
}
"""


def _fft_make(rng: Rng) -> Args:
    signal = (rng.standard_normal((14, 256)).astype(np.float32)).view(np.complex64)
    return [signal.view(np.float32), np.zeros((14, 256), np.float32)]


@CASES.cuda("fft", FFT, 14, 64, _fft_make, "math.f32 brev")
def _fft_expect(args: Args) -> dict[int | str, Any]:
    spectrum = np.fft.fft(args[0].view(np.complex64).astype(np.complex128), axis=1)
    return {1: Within(spectrum.astype(np.complex64).view(np.float32), atol=2e-5)}


# -- softmax and layer normalisation, one block a row ------------------------------------------

SOFTMAX = r"""
extern "C" __global__ void softmax(const float* in, float* out, int columns, unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ float part[32];
    const float* row = in + blockIdx.x * columns;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    float most = -__int_as_float(0x7f800000);
    for (int i = threadIdx.x; i < columns; i += blockDim.x) most = fmaxf(most, row[i]);
    for (int s = 16; s; s >>= 1) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, s));
    if (lane == 0) part[warp] = most;
    __syncthreads();
    for (int w = 0; w < warps; ++w) most = fmaxf(most, part[w]);
    __syncthreads();
    float sum = 0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += expf(row[i] - most);
    for (int s = 16; s; s >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, s);
    if (lane == 0) part[warp] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < warps; ++w) sum += part[w];
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        out[blockIdx.x * columns + i] = expf(row[i] - most) / sum;
}
"""


def _softmax_make(rng: Rng) -> Args:
    values = (4 * rng.standard_normal((17, 301))).astype(np.float32)
    return [values, np.zeros_like(values), np.int32(301)]


@CASES.cuda("softmax", SOFTMAX, 17, 96, _softmax_make, "math.f32 shfl.sync bar.sync", long=True)
def _softmax_expect(args: Args) -> dict[int | str, Any]:
    x = args[0].astype(np.float64)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return {1: Within((e / e.sum(axis=1, keepdims=True)).astype(np.float32), rtol=1e-5)}
