"""Every way to end a job, in each state: cancel, timeout, client exit, drain, device loss."""

from __future__ import annotations

from typing import Any

import pytest

from gpud.core import commands as out
from gpud.core.scheduler import Scheduler, Settings
from gpud.errors import (
    DeviceLost,
    Draining,
    InternalError,
    InvalidArgument,
    JobCancelled,
    JobTimeout,
)
from gpud.units import JobId
from tests.unit.core.driver import Driver, error, finished, names, slices

STATES = ("blocked", "preparing", "waiting", "running", "paused", "ending")
STARTED = ("running", "paused", "ending")


def with_job(state: str, **settings: Any) -> Driver:
    """Job 5 of session 2 is in ``state``; job 1 of session 1 has the rest of the device."""
    driver = Driver(4, **settings)
    driver.open(2)
    if state in ("blocked", "preparing", "waiting"):
        driver.offline(1)
        if state == "preparing":
            driver.submit(5, session=2, stream=3, prepared=False)
            return driver
        driver.submit(5, session=2, stream=1 if state == "waiting" else 3, after=())
        if state == "blocked":
            driver.submit(6, session=2, stream=8)
            driver.cancel(5)
            driver.submit(5, session=2, stream=8)
    elif state == "paused":
        driver.submit(5, session=2, quota="2")
        driver.online(1, "4")
    else:
        driver.submit(5, session=2, quota="2")
        driver.offline(1)
        if state == "ending":
            driver.cancel(5)
    assert driver.state(5) == state
    return driver


@pytest.mark.parametrize("state", STATES)
def test_cancel(state: str) -> None:
    driver = with_job(state)
    found = driver.cancel(5)
    if state in STARTED:
        assert names(found) == ([] if state == "ending" else ["EndJob"])
        assert driver.state(5) == "ending"
        assert driver.allocation(5) == "0", "it has nothing from the command on"
        found = driver.ended(5)
    assert finished(found) == [(5, "cancelled")]
    assert isinstance(error(found), JobCancelled)
    assert driver.cancel(5) == [], "ended jobs are ignored"


@pytest.mark.parametrize("state", STATES)
def test_resize(state: str) -> None:
    driver = with_job(state)
    found = driver.resize(5, quota="1")
    if state == "ending":
        assert isinstance(error(found), InvalidArgument)
        return
    assert found[0] == out.Confirm(7)
    resized = {"running": [(5, 1)], "paused": [(5, 0)]}  # paused: its quota alone is new
    assert slices(found) == resized.get(state, [])
    assert driver.state(5) == state
    for job in (6, 1):
        driver.cancel(job)
        driver.ended(job)
    if state == "paused":
        driver.left(5, 0)
    driver.prepared(5)
    assert (driver.state(5), driver.allocation(5)) == ("running", "1"), "and no more than that"


@pytest.mark.parametrize("state", STATES)
def test_client_exit(state: str) -> None:
    driver = with_job(state)
    found = driver.close(2)
    if state in STARTED:
        assert "CloseSession" not in names(found)
        found = driver.ended(5)
    assert (5, "cancelled") in finished(found)
    assert names(found).index("CloseSession") > names(found).index("FinishJob")
    assert driver.close(2) == []
    assert driver.state(1) in ("running", "waiting"), "nobody else notices"


@pytest.mark.parametrize("state", STATES)
def test_drain_lets_jobs_end_until_its_time_and_cancels_them_then(state: str) -> None:
    driver = with_job(state)
    found = driver.send_drain(1000)
    assert found == [out.SetTimer(1000)] or state == "ending"
    refused = driver.submit(9)
    assert isinstance(error(refused), Draining)
    begun = {job for job in (1, 5, 6) if driver.state(job) in STARTED}
    found = driver.at(1000)
    for job in (1, 5, 6):
        if driver.state(job) == "ending":
            found = found + driver.ended(job)
    # A client can submit again those of which nothing has run.
    for command in (one for one in found if isinstance(one, out.FinishJob)):
        has_begun = command.job in begun
        assert command.state == ("cancelled" if has_begun else "failed")
        assert isinstance(command.error, JobCancelled if has_begun else Draining)
    assert names(found).count("Drained") == 1
    assert names(found)[-1] == "Drained"


def test_drain_is_over_as_soon_as_nothing_is_left() -> None:
    driver = Driver(4)
    driver.offline(1)
    driver.send_drain(1000)
    assert names(driver.done(1)) == ["FinishJob", "Drained"]
    assert names(Driver(4).send_drain(5)) == ["Drained"]


@pytest.mark.parametrize("state", STATES)
def test_device_loss(state: str) -> None:
    driver = with_job(state)
    found = driver.fail()
    lost = {int(c.job): c.error for c in found if isinstance(c, out.FinishJob)}
    if state in STARTED:
        expected = JobCancelled if state == "ending" else DeviceLost
        assert isinstance(lost[5], expected)
    else:
        assert 5 not in lost
        assert driver.state(5) == ("blocked" if state == "blocked" else "preparing")
    assert isinstance(lost[1], DeviceLost)
    assert lost[1].device == "cpu:4"
    assert "device cpu:4 crashed" in str(lost[1])
    assert driver.scheduler.devices[0].allocated == 0
    started = driver.up(0, 4)
    if state in ("preparing", "waiting"):
        assert slices(started) == [(5, 4)]


