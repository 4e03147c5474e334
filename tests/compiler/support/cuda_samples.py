"""CUDA C++ kernels whose PTX together has every construct that NVRTC emits."""

from __future__ import annotations

from functools import cache

from gpud.compiler.toolchain.nvrtc import compile_cuda

KERNELS = {
    "saxpy": r"""
extern "C" __global__ void k(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}""",
    "calls": r"""
extern "C" __device__ int printf(const char*, ...);
__device__ __noinline__ float twice(float x) { __syncthreads(); return 2 * x; }
__device__ __noinline__ float next(float x) { return x + 1; }
typedef float (*function)(float);
__device__ function table[2] = {twice, next};
extern "C" __global__ void k(float* x, int which) {
    x[0] = table[which](x[1]) + twice(x[2]);
    if (x[0] > 3) printf("%f %d\n", x[0], which);
}""",
    "switch": r"""
extern "C" __global__ void k(int* x, int which) {
    switch (which) {
        case 0: x[1] = 3; break;
        case 1: x[2] += x[3]; break;
        case 2: x[4] = x[3] / x[5]; break;
        case 3: x[6] = x[x[7]]; break;
        case 4: x[8] = clock(); break;
        case 5: x[9] = __popc(x[10]); break;
        case 6: x[1] = x[2] % 7; break;
        case 7: x[11] = __ffs(x[12]);
    }
}""",
    "assembly": r"""
extern "C" __global__ void k(unsigned* x) {
    unsigned a = x[threadIdx.x], b;
    asm volatile("{ .reg .pred p; .reg .b32 t<2>; setp.ne.u32 p, %1, 0; @p bra DONE;"
                 " mov.b32 t1, 5; DONE: add.u32 %0, t1, %1; }" : "=r"(b) : "r"(a));
    asm volatile("{ .reg .pred p; .reg .b32 t<2>; setp.ne.u32 p, %1, 0;\n @p bra DONE;\n"
                 " mov.b32 t1, 5;\n DONE: add.u32 %0,t1,%1; }" : "=r"(a) : "r"(b));
    asm volatile("st.global.u32 [%0+4*2], %1;" :: "l"(x), "r"(a) : "memory");
}""",
    "shared": r"""
extern "C" __global__ void k(float* x) {
    extern __shared__ float dynamic[];
    __shared__ double fixed[4][8];
    dynamic[threadIdx.x] = x[threadIdx.x];
    fixed[threadIdx.x & 3][threadIdx.y] = x[1];
    __syncthreads();
    x[threadIdx.x] = dynamic[threadIdx.x ^ 1] + (float)fixed[1][threadIdx.x & 7];
}""",
    "state": r"""
struct Pair { int a; double b; char text[8]; };
__device__ Pair pair = {1, 2.5, "abc"};
__device__ int* where = &pair.a;
__constant__ float coefficients[5] = {1, 2, 3, 4, -0.5f};
__device__ int counter;
extern "C" __global__ void k(Pair by_value, float* x, bool flag, const void* nothing) {
    x[0] = by_value.b + pair.b + coefficients[threadIdx.x] + *where + flag + (nothing == nullptr);
    atomicAdd(&counter, by_value.a);
}""",
    "warp": r"""
extern "C" __global__ void k(unsigned* x) {
    unsigned v = x[threadIdx.x], m = __activemask();
    v += __shfl_down_sync(0xffffffffu, v, 16) + __shfl_xor_sync(m, v, 1);
    v += __ballot_sync(m, v > 3) + __any_sync(m, v == 1) + __match_any_sync(m, v);
    x[threadIdx.x] = v + __reduce_add_sync_or_not(m, v);
}""".replace("__reduce_add_sync_or_not(m, v)", "__syncthreads_count(v > 5)"),
    "vectors": r"""
extern "C" __global__ void k(float4* x, uchar4* y, const double2* __restrict__ z) {
    float4 v = x[threadIdx.x];
    double2 d = z[threadIdx.x];
    y[threadIdx.x] = make_uchar4(v.x, v.y, d.x, d.y);
    x[threadIdx.x] = make_float4(v.w, v.z * 1.25f, v.y + 1e-3f, v.x);
}""",
    "local": r"""
extern "C" __global__ void k(float* x, int n) {
    float history[24];
    for (int i = 0; i < 24; i++) history[i] = x[i * n];
    float sum = 0;
    for (int i = 0; i < n; i++) sum += history[(i * 7) % 24] * sinf(history[i % 24]);
    x[n] = sum + pow(x[1], x[2]);
}""",
    "templates": r"""
template <class T, int N> __device__ T sum(const T* x) {
    T s = 0;
    for (int i = 0; i < N; i++) s += x[i];
    return s;
}
template <class T> __global__ void __launch_bounds__(128, 2) k(T* x) { x[0] = sum<T, 5>(x); }
template __global__ void k<float>(float*);
template __global__ void k<long long>(long long*);
extern "C" __global__ void nothing() {}""",
    "assertions": r"""
extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, size_t);
extern "C" __global__ void k(int* x) {
    if (x[0] < 0) __assertfail("x[0] >= 0", "k.cu", 3, "k", 1);
    if (x[1] < 0) __trap();
    int* p = (int*)malloc(16);
    p[threadIdx.x & 3] = x[2];
    x[3] = p[0];
    free(p);
}""",
    "half": r"""
extern "C" __global__ void k(unsigned short* x, float* y) {
    unsigned short h = x[threadIdx.x];
    float f;
    asm("{ cvt.f32.f16 %0, %1;}\n" : "=f"(f) : "h"(h));
    asm("{ .reg .f16 a, b;\n mov.b16 a, %1;\n fma.rn.f16 b, a, a, a;\n mov.b16 %0, b; }"
        : "=h"(h) : "h"(h));
    y[threadIdx.x] = f * __expf(f) + __fdividef(f, 3.0f);
    x[threadIdx.x] = h;
}""",
}
"""CUDA C++ source by name; every one compiles without headers."""


@cache
def compiled(name: str, arch: str) -> str:
    """The PTX of a kernel above, with line information for odd lines of the table."""
    options = ("--generate-line-info",) if name in ("calls", "local") else ()
    return compile_cuda(KERNELS[name], arch=arch, options=options).ptx
