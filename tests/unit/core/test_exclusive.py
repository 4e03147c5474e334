"""Exclusive jobs: which SMs are dedicated to them, and withheld from other jobs."""

from __future__ import annotations

from typing import Any

import pytest

from gpud.core import commands as out
from gpud.core import events as ev
from gpud.errors import AdmissionError, InvalidArgument
from gpud.units import Partitions
from tests.unit.core.driver import Driver, error, finished, names, slices


def driver(sms: int, step: int, most: int, why: str = "", **settings: Any) -> Driver:
    one = Driver(**settings)
    one.send(ev.DeviceReady(0, 0, sms, "cuda:0", Partitions(step, most, why)))
    return one


def starts(commands: list[out.Command]) -> list[tuple[int, int, int]]:
    return [(c.job, c.slices, c.exclusive) for c in commands if isinstance(c, out.StartJob)]


def test_a_reservation_is_rounded_up_to_what_can_be_set_apart() -> None:
    one = driver(132, 8, 128)
    assert starts(one.online(1, "1/3", m=4, exclusive=True)) == [(1, 32, 8)]
    assert one.allocation(1) == "8"
    assert starts(one.online(2, "17", m=2, exclusive=True)) == [(2, 48, 24)]
    assert starts(one.online(3, "17", m=2)) == [(3, 34, 0)]


def test_offline_jobs_give_way_by_whole_sms_and_have_them_back_at_its_end() -> None:
    one = driver(8, 2, 8)
    assert slices(one.offline(1, m=3)) == [(1, 24)]
    assert slices(one.online(2, "5/2", m=2, exclusive=True)) == [(1, 12), (2, 8)]
    one.left(1, 12)
    # What an ordinary job's last blocks leave is free at once; not so of an exclusive job.
    assert slices(one.left(2, 1, exhausted=True)) == []
    assert one.allocation(2) == "4"
    assert slices(one.online(3, "1", m=1)) == [(1, 9), (3, 1)]
    one.left(1, 9)
    assert slices(one.done(2)) == [(1, 21)]


def test_more_than_can_be_set_apart_waits_or_is_refused() -> None:
    one = driver(10, 4, 8)
    refused = error(one.online(1, "9", exclusive=True))
    assert isinstance(refused, AdmissionError)
    assert "12 SMs of the job's own" in str(refused)
    assert "multiples of 4: more than the 8" in str(refused)
    assert starts(one.online(2, "5", exclusive=True)) == [(2, 8, 8)]
    assert starts(one.online(3, "1", exclusive=True)) == []
    assert one.state(3) == "waiting"
    one.cancel(2)
    assert one.state(3) == "waiting", "its SMs are its own until it has ended"
    assert starts(one.ended(2)) == [(3, 4, 4)]


def test_what_is_kept_for_offline_jobs_is_not_set_apart() -> None:
    one = driver(8, 2, 8, offline_floor="20%")
    refused = error(one.online(1, "7", exclusive=True))
    assert "more than the 6 that can be" in str(refused)
    assert starts(one.online(2, "6", exclusive=True)) == [(2, 6, 6)]


def test_a_device_that_cannot_says_why() -> None:
    one = driver(8, 0, 0, "its driver is too old")
    refused = error(one.online(1, "1", exclusive=True))
    assert isinstance(refused, AdmissionError)
    assert "its driver is too old" in str(refused)
    assert starts(one.online(2, "1")) == [(2, 1, 0)]


def test_it_goes_with_a_reservation_and_is_not_resized() -> None:
    one = driver(8, 1, 8)
    assert isinstance(error(one.offline(1, "2", exclusive=True)), InvalidArgument)
    one.online(2, "2", exclusive=True)
    commands = one.resize(2, reservation="3")
    assert names(commands) == ["Refuse"]
    assert "SMs of its own" in str(error(commands))


@pytest.mark.parametrize(("policy", "works"), [("fifo", True), ("equal", False)])
def test_other_policies(policy: str, works: bool) -> None:
    one = driver(4, 1, 3, policy=policy)
    commands = one.online(1, "2", exclusive=True)
    if not works:
        assert "keeps no reservations" in str(error(commands))
        return
    assert starts(commands) == [(1, 2, 2)]
    assert starts(one.online(2, "2", exclusive=True)) == []
    assert starts(one.done(1)) == [(2, 2, 2)]
    assert finished(one.done(2)) == [(2, "done")]


def test_a_kernel_in_form_whole_needs_room_on_its_own_sms() -> None:
    one = driver(8, 2, 8)
    refused = error(one.online(1, "2", m=2, blocks=5, whole=True, exclusive=True))
    assert "needs all its 5/2 SMs at once; a reservation of 2" in str(refused)
    assert starts(one.online(2, "2", m=2, blocks=4, whole=True, exclusive=True)) == [(2, 4, 2)]
