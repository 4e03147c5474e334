"""Grids whose blocks must all be resident at once: launched unchanged, never resized.

Source: CUDA C++ Programming Guide 13.0, section "Grid Synchronization"; PTX ISA 9.0, section 10
(``%envreg``, ``%cluster_*``); CUDA 13.0, ``cooperative_groups/details`` (``driver_abi.h``,
``sync.h``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Args, Rng
from .cases import Cases

CASES = Cases()


# -- a grid barrier of the kernel's own --------------------------------------------------------

GRID_BARRIER = r"""
__device__ unsigned arrived;
__device__ void grid_barrier(unsigned phase) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(&arrived, 1u);
        while (*(volatile unsigned*)&arrived < phase * gridDim.x) {}
        __threadfence();
    }
    __syncthreads();
}
extern "C" __global__ void grid_wide_jacobi(volatile float* a, volatile float* b, int n, int steps,
                                            unsigned* runs) {
    GPUD_COUNT(runs);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int k = 0; k < steps; ++k) {
        volatile float* from = k & 1 ? b : a;
        volatile float* to = k & 1 ? a : b;
        if (i > 0 && i < n - 1) to[i] = from[i - 1] + from[i + 1] - from[i];
        grid_barrier(k + 1);
    }
}
"""


def _jacobi_make(rng: Rng) -> Args:
    n = 4 * 64
    a = rng.integers(-5, 6, n).astype(np.float32)
    a[0] = a[-1] = 0
    return [a, np.zeros(n, np.float32), np.int32(n), np.int32(6)]


@CASES.cuda(
    "grid_wide_jacobi",
    GRID_BARRIER,
    4,
    64,
    _jacobi_make,
    "grid-barrier bar.sync nctaid",
    forms="unmodified whole",
    expected_form="whole",
    resident=4,
)
def _jacobi_expect(args: Args) -> dict[int | str, Any]:
    buffers = [args[0].copy(), args[1].copy()]
    for k in range(int(args[3])):
        source, target = buffers[k & 1], buffers[1 - (k & 1)]
        target[1:-1] = source[:-2] + source[2:] - source[1:-1]
    return {0: buffers[0], 1: buffers[1], "arrived": np.array([4 * 6], np.uint32)}


# -- blocks that wait for higher-numbered ones: in order, the first would never end ------------

WAITS_FOR_HIGHER = r"""
extern "C" __global__ void waits_for_higher(volatile int* ready, int* out, unsigned* runs) {
    GPUD_COUNT(runs);
    int next = blockIdx.x + 1;
    if (threadIdx.x == 0) {
        if (next < gridDim.x) while (ready[next] == 0) {}
        __threadfence();
        out[blockIdx.x] = next < gridDim.x ? ready[next] + 1 : 1;
        __threadfence();
        ready[blockIdx.x] = next < gridDim.x ? ready[next] + 1 : 1;
    }
}
"""


def _higher_make(rng: Rng) -> Args:
    return [np.zeros(6, np.int32), np.zeros(6, np.int32)]


# Nothing in the program says which way the blocks wait: a user's declaration must.
@CASES.cuda(
    "waits_for_higher",
    WAITS_FOR_HIGHER,
    6,
    32,
    _higher_make,
    "waits-for-higher-blocks",
    forms="unmodified",
    expected_form="persistent",
    resident=6,
)
def _higher_expect(args: Args) -> dict[int | str, Any]:
    chain = np.arange(6, 0, -1, dtype=np.int32)
    return {0: chain, 1: chain}


# -- what only the launch can provide: the workspace of a cooperative grid, clusters -----------

_MEET = """
.func meet(.param .b32 blocks);
.func meet(.param .b32 blocks) {
    .reg .b32 %low, %high, %blocks, %arrive, %old, %new, %thread, %block;
    .reg .b64 %space; .reg .pred %first, %other, %waits;
    ld.param.u32 %blocks, [blocks];
    mov.u32 %high, %envreg1;
    mov.u32 %low, %envreg2;
    mov.b64 %space, {%low, %high};
    barrier.sync 0;
    mov.u32 %thread, %tid.x;
    setp.ne.u32 %other, %thread, 0;
    @%other bra past;
    mov.u32 %block, %ctaid.x;
    setp.eq.u32 %first, %block, 0;
    sub.u32 %arrive, 0x80000001, %blocks;
    selp.u32 %arrive, %arrive, 1, %first;
    atom.add.release.gpu.u32 %old, [%space+4], %arrive;
again:
    ld.acquire.gpu.u32 %new, [%space+4];
    xor.b32 %new, %new, %old;
    setp.ge.s32 %waits, %new, 0;
    @%waits bra again;
past:
    barrier.sync 0;
    ret;
}
"""
_TURNS_BODY = """
    .reg .b32 %blocks, %all, %far, %value; .reg .b64 %p; .param .b32 given;
    mov.u32 %blocks, %nctaid.x;
    mul.lo.u32 %all, %blocks, %width;
    sub.u32 %far, %all, %i;
    sub.u32 %far, %far, 1;
    mad.wide.u32 %p, %far, 4, %a;
    ld.global.u32 %value, [%p];
    st.param.b32 [given], %blocks;
    call meet, (given);
    add.u32 %value, %value, 1;
    mad.wide.u32 %p, %i, 4, %a;
    st.global.u32 [%p], %value;
    st.param.b32 [given], %blocks;
    call meet, (given);
    mad.wide.u32 %p, %far, 4, %a;
    ld.global.u32 %value, [%p];
    mad.wide.u32 %p, %i, 4, %out;
    st.global.u32 [%p], %value;
    ret;
"""
_CLUSTER_BODY = """
    .reg .b32 %rank; .reg .b64 %p;
    mov.u32 %rank, %cluster_ctarank;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    mad.wide.u32 %p, %i, 4, %out;
    st.global.u32 [%p], %rank;
    ret;
"""


def _turns_make(rng: Rng) -> Args:
    return [rng.integers(0, 2**31, 5 * 64).astype(np.uint32), np.zeros(5 * 64, np.uint32)]


@CASES.ptx(
    "grid_workspace",
    "u64 a, u64 out",
    _TURNS_BODY,
    5,
    64,
    _turns_make,
    "envreg",
    forms="whole",
    expected_form="whole",
    resident=5,
    declarations=_MEET,
)
def _turns_expect(args: Args) -> dict[int | str, Any]:
    turned = args[0][::-1] + np.uint32(1)
    return {0: turned, 1: turned[::-1]}


@CASES.ptx(
    "cluster_ranks",
    "u64 out",
    _CLUSTER_BODY,
    2,
    32,
    lambda rng: [np.zeros(64, np.uint32)],
    "cluster",
    arch="compute_90",
    forms="",
    expected_form="whole",
    attributes=".reqnctapercluster 2, 1, 1",
)
def _analysed_only(args: Args) -> dict[int | str, Any]:
    return {}
