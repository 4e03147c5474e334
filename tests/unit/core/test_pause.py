"""A paused device starts nothing, and with ``now`` what runs makes room and keeps its progress."""

from __future__ import annotations

import pytest

from gpud.core import commands as out
from gpud.errors import Draining
from tests.unit.core.driver import Driver, slices


def test_what_waits_starts_when_the_pause_ends() -> None:
    driver = Driver(4)
    driver.pause()
    assert slices(driver.offline(1)) == []
    assert slices(driver.online(2, "2")) == []
    assert driver.reason(1) == "device 0 is paused by u1 since 12:00"
    assert dict(slices(driver.resume())) == {2: 2, 1: 2}
    assert driver.reason(1) is None


def test_what_runs_goes_on_and_takes_what_comes_free() -> None:
    driver = Driver(4)
    driver.offline(1, "2")
    driver.offline(2)
    driver.pause()
    assert driver.allocation(1) == "2"
    assert slices(driver.done(1)) == [(2, 4)]


def test_with_now_jobs_keep_their_progress_and_nothing_else() -> None:
    driver = Driver(4)
    driver.offline(1, "2", m=2)
    driver.online(2, "1")
    driver.pause(now=True)
    assert (driver.state(1), driver.allocation(1)) == ("paused", "0")
    assert driver.allocation(2) == "1", "a reservation is kept"
    assert driver.reason(1) == "device 0 is paused by u1 since 12:00"
    driver.left(1, 0)
    assert slices(driver.done(2)) == [], "nobody gets what comes free"
    driver.at(10**9)
    assert driver.allocation(1) == "0"
    assert slices(driver.resume()) == [(1, 4)]


def test_what_cannot_be_resized_runs_on() -> None:
    driver = Driver(4)
    driver.offline(1, whole=True, blocks=2)
    driver.pause(now=True)
    assert driver.state(1) == "running"
    fifo = Driver(4, policy="fifo")
    fifo.offline(1)
    fifo.pause(now=True)
    assert fifo.allocation(1) == "4"


@pytest.mark.parametrize("policy", ["arrival", "equal"])
def test_other_policies_keep_a_pause(policy: str) -> None:
    driver = Driver(4, policy=policy)
    driver.offline(1)
    driver.pause(now=True)
    driver.offline(2)
    assert [driver.allocation(job) for job in (1, 2)] == ["0", "0"]
    driver.left(1, 0)
    driver.resume()
    assert driver.allocation(1) != "0"


def test_the_last_word_counts_and_the_first_name_stays() -> None:
    driver = Driver(4)
    driver.offline(1)
    driver.pause(now=True, by="u1")
    driver.left(1, 0)
    assert slices(driver.pause(by="u2")) == [(1, 4)], "running jobs go on again"
    driver.offline(2)
    assert driver.reason(2) == "device 0 is paused by u1 since 12:00"
    driver.resume()
    assert slices(driver.resume()) == [], "once more is no mistake"


def test_a_pause_is_of_one_device_and_outlasts_its_host() -> None:
    driver = Driver(4, 4)
    driver.pause(1)
    driver.offline(1, device=0)
    driver.offline(2, device=1)
    assert (driver.state(1), driver.state(2)) == ("running", "waiting")
    driver.fail(1)
    driver.up(1, 8)
    assert driver.state(2) == "waiting"
    driver.resume(1)
    assert driver.allocation(2) == "8"


def test_a_drain_does_not_wait_for_what_cannot_begin() -> None:
    driver = Driver(4)
    driver.offline(1)
    driver.pause()
    driver.offline(2, stream=7)
    driver.offline(3, stream=7)
    commands = driver.send_drain(10**9)
    ended = {c.job: c.error for c in commands if isinstance(c, out.FinishJob)}
    assert set(ended) == {2, 3}
    assert all(isinstance(error, Draining) for error in ended.values())
    assert out.Drained() in driver.done(1)
