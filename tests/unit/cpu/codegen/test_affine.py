"""Pointers that grow from thread to thread under conditions.

Those without: ``campaigns/out_of_bounds/affine.py``.
"""

from __future__ import annotations

import numpy as np
import pytest

from gpud.errors import IllegalAddress
from tests.unit.cpu.codegen.checked_arena import HEAD, Arena

SOURCE = r"""
extern "C" __global__ void between(int* a, int first, int end) {
    int i = (int)threadIdx.x + first;
    if (i >= 0 && i < end) a[i] = i + 1;
}
extern "C" __global__ void optional(int* out, const int* more, int n) {
    int i = threadIdx.x;
    if (i < n) {
        int sum = i;
        if (more) sum += more[i];
        out[i] = sum;
    }
}
extern "C" __global__ void chosen(int* out, const int* p, const int* q, float which, int n) {
    int i = threadIdx.x;
    if (i < n) {
        if (which > 0.5f && p) out[i] = p[i];
        else if (!(which < 0.0f)) out[i] = q[i];
    }
}
extern "C" __global__ void earlier(int* out, const int* a, int first, int end, int step) {
    int i = (int)threadIdx.x;
    bool mine = i >= first && i < end;
    bool small = i < step;
    for (int k = 0; k < 2; k++) {
        if (mine) out[i - first] = a[i - first] + k;
        __syncthreads();
        if (small) out[i + 1024] += k;
        __syncthreads();
    }
}
"""


def wrapped(compare: str, index: str, wide: str) -> str:
    """``if (tid <compare> from) a[index] = tid + 1``, widened as ``wide`` has it."""
    return f"""{HEAD}
.visible .entry k(.param .u64 a, .param .u32 from, .param .u32 by) {{
    .reg .pred %p; .reg .b32 %r<5>; .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [a]; ld.param.u32 %r1, [from]; ld.param.u32 %r2, [by];
    mov.u32 %r3, %tid.x;
    setp.{compare}.u32 %p, %r3, %r1;
    @!%p bra DONE;
    {index} %r4, {"%r2, %r3" if index == "sub.s32" else "%r3, %r2"};
    {wide}
    add.s32 %r4, %r3, 1;
    st.global.u32 [%rd2], %r4;
DONE:
    ret;
}}"""


PRODUCT = "mul.wide.u32 %rd2, %r4, 4; add.s64 %rd2, %rd1, %rd2;"
MAD = "mad.wide.u32 %rd2, %r4, 4, %rd1;"
SIGNED = "cvt.s64.s32 %rd2, %r4; shl.b64 %rd2, %rd2, 2; add.s64 %rd2, %rd2, %rd1;"


def outside(error: object, address: int, thread: tuple[int, int, int]) -> bool:
    assert isinstance(error, IllegalAddress)
    return (error.address, error.thread) == (address, thread)


def test_threads_excluded_by_a_condition(world: Arena) -> None:
    words = world.words(np.int32)

    def between(a: int, first: int, end: int) -> object:
        words[:] = 0
        return world.run(SOURCE, a, np.int32(first), np.int32(end), name="between", block=64)

    assert between(world.end - 4 * 20, -30, 20) is None
    assert (words[-20:] == np.arange(1, 21)).all()
    assert between(world.base, -63, 1) is None
    assert words[0] == 1
    assert between(world.end, -100, 100) is None  # nobody
    assert between(world.end, 5, 5) is None
    assert outside(between(world.end - 4 * 20, -30, 21), world.end, (50, 0, 0))
    assert outside(between(world.base - 4, -63, 1), world.base - 4, (63, 0, 0))
    # 2**31 - 32 + 40 wraps, and is less than zero then.
    assert outside(
        between(world.base, 2**31 - 32, 2**31 - 1), world.base + 4 * (2**31 - 32), (0, 0, 0)
    )


