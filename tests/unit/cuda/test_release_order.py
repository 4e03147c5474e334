"""Which blocks are released: exactly as many as asked, SM by SM, and never revoked."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpud.device.cuda.placement.release_order import ReleaseOrder
from tests.driver_model import SteppedDriver
from tests.support.resizable_run import ResizableRun
from tests.unit.cuda.model_runs import device_of, drive, launches, ran_once

SMS = 6


def staying(order: ReleaseOrder, limit: int, count: int) -> set[int]:
    order.lower(limit)
    return those_of(order, count)


def those_of(order: ReleaseOrder, count: int) -> set[int]:
    words = order.stays
    assert len(words) == -(-count // 32)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    assert not bits[count:].any()
    return set(np.flatnonzero(bits).tolist())


@given(
    where=st.lists(st.integers(1, SMS), min_size=1, max_size=90),
    begun=st.lists(st.integers(0, 90), max_size=4),
    limits=st.lists(st.integers(0, 90), min_size=1, max_size=6),
    by_sm=st.booleans(),
)
def test_exact_and_monotone(
    where: list[int], begun: list[int], limits: list[int], by_sm: bool
) -> None:
    count = len(where)
    sms: npt.NDArray[np.uint16] = np.zeros(count, np.uint16)
    order = ReleaseOrder(sms, by_sm=by_sm)
    stayed = set(range(count))
    comes = sorted(begun)
    for limit in sorted((min(limit, count) for limit in limits), reverse=True):
        there = comes.pop(0) if comes else 0
        sms[:there] = where[:there]
        if limit < len(stayed):
            now = staying(order, limit, count)
            assert len(now) == limit
            assert now <= stayed
            stayed = now
            assert order.coming == sum(not sms[index] for index in stayed)
            assert order.absent == sum(not sms[i] for i in range(count) if i not in stayed)
            assert sorted(order.resident_sms) == sorted(sms[i] - 1 for i in stayed if sms[i])


@given(where=st.lists(st.integers(1, SMS), min_size=1, max_size=90), part=st.floats(0, 1))
def test_whole(where: list[int], part: float) -> None:
    order = ReleaseOrder(np.array(where, np.uint16), by_sm=True)
    limit = int(part * len(where))
    stay = staying(order, limit, len(where))
    left, stayed = Counter(where), Counter(where[index] for index in stay)
    left -= stayed
    assert len(left.keys() & stayed.keys()) <= 1


@given(
    where=st.lists(st.integers(0, SMS), min_size=1, max_size=60),
    doing=st.lists(st.one_of(st.floats(0, 1), st.sets(st.integers(0, SMS - 1)))),
)
def test_cleared_sms_are_left_by_all(where: list[int], doing: list[float | set[int]]) -> None:
    count = len(where)
    order = ReleaseOrder(np.array(where, np.uint16), by_sm=True)
    stayed = set(range(count))
    for what in doing:
        if isinstance(what, set):
            limit = order.clear(what)
            now = those_of(order, count)
            assert now == {index for index in stayed if where[index] - 1 not in what}
        else:
            limit = int(what * len(stayed))
            now = staying(order, limit, count)
            assert now <= stayed
        assert len(now) == limit
        stayed = now


@given(
    where=st.lists(st.integers(0, SMS), min_size=1, max_size=70),
    doing=st.lists(
        st.one_of(st.floats(0, 1), st.sets(st.integers(0, SMS - 1)), st.integers(0, 70)),
        max_size=6,
    ),
    ahead=st.lists(st.integers(0, 70), min_size=1, max_size=3),
)
def test_prepared(where: list[int], doing: list[float | set[int] | int], ahead: list[int]) -> None:
    count = len(where)
    known = [np.zeros(count, np.uint16) for _ in range(2)]
    orders = [ReleaseOrder(sms, by_sm=True) for sms in known]
    left = count
    for what in doing:
        orders[0].prepare(limit for limit in ahead if limit <= count)
        for sms, order in zip(known, orders, strict=True):
            if isinstance(what, set):
                left = order.clear(what)
            elif isinstance(what, int):
                sms[: min(what, count)] = where[: min(what, count)]
                order.poll()
            else:
                order.lower(int(what * left))
        if isinstance(what, float):
            left = int(what * left)
        assert those_of(orders[0], count) == those_of(orders[1], count)


def test_blocks_that_have_not_begun_leave_first() -> None:
    sms = np.array([3, 2, 1, 3, 0, 0], np.uint16)
    order = ReleaseOrder(sms, by_sm=True)
    assert staying(order, 5, 6) == {0, 1, 2, 3, 4}
    sms[4] = 2
    assert order.coming == 0
    assert staying(order, 4, 6) == {0, 1, 3, 4}, "the only one on the first SM"
    assert staying(order, 2, 6) == {0, 3}


@pytest.mark.parametrize("seed", range(4))
def test_whole_sms_come_free_on_a_device(seed: int) -> None:
    fake = SteppedDriver(seed, room=48, sms=6)
    fake.occupancy = 8
    with device_of(fake) as device:
        job = ResizableRun(device, launches(device, "p", total=10**8))
        job.resize(48)
        fake.run(400)
        assert set(fake.on_sms().values()) == {8}
        device.watcher.poll()
        for slices, sms in ((24, 3), (20, 3), (8, 1)):
            job.resize(slices)
            fake.run(1500)
            assert fake.on_sms().total() == slices == job.held
            assert len(fake.on_sms()) == sms, "an SM more than needed has blocks"
        job.end()
        drive(fake, device, job)


@pytest.mark.parametrize("by_sm", [True, False])
def test_nothing_is_lost_whichever_blocks_leave(by_sm: bool) -> None:
    resizes = random.Random(7)
    fake = SteppedDriver(5, room=24)
    with device_of(fake, by_sm=by_sm) as device:
        job = ResizableRun(device, launches(device, "pp", total=300))
        for _ in range(60):
            job.resize(resizes.randrange(1, 9))
            fake.run(resizes.randrange(80))
            device.watcher.poll()
        drive(fake, device, job, rounds=20_000)
        ran_once(fake, [300, 300])
