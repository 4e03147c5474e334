"""CUDA C++ in the shapes of CuPy and of programs full of headers, launch bounds and cache hints."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import AddressOf, Args, Hidden, Rng, Struct
from .cases import Cases
from .ptx_text import kernel

CASES = Cases()


# -- CuPy: an element-wise kernel over strided array structs -----------------------------------

CUPY = r"""
template <typename T, int N> class CArray {
    T* data_;
    long long size_;
    long long shape_[N], strides_[N];
public:
    __device__ long long size() const { return size_; }
    __device__ T& operator[](long long i) const {
        char* p = (char*)data_;
        for (int d = N; --d > 0;) {
            p += i % shape_[d] * strides_[d];
            i /= shape_[d];
        }
        return *(T*)(p + i * strides_[0]);
    }
};
typedef double out_type;
extern "C" __global__ void cupy_hypot__int64_float(const CArray<long long, 2> a,
                                                   const CArray<float, 2> b,
                                                   CArray<out_type, 2> out, long long n,
                                                   unsigned* runs) {
    GPUD_COUNT(runs);
    #pragma unroll 1
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n;
         i += gridDim.x * (long long)blockDim.x) {
        const long long x = a[i];
        const float y = b[i];
        out[i] = sqrt((double)(x * x) + (double)y * y);
    }
}
"""


def _cupy_struct(index: int, array: np.ndarray[Any, Any]) -> Any:
    words = [0, array.size, *array.shape, *array.strides]
    return Struct(np.array(words, np.int64).tobytes(), {0: AddressOf(index)})


def _cupy_make(rng: Rng) -> Args:
    shape = (23, 41)
    a = rng.integers(-1000, 1000, shape).astype(np.int64)
    b = rng.integers(-1000, 1000, shape[::-1]).astype(np.float32)
    out = np.zeros(shape)
    return [_cupy_struct(4, a), _cupy_struct(5, b.T), _cupy_struct(6, out),
            np.int64(a.size), Hidden(a), Hidden(b), Hidden(out)]  # fmt: skip


@CASES.cuda(
    "cupy_elementwise",
    CUPY,
    4,
    128,
    _cupy_make,
    "cupy parameter.struct parameter.pointer-in-struct",
    kernel="cupy_hypot__int64_float",
    options=("--fmad=false",),
)
def _cupy_expect(args: Args) -> dict[int | str, Any]:
    a, b = args[4].array, args[5].array.T.astype(np.float64)
    return {6: np.sqrt((a * a).astype(np.float64) + b * b)}


# -- a module with a thousand constants and several kernels ------------------------------------

_CONSTANTS = "\n".join(
    f".global .align 1 .b8 _ZN40_INTERNAL_constants_cu_7f3a_{k:04d}4cuda3std3__45__cpo{k}E[1];"
    if k % 3
    else f".const .align 4 .u32 _ZN9constants{k:04d}E = {k};"
    for k in range(1000)
)
_OTHER_ENTRY = """
.visible .entry not_this_one(.param .u64 p)
{
    .reg .b64 %a;
    ld.param.u64 %a, [p];
    st.global.u32 [%a], 1;
    trap;
    ret;
}
"""
_HEADERS_BODY = """
    .reg .b64 %p; .reg .b32 %v, %w;
    mad.wide.u32 %p, %i, 4, %out;
    ld.const.u32 %v, [_ZN9constants0999E];
    ld.const.u32 %w, [_ZN9constants0003E];
    mad.lo.u32 %v, %v, %w, %i;
    st.global.u32 [%p], %v;
    ret;
"""


@CASES.cuda(
    "many_constants",
    kernel("many_constants", ("u64 out",), _HEADERS_BODY, declarations=_CONSTANTS) + _OTHER_ENTRY,
    9,
    56,
    lambda rng: [np.zeros(9 * 56, np.uint32)],
    "many-globals several-entries",
)
def _headers_expect(args: Args) -> dict[int | str, Any]:
    return {0: np.arange(args[0].size, dtype=np.uint32) + np.uint32(999 * 3)}


# -- launch bounds, pragmas and cache hints that nvcc leaves in --------------------------------

BOUNDS = r"""
template <int N> __device__ __noinline__ float poly(float x) {
    float y = 1;
    #pragma unroll 1
    for (int k = 0; k < N; ++k) y = y * x + k;
    return y;
}
extern "C" __global__ void __launch_bounds__(192, 4)
launch_bounds(const float* __restrict__ x, float* __restrict__ y, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    const float4* wide = reinterpret_cast<const float4*>(x);
    for (int i = blockIdx.x * 192 + threadIdx.x; i < n / 4; i += gridDim.x * 192) {
        float4 v = __ldg(wide + i);
        __stcs(y + 4 * i, poly<3>(v.x));
        __stcg(y + 4 * i + 1, poly<4>(v.y));
        __stwt(y + 4 * i + 2, poly<3>(v.z));
        y[4 * i + 3] = poly<4>(v.w) + __ldcg(x) - __ldcs(x);
    }
}
"""


def _bounds_make(rng: Rng) -> Args:
    x = rng.integers(-9, 9, 4 * 500).astype(np.float32)
    return [x, np.zeros_like(x), np.int32(x.size)]


@CASES.cuda(
    "launch_bounds", BOUNDS, 2, 192, _bounds_make, "maxntid minnctapersm call ld.nc cache-hints"
)
def _bounds_expect(args: Args) -> dict[int | str, Any]:
    def poly(x: np.ndarray[Any, Any], n: int) -> np.ndarray[Any, Any]:
        y = np.ones_like(x)
        for k in range(n):
            y = y * x + k
        return y

    x = args[0].reshape(-1, 4)
    columns = [poly(x[:, 0], 3), poly(x[:, 1], 4), poly(x[:, 2], 3), poly(x[:, 3], 4)]
    return {1: np.stack(columns, axis=1).ravel().astype(np.float32)}