@pytest.mark.parametrize("wide", [PRODUCT, MAD])
def test_indices_that_wrap_only_in_inactive_threads(world: Arena, wide: str) -> None:
    words = world.words(np.uint32)

    def run(compare: str, index: str, a: int, start: int, by: int) -> object:
        words[:] = 0
        values = (np.uint32(start), np.uint32(by % 2**32))
        return world.run(wrapped(compare, index, wide), a, *values, block=64)

    # Thread 7 has index 0; what those before it would have is 4 * 2**32 bytes further.
    assert run("ge", "add.s32", world.end - 4 * 57, 7, -7) is None
    assert words[-57:].tolist() == list(range(8, 65))
    assert run("ne", "add.s32", world.base, 0, -1) is None
    assert words[:64].tolist() == [*range(2, 65), 0]
    assert run("le", "sub.s32", world.end - 4 * 31, 30, 30) is None
    assert words[-31:].tolist() == list(range(31, 0, -1))
    assert run("gt", "add.s32", world.end, 63, -64) is None  # nobody
    # Not quite: the first or the last that comes is outside of the arena.
    end, low = world.end, world.base
    assert outside(run("ge", "add.s32", end - 4 * 56, 7, -7), end, (63, 0, 0))
    assert outside(run("ge", "add.s32", low - 4, 7, -7), low - 4, (7, 0, 0))
    assert outside(run("le", "sub.s32", end - 4 * 30, 30, 30), end, (0, 0, 0))
    # Some that come wrap, the others do not.
    far = 4 * (2**32 - 4)
    assert outside(run("ge", "add.s32", low, 6, -10), low + far, (6, 0, 0))
    assert outside(run("ge", "add.s32", low - far, 6, -10), low - far, (10, 0, 0))
    assert outside(run("le", "sub.s32", low, 34, 31), low + 4 * (2**32 - 1), (32, 0, 0))


def test_signed_indices_that_wrap_only_in_inactive_threads(world: Arena) -> None:
    words = world.words(np.uint32)

    def run(start: int, by: int, at: int) -> object:
        words[:] = 0
        values = (np.uint32(start), np.uint32(by % 2**32))
        return world.run(wrapped("ge", "add.s32", SIGNED), world.base + at, *values, block=64)

    # From thread 20 on the sum is -2**31 and more; before, it is almost 2**31.
    assert run(20, 2**31 - 20, 4 * 2**31) is None
    assert words[:45].tolist() == [*range(21, 65), 0]
    wrong = world.base - 4 * 2**31 + 4 * (2**31 - 1)
    assert outside(run(19, 2**31 - 20, -4 * 2**31), wrong, (19, 0, 0))


@pytest.mark.parametrize("n", [64, 50, 1, 0])
def test_a_pointer_that_may_be_null(world: Arena, n: int) -> None:
    words = world.words(np.int32)
    words[:] = 0
    words[512:576] = np.arange(64) * 10
    out = world.base + 4 * 1024

    def optional(more: int) -> object:
        return world.run(SOURCE, out, more, np.int32(n), name="optional", block=64)

    assert optional(0) is None
    assert (words[1024 : 1024 + n] == np.arange(n)).all()
    assert optional(world.base + 4 * 512) is None
    assert (words[1024 : 1024 + n] == np.arange(n) * 11).all()
    assert optional(world.end - 4 * n) is None
    if n:
        assert outside(optional(world.end - 4 * (n - 1)), world.end, (n - 1, 0, 0))
        assert outside(optional(world.base - 4), world.base - 4, (0, 0, 0))
        assert outside(optional(4), 4, (0, 0, 0))


def test_conditions_on_other_than_integers(world: Arena) -> None:
    out, good, bad = world.base + 4096, world.base, world.end

    def chosen(p: int, q: int, which: float) -> object:
        return world.run(
            SOURCE, out, p, q, np.float32(which), np.int32(60), name="chosen", block=64
        )

    assert chosen(good, bad, 1.0) is None
    assert outside(chosen(bad, good, 1.0), bad, (0, 0, 0))
    assert chosen(bad, good, 0.0) is None
    assert chosen(0, good, 1.0) is None
    assert outside(chosen(0, bad, 1.0), bad, (0, 0, 0))
    assert outside(chosen(0, bad, float("nan")), bad, (0, 0, 0))
    assert chosen(bad, bad, -1.0) is None


def test_conditions_from_before_a_barrier(world: Arena) -> None:
    words = world.words(np.int32)

    def earlier(a: int, first: int, end: int, step: int) -> object:
        words[:] = 0
        values = (np.int32(one) for one in (first, end, step))
        return world.run(SOURCE, world.base, a, *values, name="earlier", block=64)

    assert earlier(world.end - 4 * 20, 10, 30, 64) is None
    assert words[:21].tolist() == [1] * 20 + [0]
    assert (words[1024:1088] == 1).all()
    assert earlier(world.end, 10, 10, 0) is None  # nobody
    assert earlier(world.end, 80, 90, 0) is None
    assert outside(earlier(world.end - 4 * 20, 10, 31, 0), world.end, (30, 0, 0))
    assert outside(earlier(world.base - 4, 10, 30, 0), world.base - 4, (10, 0, 0))
    assert earlier(world.base + 4 * 5, -5, 1, 0) is None
    assert outside(earlier(world.end - 4 * 10, -5, 6, 0), world.end, (5, 0, 0))
