"""Bulk copies between global and shared memory, and the transactions of mbarriers.

Source: PTX ISA 9.0, sections 9.7.9.25.5 (``cp.async.bulk``, ``cp.reduce.async.bulk``) and 9.7.13.15
(mbarrier); CUDA C++ programming guide 13.0, "Asynchronous barriers" and "memcpy_async".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Args, Rng
from .cases import Cases

CASES = Cases()


# -- cuda::memcpy_async with a cuda::barrier: on sm_90 one thread copies in bulk ------------------

PIPELINE = r"""
#include <cuda/barrier>
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
namespace cg = cooperative_groups;
extern "C" __global__ void memcpy_async(const int* in, int* out, int tiles, unsigned* runs) {
    GPUD_COUNT(runs);
    using Barrier = cuda::barrier<cuda::thread_scope_block>;
    __shared__ alignas(128) int tile[2][96];
    __shared__ Barrier ready[2];
    auto block = cg::this_thread_block();
    if (threadIdx.x < 2) init(&ready[threadIdx.x], blockDim.x);
    __syncthreads();
    in += blockIdx.x * tiles * 96;
    out += blockIdx.x * tiles * 96;
    cuda::memcpy_async(block, tile[0], in, cuda::aligned_size_t<16>(384), ready[0]);
    for (int t = 0; t < tiles; ++t) {
        if (t + 1 < tiles)
            cuda::memcpy_async(block, tile[(t + 1) & 1], in + (t + 1) * 96,
                               cuda::aligned_size_t<16>(384), ready[(t + 1) & 1]);
        ready[t & 1].arrive_and_wait();
        out[t * 96 + threadIdx.x] = tile[t & 1][95 - threadIdx.x] + t;
        __syncthreads();
    }
}
"""


def _pipeline_make(rng: Rng) -> Args:
    values = rng.integers(-(2**30), 2**30, (7, 5, 96)).astype(np.int32)
    return [values, np.zeros_like(values), np.int32(5)]


@CASES.cuda(
    "memcpy_async", PIPELINE, 7, 96, _pipeline_make, "cp.async.bulk mbarrier cuda-headers",
    arch="compute_90", headers=True,
    long=True,
)  # fmt: skip
def _pipeline_expect(args: Args) -> dict[int | str, Any]:
    return {1: args[0][:, :, ::-1] + np.arange(5, dtype=np.int32)[:, None]}


# -- the instructions: in, through shared memory, and out again ----------------------------------

_COPY = """
    .shared .align 128 .b8 box[1024]; .shared .align 8 .b64 done;
    .reg .pred %lead, %ok; .reg .b32 %box, %to, %done, %at, %v; .reg .b64 %p, %q, %w, %state;
    mov.u32 %box, box; mov.u32 %done, done;
    add.s32 %to, %box, 512;
    setp.eq.u32 %lead, %thread, 0;
    @%lead mbarrier.init.shared::cta.b64 [%done], 1;
    bar.sync 0;
    mul.wide.u32 %w, %block, 512;
    add.s64 %p, %in, %w;
    add.s64 %q, %out, %w;
    @!%lead bra $wait;
    mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %state, [%done], %size;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint
        [%box], [%p], %size, [%done], 0;
$wait:
    mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %ok, [%done], 0;
    @!%ok bra $wait;
    shl.b32 %at, %thread, 2;
    add.s32 %at, %at, %box;
    ld.shared.b32 %v, [%at];
    add.s32 %v, %v, %thread;
    st.shared.b32 [%at], %v;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    @%lead mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%done], 256;
    @%lead cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes
        [%to+0], [%box], 256, [%done];
    @%lead cp.async.bulk.prefetch.L2.global [%p], 16;
    @%lead mbarrier.arrive.shared::cta.b64 %state, [%done], 1;
$again:
    mbarrier.test_wait.parity.shared::cta.b64 %ok, [%done], 1;
    @!%ok bra $again;
    @%lead cp.async.bulk.global.shared::cta.bulk_group [%q], [%to], %size;
    @%lead cp.async.bulk.commit_group;
    @%lead cp.async.bulk.wait_group.read 0;
    @%lead cp.async.bulk.wait_group 0;
    ret;
