"""Bounds of addresses in loops: interval arithmetic, and kernels whose loops end at a boundary."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from gpud.device.cpu.codegen.hoisting.hoisted_checks import HoistedChecks
from gpud.device.cpu.codegen.hoisting.intervals import EXACT, Interval, IntervalArithmetic
from gpud.device.cpu.codegen.hoisting.slices import UnknownValue
from gpud.device.cpu.ir.emitter import Emitter, IRModule
from gpud.errors import IllegalAddress
from tests.unit.cpu.codegen.checked_arena import ARENA_BYTES, HEAD, Arena

# -- arithmetic --------------------------------------------------------------------------------


def values_of(one: Interval) -> list[int]:
    assert isinstance(one.low, int)
    assert isinstance(one.high, int)
    assert isinstance(one.base, int)
    return [v for v in range(one.low, one.high + 1) if (v - one.base) % one.step == 0]


def some_interval(rng: random.Random) -> Interval:
    low = rng.randint(-20, 20)
    if rng.random() < 0.3:
        return Interval(low, low, EXACT, low, 20)
    step = rng.choice((1, 2, 4))
    return Interval(low, low + rng.randint(0, 12), step, low + step * rng.randint(-2, 2), 40)


def arithmetic() -> IntervalArithmetic:
    return IntervalArithmetic(Emitter(IRModule(), "define void @f()"))


BINARY: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "multiply": lambda a, b: a * b,
    "lesser": min,
    "greater": max,
}


@pytest.mark.parametrize("name", BINARY)
def test_an_operation_on_intervals_holds_all_results(name: str) -> None:
    rng = random.Random(name)
    done = 0
    for _ in range(300):
        first, second = some_interval(rng), some_interval(rng)
        made = arithmetic()
        try:
            result = getattr(made, name)(first, second)
        except UnknownValue:
            assert name == "multiply"  # two factors with more than one value
            continue
        expected = {BINARY[name](a, b) for a in values_of(first) for b in values_of(second)}
        assert not made.doubts
        assert expected <= set(values_of(result))
        assert all(abs(value) <= result.most for value in expected)
        done += 1
    assert done > 100


def test_hulls_shifts_and_negatives_hold_all_results() -> None:
    rng = random.Random(7)
    for _ in range(300):
        first, second, made = some_interval(rng), some_interval(rng), arithmetic()
        both = set(values_of(made.hull(first, second)))
        assert {*values_of(first), *values_of(second)} <= both
        assert {-v for v in values_of(first)} <= set(values_of(made.negate(first)))
        assert {v >> 2 for v in values_of(first)} <= set(values_of(made.shifted(first, 2)))


def test_an_interval_that_does_not_fit_its_type_is_unknown() -> None:
    made = arithmetic()
    assert made.fits(made.within(0, 255), "u32").high == 255
    with pytest.raises(UnknownValue):
        made.fits(made.within(-1, 255), "u32")
    with pytest.raises(UnknownValue):
        made.fits(made.within(0, 1 << 31), "s32")
    unknown = Interval("%low", "%high", 1, 0, 1 << 40)
    made.fits(unknown, "s32")
    assert len(made.doubts) == 2  # known only at run time


# -- loops -------------------------------------------------------------------------------------


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each check of the kernels loaded from here on: whether it is tested by its bounds."""
    found: list[bool] = []
    original = HoistedChecks._by_intervals

    def watched(self: HoistedChecks) -> list[str]:
        conditions = original(self)
        found.extend(id(ins) not in self.inline for ins in self._bounded)
        return conditions

    monkeypatch.setattr(HoistedChecks, "_by_intervals", watched)
    return found


def number(value: int) -> np.uint32:
    return np.uint32(value % 2**32)


def loop(
    before: str, body: str, test: str, *, after: str = "", step: str = "add.s32 %r2, %r2, 8;"
) -> str:
    """A loop over ``%r2``, from the thread's number on, that each thread runs by itself."""
    return f"""{HEAD}.visible .entry k(.param .u64 p, .param .u32 n) {{
    .reg .pred %p<6>; .reg .b32 %r<20>; .reg .b64 %rd<20>; .shared .align 4 .b8 table[1024];
    ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [n]; mov.u32 %r2, %tid.x; {before}
    L: {body}
    {step} setp.{test}; @%p1 bra L; {after} ret; }}"""


STORE = "mul.wide.{kind}32 %rd2, %r2, 4; add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r2;"


