"""Functions: direct and indirect calls, tables, recursion, structs by value, barriers inside.

Source: PTX ISA 9.0, sections 7 (functions, parameter passing) and 9.7.12 (``call``, ``ret``,
``brx.idx``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Args, Rng
from .cases import Cases

CASES = Cases()


# -- functions that are not inlined, with every kind of parameter ------------------------------

NOT_INLINED = r"""
struct Pair { long long sum; float mean; short low, high; };
__device__ __noinline__ Pair summarise(const int* p, int n, bool negate, signed char shift) {
    Pair r = {0, 0.f, 32767, -32768};
    for (int i = 0; i < n; ++i) {
        int v = negate ? -p[i] : p[i];
        r.sum += (long long)v << shift;
        if (v < r.low) r.low = v;
        if (v > r.high) r.high = v;
    }
    r.mean = (float)r.sum / n;
    return r;
}
__device__ __noinline__ double scale(Pair p, double factor) { return p.sum * factor + p.low; }
__device__ __noinline__ void store(Pair p, double d, double* out) {
    out[0] = (double)p.sum;
    out[1] = p.mean;
    out[2] = p.low;
    out[3] = p.high;
    out[4] = d;
}
extern "C" __global__ void not_inlined(const int* in, double* out, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Pair p = summarise(in + 8 * i, 8, i & 1, i % 5);
    store(p, scale(p, 0.5), out + 5 * i);
}
"""


def _not_inlined_make(rng: Rng) -> Args:
    n = 200
    values = rng.integers(-30_000, 30_000, (n, 8)).astype(np.int32)
    return [values, np.zeros((n, 5)), np.int32(n)]


@CASES.cuda("not_inlined", NOT_INLINED, 5, 56, _not_inlined_make, "call call.struct")
def _not_inlined_expect(args: Args) -> dict[int | str, Any]:
    n = int(args[2])
    i = np.arange(n)
    values = np.where((i & 1)[:, None] != 0, -args[0], args[0]).astype(np.int64)
    total = (values << (i % 5)[:, None]).sum(axis=1)
    mean = total.astype(np.float32) / np.float32(8)
    low, high = values.min(axis=1), values.max(axis=1)
    return {1: np.stack([total, mean, low, high, total * 0.5 + low], axis=1).astype(np.float64)}


# -- virtual functions: tables of function addresses in global memory --------------------------

VIRTUAL = r"""
struct Shape {
    double a, b;
    __device__ Shape(double x, double y) : a(x), b(y) {}
    __device__ virtual double area() const = 0;
    __device__ virtual double grown(double by) const { return area() * by; }
};
struct Square : Shape {
    __device__ Square(double x) : Shape(x, x) {}
    __device__ double area() const override { return a * a; }
};
struct Box : Shape {
    __device__ Box(double x, double y) : Shape(x, y) {}
    __device__ double area() const override { return a * b; }
    __device__ double grown(double by) const override { return a * by * b * by; }
};
extern "C" __global__ void virtual_functions(const int* kind, double* out, int n,
                                             unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Square square(i);
    Box box(i, 2);
    const Shape* shape = &square;
    if (kind[i] == 1) shape = &box;
    out[i] = shape->area() + shape->grown(3);
}
"""


def _virtual_make(rng: Rng) -> Args:
    n = 150
    return [rng.integers(0, 2, n).astype(np.int32), np.zeros(n), np.int32(n)]


@CASES.cuda(
    "virtual_functions",
    VIRTUAL,
    5,
    32,
    _virtual_make,
    "indirect-call virtual initialisers.functions",
)
def _virtual_expect(args: Args) -> dict[int | str, Any]:
    i = np.arange(args[1].size, dtype=np.float64)
    return {1: np.where(args[0] == 1, 2 * i + 18 * i, i * i * 4)}


# -- a table of function pointers that the host may change -------------------------------------

POINTER_TABLE = r"""
typedef unsigned (*Step)(unsigned, unsigned);
__device__ unsigned plus(unsigned a, unsigned b) { return a + b; }
__device__ unsigned times(unsigned a, unsigned b) { return a * b; }
__device__ unsigned rotate(unsigned a, unsigned b) { return a << (b & 31) | a >> (-b & 31); }
__device__ unsigned collatz(unsigned a, unsigned b) { return a & 1 ? 3 * a + b : a >> 1; }
__device__ Step steps[4] = {plus, times, rotate, collatz};
__constant__ unsigned char program[16];
extern "C" __global__ void pointer_table(unsigned* data, unsigned* runs) {
    GPUD_COUNT(runs);
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, v = data[i];
    for (int k = 0; k < 16; ++k) v = steps[(program[k] + threadIdx.x) & 3](v, k + 1);
    data[i] = v;
}
"""
_PROGRAM = np.array([3, 1, 0, 2, 2, 1, 3, 0, 1, 1, 2, 3, 0, 0, 3, 2], np.uint8)


def _table_make(rng: Rng) -> Args:
    return [rng.integers(0, 2**32, (5, 96)).astype(np.uint32)]


@CASES.cuda(
    "pointer_table",
    POINTER_TABLE,
    5,
    96,
    _table_make,
    "indirect-call initialisers.functions constant-bank",
    symbols={"program": _PROGRAM},
)
def _table_expect(args: Args) -> dict[int | str, Any]:
    mask = 0xFFFFFFFF
    steps = [
        lambda a, b: a + b & mask,
        lambda a, b: a * b & mask,
        lambda a, b: (a << (b & 31) | a >> (-b & 31)) & mask,
        lambda a, b: 3 * a + b & mask if a & 1 else a >> 1,
    ]
    out = args[0].copy()
    for row in out:
        for t in range(row.size):
            v = int(row[t])
            for k, choice in enumerate(_PROGRAM.tolist()):
                v = steps[(choice + t) & 3](v, k + 1)
            row[t] = v
    return {0: out}


# -- recursion ---------------------------------------------------------------------------------

RECURSION = r"""
__device__ __noinline__ unsigned ackermann(unsigned m, unsigned n) {
    if (m == 0) return n + 1;
    if (n == 0) return ackermann(m - 1, 1);
    return ackermann(m - 1, ackermann(m, n - 1));
}
__device__ void quicksort(int* a, int low, int high) {
    if (low >= high) return;
    int pivot = a[(low + high) / 2], i = low, j = high;
    while (i <= j) {
        while (a[i] < pivot) ++i;
        while (a[j] > pivot) --j;
        if (i <= j) {
            int t = a[i];
            a[i++] = a[j];
            a[j--] = t;
        }
    }
    quicksort(a, low, j);
    quicksort(a, i, high);
}
extern "C" __global__ void recursion(int* lists, unsigned* out, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    quicksort(lists + 30 * i, 0, 29);
    out[i] = ackermann(i % 3, i % 6);
}
"""


def _recursion_make(rng: Rng) -> Args:
    n = 100
    lists = rng.integers(-1000, 1000, (n, 30)).astype(np.int32)
    return [lists, np.zeros(n, np.uint32), np.int32(n)]


@CASES.cuda("recursion", RECURSION, 4, 32, _recursion_make, "call recursion")
def _recursion_expect(args: Args) -> dict[int | str, Any]:
    i = np.arange(args[1].size)
    m, n = i % 3, i % 6
    closed = np.where(m == 0, n + 1, np.where(m == 1, n + 2, 2 * n + 3))
    return {0: np.sort(args[0], axis=1), 1: closed.astype(np.uint32)}


# -- a barrier inside a function ---------------------------------------------------------------

BARRIER_INSIDE = r"""
__shared__ float tile[96];
__device__ __noinline__ float block_sum(float v) {
    __syncthreads();
    tile[threadIdx.x] = v;
    for (int step = 48; step >= 3; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step) tile[threadIdx.x] += tile[threadIdx.x + step];
    }
    __syncthreads();
    return tile[0] + tile[1] + tile[2];
}
__device__ __noinline__ int where() { return blockIdx.x * 96 + threadIdx.x; }
extern "C" __global__ void barrier_inside(const float* in, float* out, unsigned* runs) {
    GPUD_COUNT(runs);
    float v = in[where()];
    float total = block_sum(v);
    if (gridDim.x > 1) total += block_sum(v * 2);
    out[where()] = v * 96 - total;
}
"""


def _inside_make(rng: Rng) -> Args:
    values = rng.integers(-100, 100, (13, 96)).astype(np.float32)
    return [values, np.zeros_like(values)]


@CASES.cuda("barrier_inside", BARRIER_INSIDE, 13, 96, _inside_make, "call call.barrier bar.sync")
def _inside_expect(args: Args) -> dict[int | str, Any]:
    v = args[0]
    return {1: v * 96 - 3 * v.sum(axis=1, keepdims=True)}


# -- a warp collective inside a function -------------------------------------------------------

COLLECTIVE_INSIDE = r"""
__device__ __noinline__ int warp_scan(int v) {
    for (int step = 1; step < 32; step *= 2) {
        int other = __shfl_up_sync(0xffffffffu, v, step);
        if ((threadIdx.x & 31) >= step) v += other;
    }
    return v;
}
__device__ __noinline__ int twice(int v) { return warp_scan(warp_scan(v)); }
extern "C" __global__ void collective_inside(const int* in, int* out, unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = twice(in[i]);
}
"""


def _collective_make(rng: Rng) -> Args:
    values = rng.integers(-1000, 1000, (6, 64)).astype(np.int32)
    return [values, np.zeros_like(values)]


@CASES.cuda(
    "collective_inside",
    COLLECTIVE_INSIDE,
    6,
    64,
    _collective_make,
    "call call.collective shfl.sync",
)
def _collective_expect(args: Args) -> dict[int | str, Any]:
    warps = args[0].reshape(-1, 32)
    twice = np.cumsum(np.cumsum(warps, axis=1), axis=1)
    return {1: twice.reshape(args[0].shape).astype(np.int32)}


# -- templates: weak entries named by a C++ expression -----------------------------------------

TEMPLATE = r"""
template <typename T, int N> struct Poly {
    T c[N];
    __device__ T operator()(T x) const {
        T y = 0;
        for (int i = N - 1; i >= 0; --i) y = y * x + c[i];
        return y;
    }
};
template <typename T, int N>
__global__ void evaluate(Poly<T, N> p, const T* x, T* y, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        y[i] = p(x[i]);
}
"""


def _template_make(rng: Rng) -> Args:
    coefficients = rng.integers(-5, 6, 4).astype(np.int64)
    x = rng.integers(-1000, 1000, 300).astype(np.int64)
    return [coefficients.tobytes(), x, np.zeros(300, np.int64), np.int32(300)]


@CASES.cuda(
    "template_entry",
    TEMPLATE,
    7,
    32,
    _template_make,
    "weak template parameter.struct",
    kernel="evaluate<long long, 4>",
)
def _template_expect(args: Args) -> dict[int | str, Any]:
    c = np.frombuffer(args[0], np.int64)
    x = args[1]
    return {2: c[0] + x * (c[1] + x * (c[2] + x * c[3]))}