"""


def _copy_make(rng: Rng) -> Args:
    values = rng.integers(0, 2**32, (9, 128)).astype(np.uint32)
    return [values, np.zeros_like(values), np.uint32(240)]


@CASES.ptx(
    "bulk_copies",
    "u64 in, u64 out, u32 size",
    _COPY,
    9,
    64,
    _copy_make,
    "cp.async.bulk mbarrier",
    arch="compute_90",
    version="8.6",
)
def _copy_expect(args: Args) -> dict[int | str, Any]:
    out = np.zeros_like(args[1])
    out[:, :60] = args[0][:, :60] + np.arange(60, dtype=np.uint32)
    return {1: out}


# -- reductions ----------------------------------------------------------------------------------

_REDUCTIONS = (
    ("add.u32", np.uint32), ("max.s32", np.int32), ("min.u64", np.uint64), ("add.u64", np.uint64),
    ("and.b32", np.uint32), ("xor.b64", np.uint64), ("inc.u32", np.uint32), ("add.f32", np.float32),
    ("add.f64", np.float64), ("add.noftz.f16", np.float16), ("max.s64", np.int64),
)  # fmt: skip
_BYTES = 64


def _reduction_body() -> str:
    lines = [
        ".shared .align 128 .b8 box[64]; .reg .pred %lead; .reg .b32 %box, %at, %v;",
        ".reg .b64 %p, %q, %w;",
        "mov.u32 %box, box; setp.eq.u32 %lead, %thread, 0;",
        "mul.wide.u32 %w, %thread, 4; shl.b32 %at, %thread, 2; add.s32 %at, %at, %box;",
        f"mul.wide.u32 %q, %block, {_BYTES * len(_REDUCTIONS)}; add.s64 %p, %in, %q;",
        "add.s64 %p, %p, %w; mov.u64 %q, %out;",
    ]
    for number, (operation, _) in enumerate(_REDUCTIONS):
        lines += [
            f"ld.global.b32 %v, [%p+{_BYTES * number}]; st.shared.b32 [%at], %v;",
            "bar.sync 0;",
            f"@%lead cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation}",
            f"    [%q+{_BYTES * number}], [%box], {_BYTES};",
            "@%lead cp.async.bulk.commit_group; @%lead cp.async.bulk.wait_group 0; bar.sync 0;",
        ]
    return "\n".join([*lines, "ret;"])


def _reduction_make(rng: Rng) -> Args:
    rows = [_numbers(rng, type_) for _ in range(6) for _, type_ in _REDUCTIONS]
    start = [_numbers(rng, type_) for _, type_ in _REDUCTIONS]
    values = np.stack(rows).reshape(6, -1, 16)
    wraps = [operation for operation, _ in _REDUCTIONS].index("inc.u32")
    values[:, wraps] = 1000  # the order of the blocks is open: a limit for all of them
    start[wraps] = rng.integers(990, 1005, 16).astype(np.uint32)
    return [values, np.stack(start)]


def _numbers(rng: Rng, type_: Any) -> Any:
    """64 bytes of a type; floats are small integers, whose sums are exact in any order."""
    count = _BYTES // np.dtype(type_).itemsize
    if np.dtype(type_).kind == "f":
        return rng.integers(-40, 40, count).astype(type_).view(np.uint32)
    return rng.integers(0, 256, _BYTES).astype(np.uint8).view(np.uint32)


@CASES.ptx(
    "bulk_reductions",
    "u64 in, u64 out",
    _reduction_body(),
    6,
    16,
    _reduction_make,
    "cp.reduce.async.bulk",
    arch="compute_90",
    version="8.6",
    long=True,
)
def _reduction_expect(args: Args) -> dict[int | str, Any]:
    result = args[1].copy()
    for number, (operation, type_) in enumerate(_REDUCTIONS):
        values = np.ascontiguousarray(args[0][:, number]).view(type_)
        total = result[number].view(type_)
        for one in values:
            match operation.partition(".")[0]:
                case "add":
                    total[:] = total + one
                case "max":
                    total[:] = np.maximum(total, one)
                case "min":
                    total[:] = np.minimum(total, one)
                case "and":
                    total[:] = total & one
                case "xor":
                    total[:] = total ^ one
                case "inc":
                    total[:] = np.where(total >= one, 0, total + 1)
    return {1: result}