@pytest.mark.parametrize("state", ["running", "paused"])
def test_timeout(state: str) -> None:
    driver = Driver(4)
    driver.offline(1, "2", timeout_ns=500)
    if state == "paused":
        driver.online(2, "4")
    assert driver.state(1) == state
    assert driver.at(499) == [out.SetTimer(500)]
    assert names(driver.at(500)) == ["EndJob"]
    found = driver.ended(1)
    assert finished(found) == [(1, "failed")]
    assert isinstance(error(found), JobTimeout)
    assert error(found).timeout_ns == 500


def test_a_timeout_runs_from_the_start_not_from_the_submission() -> None:
    driver = Driver(1)
    driver.offline(1)
    driver.offline(2, timeout_ns=100)
    driver.now_ns = 1000
    assert out.SetTimer(1100) in driver.done(1)


def test_a_job_that_ends_in_time_leaves_no_timer_behind() -> None:
    driver = Driver(1)
    for job in range(1, 1000):
        driver.offline(job, timeout_ns=10**12)
        driver.done(job)
    assert len(driver.scheduler._timers.due) < 100


def test_the_cause_stays_though_the_job_completes_or_fails_while_it_ends() -> None:
    driver = Driver(4)
    driver.offline(1, "2")
    driver.offline(2, "2")
    driver.cancel(1)
    driver.cancel(2)
    assert finished(driver.done(1)) == [(1, "cancelled")]
    assert finished(driver.ended(2, failed=True)) == [(2, "cancelled")]


def test_a_job_that_outlives_its_grace_costs_the_device_host() -> None:
    driver = Driver(4, grace_ns=100)
    driver.offline(1, "1")
    driver.offline(2, "1")
    driver.offline(3, "1")
    driver.online(4, "1")
    driver.online(5, "4")
    assert out.SetTimer(100) in driver.cancel(1)
    [replace] = [c for c in driver.at(100) if isinstance(c, out.ReplaceDevice)]
    assert (replace.device, replace.culprit) == (0, 1)
    assert "job 0.1 did not end within 1e-07 s" in replace.reason
    assert driver.cancel(2) == [], "nobody talks to a host that is being ended"
    lost = {
        int(c.job): c.error
        for c in driver.fail(reason="was killed")
        if isinstance(c, out.FinishJob)
    }
    assert sorted(lost) == [1, 2, 3, 4]
    assert isinstance(lost[1], JobCancelled), "the culprit keeps its own cause"
    assert isinstance(lost[2], JobCancelled)
    assert isinstance(lost[3], DeviceLost)
    assert "because job 0.1 did not end when it was told to" in str(lost[3])
    assert slices(driver.up(0, 4)) == [(5, 4)], "what had not started runs on the new host"


def test_a_culprit_that_timed_out_is_told_so() -> None:
    driver = Driver(4, grace_ns=10)
    driver.offline(1, timeout_ns=50)
    driver.at(50)
    driver.at(60)
    assert isinstance(error(driver.fail()), JobTimeout)


def test_a_killable_job_that_outlives_its_grace_is_killed_alone() -> None:
    driver = Driver(4, grace_ns=100)
    driver.offline(1, "1", killable=True)
    driver.offline(2, "1")
    driver.cancel(1)
    assert out.KillJob(JobId(1), 0) in driver.at(100)
    assert driver.state(1) == "ending"
    assert finished(driver.ended(1)) == [(1, "cancelled")]
    assert not [c for c in driver.at(1000) if isinstance(c, out.ReplaceDevice)]
    assert driver.state(2) == "running"


def test_a_killable_job_that_does_not_even_then_end_costs_the_device_host() -> None:
    driver = Driver(4, grace_ns=100)
    driver.offline(1, "1", killable=True, timeout_ns=50)
    driver.offline(2, "1")
    driver.at(50)
    assert names(driver.at(150)) == ["KillJob"]
    assert names(driver.at(200)) == []
    [replace] = [c for c in driver.at(250) if isinstance(c, out.ReplaceDevice)]
    assert replace.culprit == 1
    lost = {int(c.job): c.error for c in driver.fail() if isinstance(c, out.FinishJob)}
    assert isinstance(lost[1], JobTimeout)
    assert isinstance(lost[2], DeviceLost)
    assert lost[2].culprit == "0.1"


def test_the_only_job_that_ran_is_named_and_nobody_else() -> None:
    driver = Driver(4)
    driver.offline(1)
    lost = error(driver.fail(culprit=1))
    assert lost.culprit == "0.1"
    assert "job 0.1 was the only one that ran on it" in str(lost)
    driver.up(0, 4)
    driver.offline(2, "1")
    driver.offline(3, "1")
    found = [c.error for c in driver.fail() if isinstance(c, out.FinishJob)]
    assert [one.culprit for one in found if isinstance(one, DeviceLost)] == [None, None]


