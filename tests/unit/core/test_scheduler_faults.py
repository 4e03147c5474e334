"""Ends of every kind, in every state of a job: cancel, timeout, client exit, drain, device loss."""

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
from tests.unit.core.play import Play, error, finished, names, slices

STATES = ("blocked", "preparing", "waiting", "running", "paused", "ending")
STARTED = ("running", "paused", "ending")


def with_job(state: str, **settings: Any) -> Play:
    """Job 5 of session 2 is in ``state``; job 1 of session 1 has the rest of the device."""
    play = Play(4, **settings)
    play.open(2)
    if state in ("blocked", "preparing", "waiting"):
        play.offline(1)
        if state == "preparing":
            play.submit(5, session=2, stream=3, prepared=False)
            return play
        play.submit(5, session=2, stream=1 if state == "waiting" else 3, after=())
        if state == "blocked":
            play.submit(6, session=2, stream=8)
            play.cancel(5)
            play.submit(5, session=2, stream=8)
    elif state == "paused":
        play.submit(5, session=2, quota="2")
        play.online(1, "4")
    else:
        play.submit(5, session=2, quota="2")
        play.offline(1)
        if state == "ending":
            play.cancel(5)
    assert play.state(5) == state
    return play


@pytest.mark.parametrize("state", STATES)
def test_cancel(state: str) -> None:
    play = with_job(state)
    found = play.cancel(5)
    if state in STARTED:
        assert names(found) == ([] if state == "ending" else ["EndJob"])
        assert play.state(5) == "ending"
        assert play.allocation(5) == "0", "it has nothing from the command on"
        found = play.ended(5)
    assert finished(found) == [(5, "cancelled")]
    assert isinstance(error(found), JobCancelled)
    assert play.cancel(5) == [], "ended jobs are ignored"


@pytest.mark.parametrize("state", STATES)
def test_resize(state: str) -> None:
    play = with_job(state)
    found = play.resize(5, quota="1")
    if state == "ending":
        assert isinstance(error(found), InvalidArgument)
        return
    assert found[0] == out.Confirm(7)
    assert slices(found) == ([(5, 1)] if state == "running" else [])
    assert play.state(5) == state
    for job in (6, 1):
        play.cancel(job)
        play.ended(job)
    if state == "paused":
        play.left(5, 0)
    play.prepared(5)
    assert (play.state(5), play.allocation(5)) == ("running", "1"), "and no more than that"


@pytest.mark.parametrize("state", STATES)
def test_client_exit(state: str) -> None:
    play = with_job(state)
    found = play.close(2)
    if state in STARTED:
        assert "CloseSession" not in names(found)
        found = play.ended(5)
    assert (5, "cancelled") in finished(found)
    assert names(found).index("CloseSession") > names(found).index("FinishJob")
    assert play.close(2) == []
    assert play.state(1) in ("running", "waiting"), "nobody else notices"


@pytest.mark.parametrize("state", STATES)
def test_drain_lets_jobs_end_until_its_time_and_cancels_them_then(state: str) -> None:
    play = with_job(state)
    found = play.send_drain(1000)
    assert found == [out.SetTimer(1000)] or state == "ending"
    refused = play.submit(9)
    assert isinstance(error(refused), Draining)
    found = play.at(1000)
    for job in (1, 5, 6):
        if play.state(job) == "ending":
            found = found + play.ended(job)
    assert {state for _, state in finished(found)} == {"cancelled"}
    assert names(found).count("Drained") == 1
    assert names(found)[-1] == "Drained"


def test_drain_is_over_as_soon_as_nothing_is_left() -> None:
    play = Play(4)
    play.offline(1)
    play.send_drain(1000)
    assert names(play.done(1)) == ["FinishJob", "Drained"]
    assert names(Play(4).send_drain(5)) == ["Drained"]


@pytest.mark.parametrize("state", STATES)
def test_device_loss(state: str) -> None:
    play = with_job(state)
    found = play.fail()
    lost = {int(c.job): c.error for c in found if isinstance(c, out.FinishJob)}
    if state in STARTED:
        expected = JobCancelled if state == "ending" else DeviceLost
        assert isinstance(lost[5], expected)
    else:
        assert 5 not in lost
        assert play.state(5) == ("blocked" if state == "blocked" else "preparing")
    assert isinstance(lost[1], DeviceLost)
    assert lost[1].device == "cpu:4"
    assert "device cpu:4 crashed" in str(lost[1])
    assert play.scheduler.devices[0].allocated == 0
    started = play.up(0, 4)
    if state in ("preparing", "waiting"):
        assert slices(started) == [(5, 4)]


