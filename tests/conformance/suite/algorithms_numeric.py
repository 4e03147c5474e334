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

from .case import Within
from .cases import Cases

CASES = Cases()

Args = list[Any]
Rng = np.random.Generator


# -- n-body: accelerations with tiles of bodies in shared memory -------------------------------

NBODY = r"""
extern "C" __global__ void nbody(const float4* body, float3* acceleration, int n,
                                 unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ float4 tile[56];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 me = i < n ? body[i] : make_float4(0, 0, 0, 0);
    float ax = 0, ay = 0, az = 0;
    for (int t = 0; t < n; t += 56) {
        tile[threadIdx.x] = t + threadIdx.x < n ? body[t + threadIdx.x] : make_float4(0, 0, 0, 0);
        __syncthreads();
        for (int j = 0; j < 56; ++j) {
            float dx = tile[j].x - me.x, dy = tile[j].y - me.y, dz = tile[j].z - me.z;
            float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + 0.01f);
            float s = tile[j].w * inverse * inverse * inverse;
            ax += s * dx;
            ay += s * dy;
            az += s * dz;
        }
        __syncthreads();
    }
    if (i < n) acceleration[i] = make_float3(ax, ay, az);
}
"""


def _nbody_make(rng: Rng) -> Args:
    n = 250
    body = rng.standard_normal((n, 4)).astype(np.float32)
    body[:, 3] = rng.random(n).astype(np.float32)
    return [body, np.zeros((n, 3), np.float32), np.int32(n)]


@CASES.cuda("nbody", NBODY, 5, 56, _nbody_make, "rsqrt.approx block.partial-warp bar.sync")
def _nbody_expect(args: Args) -> dict[int | str, Any]:
    body = args[0].astype(np.float64)
    delta = body[None, :, :3] - body[:, None, :3]
    scale = body[None, :, 3] * ((delta**2).sum(axis=2) + 0.01) ** -1.5
    terms = scale[:, :, None] * delta
    # A few ulp for each of the 250 terms, relative to the sum of their magnitudes.
    atol = 250 * 2.0**-23 * np.abs(terms).sum(axis=1).max()
    return {1: Within(terms.sum(axis=1).astype(np.float32), atol=float(atol))}


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


@CASES.cuda("black_scholes", BLACK_SCHOLES, 10, 96, _black_scholes_make, "math.f64")
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


# -- Monte Carlo price of an option, one path a thread and step --------------------------------

MONTE_CARLO = r"""
__device__ unsigned mix(unsigned x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}
extern "C" __global__ void monte_carlo(float s0, float strike, float drift, float spread,
                                       int paths, float* mean, unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ float sums[4];
    float sum = 0;
    for (int p = threadIdx.x; p < paths; p += blockDim.x) {
        unsigned seed = blockIdx.x * paths + p;
        float u = (mix(2 * seed) + 0.5f) * 0x1p-32f, v = mix(2 * seed + 1) * 0x1p-32f;
        float z = sqrtf(-2.f * logf(u)) * cosf(6.2831853f * v);
        sum += fmaxf(s0 * expf(drift + spread * z) - strike, 0.f);
    }
    for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) mean[blockIdx.x] = (sums[0] + sums[1] + sums[2] + sums[3]) / paths;
}
"""


def _monte_carlo_make(rng: Rng) -> Args:
    scalars = [np.float32(v) for v in (100.0, 105.0, 0.01, 0.2)]
    return [*scalars, np.int32(400), np.zeros(12, np.float32)]


def _mix(x: Any) -> Any:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ x >> np.uint32(shift)) * np.uint32(factor)
    return x ^ x >> np.uint32(16)


@CASES.cuda("monte_carlo", MONTE_CARLO, 12, 128, _monte_carlo_make, "math.f32 shfl.sync bar.sync")
def _monte_carlo_expect(args: Args) -> dict[int | str, Any]:
    s0, strike, drift, spread = (float(a) for a in args[:4])
    paths, blocks = int(args[4]), args[5].size
    seed = np.arange(blocks * paths, dtype=np.uint32).reshape(blocks, paths)
    u = (_mix(2 * seed).astype(np.float32) + np.float32(0.5)).astype(np.float64) * 2.0**-32
    v = _mix(2 * seed + 1).astype(np.float32).astype(np.float64) * 2.0**-32
    z = np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v)
    payoff = np.maximum(s0 * np.exp(drift + spread * z) - strike, 0)
    return {5: Within(payoff.mean(axis=1).astype(np.float32), rtol=2e-5)}


