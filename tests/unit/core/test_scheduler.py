"""The scheduling rules, one scenario each: the decisions, and the order of the commands."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gpud.core import commands as out
from gpud.core import events as ev
from gpud.core.capacity import SCALE
from gpud.core.events import LaunchShape
from gpud.errors import AdmissionError, InvalidArgument, LimitExceeded, PredecessorFailed
from gpud.units import JobId, SessionId
from tests.unit.core.driver import MANY, Driver, error, finished, names, slices

# -- online ----------------------------------------------------------------------------------------


def test_an_online_job_takes_what_is_free() -> None:
    driver = Driver(8)
    assert slices(driver.offline(1, "3")) == [(1, 3)]
    assert slices(driver.online(2, "2")) == [(2, 2)]
    assert driver.allocation(1) == "3"


def test_an_online_job_is_launched_at_once_over_what_is_released() -> None:
    driver = Driver(8)
    driver.offline(1, m=2)
    found = driver.online(2, "5/2", m=4)
    assert slices(found) == [(1, 11), (2, 10)], "the release first, no more of it than is needed"
    assert driver.allocation(1) == "11/2"
    assert driver.allocation(2) == "5/2"


def test_a_release_is_rounded_up_to_the_slices_of_who_releases() -> None:
    driver = Driver(2)
    driver.offline(1, m=3)
    assert slices(driver.online(2, "1/2", m=2)) == [(1, 4), (2, 1)]
    assert driver.scheduler.devices[0].free > 0


def test_a_reservation_is_rounded_up_to_slices() -> None:
    driver = Driver(4)
    assert slices(driver.online(1, "0.3", m=4)) == [(1, 2)]


def test_an_online_job_has_its_reservation_though_its_grid_is_smaller() -> None:
    driver = Driver(8)
    driver.online(1, "4", blocks=1)
    assert driver.allocation(1) == "4"
    driver.left(1, 1)
    assert driver.allocation(1) == "4"
    driver.left(1, 1, exhausted=True)
    assert driver.allocation(1) == "1"


def test_online_jobs_wait_in_the_order_of_deadline_then_arrival() -> None:
    driver = Driver(4)
    driver.online(1, "4")
    for job, deadline_ns in ((2, None), (3, 900), (4, 500), (5, None), (6, 500)):
        assert slices(driver.online(job, "4", deadline_ns=deadline_ns)) == []
        assert driver.state(job) == "waiting"
    order = []
    running = 1
    while driver.scheduler.jobs:
        for job, _ in slices(driver.done(running)):
            order.append(job)
            running = job
    assert order == [4, 6, 3, 2, 5]


def test_a_small_online_job_does_not_pass_a_large_one_that_waits() -> None:
    driver = Driver(4)
    driver.online(1, "3")
    driver.online(2, "4")
    assert slices(driver.online(3, "1")) == []
    assert slices(driver.done(1)) == [(2, 4)]


def test_waiting_online_jobs_come_before_offline_ones() -> None:
    driver = Driver(4)
    driver.online(1, "4")
    driver.offline(2)
    driver.online(3, "3")
    assert slices(driver.done(1)) == [(3, 3), (2, 1)]


def test_what_can_never_be_granted_is_refused() -> None:
    driver = Driver(4)
    refused = driver.online(1, "4.1")
    assert finished(refused) == [(1, "failed")]
    assert isinstance(error(refused), AdmissionError)
    assert error(refused).requested == "41/10"
    assert error(refused).capacity == "4"


def test_rounding_up_to_slices_can_make_a_reservation_too_large() -> None:
    driver = Driver(4)
    third = driver.online(1, "4", m=3)
    assert slices(third) == [(1, 12)]
    # 3.5 SMs are 4 slices of 1 SM, which fit 4 SMs but not what the floor leaves of them.
    floored = Driver(4, offline_floor="1/4")
    refusal = error(floored.online(1, "3.5"))
    assert "rounded up to slices of 1/1 SM: 4" in str(refusal)
    assert "of which 1/4 are kept for offline jobs; ask for at most 3" in str(refusal)


# -- offline ---------------------------------------------------------------------------------------


def test_an_offline_job_has_its_quota_or_what_is_left() -> None:
    driver = Driver(8)
    assert slices(driver.offline(1, "6")) == [(1, 6)]
    assert slices(driver.offline(2, "6")) == [(2, 2)]
    assert slices(driver.offline(3, "6")) == []
    assert driver.state(3) == "waiting"


def test_an_offline_job_has_no_more_than_its_grid_can_use() -> None:
    driver = Driver(8)
    assert slices(driver.offline(1, m=4, blocks=5)) == [(1, 5)]
    # The largest launch of a chain decides; 10 blocks of which 8 fit are 3 slices of 1/2.
    chain = (LaunchShape(2, 1), LaunchShape(8, 10))
    assert slices(driver.offline(2, launches=chain)) == [(2, 3)]


def test_offline_jobs_take_only_room_that_nothing_holds() -> None:
    driver = Driver(4)
    driver.offline(1)
    driver.online(2, "2")
    driver.offline(3)
    driver.done(2)
    assert driver.state(3) == "waiting", "job 1 has not released anything yet"
    assert slices(driver.left(1, 3)) == [(3, 1)]
    assert slices(driver.left(1, 2)) == [(3, 2)]


def test_a_job_does_not_hold_more_than_its_quota_while_it_releases() -> None:
    driver = Driver(4)
    driver.offline(1, "2")
    driver.online(2, "4")
    driver.done(2)
    assert driver.state(1) == "paused"
    assert slices(driver.left(1, 1)) == [(1, 1)], "one left, one new"
    # The epoch of the report is the release's: the new one is not in it.
    assert driver.job(1).held == 2
    assert slices(driver.left(1, 1)) == [(1, 2)]


def test_a_later_launch_may_hold_what_was_added_beside_all_that_it_was_given() -> None:
    driver = Driver(4)
    driver.offline(1, "2", launches=(LaunchShape(1, 1), LaunchShape(1, 100)))
    driver.left(1, 1)
    for quota in ("3", "2", "4"):
        driver.resize(1, quota=quota)
    # The next launch has two; one was added that may have begun and not left yet, and another.
    assert driver.job(1).held == 4


def test_a_paused_job_keeps_its_place_and_is_resumed() -> None:
    driver = Driver(2)
    driver.offline(1)
    driver.left(1, 2)
    driver.offline(2)
    driver.online(3, "2")
    driver.left(1, 0)
    assert (driver.state(1), driver.state(2)) == ("paused", "waiting")
    assert slices(driver.done(3)) == [(2, 1), (1, 1)], "both have nothing; starts are told first"
    assert driver.state(1) == "running"
    assert driver.job(1).epoch == 2


def test_room_is_shared_in_proportion_to_weights() -> None:
    driver = Driver(8)
    driver.online(1, "8")
    driver.offline(2, weight=3)
    driver.offline(3)
    assert sorted(slices(driver.done(1))) == [(2, 6), (3, 2)]


def test_one_resize_for_each_job_and_event() -> None:
    driver = Driver(8)
    driver.online(1, "8", m=8)
    driver.offline(2, m=8)
    assert slices(driver.done(1)) == [(2, 64)]


def test_the_tail_of_a_job_frees_capacity_as_its_blocks_leave() -> None:
    driver = Driver(4)
    driver.offline(1)
    driver.offline(2)
    assert slices(driver.left(1, 3, exhausted=True)) == [(2, 1)]
    assert driver.allocation(1) == "3"
    assert slices(driver.left(1, 1, exhausted=True)) == [(2, 3)]
    assert slices(driver.done(1)) == [(2, 4)]


def test_room_on_its_way_is_kept_for_who_has_waited_longest() -> None:
    driver = Driver(2)
    driver.offline(1, m=8, blocks=12)
    driver.offline(2, m=8)
    driver.offline(3, m=1)
    assert (driver.allocation(1), driver.allocation(2)) == ("3/2", "1/2")
    # Job 3 needs a whole SM; job 2 would take every eighth that comes free.
    for held in range(11, 4, -1):
        assert slices(driver.left(1, held, exhausted=True)) == []
    assert slices(driver.left(1, 4, exhausted=True)) == [(3, 1)]
    assert slices(driver.left(1, 3, exhausted=True)) == [(2, 5)]


def test_room_that_just_suffices_with_what_is_on_its_way_is_kept() -> None:
    driver = Driver(2)
    driver.offline(1, m=8, blocks=8)
    driver.offline(2, m=8)
    driver.offline(3, m=1)
    # What job 1 leaves is one SM in all, which job 3 needs.
    for held in (7, 4, 1):
        assert slices(driver.left(1, held, exhausted=True)) == []
    assert slices(driver.done(1)) == [(3, 1)]


def test_a_larger_slice_that_cannot_come_free_does_not_stop_growth() -> None:
    driver = Driver(1)
    driver.offline(1, m=4, blocks=2)
    driver.offline(2, "1/4", m=4)
    driver.offline(3, m=1)
    assert driver.state(3) == "waiting"
    assert slices(driver.resize(2, quota="1/2")) == [(2, 2)]


# -- victims ---------------------------------------------------------------------------------------


def test_one_job_that_covers_the_shortfall_is_disturbed_alone() -> None:
    driver = Driver(9)
    for job, quota in ((1, "2"), (2, "4"), (3, "3")):
        driver.offline(job, quota)
    assert slices(driver.online(4, "3")) == [(3, 0), (4, 3)]
    assert slices(driver.online(5, "3")) == [(2, 1), (5, 3)]


def test_of_equal_jobs_the_one_started_last_gives_way() -> None:
    driver = Driver(4)
    driver.offline(1, "2")
    driver.offline(2, "2")
    assert slices(driver.online(3, "1")) == [(2, 1), (3, 1)]


def test_a_job_about_to_end_gives_way_first() -> None:
    driver = Driver(4)
    driver.offline(1, "2")
    driver.offline(2, "2")
    driver.left(1, 2, exhausted=True)
    assert slices(driver.online(3, "1")) == [(1, 1), (3, 1)]


# -- floor and hold --------------------------------------------------------------------------------


def test_online_arrivals_leave_the_floor_to_offline_jobs() -> None:
    driver = Driver(8, offline_floor="25%")
    assert slices(driver.online(1, "6")) == [(1, 6)]
    driver.offline(2)
    assert driver.allocation(2) == "2"
    assert slices(driver.online(3, "1")) == [], "only the floor is left"
    assert isinstance(error(driver.online(4, "7")), AdmissionError)
    driver.done(2)
    assert driver.state(3) == "running", "without offline work nothing is kept"


def test_nobody_gives_way_whose_slices_are_too_large_for_the_floor() -> None:
    driver = Driver(4, offline_floor="3/2")
    driver.offline(1, m=1)
    assert slices(driver.online(2, "5/2", m=2)) == [], (
        "it would release 3 SMs, of which 1/2 is kept"
    )
    assert driver.state(2) == "waiting"
    assert slices(driver.left(1, 3, exhausted=True)) == []
    assert slices(driver.online(3, "2", m=1)) == []
    driver.cancel(2)
    assert driver.state(3) == "running"
    assert driver.allocation(1) == "2"


def test_a_release_is_not_rounded_into_the_floor() -> None:
    driver = Driver(4, offline_floor="1")
    driver.offline(1, m=1)
    driver.online(2, "2.5", m=2)
    assert driver.allocation(1) == "1"
    assert slices(driver.online(3, "1/2", m=2)) == [(3, 1)], "what the rounding left"
    assert slices(driver.online(4, "1/2", m=2)) == []


def test_room_that_an_online_job_leaves_is_held_for_the_next() -> None:
    driver = Driver(8, hold_ns=100)
    driver.offline(1)
    driver.online(2, "4")
    driver.left(1, 4)
    driver.now_ns = 10
    ended = driver.done(2)
    assert slices(ended) == []
    assert out.SetTimer(110) in ended
    driver.now_ns = 50
    assert slices(driver.online(3, "3")) == [(3, 3)], "nobody is disturbed"
    assert slices(driver.at(110)) == [(1, 5)], "what is left of it, at its time"
    driver.now_ns = 200
    driver.done(3)
    assert slices(driver.at(300)) == [(1, 8)]


# -- kernels in form whole -------------------------------------------------------------------------


def test_a_whole_job_starts_with_all_it_needs_and_keeps_it() -> None:
    driver = Driver(8)
    assert slices(driver.offline(1, blocks=3, whole=True)) == [(1, 3)]
    driver.offline(2)
    assert driver.allocation(2) == "5"
    assert slices(driver.online(3, "5")) == [(2, 0), (3, 5)], "it is no victim"
    assert slices(driver.online(4, "1")) == []
    assert isinstance(error(driver.resize(1, quota="8")), InvalidArgument)


def test_a_whole_job_whose_share_is_too_small_is_refused_with_what_it_needs() -> None:
    driver = Driver(8)
    refusal = error(driver.offline(1, "2", blocks=7, m=2, whole=True))
    assert isinstance(refusal, AdmissionError)
    assert "needs all its 7/2 SMs at once; a quota of 2 SMs is too small" in str(refusal)
    assert "form whole" in str(error(driver.online(2, "3", blocks=4, whole=True)))
    # More blocks than the device holds at once: the whole device.
    assert slices(driver.offline(3, blocks=MANY, m=2, whole=True)) == [(3, 16)]


def test_a_whole_job_that_waits_is_not_passed_by_later_ones_while_others_grow() -> None:
    driver = Driver(4)
    driver.offline(1, "1")
    driver.offline(2, "3")
    driver.offline(3, blocks=4, whole=True)
    driver.offline(4)
    assert slices(driver.done(1)) == [], "job 3 needs more, job 2 has its quota, job 4 is behind"
    assert slices(driver.resize(2, quota="4")) == [(2, 4)]
    assert slices(driver.done(2)) == [(3, 4)]
    assert slices(driver.done(3)) == [(4, 4)]


def test_no_whole_offline_job_starts_in_front_of_an_online_one_that_waits() -> None:
    driver = Driver(4)
    driver.online(1, "3")
    driver.online(2, "4")
    driver.offline(3, blocks=1, whole=True)
    assert driver.state(3) == "waiting"
    assert slices(driver.done(1)) == [(2, 4)]


# -- order -----------------------------------------------------------------------------------------


def test_jobs_of_a_stream_run_one_after_another_over_devices() -> None:
    driver = Driver(2, 2)
    driver.submit(1, stream=0)
    driver.submit(2, stream=0, device=1)
    driver.submit(3, stream=0)
    assert [driver.state(job) for job in (1, 2, 3)] == ["running", "blocked", "blocked"]
    assert [type(c).__name__ for c in driver.done(1)] == ["FinishJob", "StartJob"]
    assert [driver.state(job) for job in (2, 3)] == ["running", "blocked"]


def test_a_cancelled_job_leaves_the_order_of_its_stream() -> None:
    driver = Driver(2)
    for job in (1, 2, 3):
        driver.submit(job, stream=0)
    assert finished(driver.cancel(2)) == [(2, "cancelled")]
    assert driver.state(3) == "blocked", "job 1 still runs"
    assert slices(driver.done(1)) == [(3, 2)]


def test_sticky_jobs_behind_a_failure_fail_until_it_was_seen() -> None:
    world = Driver(4)
    for number in (1, 2, 3, 4):
        world.offline(number, stream=7, sticky=number != 3)
    world.offline(5, "1", stream=8, sticky=True)
    commands = world.ended(1, failed=True)
    assert finished(commands) == [(1, "failed"), (2, "failed"), (4, "failed")]
    errors = {c.job: c.error for c in commands if isinstance(c, out.FinishJob)}
    behind = errors[JobId(2)]
    assert isinstance(behind, PredecessorFailed)
    assert behind.job == "0.1"
    assert world.state(3) == "running", "it is not sticky"
    assert world.state(5) == "running", "of another stream"
    assert finished(world.offline(6, stream=7, sticky=True)) == [(6, "failed")]
    world.send(ev.FailureSeen(0, SessionId(1), 7, JobId(1)))
    assert finished(world.offline(8, stream=7, sticky=True)) == []
    world.done(3)
    assert world.state(8) == "running"


def test_a_cancelled_job_is_a_failure_unless_its_owner_has_cancelled_it() -> None:
    world = Driver(4)
    for number in (1, 2, 3, 4):
        world.offline(number, stream=7, sticky=True)
    assert finished(world.cancel(2, by_owner=True)) == [(2, "cancelled")]
    assert finished(world.cancel(3)) == [(3, "cancelled"), (4, "failed")]
    assert world.state(1) == "running", "it is before it"


def test_a_refused_job_is_a_failure() -> None:
    world = Driver(4)
    world.send(ev.JobRefused(0, JobId(1), SessionId(1), 7))
    assert finished(world.offline(2, stream=7, sticky=True)) == [(2, "failed")]
    assert finished(world.online(3, "5", stream=8, sticky=True)) == [(3, "failed")]
    assert finished(world.offline(4, stream=8, sticky=True)) == [(4, "failed")]
    assert finished(world.offline(5, stream=9, sticky=True)) == []


def test_a_session_has_failures_in_so_many_streams_only() -> None:
    world = Driver(4)
    for stream in range(1, 4097):
        world.send(ev.JobRefused(0, JobId(stream), SessionId(1), stream))
    (command,) = world.offline(5000, stream=5000, sticky=True)
    assert isinstance(command, out.FinishJob)
    assert isinstance(command.error, LimitExceeded)


def test_after_orders_across_streams_and_sessions() -> None:
    driver = Driver(4)
    driver.open(2)
    driver.offline(1, "1")
    driver.offline(2, "1")
    driver.submit(3, quota="1", after=(1, 2, 99), session=2)
    assert driver.state(3) == "blocked"
    driver.done(1)
    assert driver.state(3) == "blocked"
    assert slices(driver.ended(2, failed=True)) == [(3, 1)], "a failure does not fail who follows"


def test_waiting_reasons_are_told() -> None:
    driver = Driver(2)
    driver.offline(1, stream=0)
    driver.offline(2, stream=0)
    driver.offline(3, after=(1,))
    driver.offline(4)
    driver.offline(5)
    assert driver.reason(1) is None
    assert driver.reason(2) == "follows job 0.1 in its stream"
    assert driver.reason(3) == "follows 1 other job"
    assert driver.reason(4) == "needs 1 SM, which is not free"
    assert driver.reason(5) == "needs 1 SM, and other jobs wait in front of it"
    driver.online(6, "2")
    assert driver.reason(1) == "online jobs have its capacity"
    driver.fail()
    assert driver.reason(4) == "device cpu:2 is being started"


# -- resizes ---------------------------------------------------------------------------------------


def test_a_lower_quota_shrinks_at_once_and_a_higher_one_grows() -> None:
    driver = Driver(8)
    driver.offline(1, "6")
    found = driver.resize(1, quota="2")
    assert found[0] == out.Confirm(7)
    assert slices(found) == [(1, 2)]
    assert slices(driver.resize(1, quota="6")) == [(1, 2)], "its blocks have not left"
    assert slices(driver.left(1, 2)) == [(1, 6)]


@pytest.mark.parametrize(
    ("work_conserving", "quotas"), [(False, [2, 4, 0]), (True, [0])], ids=["caps", "conserves"]
)
def test_the_device_hears_how_much_work_a_quota_allows(
    work_conserving: bool, quotas: list[int]
) -> None:
    driver = Driver(8, work_conserving=work_conserving)
    found = [*driver.offline(1, "2", blocks=1), *driver.resize(1, quota="4")]
    found += driver.resize(1, quota="8")  # the whole device: no limit
    told = [one.quota for one in found if isinstance(one, out.StartJob | out.ResizeJob)]
    assert told == quotas


def test_a_higher_reservation_is_like_a_new_request_for_the_difference() -> None:
    driver = Driver(8)
    driver.offline(1)
    driver.online(2, "2")
    assert slices(driver.resize(2, reservation="5")) == [(1, 3), (2, 5)]
    driver.left(1, 3)
    assert slices(driver.resize(2, reservation="1")) == [(2, 1)]
    assert slices(driver.left(2, 1)) == [(1, 7)]


def test_a_reservation_that_other_online_jobs_leave_no_room_for_is_refused_unchanged() -> None:
    driver = Driver(8)
    driver.online(1, "5")
    driver.online(2, "2")
    refusal = error(driver.resize(2, reservation="4"))
    assert isinstance(refusal, AdmissionError)
    assert "ask for at most 3" in str(refusal)
    assert driver.job(2).reservation == Fraction(2)
    assert driver.allocation(2) == "2"
    assert isinstance(error(driver.resize(2, reservation="9")), AdmissionError)
    assert slices(driver.resize(2, reservation="3")) == [(2, 3)]


def test_a_job_that_waits_can_be_resized() -> None:
    driver = Driver(4)
    driver.online(1, "3")
    driver.online(2, "2")
    assert slices(driver.resize(2, reservation="1")) == [(2, 1)]
    driver.submit(3, stream=9)
    driver.submit(4, stream=9)
    assert driver.resize(4, quota="1") == [out.Confirm(7)]
    assert isinstance(error(driver.resize(4, quota="1/2")), AdmissionError)
    assert driver.job(4).quota == 1


@pytest.mark.parametrize(
    ("number", "share", "text"),
    [
        (1, {"reservation": "1"}, "job 0.1 is offline: its quota can be changed"),
        (2, {"quota": "1"}, "job 0.2 is online: its reservation can be changed"),
        (1, {}, "either a reservation or a quota"),
        (1, {"quota": "1", "reservation": "1"}, "either a reservation or a quota"),
        (1, {"quota": "0"}, "a quota must be more than 0 SMs, not 0"),
        (1, {"quota": "-3"}, "a quota must be more than 0 SMs, not -3"),
        (9, {"quota": "1"}, "there is no job 0.9, or it has ended"),
        (3, {"quota": "1"}, "job 0.3 is being ended"),
    ],
)
def test_resizes_that_make_no_sense_are_refused(
    number: int, share: dict[str, str], text: str
) -> None:
    driver = Driver(8)
    driver.offline(1, "2")
    driver.online(2, "2")
    driver.offline(3)
    driver.cancel(3)
    before = driver.allocation(1), driver.allocation(2)
    found = driver.resize(number, **share)
    assert names(found) == ["Refuse"]
    assert text in str(error(found))
    assert (driver.allocation(1), driver.allocation(2)) == before


# -- submissions that are refused ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "text"),
    [
        ({"quota": "1", "reservation": "1"}, "not both"),
        ({"quota": "0"}, "a quota must be more than 0"),
        ({"reservation": "-1"}, "a reservation must be more than 0"),
        ({"quota": "1/5", "m": 4}, "the smallest quota that works is 1/4"),
        ({"device": 3}, "there is no device 3; there are: 0"),
        ({"reservation": "99"}, "ask for at most 8"),
    ],
)
def test_bad_submissions_fail_and_say_why(share: dict[str, object], text: str) -> None:
    driver = Driver(8)
    found = driver.submit(1, **share)  # type: ignore[arg-type]
    assert finished(found) == [(1, "failed")]
    assert text in str(error(found))
    assert not driver.scheduler.jobs
    assert slices(driver.offline(2)) == [(2, 8)]


# -- what the server reads -------------------------------------------------------------------------


def test_a_finished_job_can_be_read_until_the_next_event() -> None:
    driver = Driver(4)
    driver.now_ns = 100
    driver.offline(1, "2")
    driver.now_ns = 400
    driver.resize(1, quota="1")
    driver.now_ns = 1000
    driver.done(1)
    record = driver.scheduler.finished[JobId(1)]
    assert (record.started_ns, record.epoch) == (100, 1)
    assert record.capsm_scaled_ns == (2 * 300 + 1 * 600) * SCALE
    assert str(record.state) == "done"
    driver.open(5)
    assert not driver.scheduler.finished
