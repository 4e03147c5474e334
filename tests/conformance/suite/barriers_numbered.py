"""Barriers with ids, counts and arrivals.

Source: PTX ISA 9.0, section 9.7.13.1 (``bar``, ``barrier``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Args, Rng
from .cases import Cases

CASES = Cases()


def _integers(rng: Rng, shape: Any, bound: int = 1000) -> Any:
    return rng.integers(-bound, bound, shape).astype(np.int32)


# -- ids, counts and arrivals: a producer and a consumer ---------------------------------------

_PIPELINE_BODY = """
    .shared .align 4 .b32 %box[64];
    .reg .b32 %slot, %v, %lane, %round, %sum; .reg .b64 %p; .reg .pred %producer, %more;
    // Threads 0..63 produce, 64..127 consume; barrier 1 says "full", barrier 2 says "empty".
    mov.u32 %slot, %box;
    and.b32 %lane, %thread, 63;
    shl.b32 %v, %lane, 2;
    add.u32 %slot, %slot, %v;
    mov.b32 %round, 0;
    mov.b32 %sum, 0;
    setp.lt.u32 %producer, %thread, 64;
    @!%producer bra CONSUME;
PRODUCE:
    bar.sync 2, 128;
    mad.lo.u32 %v, %i, 7, %round;
    st.shared.u32 [%slot], %v;
    barrier.cta.arrive 1, 128;
    add.u32 %round, %round, 1;
    setp.lt.u32 %more, %round, 5;
    @%more bra PRODUCE;
    bra.uni DONE;
CONSUME:
    bar.arrive 2, 128;
    barrier.sync 1, 128;
    ld.shared.u32 %v, [%slot];
    add.u32 %sum, %sum, %v;
    add.u32 %round, %round, 1;
    setp.lt.u32 %more, %round, 5;
    @%more bra CONSUME;
    mad.wide.u32 %p, %i, 4, %out;
    st.global.u32 [%p], %sum;
DONE:
    ret;
"""


def _pipeline_make(rng: Rng) -> Args:
    return [np.zeros((9, 128), np.uint32)]


# the producers' way out meets no consumers' barrier
@CASES.ptx(
    "barrier_pipeline",
    "u64 out",
    _PIPELINE_BODY,
    9,
    128,
    _pipeline_make,
    "barrier.count barrier.arrive barrier.id reqntid",
    forms="unmodified sliced",
    expected_form="sliced",
    attributes=".reqntid 128, 1, 1",
)
def _pipeline_expect(args: Args) -> dict[int | str, Any]:
    i = np.arange(9 * 128, dtype=np.uint32).reshape(9, 128)
    out = np.zeros_like(i)
    out[:, 64:] = 5 * 7 * i[:, :64] + sum(range(5))
    return {0: out}


# -- barriers with ids in registers and parts of the block -------------------------------------

_PARTS_BODY = """
    .shared .align 4 .b32 %seen[96];
    .reg .b32 %slot, %v, %w, %part, %id, %lane; .reg .b64 %p; .reg .pred %q, %r;
    // Each group of 32 threads meets at a barrier of its own, several times.
    shr.u32 %part, %thread, 5;
    add.u32 %id, %part, 3;
    and.b32 %lane, %thread, 31;
    mov.u32 %slot, %seen;
    shl.b32 %v, %thread, 2;
    add.u32 %slot, %slot, %v;
    mad.wide.u32 %p, %i, 4, %in;
    ld.global.u32 %w, [%p];
    st.shared.u32 [%slot], %w;
    barrier.sync %id, 32;
    xor.b32 %v, %v, 124;
    mov.u32 %slot, %seen;
    add.u32 %slot, %slot, %v;
    ld.shared.u32 %v, [%slot];
    setp.gt.u32 %q, %v, %w;
    barrier.red.popc.u32 %w, %id, 32, %q;
    setp.ne.u32 %r, %lane, 0;
    barrier.red.and.pred %q, %id, 32, %r;
    @%q add.u32 %w, %w, 1000;
    barrier.red.or.pred %q, %id, 32, !%r;
    @%q add.u32 %w, %w, 2000;
    bar.sync 0;
    bar.red.popc.u32 %v, 0, %r;
    mad.lo.u32 %w, %v, 10000, %w;
    bar.red.or.pred %q, 1, 96, %r;
    @%q add.u32 %w, %w, 100;
    mad.wide.u32 %p, %i, 4, %out;
    st.global.u32 [%p], %w;
    ret;
"""


def _parts_make(rng: Rng) -> Args:
    values = rng.integers(0, 2**32, (7, 96)).astype(np.uint32)
    return [values, np.zeros_like(values)]


# barrier ids in registers: none is known to be free
@CASES.ptx(
    "barrier_parts",
    "u64 in, u64 out",
    _PARTS_BODY,
    7,
    96,
    _parts_make,
    "barrier.count barrier.id bar.red bar.sync",
    forms="unmodified sliced",
    expected_form="sliced",
)
def _parts_expect(args: Args) -> dict[int | str, Any]:
    groups = args[0].reshape(7, 3, 32)
    mirrored = groups[:, :, ::-1]
    count = (mirrored > groups).sum(axis=2)
    # Not every lane is nonzero, one lane is zero, and 93 of the block's threads are nonzero.
    value = count + 2000 + 100 + 10_000 * 93
    return {1: np.repeat(value, 32, axis=1).reshape(7, 96).astype(np.uint32)}


# -- early return before a counted barrier: cannot be made persistent --------------------------

COUNTED_EXIT = r"""
extern "C" __global__ void counted_after_exit(const int* in, int* out, int n, unsigned* runs) {
    GPUD_COUNT(runs);
    __shared__ int s[128];
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= n) return;
    s[threadIdx.x] = in[i];
    if (threadIdx.x < 64) asm volatile("bar.sync 1, 64;" ::: "memory");
    else asm volatile("bar.sync 2, 64;" ::: "memory");
    out[i] = s[threadIdx.x ^ 32];
}
"""


def _counted_make(rng: Rng) -> Args:
    # The last block keeps its first 64 threads, which are all that barrier 1 counts.
    n = 128 * 6 + 64
    return [_integers(rng, n), np.zeros(n, np.int32), np.int32(n)]


@CASES.cuda(
    "counted_after_exit",
    COUNTED_EXIT,
    7,
    128,
    _counted_make,
    "barrier.count exit-before-barrier",
    forms="unmodified sliced",
    expected_form="sliced",
)
def _counted_expect(args: Args) -> dict[int | str, Any]:
    i = np.arange(args[0].size)
    return {1: args[0][i ^ 32]}
