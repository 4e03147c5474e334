"""Shared memory: static, dynamic, aliased, large, and what copies into it asynchronously.

Source: PTX ISA 9.0, sections 5.1.8 (``.shared``), 9.7.9.25 (``cp.async``) and 9.7.13.15
(``mbarrier``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Args, Rng
from .cases import Cases
from .ptx_text import header

CASES = Cases()


def _integers(rng: Rng, shape: Any) -> Any:
    return rng.integers(-1000, 1000, shape).astype(np.int32)


# -- dynamic beside static ---------------------------------------------------------------------

DYNAMIC_AND_STATIC = r"""
__shared__ int module_scope[8];
extern "C" __global__ void dynamic_and_static(const int* in, int* out, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    extern __shared__ int line[];
    __shared__ double weights[8];
    __shared__ char flags[3];
    int t = threadIdx.x, i = blockIdx.x * n;
    for (int k = t; k < n; k += blockDim.x) line[k] = in[i + k];
    if (t < 8) weights[t] = t * 0.5, module_scope[t] = 10 * t;
    if (t < 3) flags[t] = (char)(t - 1);
    unsigned size;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(size));
    __syncthreads();
    for (int k = t; k < n; k += blockDim.x)
        out[i + k] = line[n - 1 - k] + (int)(2 * weights[k & 7]) + flags[k % 3]
                     + module_scope[k % 8] + (int)size;
}
"""


def _dynamic_make(rng: Rng) -> Args:
    values = _integers(rng, (10, 400))
    return [values, np.zeros_like(values), np.int32(400)]


@CASES.cuda(
    "dynamic_and_static",
    DYNAMIC_AND_STATIC,
    10,
    96,
    _dynamic_make,
    "shared.dynamic shared.static bar.sync",
    shared=1600,
)
def _dynamic_expect(args: Args) -> dict[int | str, Any]:
    k = np.arange(400)
    return {1: (args[0][:, ::-1] + (k & 7) + (k % 3 - 1) + 10 * (k % 8) + 1600).astype(np.int32)}


# -- several names for the one dynamic region --------------------------------------------------

_ALIASES = f"""{header()}
.extern .shared .align 16 .b8 raw[];
.extern .shared .align 4 .b32 words[];
.extern .shared .align 8 .f64 reals[];
.shared .align 8 .b8 apart[16];
.visible .entry extern_aliases(.param .u64 out, .param .u64 runs)
{{
    .reg .b32 %t, %b, %s, %v, %w; .reg .b64 %p, %q; .reg .pred %first;
    mov.u32 %t, %tid.x;
    mov.u32 %b, %ctaid.x;
    setp.eq.u32 %first, %t, 0;
    ld.param.u64 %q, [runs];
    cvta.to.global.u64 %q, %q;
    mad.wide.u32 %q, %b, 4, %q;
    @%first red.global.add.u32 [%q], 1;
    // Written as words, read as bytes and as doubles: all three names are one place.
    mov.u32 %s, words;
    mad.lo.u32 %s, %t, 4, %s;
    mad.lo.u32 %v, %b, 1000, %t;
    st.shared.b32 [%s], %v;
    @%first st.shared.u64 [apart], 0x1122334455667788;
    bar.sync 0;
    mov.u32 %s, raw;
    mad.lo.u32 %s, %t, 4, %s;
    ld.shared.u8 %v, [%s+1];
    mov.u32 %w, reals;
    and.b32 %s, %t, 0xFFFFFFFE;
    mad.lo.u32 %w, %s, 4, %w;
    ld.shared.b64 %p, [%w];
    shr.u64 %p, %p, 32;
    cvt.u32.u64 %w, %p;
    mad.lo.u32 %v, %w, 256, %v;
    ld.shared.u8 %w, [apart+3];
    add.u32 %v, %v, %w;
    mad.lo.u32 %s, %b, 64, %t;
    ld.param.u64 %q, [out];
    cvta.to.global.u64 %q, %q;
    mad.wide.u32 %q, %s, 4, %q;
    st.global.u32 [%q], %v;
    ret;
}}
"""


def _aliases_make(rng: Rng) -> Args:
    return [np.zeros((12, 64), np.uint32)]


@CASES.cuda(
    "extern_aliases",
    _ALIASES,
    12,
    64,
    _aliases_make,
    "shared.dynamic shared.alias bar.sync",
    shared=256,
)
def _aliases_expect(args: Args) -> dict[int | str, Any]:
    block, t = np.mgrid[0:12, 0:64]
    word = block * 1000 + t
    odd = block * 1000 + (t | 1)
    return {0: ((word >> 8 & 255) + odd * 256 + 0x55).astype(np.uint32)}


# -- as much shared memory as a block may have without asking ----------------------------------

LARGE_SHARED = r"""
extern "C" __global__ void large_shared(unsigned* data, unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ unsigned a[10000];
    unsigned x = data[blockIdx.x * 768 + threadIdx.x];
    for (int k = threadIdx.x; k < 10000; k += 768) a[k] = k * (x | 1) + blockIdx.x;
    __syncthreads();
    unsigned h = 0;
    for (int k = 0; k < 20; ++k) h = h * 33 + a[(x + k * 7919) % 10000];
    data[blockIdx.x * 768 + threadIdx.x] = h;
}
"""


def _large_make(rng: Rng) -> Args:
    return [rng.integers(0, 2**32, (6, 768)).astype(np.uint32)]


@CASES.cuda("large_shared", LARGE_SHARED, 6, 768, _large_make, "shared.static block.768 bar.sync")
def _large_expect(args: Args) -> dict[int | str, Any]:
    out = np.zeros_like(args[0])
    k = np.arange(10_000, dtype=np.uint32)
    for block, x in enumerate(args[0]):
        a = k * (x[k % 768] | np.uint32(1)) + np.uint32(block)
        for step in range(20):
            index = (x + np.uint32(step * 7919)) % np.uint32(10_000)
            out[block] = out[block] * np.uint32(33) + a[index]
    return {0: out}


# -- cp.async: two stages, three sizes, zero fill ----------------------------------------------

COPY_ASYNC = r"""
__device__ unsigned place(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
extern "C" __global__ void copy_async(const int* in, int* out, int stages, unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ __align__(16) int tile[2][128];
    int t = threadIdx.x;
    const int* mine = in + blockIdx.x * stages * 128;
    auto start = [&](int stage) {
        int* to = tile[stage & 1];
        const int* from = mine + stage * 128;
        if (t < 8)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                         :: "r"(place(to + 4 * t)), "l"(from + 4 * t));
        else if (t < 24)
            asm volatile("cp.async.ca.shared.global [%0], [%1], 8;"
                         :: "r"(place(to + 32 + 2 * (t - 8))), "l"(from + 32 + 2 * (t - 8)));
        else if (t < 56)
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                         :: "r"(place(to + 64 + t - 24)), "l"(from + 64 + t - 24));
        else {
            // Only "size" bytes are read; the rest of the 16 are filled with zeros.
            int size = t & 1 ? 12 : 0;
            asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                         :: "r"(place(to + 96 + 4 * (t - 56))), "l"(from + 96 + 4 * (t - 56)),
                            "r"(size));
        }
        asm volatile("cp.async.commit_group;");
    };
    start(0);
    int sum = 0, more = 0;
    for (int stage = 0; stage < stages; ++stage) {
        if (stage + 1 < stages) {
            start(stage + 1);
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        } else asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
        sum = sum * 3 + tile[stage & 1][t];
        more = more * 3 + tile[stage & 1][127 - t];
        __syncthreads();
    }
    out[blockIdx.x * 128 + t] = sum;
    out[blockIdx.x * 128 + 127 - t] = more;
}
"""


def _copy_make(rng: Rng) -> Args:
    return [_integers(rng, (7, 5, 128)), np.zeros((7, 128), np.int32), np.int32(5)]


@CASES.cuda(
    "copy_async", COPY_ASYNC, 7, 64, _copy_make, "cp.async bar.sync", arch="compute_80", long=True
)
def _copy_expect(args: Args) -> dict[int | str, Any]:
    data = args[0].copy()
    for thread in range(56, 64):
        first = 96 + 4 * (thread - 56)
        data[:, :, first + (3 if thread & 1 else 0) : first + 4] = 0
    weights = (3 ** np.arange(4, -1, -1)).astype(np.int32)
    return {1: (data * weights[None, :, None]).sum(axis=1, dtype=np.int32)}


# -- mbarrier: arrive, test and wait, with phases ----------------------------------------------

MBARRIER = r"""
__device__ unsigned place(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
extern "C" __global__ void mbarrier_phases(const int* in, int* out, unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ unsigned long long bar;
    __shared__ int s[96];
    int t = threadIdx.x, v = in[blockIdx.x * 96 + t];
    if (t == 0)
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(place(&bar)), "r"(96));
    __syncthreads();
    for (int round = 0; round < 4; ++round) {
        s[t] = v;
        unsigned long long state;
        asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];"
                     : "=l"(state) : "r"(place(&bar)) : "memory");
        unsigned done = 0;
        while (!done)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.shared.b64 p, [%1], %2;"
                         " selp.u32 %0, 1, 0, p; }"
                         : "=r"(done) : "r"(place(&bar)), "l"(state) : "memory");
        int other = s[(t + 32) % 96];
        asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(place(&bar)) : "memory");
        // The second phase of each round is odd: wait for it by parity.
        done = 0;
        while (!done)
            asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2;"
                         " selp.u32 %0, 1, 0, p; }"
                         : "=r"(done) : "r"(place(&bar)), "r"(1) : "memory");
        v = v * 2 + other;
    }
    out[blockIdx.x * 96 + t] = v;
    __syncthreads();
    if (t == 0) asm volatile("mbarrier.inval.shared.b64 [%0];" :: "r"(place(&bar)));
}
"""


def _mbarrier_make(rng: Rng) -> Args:
    values = _integers(rng, (6, 96))
    return [values, np.zeros_like(values)]


@CASES.cuda("mbarrier_phases", MBARRIER, 6, 96, _mbarrier_make, "mbarrier", arch="compute_90")
def _mbarrier_expect(args: Args) -> dict[int | str, Any]:
    v = args[0]
    for _ in range(4):
        v = v * 2 + np.roll(v, -32, axis=1)
    return {1: v}


# -- swizzled writes without barriers inside one warp ------------------------------------------

VOLATILE_WARP = r"""
extern "C" __global__ void volatile_warp(const float* in, float* out, unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ volatile float s[4][64];
    volatile float* mine = s[threadIdx.x / 32];
    int lane = threadIdx.x & 31;
    mine[lane] = in[blockIdx.x * 128 + threadIdx.x];
    mine[lane + 32] = 0;
    __syncwarp();
    for (int step = 16; step; step >>= 1) {
        float v = mine[lane] + mine[lane + step];
        __syncwarp();
        mine[lane] = v;
        __syncwarp();
    }
    if (lane == 0) out[blockIdx.x * 4 + threadIdx.x / 32] = mine[0];
}
"""


def _volatile_make(rng: Rng) -> Args:
    return [_integers(rng, (8, 4, 32)).astype(np.float32), np.zeros((8, 4), np.float32)]


@CASES.cuda("volatile_warp", VOLATILE_WARP, 8, 128, _volatile_make, "ld.volatile bar.warp.sync")
def _volatile_expect(args: Args) -> dict[int | str, Any]:
    return {1: args[0].sum(axis=2)}


# -- 64-bit shared addresses of which only the low 32 bits count --------------------------------

WRAPPED = r"""
extern "C" __global__ void wrapped_shared(const int* in, int* out, unsigned far, unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ int s[160];
    int t = threadIdx.x;
    unsigned u = t & 31;
    for (int k = t; k < 160; k += 64) s[k] = in[k];
    __syncthreads();
    int v = (s + 33)[~u];
    unsigned back = in[t & 7] & 15;
    v += 3 * (s + 100)[-back - 1u];
    __syncthreads();
    if (t & 1) atomicAdd(&(s + 130)[~(u / 8)], v);
    __syncthreads();
    int last = s[128 - (t & 3)] + (s + far)[-far + t];
    __syncthreads();
    if (t < 32 && in[t] & 2) (s + 160)[~u] = last;
    __syncthreads();
    out[blockIdx.x * blockDim.x + t] = v + last + s[159 - u];
}
"""


def _wrapped_make(rng: Rng) -> Args:
    return [_integers(rng, 160), np.zeros((5, 64), np.int32), np.uint32(40)]


# Without bounds checks an address is one of the process: the unmodified form has none.
@CASES.cuda(
    "wrapped_shared",
    WRAPPED,
    5,
    64,
    _wrapped_make,
    "ld.shared st.shared atom.shared shared.wrapped",
    forms="persistent sliced",
)
def _wrapped_expect(args: Args) -> dict[int | str, Any]:
    s = args[0].astype(np.int64)
    t = np.arange(64)
    u = t & 31
    v = s[32 - u] + 3 * s[99 - (args[0][t & 7] & 15)]
    odd = t[t & 1 == 1]
    np.add.at(s, 129 - u[odd] // 8, v[odd])
    last = s[128 - (t & 3)] + s[t]
    for one in range(32):
        if args[0][one] & 2:
            s[159 - one] = last[one]
    return {1: np.tile(v + last + s[159 - u], (5, 1)).astype(np.int32)}
