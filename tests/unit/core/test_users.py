"""Caps and weights of users: what is refused, what waits, and what others then have."""

from __future__ import annotations

import pytest

from gpud.core.policies.fair_share import Candidate, fill, fill_within
from gpud.errors import AdmissionError, InvalidArgument
from tests.unit.core.driver import Driver, error, finished, slices

MS = 1_000_000


def driver(policy: str = "reservations", sms: int = 4, **terms: object) -> Driver:
    """A scheduler with session 2 of user 7, of whom something is said, and session 1 of another."""
    one = Driver(sms, policy=policy)
    one.user(7, **terms)
    one.open(2, 7)
    return one


@pytest.mark.parametrize("policy", ["reservations", "arrival"])
def test_capped(policy: str) -> None:
    one = driver(policy, hold="50%")
    one.offline(1, session=2)
    assert one.allocation(1) == "2", "though the rest is free"
    one.offline(2, session=2)
    assert one.state(2) == "waiting"
    one.offline(3)
    assert one.allocation(3) == "2", "the capped job in front of it blocks nobody"
    one.done(1)
    assert (one.allocation(2), one.allocation(3)) == ("2", "2")


def test_online_jobs_wait_at_the_cap_and_block_nobody() -> None:
    one = driver(reserve="2")
    one.online(1, "3/2", m=2, session=2)
    assert one.state(1) == "running"
    one.online(2, "1", session=2)
    assert one.state(2) == "waiting"
    assert one.reason(2) == "user u7 may reserve 2 SMs, and has reserved 3/2"
    one.online(3, "1")
    assert one.state(3) == "running", "another user's job behind it starts"
    one.done(1)
    assert one.state(2) == "running"


def test_what_can_never_be_had_is_refused() -> None:
    one = driver(reserve="25%", hold="2")
    refused = one.online(1, "2", session=2)
    assert finished(refused) == [(1, "failed")]
    told = error(refused)
    assert isinstance(told, AdmissionError)
    assert "user u7 may reserve 1 of the 4 SMs" in str(told)
    assert "ask for at most 1, or have reserve raised" in str(told)
    told = error(one.offline(2, session=2, blocks=12, whole=True))
    assert "user u7 may hold 2 of the 4 SMs" in str(told)
    assert one.online(3, "2") != []
    assert one.state(3) == "running", "others may"


def test_a_resize_keeps_to_the_caps() -> None:
    one = driver(reserve="2")
    one.online(1, "1", session=2)
    one.online(2, "1", session=2)
    [refused] = one.resize(1, reservation="3/2")
    assert "with a reservation of 3/2 the online jobs of user u7" in str(refused.error)  # type: ignore[union-attr]
    assert one.allocation(1) == "1"
    one.done(2)
    one.resize(1, reservation="2")
    assert one.allocation(1) == "2"


def test_a_users_own_jobs_make_room_for_its_online_job() -> None:
    one = driver(hold="2")
    one.offline(1, session=2)
    one.offline(2)
    one.online(3, "1", session=2)
    assert (one.allocation(1), one.allocation(3)) == ("1", "1")
    one.left(1, 1)
    one.left(2, 1)
    assert one.allocation(2) == "2", "the other user's job is no worse off"


def test_a_cap_that_is_lowered_takes_effect_at_once() -> None:
    one = driver(hold="3")
    one.offline(1, session=2)
    assert one.allocation(1) == "3"
    assert slices(one.user(7, hold="1")) == [(1, 1)]
    one.left(1, 1)
    one.user(7)
    assert one.allocation(1) == "4", "and so does one that is raised"


def test_caps_count_by_device() -> None:
    one = Driver(4, 8)
    one.user(7, hold="50%")
    one.open(2, 7)
    one.offline(1, session=2)
    one.offline(2, session=2, device=1)
    assert (one.allocation(1), one.allocation(2)) == ("2", "4")


def test_by_user() -> None:
    one = driver(weight=3)
    for job in (1, 2, 3):
        one.offline(job, m=8)
    one.offline(4, m=8, session=2)
    for _ in range(100):
        told = one.at(one.now_ns + 100 * MS)
        for job, size in slices(told):
            one.left(job, size)
    served = [one.job(job).served_at(one.now_ns) - one.job(job).service_base for job in (1, 2, 3)]
    other = one.job(4).served_at(one.now_ns) - one.job(4).service_base
    assert other / sum(served) == pytest.approx(3, rel=0.1)


def test_alone() -> None:
    one = driver(weight=5)
    one.offline(1, session=2, weight=2)
    one.offline(2, session=2)
    assert (one.job(1).weight, one.job(2).weight) == (2, 1)


def test_a_weight_out_of_range_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="a user's weight is from 1 to 1000, not 0"):
        driver(weight=0)


# -- caps on groups of candidates ------------------------------------------------------------------


def test_fill_within() -> None:
    rows = [Candidate(0, 1, 100, 1) for _ in range(4)]
    assert fill_within(40, rows, ()) == fill(40, rows) == [10] * 4
    assert fill_within(40, rows, [([0, 1], 6)]) == [3, 3, 17, 17]
    assert fill_within(40, rows, [([0], 6), ([1, 2], 10)]) == [6, 5, 5, 24]
    assert fill_within(40, rows, [([0, 1], 0)]) == [0, 0, 20, 20]
    assert fill_within(40, rows, [([0, 1], -3)]) == [0, 0, 20, 20]
    assert fill_within(40, rows, [([0, 1], 25)]) == [10] * 4, "a cap that is not reached"
    heavy = [Candidate(0, 1, 100, 3), Candidate(0, 1, 100, 1), Candidate(0, 1, 5, 1)]
    assert fill_within(40, heavy, [([0, 1], 8)]) == [6, 2, 5]