# -- Mandelbrot set ----------------------------------------------------------------------------

MANDELBROT = r"""
extern "C" __global__ void mandelbrot(unsigned short* steps, int width, int height, double x0,
                                      double y0, double pixel, int limit, unsigned* runs) {
    GPUD_COUNT_2D(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= width || j >= height) return;
    double a = x0 + i * pixel, b = y0 + j * pixel, x = 0, y = 0;
    int k = 0;
    while (k < limit && x * x + y * y <= 4) {
        double t = x * x - y * y + a;
        y = 2 * x * y + b;
        x = t;
        ++k;
    }
    steps[j * width + i] = k;
}
"""


def _mandelbrot_make(rng: Rng) -> Args:
    height, width = 40, 75
    steps = np.zeros((height, width), np.uint16)
    place = [np.float64(-2.2), np.float64(-1.1), np.float64(2.0**-5)]
    return [steps, np.int32(width), np.int32(height), *place, np.int32(200)]


@CASES.cuda(
    "mandelbrot",
    MANDELBROT,
    (3, 5),
    (32, 8),
    _mandelbrot_make,
    "grid.2d divergent-loop",
    options=("--fmad=false",),
)
def _mandelbrot_expect(args: Args) -> dict[int | str, Any]:
    _, width, height, x0, y0, pixel, limit = args
    a = np.broadcast_to(x0 + np.arange(width) * pixel, (height, width))
    b = np.broadcast_to((y0 + np.arange(height) * pixel)[:, None], (height, width))
    x, y, count = np.zeros(a.shape), np.zeros(a.shape), np.zeros(a.shape, np.uint16)
    for _ in range(int(limit)):
        inside = x * x + y * y <= 4
        count[inside] += 1
        x, y = (
            np.where(inside, x * x - y * y + a, x),
            np.where(inside, 2 * x * y + b, y),
        )
    return {0: count}


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


# -- one step of k-means with sums in fixed point ----------------------------------------------

KMEANS_STEP = r"""
extern "C" __global__ void kmeans_step(const float2* point, const float2* centre, int n, int k,
                                       unsigned char* label, unsigned long long* sums,
                                       unsigned* sizes, unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float2 p = point[i];
    int best = 0;
    float least = INFINITY_F;
    for (int j = 0; j < k; ++j) {
        float dx = p.x - centre[j].x, dy = p.y - centre[j].y, d = dx * dx + dy * dy;
        if (d < least) {
            least = d;
            best = j;
        }
    }
    label[i] = best;
    atomicAdd(&sums[2 * best], (unsigned long long)(long long)p.x);
    atomicAdd(&sums[2 * best + 1], (unsigned long long)(long long)p.y);
    atomicAdd(&sizes[best], 1u);
}
""".replace("INFINITY_F", "__int_as_float(0x7f800000)")


def _kmeans_make(rng: Rng) -> Args:
    n, k = 1_500, 7
    point = rng.integers(-500, 500, (n, 2)).astype(np.float32)
    centre = rng.integers(-500, 500, (k, 2)).astype(np.float32)
    return [
        point,
        centre,
        np.int32(n),
        np.int32(k),
        np.zeros(n, np.uint8),
        np.zeros((k, 2), np.uint64),
        np.zeros(k, np.uint32),
    ]


@CASES.cuda("kmeans_step", KMEANS_STEP, 16, 96, _kmeans_make, "atom.add.u64")
def _kmeans_expect(args: Args) -> dict[int | str, Any]:
    point, centre, _, k, *_ = args
    distance = ((point[:, None] - centre[None]) ** 2).sum(axis=2)
    label = distance.argmin(axis=1)
    sums = np.zeros((int(k), 2), np.int64)
    np.add.at(sums, label, point.astype(np.int64))
    sizes = np.bincount(label, minlength=int(k)).astype(np.uint32)
    return {4: label.astype(np.uint8), 5: sums.view(np.uint64), 6: sizes}


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


@CASES.cuda("softmax", SOFTMAX, 17, 96, _softmax_make, "math.f32 shfl.sync bar.sync")
def _softmax_expect(args: Args) -> dict[int | str, Any]:
    x = args[0].astype(np.float64)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return {1: Within((e / e.sum(axis=1, keepdims=True)).astype(np.float32), rtol=1e-5)}
