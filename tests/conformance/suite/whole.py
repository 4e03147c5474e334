"""Grids whose blocks must all be resident at once: launched unchanged, never resized.

Source: CUDA C++ Programming Guide 13.0, section "Grid Synchronization"; PTX ISA 9.0, section 10
(``%envreg``, ``%cluster_*``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Case
from .ptx_text import kernel

Args = list[Any]
Rng = np.random.Generator


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


def _higher_expect(args: Args) -> dict[int | str, Any]:
    chain = np.arange(6, 0, -1, dtype=np.int32)
    return {0: chain, 1: chain}


# -- what only the launch can provide: the workspace of a cooperative grid, clusters -----------

_WORKSPACE_BODY = """
    .reg .b32 %low, %high; .reg .b64 %p, %space;
    mov.u32 %low, %envreg1;
    mov.u32 %high, %envreg2;
    mov.b64 %space, {%low, %high};
    mad.wide.u32 %p, %i, 8, %out;
    st.global.u64 [%p], %space;
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


def _analysed_only(args: Args) -> dict[int | str, Any]:
    return {}


CASES: tuple[Case, ...] = (
    Case(
        "grid_wide_jacobi",
        GRID_BARRIER,
        (4,),
        (64,),
        _jacobi_make,
        _jacobi_expect,
        forms=frozenset({"unmodified"}),
        expected_form="whole",
        resident=4,
        covers=frozenset({"grid-barrier", "bar.sync", "nctaid"}),
    ),
    Case(
        "waits_for_higher",
        WAITS_FOR_HIGHER,
        (6,),
        (32,),
        _higher_make,
        _higher_expect,
        forms=frozenset({"unmodified"}),
        # Nothing in the program says which way the blocks wait: a user's declaration must.
        expected_form="persistent",
        resident=6,
        covers=frozenset({"waits-for-higher-blocks"}),
    ),
    Case(
        "grid_workspace",
        kernel("grid_workspace", ("u64 out",), _WORKSPACE_BODY),
        (2,),
        (32,),
        lambda rng: [np.zeros(64, np.uint64)],
        _analysed_only,
        forms=frozenset(),
        expected_form="rejected",
        rejection="unsupported-instruction",
        covers=frozenset({"envreg"}),
    ),
    Case(
        "cluster_ranks",
        kernel(
            "cluster_ranks",
            ("u64 out",),
            _CLUSTER_BODY,
            arch="compute_90",
            attributes=".reqnctapercluster 2, 1, 1",
        ),
        (2,),
        (32,),
        lambda rng: [np.zeros(64, np.uint32)],
        _analysed_only,
        arch="compute_90",
        forms=frozenset(),
        expected_form="whole",
        covers=frozenset({"cluster"}),
    ),
)
