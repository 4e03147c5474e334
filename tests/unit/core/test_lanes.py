"""Lanes: jobs that stay open, with a standing share."""

from __future__ import annotations

from typing import Any

import pytest

from gpud.core import commands as out
from gpud.core import events as ev
from gpud.core.explain import explain
from gpud.errors import AdmissionError, DeviceLost, JobCancelled
from gpud.units import JobId
from tests.unit.core.driver import Driver, error, finished, names, slices

# -- a lane is a job that stays open ---------------------------------------------------------------


def test_a_lane_has_its_reservation_and_never_ends_by_itself() -> None:
    d = Driver(4)
    d.offline(1)
    assert slices(d.lane(2, "3/2")) == [(1, 2), (2, 48)]
    assert d.allocation(2) == "3/2"
    assert d.job(2).what == "lane 0.2"


def test_a_lane_with_too_large_a_reservation_is_refused() -> None:
    found = error(Driver(2).lane(1, "3"))
    assert isinstance(found, AdmissionError)
    assert "ask for at most 2" in str(found)


def test_a_lane_waits_for_its_reservation_like_any_online_job() -> None:
    d = Driver(2)
    d.online(1, "2")
    d.lane(2, "1")
    assert d.state(2) == "waiting"
    assert slices(d.done(1)) == [(2, 32)]


def test_a_user_cannot_reserve_more_with_lanes_than_with_jobs() -> None:
    d = Driver(4)
    d.user(5, reserve="1")
    d.open(2, 5)
    assert "user u5 may reserve 1" in str(error(d.lane(1, "2", session=2)))
    d.lane(2, "1", session=2)
    d.lane(3, "1", session=2)
    assert d.state(3) == "waiting"
    assert d.reason(3) == "user u5 may reserve 1 SMs, and has reserved 1"


def test_an_offline_lane_shares_by_weight_and_within_its_quota() -> None:
    d = Driver(4)
    d.lane(1, quota="1")
    assert d.allocation(1) == "1"
    d.lane(2)
    assert d.allocation(2) == "3"


def test_a_lane_is_in_no_stream() -> None:
    d = Driver(4)
    d.lane(1, "1")
    d.offline(2, "1", stream=0)
    d.lane(3, "1")
    assert [d.state(number) for number in (1, 2, 3)] == ["running"] * 3
    d.done(2)
    assert names(d.close_lane(1)) == ["EndJob"]


def test_a_job_can_follow_a_lane() -> None:
    d = Driver(4)
    d.lane(1, "1")
    d.offline(2, after=(JobId(1),))
    assert d.state(2) == "blocked"
    d.close_lane(1)
    assert names(d.ended(1)) == ["FinishJob", "StartJob"]


def test_a_lane_is_resized_by_its_owner() -> None:
    d = Driver(4)
    d.offline(1)
    d.lane(2, "1")
    assert slices(d.resize(2, reservation="5/2")) == [(1, 1), (2, 80)]
    assert d.left(2, 80) == []
    assert "ask for at most 4" in str(error(d.resize(2, reservation="5")))


def test_an_exclusive_lane_has_whole_sms_of_its_own() -> None:
    d = Driver(4)
    found = d.lane(1, "3/2", exclusive=True)
    assert [c.exclusive for c in found if isinstance(c, out.StartJob)] == [2]


# -- closing ---------------------------------------------------------------------------------------


def test_a_closed_lane_is_done_when_its_blocks_have_left() -> None:
    d = Driver(2)
    d.offline(1)
    d.lane(2, "1")
    d.left(1, 1)
    assert names(d.close_lane(2)) == ["EndJob"]
    assert d.state(2) == "ending"
    lane = d.job(2)
    said = explain(lane, d.scheduler.devices[0], d.now_ns)
    assert said[0] == "it is being ended: it was closed"
    assert d.close_lane(2) == []
    found = d.ended(2)
    assert finished(found) == [(2, "done")]
    assert slices(found) == [(1, 2)]


def test_a_lane_that_is_not_open_yet_is_cancelled_when_it_is_closed() -> None:
    d = Driver(1)
    d.online(1, "1")
    d.lane(2, "1")
    found = d.close_lane(2)
    assert finished(found) == [(2, "cancelled")]
    assert isinstance(error(found), JobCancelled)


def test_closing_what_is_no_lane_changes_nothing() -> None:
    d = Driver(1)
    d.offline(1)
    assert d.close_lane(1) == []
    assert d.close_lane(77) == []
    assert d.state(1) == "running"


def test_a_lane_that_fails_while_it_is_closed_has_failed() -> None:
    d = Driver(1)
    d.lane(1, "1")
    d.close_lane(1)
    assert finished(d.ended(1, failed=True)) == [(1, "failed")]


def test_a_lane_that_is_cancelled_while_it_is_closed_is_cancelled() -> None:
    d = Driver(1)
    d.lane(1, "1")
    d.close_lane(1)
    d.cancel(1)
    assert finished(d.ended(1)) == [(1, "cancelled")]


def test_the_end_of_its_session_ends_a_lane() -> None:
    d = Driver(1)
    d.lane(1, "1")
    assert names(d.close()) == ["EndJob"]
    assert names(d.ended(1)) == ["FinishJob", "CloseSession"]


@pytest.mark.parametrize("unstarted", [(), (1,)])
def test_a_lane_is_lost_with_its_host_and_done_if_it_was_closed(unstarted: tuple[int, ...]) -> None:
    d = Driver(1, 1)
    d.lane(1, "1")
    d.close_lane(1)
    assert finished(d.fail(unstarted=unstarted)) == [(1, "done")]
    d.lane(2, "1", device=1)
    found = d.fail(1)
    assert finished(found) == [(2, "failed")]
    assert isinstance(error(found), DeviceLost)


def test_a_lane_whose_host_was_lost_before_it_was_opened_is_opened_on_the_next() -> None:
    d = Driver(1)
    d.lane(1, "1")
    assert d.fail(unstarted=(1,)) == []
    assert slices(d.up(0, 2)) == [(1, 32)]


def test_a_lane_that_its_device_ends_unasked_is_an_error() -> None:
    d = Driver(1)
    d.lane(1, "1")
    found: Any = d.send(ev.JobEnded(0, JobId(1), failed=False, complete=False))
    assert finished(found) == [(1, "failed")]
