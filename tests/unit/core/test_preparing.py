"""Jobs that need what their device has not: they wait for it, and nobody gives way meanwhile."""

from __future__ import annotations

import pytest

from gpud.core import commands as out
from gpud.errors import DeviceLost
from tests.unit.core.play import Play, error, finished, names, prepares, slices


def test_a_job_has_nothing_before_its_device_has_what_it_needs() -> None:
    play = Play(4)
    play.offline(1)
    found = play.online(2, "3", prepared=False)
    assert names(found) == ["PrepareJob"]
    assert (play.state(2), play.allocation(2), play.allocation(1)) == ("preparing", "0", "4")
    assert play.reason(2) == "what it needs is on its way to device cpu:4"
    assert slices(play.online(3, "1")) == [(1, 3), (3, 1)], "others start meanwhile"
    assert slices(play.prepared(2)) == [(1, 0), (2, 3)]
    assert play.prepared(2) == [], "twice is once"


def test_a_job_keeps_its_place_while_its_device_is_prepared() -> None:
    play = Play(2)
    play.offline(1)
    play.offline(2, blocks=2, whole=True, prepared=False)
    play.offline(3, blocks=2, whole=True)
    assert play.prepared(2) == []
    assert slices(play.done(1)) == [(2, 2)]


def test_what_a_job_needs_is_asked_for_when_its_turn_has_come() -> None:
    play = Play(2)
    play.offline(1, stream=0)
    assert play.offline(2, stream=0, prepared=False) == []
    play.offline(3, stream=0)
    assert prepares(play.done(1)) == [2]
    assert slices(play.prepared(2)) == [(2, 2)]
    assert slices(play.done(2)) == [(3, 2)], "its device had what job 3 needs at its submission"


def test_a_job_whose_device_cannot_have_what_it_needs_fails() -> None:
    play = Play(2)
    play.offline(1, stream=0, prepared=False)
    play.offline(2, stream=0)
    found = play.prepared(1, failed=True)
    assert found[0] == out.FinishJob(play.scheduler.finished.popitem()[0], "failed", None)
    assert slices(found) == [(2, 2)]
    play.online(3, "2", prepared=False)
    assert finished(play.cancel(3)) == [(3, "cancelled")]
    assert play.prepared(3) == [], "it has ended meanwhile"


def test_a_new_host_is_prepared_for_online_jobs_first() -> None:
    play = Play(4)
    play.offline(1)
    play.offline(2)
    play.offline(3, prepared=False)
    play.online(4, "4", deadline_ns=90)
    play.online(5, "1", deadline_ns=70)
    play.online(6, "1", deadline_ns=80, stream=5)
    play.cancel(1)
    play.fail(unstarted=(4,))
    assert [play.state(job) for job in (2, 3, 4, 5, 6)] == [*["preparing"] * 4, "blocked"]
    found = play.bare(0, 4)
    assert (prepares(found), slices(found)) == ([5, 4, 2, 3], [])
    assert slices(play.prepared(2)) == [(2, 4)]
    assert slices(play.prepared(5)) == [(2, 3), (5, 1)]
    assert prepares(play.done(5)) == [6], "the host that had all for it is gone"


def test_nothing_is_brought_to_a_host_that_is_being_ended() -> None:
    play = Play(2, grace_ns=5)
    play.offline(1)
    play.cancel(1)
    assert "ReplaceDevice" in names(play.at(5))
    assert play.offline(2, prepared=False) == []
    play.offline(3)
    assert (play.state(2), play.state(3)) == ("preparing", "waiting")
    play.fail()
    assert prepares(play.up(0, 2)) == [2, 3]


def test_a_job_that_fits_no_more_leaves_its_turn_to_the_next_one() -> None:
    play = Play(4)
    play.online(1, "4", stream=0)
    play.online(2, "4", stream=1)
    play.offline(3, stream=1)
    play.fail(unstarted=(1,))
    found = play.up(0, 2)
    assert finished(found) == [(1, "failed"), (2, "failed")]
    assert prepares(found) == [3]
    assert slices(found) == [(3, 2)]


@pytest.mark.parametrize("state", ["preparing", "ready in between"])
def test_gives_up(state: str) -> None:
    play = Play(4)
    play.offline(1)
    play.offline(2, prepared=False)
    for lost in range(2):
        if state != "preparing" and lost == 1:
            play.prepared(2)
        assert finished(play.fail(unstarted=(1,))) == []
        play.bare(0, 4)
        play.prepared(1)
    found = play.fail(unstarted=(1,))
    if state == "preparing":
        assert finished(found) == [(2, "failed")]
        assert isinstance(error(found), DeviceLost)
        assert "lost 3 times while job 0.2 was being made ready on it" in str(error(found))
    else:
        assert finished(found) == []
