"""Indices that are remainders by a constant: exactly the out-of-bounds ones are reported."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gpud.errors import IllegalAddress
from tests.unit.cpu.codegen.checked_arena import HEAD, Arena

BLOCK = 64


def source(divisor: int) -> str:
    """Remainders of a thread's own number, and of one that grows in a loop."""
    return f"""
    extern "C" __global__ void own(int* a, int from) {{
        a[((int)threadIdx.x + from) % {divisor}] = 1;
    }}
    extern "C" __global__ void own_unsigned(int* a, unsigned from) {{
        a[(threadIdx.x + from) % {divisor}u] = 1;
    }}
    extern "C" __global__ void turns(const int* a, int* out, int from, int n) {{
        int sum = 0;
        for (int k = from; k < n + (int)threadIdx.x; k++) sum += a[k % {divisor}];
        out[threadIdx.x] = sum;
    }}
    extern "C" __global__ void turns_unsigned(const int* a, int* out, unsigned from, unsigned n) {{
        int sum = 0;
        for (unsigned k = from; k < n + threadIdx.x; k++) sum += a[k % {divisor}u];
        out[threadIdx.x] = sum;
    }}"""


def remainder(value: int, divisor: int, *, signed: bool) -> int:
    """As C has it."""
    if not signed:
        return value % 2**32 % divisor
    return value % divisor if value >= 0 else -(-value % divisor)


def first_outside(error: object, array: int, indices: list[list[int]], low: int, high: int) -> None:
    """Check that ``error`` is at a thread's first index out of bounds; None if there is none."""
    outside = {
        (array + 4 * next(i for i in mine if not low <= i < high), thread)
        for thread, mine in enumerate(indices)
        if any(not low <= i < high for i in mine)
    }
    if not outside:
        assert error is None
        return
    assert isinstance(error, IllegalAddress)
    assert error.thread is not None
    assert (error.address, error.thread[0]) in outside


@pytest.mark.parametrize("divisor", [1, 7, 24, 32])
def test_remainders_of_a_threads_number(world: Arena, divisor: int) -> None:
    text = source(divisor)
    for name, signed in (("own", True), ("own_unsigned", False)):
        kind = np.int32 if signed else np.uint32
        for start in (5 * divisor - 3, -7, 2**31 - 70, 2**32 - BLOCK // 2):
            if signed and start >= 2**31:
                continue
            indices = [[remainder(start + t, divisor, signed=signed)] for t in range(BLOCK)]
            for room in (divisor, divisor - 1):
                for array, low, high in (
                    (world.end - 4 * room, -(10**6), room),
                    (world.base + 4 * (divisor - room), room - divisor, 10**5),
                ):
                    value = kind(start % 2**32 if not signed else start)
                    error = world.run(text, array, value, name=name, block=BLOCK)
                    first_outside(error, array, indices, low, high)


@pytest.mark.parametrize("divisor", [8, 24])
def test_remainders_of_a_loop_index(world: Arena, divisor: int) -> None:
    text = source(divisor)
    world.bytes[:] = 0
    for name, signed in (("turns", True), ("turns_unsigned", False)):
        kind = np.int32 if signed else np.uint32
        for start, end in ((0, 3 * divisor), (5, 4), (2 * divisor + 1, 2 * divisor + 3)):
            indices = [
                [remainder(k, divisor, signed=signed) for k in range(start, end + t)]
                for t in range(8)
            ]
            for room in (divisor, divisor - 1):
                array = world.end - 4 * room
                values = (array, world.base, kind(start), kind(end))
                error = world.run(text, *values, name=name, block=8)
                first_outside(error, array, indices, -(10**6), room)
    # From below zero: remainders are negative, as the dividend is.
    indices = [[remainder(k, divisor, signed=True) for k in range(-5, 3 + t)] for t in range(8)]
    least = min(min(mine) for mine in indices)
    for more in (0, 1):
        array = world.base - 4 * (least + more)
        values = (array, world.base + 4096, np.int32(-5), np.int32(3))
        error = world.run(text, *values, name="turns", block=8)
        first_outside(error, array, indices, least + more, 10**5)


GOOD = (0xAAAAAAAB, 4)
"""Multiplier and shift for a division by 24."""


def divided(magic: int, shift: int, *, of: str = "%r2", kind: str = "u32", more: str = "") -> str:
    """The index is ``x - x * magic / 2**(32 + shift) * 24``, for x = thread + from."""
    signed = kind == "s32"
    sign = "shr.u32 %r6, %r3, 31; add.s32 %r4, %r4, %r6;" if signed else ""
    return f"""{HEAD}.visible .entry k(.param .u64 p, .param .u32 from)
    {{ .reg .u32 %r<12>; .reg .u64 %rd<4>; ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [from];
    mov.u32 %r7, %tid.x; add.u32 %r2, %r7, %r1; mov.u32 %r8, %r2;
    mul.hi.{kind} %r3, {of}, {magic}; shr.{kind} %r4, %r3, {shift}; {sign} {more}
    mul.lo.s32 %r4, %r4, 24; sub.s32 %r5, %r2, %r4; mul.wide.s32 %rd2, %r5, 4;
    add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], 1; ret; }}"""


def test_a_quotient_that_is_correct(world: Arena) -> None:
    array = world.end - 4 * 24
    for text in (divided(*GOOD), divided(0x2AAAAAAB, 2, kind="s32")):
        for start in (0, 24 * 1000, 2**31 - 1 - BLOCK):
            assert world.run(text, array, np.uint32(start), block=BLOCK) is None
            error = world.run(text, array + 4, np.uint32(start), block=BLOCK)
            assert isinstance(error, IllegalAddress)
            assert error.address == world.end


def quotient(value: int, magic: int, shift: int) -> int:
    return value * magic >> 32 + shift


WRONG: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "one less: 24 / 24 comes to 0": (
        divided(0xAAAAAAAA, 4),
        lambda x, t: x - 24 * quotient(x, 0xAAAAAAAA, 4),
    ),
    "shifted too far": (divided(0xAAAAAAAB, 5), lambda x, t: x - 24 * (x // 48)),
    "one less, signed": (
        divided(0x2AAAAAAA, 2, kind="s32"),
        lambda x, t: x - 24 * quotient(x, 0x2AAAAAAA, 2),
    ),
    "of another value": (divided(*GOOD, of="%r7"), lambda x, t: x - t // 24 * 24),
    "changed since": (
        divided(*GOOD, more="add.u32 %r2, %r2, 24;"),
        lambda x, t: x % 24 + 24,
    ),
    "one less than the quotient": (
        divided(*GOOD, more="sub.u32 %r4, %r4, 1;"),
        lambda x, t: x % 24 + 24,
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_near_misses_of_remainders(world: Arena, name: str) -> None:
    text, index = WRONG[name]
    for start in (0, 24, 1 << 20):
        indices = [[index(start + t, t)] for t in range(BLOCK)]
        array = world.end - 4 * 24
        error = world.run(text, array, np.uint32(start), block=BLOCK)
        first_outside(error, array, indices, -(10**5), 24)
