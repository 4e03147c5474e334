"""Lanes: jobs that stay open, with a standing share."""

from __future__ import annotations

from typing import Any

import pytest

from gpud.core import commands as out
from gpud.core import events as ev
from gpud.core.explain import explain
from gpud.core.wait_reasons import lending_note
from gpud.errors import AdmissionError, DeviceLost, Draining, JobCancelled
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


def test_a_daemon_that_ends_waits_for_no_idle_lane() -> None:
    d = Driver(4)
    for number in (1, 2):
        d.lane(number, "2")
    d.lane(3, "1")
    d.idle(1)
    found = d.send_drain(10**12)
    refused = [one for one in found if isinstance(one, out.FinishJob)]
    assert [(one.job, type(one.error)) for one in refused] == [(3, Draining)]  # it had no share yet
    assert [one.job for one in found if isinstance(one, out.EndJob)] == [1]
    assert "nothing ran in the lane" in str(error(d.ended(1)))
    assert names(d.idle(2)) == ["EndJob"]
    assert names(d.ended(2))[-1] == "Drained"


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


# -- lending ---------------------------------------------------------------------------------------


def plans(commands: list[out.Command]) -> list[tuple[int, int, tuple[tuple[int, int], ...]]]:
    return [(c.job, c.epoch, c.steps) for c in commands if isinstance(c, out.TakeBackPlan)]


def lending() -> Driver:
    """Job 1 has 4 SMs, two of which lane 2 lends it."""
    d = Driver(4)
    d.offline(1)
    d.lane(2, "2")
    d.left(1, 2)
    d.idle(2)
    d.left(1, 4)
    return d


def test_an_idle_lane_lends_its_share_and_its_device_hears_how_to_take_it_back() -> None:
    d = Driver(4)
    d.offline(1)
    d.lane(2, "2")
    d.left(1, 2)
    found = d.idle(2)
    assert slices(found) == [(1, 4)]
    assert plans(found) == [(2, 1, ((1, 2),))]
    assert names(found)[-1] == "TakeBackPlan"  # who grows is told before
    assert (d.allocation(1), d.allocation(2)) == ("4", "0")


def test_a_wake_by_the_present_plan_is_booked_as_it_happened() -> None:
    d = lending()
    found = d.woke(2, (1, 2))
    assert [(c.job, c.slices, c.booked) for c in found if isinstance(c, out.ResizeJob)] == [
        (1, 2, 2)
    ]
    assert (d.allocation(1), d.allocation(2)) == ("2", "2")
    assert plans(d.idle(2, 2)) == [(2, 2, ())]  # nobody has what it lends before blocks have left
    assert plans(d.left(1, 2)) == [(2, 2, ((1, 2),))]


def test_a_lane_that_wakes_before_it_has_a_plan_gets_its_share() -> None:
    d = lending()
    assert slices(d.woke(2)) == [(1, 2)]
    assert d.allocation(2) == "2"


def test_what_an_old_plan_took_from_the_wrong_job_it_gets_back() -> None:
    d = lending()
    d.offline(3, "1")
    d.online(4, "1")  # job 1 has 3 SMs, and then gives one more
    assert d.allocation(1) == "3"
    d.resize(1, quota="2")
    found = d.woke(2, (1, 2))
    assert [(c.job, c.slices, c.booked) for c in found if isinstance(c, out.ResizeJob)] == [
        (1, 0, 2)
    ]
    # What it holds has not been reported yet; once it has, it gets what is left.
    assert slices(d.left(1, 0)) in ([(1, 1)], [(3, 1)])


def test_a_promise_is_kept_against_other_reservations() -> None:
    d = lending()
    d.online(3, "5/2", m=2)
    assert d.state(3) == "waiting"
    d.online(4, "2")
    assert d.state(4) == "waiting"  # in the order in which they came
    d.cancel(3)
    assert d.state(4) == "running"
    assert (d.allocation(1), d.allocation(4)) == ("2", "2")
    assert slices(d.woke(2, (1, 2))) == [(1, 0)]


def test_a_plan_is_made_again_when_what_it_names_changes() -> None:
    d = lending()
    assert plans(d.resize(1, quota="3")) == [(2, 1, ((1, 1),))]
    assert plans(d.offline(3, "1")) == []
    d.left(1, 3)
    assert plans(d.cancel(1)) == [(2, 1, ())]


def test_one_job_gives_if_one_can() -> None:
    d = Driver(8)
    d.offline(1, "1")
    d.offline(2, "2")
    d.offline(3, "3")
    d.lane(4, "2")
    assert plans(d.idle(4)) == [(4, 1, ())]  # 2 SMs are free
    assert plans(d.offline(5, "1", m=2)) == [(4, 1, ((5, 2),))]
    assert plans(d.offline(6, "1", m=2)) == [(4, 1, ((2, 2),))]