@pytest.mark.parametrize("kind", ["s", "u"])
@pytest.mark.parametrize("test", ["lt.{kind}32 %p1, %r2, %r1", "gt.{kind}32 %p1, %r1, %r2"])
def test_a_loop_up_to_the_last_element_is_tested_before_it_runs(
    world: Arena, early: list[bool], kind: str, test: str
) -> None:
    program = loop("", STORE.format(kind=kind), test.format(kind=kind))
    start = world.end - 4 * 40
    for count, legal in ((40, True), (41, False), (8, True), (0, True), (48, False)):
        world.bytes[:] = 0
        error = world.run(program, start, number(count))
        assert (error is None) == legal
        if error is not None:
            assert isinstance(error, IllegalAddress)
            assert error.address == world.end
            assert error.thread == (0, 0, 0)
    assert early == [True]


def test_an_index_that_wraps_is_reported_where_it_leaves_the_array(
    world: Arena, early: list[bool]
) -> None:
    # From just below 2**31: the next iteration is far below the array.
    begin = "add.s32 %r2, %r2, 0x7FFFFFF0;"
    body = """sub.s32 %r5, %r2, 0x7FFFFFF0; mul.wide.s32 %rd2, %r5, 4; add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], 1; mul.wide.s32 %rd4, %r2, 4; add.s64 %rd5, %rd1, %rd4;
    sub.s64 %rd6, %rd5, 0x1FFFFFFC0; st.global.u32 [%rd6], 2;"""
    program = loop(begin, body, "lt.s32 %p1, %r2, %r1")
    error = world.run(program, world.base, number(0x7FFFFFFF))
    assert isinstance(error, IllegalAddress)
    assert error.address == world.base - 0x200000000 - 0x1FFFFFFC0
    assert early == [True, True]


@pytest.mark.parametrize(("scale", "legal"), [(4, True), (5, False), (8, False)])
def test_a_table_indexed_by_a_byte_needs_no_test(
    world: Arena, early: list[bool], scale: int, legal: bool
) -> None:
    body = f"""cvt.u64.u32 %rd2, %r2; add.s64 %rd3, %rd1, %rd2; ld.global.u8 %r3, [%rd3];
    and.b32 %r4, %r3, 255; mul.lo.s32 %r5, %r4, {scale}; mov.u32 %r6, table;
    add.s32 %r7, %r6, %r5; st.shared.u32 [%r7], %r2;"""
    world.bytes[:] = 255
    error = world.run(loop("", body, "lt.u32 %p1, %r2, %r1"), world.base, number(64))
    assert (error is None) == legal
    # A store always in bounds has no bounds check; one that would never pass stays in the loop.
    assert early == ([True] if legal else [True, False])


def test_accesses_that_a_condition_excludes_are_not_reported(
    world: Arena, early: list[bool]
) -> None:
    # Thread 0 would store before the array in its first iteration.
    body = f"""setp.eq.s32 %p2, %r2, 0; setp.eq.s32 %p3, %r1, 0; or.pred %p4, %p2, %p3;
    @%p4 bra S; sub.s32 %r3, %r2, 1; mul.wide.s32 %rd2, %r3, 4; add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], 1; setp.gt.u32 %p5, %r2, 63; @%p5 bra S;
    mul.wide.u32 %rd4, %r2, 4; add.s64 %rd5, %rd1, %rd4; add.s64 %rd6, %rd5, {ARENA_BYTES - 256};
    st.global.u32 [%rd6], 1; S:"""
    program = loop("", body, "lt.u32 %p1, %r2, %r1")
    assert world.run(program, world.base, number(200)) is None
    assert early == [True, True]
    error = world.run(program, world.base + 4, number(200))
    assert isinstance(error, IllegalAddress)
    assert error.address == world.end
    error = world.run(program, world.base - 4, number(200))
    assert isinstance(error, IllegalAddress)
    assert error.address == world.base - 4


def test_a_register_that_another_loop_advances_is_no_index(world: Arena, early: list[bool]) -> None:
    # The inner loop does not restart: it continues where it ended.
    before = "mov.u32 %r9, %tid.x;\nO: add.u32 %r9, %r9, 0;"
    after = "add.u32 %r9, %r9, 1; setp.lt.u32 %p2, %r9, 20; @%p2 bra O;"
    program = loop(before, STORE.format(kind="u"), "lt.u32 %p1, %r2, %r1", after=after)
    error = world.run(program, world.end - 4 * 16, number(9))
    assert isinstance(error, IllegalAddress)
    assert error.address == world.end
    assert early == [False]


def test_a_step_that_may_be_negative_is_not_trusted(world: Arena, early: list[bool]) -> None:
    program = loop(
        "", STORE.format(kind="s"), "lt.s32 %p1, %r2, 100", step="add.s32 %r2, %r2, %r1;"
    )
    assert world.run(program, world.base, number(50)) is None
    error = world.run(program, world.base, number(-8))
    assert isinstance(error, IllegalAddress)
    assert error.address == world.base - 32
    assert early == [True]
