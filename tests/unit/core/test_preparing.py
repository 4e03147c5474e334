"""Preparation: a job whose device lacks something waits for it, and takes no capacity."""

from __future__ import annotations

import pytest

from gpud.core import commands as out
from gpud.errors import DeviceLost
from tests.unit.core.driver import Driver, error, finished, names, prepares, slices


def test_a_job_has_nothing_before_its_device_has_what_it_needs() -> None:
    driver = Driver(4)
    driver.offline(1)
    found = driver.online(2, "3", prepared=False)
    assert names(found) == ["PrepareJob"]
    assert (driver.state(2), driver.allocation(2), driver.allocation(1)) == ("preparing", "0", "4")
    assert driver.reason(2) == "what it needs is on its way to device cpu:4"
    assert slices(driver.online(3, "1")) == [(1, 3), (3, 1)], "others start meanwhile"
    assert slices(driver.prepared(2)) == [(1, 0), (2, 3)]
    assert driver.prepared(2) == [], "twice is once"


def test_a_job_keeps_its_place_while_its_device_is_prepared() -> None:
    driver = Driver(2)
    driver.offline(1)
    driver.offline(2, blocks=2, whole=True, prepared=False)
    driver.offline(3, blocks=2, whole=True)
    assert driver.prepared(2) == []
    assert slices(driver.done(1)) == [(2, 2)]


def test_what_a_job_needs_is_asked_for_when_its_turn_has_come() -> None:
    driver = Driver(2)
    driver.offline(1, stream=0)
    assert driver.offline(2, stream=0, prepared=False) == []
    driver.offline(3, stream=0)
    assert prepares(driver.done(1)) == [2]
    assert slices(driver.prepared(2)) == [(2, 2)]
    assert slices(driver.done(2)) == [(3, 2)], "its device had what job 3 needs at its submission"


def test_a_job_whose_device_cannot_have_what_it_needs_fails() -> None:
    driver = Driver(2)
    driver.offline(1, stream=0, prepared=False)
    driver.offline(2, stream=0)
    found = driver.prepared(1, failed=True)
    assert found[0] == out.FinishJob(driver.scheduler.finished.popitem()[0], "failed", None)
    assert slices(found) == [(2, 2)]
    driver.online(3, "2", prepared=False)
    assert finished(driver.cancel(3)) == [(3, "cancelled")]
    assert driver.prepared(3) == [], "it has ended meanwhile"


def test_a_new_host_is_prepared_for_online_jobs_first() -> None:
    driver = Driver(4)
    driver.offline(1)
    driver.offline(2)
    driver.offline(3, prepared=False)
    driver.online(4, "4", deadline_ns=90)
    driver.online(5, "1", deadline_ns=70)
    driver.online(6, "1", deadline_ns=80, stream=5)
    driver.cancel(1)
    driver.fail(unstarted=(4,))
    assert [driver.state(job) for job in (2, 3, 4, 5, 6)] == [*["preparing"] * 4, "blocked"]
    found = driver.bare(0, 4)
    assert (prepares(found), slices(found)) == ([5, 4, 2, 3], [])
    assert slices(driver.prepared(2)) == [(2, 4)]
    assert slices(driver.prepared(5)) == [(2, 3), (5, 1)]
    assert prepares(driver.done(5)) == [6], "the host that had all for it is gone"


def test_nothing_is_brought_to_a_host_that_is_being_ended() -> None:
    driver = Driver(2, grace_ns=5)
    driver.offline(1)
    driver.cancel(1)
    assert "ReplaceDevice" in names(driver.at(5))
    assert driver.offline(2, prepared=False) == []
    driver.offline(3)
    assert (driver.state(2), driver.state(3)) == ("preparing", "waiting")
    driver.fail()
    assert prepares(driver.up(0, 2)) == [2, 3]


def test_a_job_that_fits_no_more_leaves_its_turn_to_the_next_one() -> None:
    driver = Driver(4)
    driver.online(1, "4", stream=0)
    driver.online(2, "4", stream=1)
    driver.offline(3, stream=1)
    driver.fail(unstarted=(1,))
    found = driver.up(0, 2)
    assert finished(found) == [(1, "failed"), (2, "failed")]
    assert prepares(found) == [3]
    assert slices(found) == [(3, 2)]


@pytest.mark.parametrize("state", ["preparing", "ready in between"])
def test_gives_up(state: str) -> None:
    driver = Driver(4)
    driver.offline(1)
    driver.offline(2, prepared=False)
    for lost in range(2):
        if state != "preparing" and lost == 1:
            driver.prepared(2)
        assert finished(driver.fail(unstarted=(1,))) == []
        driver.bare(0, 4)
        driver.prepared(1)
    found = driver.fail(unstarted=(1,))
    if state == "preparing":
        assert finished(found) == [(2, "failed")]
        assert isinstance(error(found), DeviceLost)
        assert "lost 3 times while job 0.2 was being made ready on it" in str(error(found))
    else:
        assert finished(found) == []