@pytest.mark.parametrize("state", ["running", "paused"])
def test_a_job_that_its_device_was_not_told_of_waits_at_its_place(state: str) -> None:
    driver = Driver(4)
    driver.offline(1, "2", timeout_ns=100)
    driver.offline(2)
    driver.offline(3)
    if state == "paused":
        driver.online(4, "4")
    assert driver.state(1) == state
    driver.now_ns = 60
    found = driver.fail(unstarted=(1,))
    assert sorted(job for job, _ in finished(found)) == ([2, 4] if state == "paused" else [2])
    assert driver.state(1) == "preparing"
    assert driver.allocation(1) == "0"
    assert driver.scheduler.devices[0].allocated == driver.scheduler.devices[0].charged == 0
    assert slices(driver.up(0, 4)) == [(1, 2), (3, 2)]
    assert not [c for c in driver.at(100) if isinstance(c, out.EndJob)], (
        "the time of its first start"
    )
    assert [c.job for c in driver.at(160) if isinstance(c, out.EndJob)] == [1]
    driver.ended(1)


def test_a_job_that_was_told_to_end_meanwhile_does_not_wait_again() -> None:
    driver = Driver(4)
    driver.offline(1)
    driver.cancel(1)
    assert finished(driver.fail(unstarted=(1,))) == [(1, "cancelled")]


def test_a_device_with_fewer_sms_is_asked_again() -> None:
    driver = Driver(8)
    driver.offline(1)
    driver.online(2, "8")
    driver.online(3, "6")
    driver.online(4, "2")
    driver.offline(5, blocks=6, whole=True)
    driver.offline(6, "7")
    driver.fail()
    found = driver.up(0, 4)
    assert finished(found) == [(3, "failed")]
    assert "the device has 4 SMs; ask for at most 4" in str(error(found))
    # A job in form whole fits: it needs no more blocks at once than the device holds.
    assert slices(found) == [(4, 2)]
    assert slices(driver.done(4)) == [(5, 4)]


def test_a_device_that_is_given_up_fails_its_jobs_and_refuses_new_ones() -> None:
    driver = Driver(4, 4)
    driver.offline(1)
    driver.offline(2)
    driver.submit(3, stream=2)
    driver.offline(4, device=1)
    found = driver.fail(final=True)
    assert finished(found) == [(1, "failed"), (2, "failed"), (3, "failed")]
    refused = driver.offline(5)
    assert isinstance(error(refused), DeviceLost)
    assert "use another device" in str(error(refused))
    assert driver.state(4) == "running"
    assert driver.fail(final=True) == driver.fail() == [], "however often it fails"
    driver.up(0, 4)
    assert slices(driver.offline(6)) == [(6, 4)]


def test_what_is_heard_late_of_jobs_that_are_gone_is_ignored() -> None:
    driver = Driver(4)
    driver.offline(1)
    driver.offline(2)
    driver.done(1)
    job = driver.job(2)
    driver.done(2)
    before = driver.scheduler.devices[0].allocated
    for late in (driver.ended(1), driver.ended(2, failed=True), driver.ended(99)):
        assert late == []
    assert driver.scheduler.devices[0].allocated == before
    assert str(job.state) == "done"


def test_a_device_that_ends_a_job_early_is_not_believed() -> None:
    driver = Driver(4)
    driver.offline(1)
    found = driver.ended(1)
    assert finished(found) == [(1, "failed")]
    assert isinstance(error(found), InternalError)


def test_a_submission_of_a_session_that_has_gone_is_cancelled() -> None:
    driver = Driver(4)
    driver.close(1)
    assert finished(driver.offline(1)) == [(1, "cancelled")]


def test_the_server_s_mistakes_are_not_taken_silently() -> None:
    driver = Driver(4)
    driver.offline(1)
    with pytest.raises(InternalError, match=r"job 0.1 was submitted twice"):
        driver.offline(1)
    with pytest.raises(InternalError, match="session 1 was opened twice"):
        driver.open(1)
    with pytest.raises(InternalError, match="device 0 is ready and cannot take 'up'"):
        driver.up(0, 4)


def test_time_does_not_go_back() -> None:
    driver = Driver(1)
    driver.now_ns = 1000
    driver.offline(1, timeout_ns=100)
    driver.now_ns = 500
    driver.offline(2)
    assert driver.scheduler.now_ns == 1000


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"hold_ns": -1}, "hold_ns must be 0 or more, not -1"),
        ({"grace_ns": -1}, "grace_ns must be 0 or more"),
        ({"max_preparations": 0}, "max_preparations must be 1 or more"),
        ({"offline_floor": "many"}, "offline_floor: a share is written as"),
        ({"offline_floor": -1}, "offline_floor: a share must be greater than 0"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        Settings(**settings)


def test_a_floor_is_at_most_the_device() -> None:
    assert Settings(offline_floor="150%").floor(4) == 4
    assert Settings(offline_floor="0%").floor(4) == 0
    assert Scheduler().settings.floor(4) == 0