@pytest.mark.parametrize("state", ["running", "paused"])
def test_timeout(state: str) -> None:
    play = Play(4)
    play.offline(1, "2", timeout_ns=500)
    if state == "paused":
        play.online(2, "4")
    assert play.state(1) == state
    assert play.at(499) == [out.SetTimer(500)]
    assert names(play.at(500)) == ["EndJob"]
    found = play.ended(1)
    assert finished(found) == [(1, "failed")]
    assert isinstance(error(found), JobTimeout)
    assert error(found).timeout_ns == 500


def test_a_timeout_runs_from_the_start_not_from_the_submission() -> None:
    play = Play(1)
    play.offline(1)
    play.offline(2, timeout_ns=100)
    play.now_ns = 1000
    assert out.SetTimer(1100) in play.done(1)


def test_a_job_that_ends_in_time_leaves_no_timer_behind() -> None:
    play = Play(1)
    for job in range(1, 1000):
        play.offline(job, timeout_ns=10**12)
        play.done(job)
    assert len(play.scheduler._timers.due) < 100


def test_the_cause_stays_though_the_job_completes_or_fails_while_it_ends() -> None:
    play = Play(4)
    play.offline(1, "2")
    play.offline(2, "2")
    play.cancel(1)
    play.cancel(2)
    assert finished(play.done(1)) == [(1, "cancelled")]
    assert finished(play.ended(2, failed=True)) == [(2, "cancelled")]


def test_a_job_that_outlives_its_grace_costs_the_device_host() -> None:
    play = Play(4, grace_ns=100)
    play.offline(1, "1")
    play.offline(2, "1")
    play.offline(3, "1")
    play.online(4, "1")
    play.online(5, "4")
    assert out.SetTimer(100) in play.cancel(1)
    [replace] = [c for c in play.at(100) if isinstance(c, out.ReplaceDevice)]
    assert (replace.device, replace.culprit) == (0, 1)
    assert "job 0.1 did not end within 1e-07 s" in replace.reason
    assert play.cancel(2) == [], "nobody talks to a host that is being ended"
    lost = {
        int(c.job): c.error for c in play.fail(reason="was killed") if isinstance(c, out.FinishJob)
    }
    assert sorted(lost) == [1, 2, 3, 4]
    assert isinstance(lost[1], JobCancelled), "the culprit keeps its own cause"
    assert isinstance(lost[2], JobCancelled)
    assert isinstance(lost[3], DeviceLost)
    assert "because job 0.1 did not end when it was told to" in str(lost[3])
    assert slices(play.up(0, 4)) == [(5, 4)], "what had not started runs on the new host"


def test_a_culprit_that_timed_out_is_told_so() -> None:
    play = Play(4, grace_ns=10)
    play.offline(1, timeout_ns=50)
    play.at(50)
    play.at(60)
    assert isinstance(error(play.fail()), JobTimeout)


def test_a_killable_job_that_outlives_its_grace_is_killed_alone() -> None:
    play = Play(4, grace_ns=100)
    play.offline(1, "1", killable=True)
    play.offline(2, "1")
    play.cancel(1)
    assert out.KillJob(JobId(1), 0) in play.at(100)
    assert play.state(1) == "ending"
    assert finished(play.ended(1)) == [(1, "cancelled")]
    assert not [c for c in play.at(1000) if isinstance(c, out.ReplaceDevice)]
    assert play.state(2) == "running"


def test_a_killable_job_that_does_not_even_then_end_costs_the_device_host() -> None:
    play = Play(4, grace_ns=100)
    play.offline(1, "1", killable=True, timeout_ns=50)
    play.offline(2, "1")
    play.at(50)
    assert names(play.at(150)) == ["KillJob"]
    assert names(play.at(200)) == []
    [replace] = [c for c in play.at(250) if isinstance(c, out.ReplaceDevice)]
    assert replace.culprit == 1
    lost = {int(c.job): c.error for c in play.fail() if isinstance(c, out.FinishJob)}
    assert isinstance(lost[1], JobTimeout)
    assert isinstance(lost[2], DeviceLost)
    assert lost[2].culprit == "0.1"


def test_the_only_job_that_ran_is_named_and_nobody_else() -> None:
    play = Play(4)
    play.offline(1)
    lost = error(play.fail(culprit=1))
    assert lost.culprit == "0.1"
    assert "job 0.1 was the only one that ran on it" in str(lost)
    play.up(0, 4)
    play.offline(2, "1")
    play.offline(3, "1")
    found = [c.error for c in play.fail() if isinstance(c, out.FinishJob)]
    assert [one.culprit for one in found if isinstance(one, DeviceLost)] == [None, None]