def test_two_lanes_that_lend_take_from_one_job_together() -> None:
    d = Driver(4)
    d.lane(1, "1")
    d.lane(2, "1")
    d.idle(1)
    d.idle(2)
    d.offline(3)
    for number in (1, 2):
        assert d.job(number).plan == ((JobId(3), 1),)


def test_a_lane_that_ends_promises_nothing() -> None:
    d = lending()
    d.close_lane(2)
    d.online(3, "4")
    assert d.state(3) == "running"


def test_an_idle_lane_is_resized_by_its_owner() -> None:
    d = lending()
    assert plans(d.resize(2, reservation="3")) == [(2, 1, ((1, 3),))]
    assert "ask for at most 4" in str(error(d.resize(2, reservation="5")))
    d.online(3, "1")
    refusal = str(error(d.resize(2, reservation="4")))
    assert "has 3 SMs" in refusal
    assert "at most 3" in refusal


@pytest.mark.parametrize("policy", ["fifo", "equal"])
def test_under_the_baselines_a_lane_keeps_its_share(policy: str) -> None:
    d = Driver(4, policy=policy)
    d.lane(1, quota="2")
    assert d.idle(1) == []
    assert d.allocation(1) == "2"
    assert d.woke(1) == []


def test_a_lane_with_sms_of_its_own_lends_nothing() -> None:
    d = Driver(4)
    d.offline(1)
    d.lane(2, "2", exclusive=True)
    d.left(1, 2)
    assert d.idle(2) == []
    assert d.woke(2) == []


def test_a_lane_reported_idle_while_it_is_closed_lends_nothing() -> None:
    d = Driver(4)
    d.lane(1, "2")
    d.close_lane(1)
    assert d.idle(1) == []
    assert d.woke(1) == []
    assert finished(d.ended(1)) == [(1, "done")]


def test_what_is_lent_counts_under_the_caps_of_the_lanes_user() -> None:
    d = Driver(4)
    d.user(5, hold="3")
    d.open(2, 5)
    d.lane(1, "2", session=2)
    d.offline(2, session=2)
    d.idle(1)
    assert d.allocation(2) == "1"
    d.user(6, reserve="2")
    d.open(3, 6)
    d.lane(3, "1", session=3)
    d.idle(3)
    d.online(4, "2", session=3)
    assert d.reason(4) == "user u6 may reserve 2 SMs, and has reserved 1"


def test_what_is_lent_is_no_service_of_the_lane() -> None:
    d = Driver(4)
    d.lane(1, "2")
    d.now_ns = 1000
    d.idle(1)
    d.now_ns = 5000
    d.woke(1)
    d.now_ns = 6000
    assert d.job(1).served_at(6000) == 2000 * d.scheduler.devices[0].capacity // 4 * 2


def test_an_offline_lane_does_not_save_up_what_it_has_lent() -> None:
    d = Driver(4)
    d.lane(1)
    d.offline(2)
    d.at(10**9)
    d.left(1, d.job(1).slices)
    d.idle(1)
    for second in range(2, 60):
        d.at(second * 10**9)
    d.woke(1, *d.job(1).plan or ())
    service = d.scheduler.devices[0].service
    assert service is not None
    assert abs(service.surplus(d.job(1))) < d.scheduler.devices[0].capacity * 10**9


def test_an_offline_lane_promises_no_more_than_online_jobs_leave() -> None:
    d = Driver(4)
    d.lane(1)
    d.idle(1)
    d.online(2, "3")
    assert d.job(1).slices == 32
    assert slices(d.woke(1)) == []
    assert d.allocation(1) == "1"


def test_a_host_that_is_lost_while_a_lane_lends_takes_the_promise_with_it() -> None:
    d = lending()
    d.fail()
    d.up(0, 4)
    d.online(3, "4")
    assert d.state(3) == "running"
    assert d.woke(2, (1, 2)) == []


def test_why_says_what_an_idle_lane_lends() -> None:
    d = lending()
    assert explain(d.job(2), d.scheduler.devices[0], d.now_ns)[:2] == [
        "it is idle, and lends 2 SMs until its next launch",
        "job 0.1 is to give 2 SMs back then",
    ]


def test_what_a_lane_lends_is_said_without_naming_jobs() -> None:
    d = lending()
    device = d.scheduler.devices[0]
    said = "lends 2 SMs; 1 job gives 2 back at its next launch"
    assert lending_note(d.job(2), device) == said
    d.cancel(1)
    assert lending_note(d.job(2), device) == "lends 2 SMs, which nobody has now"