@pytest.mark.parametrize("state", ["running", "paused"])
def test_a_job_that_its_device_was_not_told_of_waits_at_its_place(state: str) -> None:
    play = Play(4)
    play.offline(1, "2", timeout_ns=100)
    play.offline(2)
    play.offline(3)
    if state == "paused":
        play.online(4, "4")
    assert play.state(1) == state
    play.now_ns = 60
    found = play.fail(unstarted=(1,))
    assert sorted(job for job, _ in finished(found)) == ([2, 4] if state == "paused" else [2])
    assert play.state(1) == "preparing"
    assert play.allocation(1) == "0"
    assert play.scheduler.devices[0].allocated == play.scheduler.devices[0].charged == 0
    assert slices(play.up(0, 4)) == [(1, 2), (3, 2)]
    assert not [c for c in play.at(100) if isinstance(c, out.EndJob)], "the time of its first start"
    assert [c.job for c in play.at(160) if isinstance(c, out.EndJob)] == [1]
    play.ended(1)


def test_a_job_that_was_told_to_end_meanwhile_does_not_wait_again() -> None:
    play = Play(4)
    play.offline(1)
    play.cancel(1)
    assert finished(play.fail(unstarted=(1,))) == [(1, "cancelled")]


def test_a_device_with_fewer_sms_is_asked_again() -> None:
    play = Play(8)
    play.offline(1)
    play.online(2, "8")
    play.online(3, "6")
    play.online(4, "2")
    play.offline(5, blocks=6, whole=True)
    play.offline(6, "7")
    play.fail()
    found = play.up(0, 4)
    assert finished(found) == [(3, "failed")]
    assert "the device has 4 SMs; ask for at most 4" in str(error(found))
    # What needs all its blocks at once fits, since no more than the device holds can be at once.
    assert slices(found) == [(4, 2)]
    assert slices(play.done(4)) == [(5, 4)]


def test_a_device_that_is_given_up_fails_its_jobs_and_refuses_new_ones() -> None:
    play = Play(4, 4)
    play.offline(1)
    play.offline(2)
    play.submit(3, stream=2)
    play.offline(4, device=1)
    found = play.fail(final=True)
    assert finished(found) == [(1, "failed"), (2, "failed"), (3, "failed")]
    refused = play.offline(5)
    assert isinstance(error(refused), DeviceLost)
    assert "use another device" in str(error(refused))
    assert play.state(4) == "running"
    assert play.fail(final=True) == play.fail() == [], "however often it fails"
    play.up(0, 4)
    assert slices(play.offline(6)) == [(6, 4)]


def test_what_is_heard_late_of_jobs_that_are_gone_is_ignored() -> None:
    play = Play(4)
    play.offline(1)
    play.offline(2)
    play.done(1)
    job = play.job(2)
    play.done(2)
    before = play.scheduler.devices[0].allocated
    for late in (play.ended(1), play.ended(2, failed=True), play.ended(99)):
        assert late == []
    assert play.scheduler.devices[0].allocated == before
    assert str(job.state) == "done"


def test_a_device_that_ends_a_job_early_is_not_believed() -> None:
    play = Play(4)
    play.offline(1)
    found = play.ended(1)
    assert finished(found) == [(1, "failed")]
    assert isinstance(error(found), InternalError)


def test_a_submission_of_a_session_that_has_gone_is_cancelled() -> None:
    play = Play(4)
    play.close(1)
    assert finished(play.offline(1)) == [(1, "cancelled")]


def test_the_server_s_mistakes_are_not_taken_silently() -> None:
    play = Play(4)
    play.offline(1)
    with pytest.raises(InternalError, match=r"job 0.1 was submitted twice"):
        play.offline(1)
    with pytest.raises(InternalError, match="session 1 was opened twice"):
        play.open(1)
    with pytest.raises(InternalError, match="device 0 is ready and cannot take 'up'"):
        play.up(0, 4)


def test_time_does_not_go_back() -> None:
    play = Play(1)
    play.now_ns = 1000
    play.offline(1, timeout_ns=100)
    play.now_ns = 500
    play.offline(2)
    assert play.scheduler.now_ns == 1000


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"hold_ns": -1}, "hold_ns must be 0 or more, not -1"),
        ({"grace_ns": -1}, "grace_ns must be 0 or more"),
        ({"max_jobs_per_session": 0}, "max_jobs_per_session must be 1 or more"),
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
