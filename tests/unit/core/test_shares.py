"""Shares among offline jobs: service and rebalancing, by the names of their properties."""

from __future__ import annotations

import pytest

from gpud.core import commands as out
from gpud.core.capacity import SCALE
from gpud.core.events import LaunchShape
from gpud.core.service import HORIZON_HOLDS, LIMIT_HOLDS
from gpud.errors import InternalError, InvalidArgument
from gpud.units import JobId
from tests.unit.core.driver import MANY, Driver, slices

MS = 1_000_000
HOLD = 100 * MS
TURN = 200 * MS


def settled(driver: Driver, commands: list[out.Command]) -> list[tuple[int, int]]:
    """The sizes after all blocks that are to leave have left, as the commands change them."""
    sizes: dict[int, int] = {}
    while commands:
        sizes |= dict(slices(commands))
        told = [job for job, _ in slices(commands)]
        commands = [c for job in told for c in driver.left(job, driver.job(job).slices)]
    return sorted(sizes.items())


def fire(driver: Driver, at_ns: int) -> list[tuple[int, int]]:
    return settled(driver, driver.at(at_ns))


# -- a newcomer ------------------------------------------------------------------------------------


def test_a_newcomer_gets_its_part_after_the_hold_time() -> None:
    driver = Driver(4)
    driver.offline(1)
    driver.now_ns = 500 * MS
    found = driver.offline(2)
    assert slices(found) == []
    assert out.SetTimer(600 * MS) in found
    assert fire(driver, 599 * MS) == []
    assert fire(driver, 600 * MS) == [(1, 2), (2, 2)]
    assert fire(driver, 5000 * MS) == [], "and there is nothing more to do"


def test_it_gets_its_part_by_weight_and_within_its_quota() -> None:
    driver = Driver(8)
    driver.offline(1)
    driver.now_ns = 500 * MS
    driver.offline(2, weight=3)
    [(_, rest), (_, part)] = fire(driver, 600 * MS)
    assert rest + part == 8
    assert part in (6, 7), "for a while it may have some more, for the hold"
    for at_ms in range(700, 5000, 100):
        fire(driver, at_ms * MS)
    assert (driver.allocation(1), driver.allocation(2)) == ("2", "6")
    driver.offline(3, "1", weight=1000)
    assert dict(fire(driver, driver.now_ns + HOLD))[3] == 1
    assert sum(driver.job(job).slices for job in (1, 2, 3)) == 8


def test_a_short_job_ends_before_anybody_gives() -> None:
    driver = Driver(4)
    driver.offline(1)
    driver.left(1, 4)
    for number in range(2, 22):
        driver.now_ns += 150 * MS
        assert slices(driver.offline(number)) == []
        driver.now_ns += 20 * MS
        assert slices(driver.done(number - 1)) == [(number, 4)]


def test_a_quota_that_is_raised_counts_after_the_hold_time() -> None:
    driver = Driver(4)
    driver.offline(1)
    driver.offline(2, "1")
    fire(driver, TURN)
    assert (driver.allocation(1), driver.allocation(2)) == ("3", "1")
    for at_ms in range(300, 1001, 100):
        assert fire(driver, at_ms * MS) == []
    driver.resize(2, quota="4")
    for at_ms in range(1100, 1600, 100):
        fire(driver, at_ms * MS)
    # Nor is it owed what it could not have before.
    assert (driver.allocation(1), driver.allocation(2)) == ("2", "2")


# -- properties of the service record --------------------------------------------------------------


def test_counted() -> None:
    driver = Driver(4)
    driver.offline(1)
    driver.offline(2, "2", weight=5)
    fire(driver, TURN)
    driver.online(3, "3")
    service = driver.scheduler.devices[0].service
    assert service is not None
    hungry = [job for job in driver.scheduler.jobs.values() if job.hunger is not None]
    assert [job.id for job in hungry] == [1, 2]
    assert (service.weight, service.rate) == (6, SCALE)
    assert service.served == sum(job.served_at(service.at_ns) for job in hungry)
    driver.scheduler.validate()
    service.weight += 1
    with pytest.raises(InternalError, match="service: device 0 counts weight as 7, it is 6"):
        driver.scheduler.validate()


def test_no_credit() -> None:
    driver = Driver(4)
    driver.offline(1)
    driver.now_ns = 3600 * 1000 * MS
    driver.offline(2)
    service = driver.scheduler.devices[0].service
    assert service is not None
    assert service.surplus(driver.job(2)) == 0
    first = driver.job(1)
    assert first.served_at(driver.now_ns) == driver.job(2).served_at(driver.now_ns) > 0
    # So they share from now on, and the first does not wait until the second has had an hour.
    assert fire(driver, driver.now_ns + HOLD) == [(1, 2), (2, 2)]


def test_limited() -> None:
    driver = Driver(4)
    driver.offline(1)
    driver.offline(2, "1")
    fire(driver, TURN)
    driver.at(3600 * 1000 * MS)  # an hour with 3 and with 1, which is as it should be
    driver.online(3, "4")
    service = driver.scheduler.devices[0].service
    assert service is not None
    behind = -service.surplus(driver.job(2))
    # As the weights are equal, virtual time is between the two.
    assert 0 < behind <= HOLD * SCALE * (LIMIT_HOLDS * 4 + 3 * HORIZON_HOLDS)


def test_idle() -> None:
    driver = Driver(4)
    driver.offline(1, "1")
    driver.offline(2, "3")
    driver.now_ns = 3600 * 1000 * MS
    service = driver.scheduler.devices[0].service
    assert service is not None
    assert service.weight == 0, "both have all that they may have"
    driver.offline(3)
    running = [driver.job(1), driver.job(2)]
    mean = sum(job.served_at(driver.now_ns) for job in running) // 2
    assert driver.job(3).served_at(driver.now_ns) == mean


# -- properties of rebalancing ---------------------------------------------------------------------


def test_fair() -> None:
    driver = Driver(8)
    for number in range(1, 6):
        driver.offline(number, m=4)
        driver.now_ns += 10 * MS
    at_ns = driver.now_ns
    for _ in range(20):
        at_ns += HOLD
        fire(driver, at_ns)
    sizes = [driver.job(number).slices for number in range(1, 6)]
    assert sum(sizes) == 32
    assert max(sizes) - min(sizes) <= 1


def test_fair_of_who_has_more_than_a_slice_too_much() -> None:
    driver = Driver(2)
    driver.offline(1, m=4, weight=5)
    driver.offline(2, "1", m=4)
    driver.offline(3, "1/2", m=4)
    for at_ms in (100, 200, 300, 400, 500, 600):
        fire(driver, at_ms * MS)
    assert [driver.job(number).slices for number in (1, 2, 3)] == [5, 2, 1]
    # Job 2 can spare one slice, not both, and with that one it is still above job 1.
    assert dict(fire(driver, 1100 * MS))[2] == 1


def test_patient() -> None:
    driver = Driver(4)
    driver.offline(1)
    driver.now_ns = 150 * MS
    driver.offline(2)
    assert fire(driver, 250 * MS - 1) == []
    assert fire(driver, 250 * MS) == [(1, 2), (2, 2)], "both the hold and the turn have passed"
    driver.now_ns = 260 * MS
    driver.offline(3, weight=2)
    assert fire(driver, 360 * MS) == [], "the others were changed 110 ms ago"
    assert fire(driver, 449 * MS) == []
    assert fire(driver, 450 * MS) == [(1, 1), (2, 1), (3, 2)]


def test_a_job_that_gave_keeps_the_rest_for_its_turn() -> None:
    driver = Driver(4, rebalance_limit=1)
    driver.offline(1)
    assert fire(driver, 1000 * MS) == []
    driver.offline(2)
    assert fire(driver, 1100 * MS) == [(1, 2), (2, 2)]
    driver.offline(3)
    driver.offline(4)
    for at_ms in range(1200, 2100, 100):
        assert fire(driver, at_ms * MS) == []
    found = dict(fire(driver, 2100 * MS))
    assert min(found[3], found[4]) >= 1


def test_times_that_are_changed_count_at_once() -> None:
    driver = Driver(4, rebalance_hold_ns=60_000 * MS, hold_ns=60_000 * MS)
    driver.offline(1)
    driver.now_ns = 1000 * MS
    driver.offline(2)
    assert fire(driver, 1200 * MS) == []
    assert dict(settled(driver, driver.change_times(rebalance_hold_ns=100 * MS)))[2] > 0
    driver.change_times(rebalance_limit=1, hold_ns=0, grace_ns=5 * MS)
    driver.online(3, "4")
    driver.now_ns += 10 * MS
    driver.left(1, 0)
    driver.left(2, 0)
    ended = dict(slices(driver.done(3)))
    assert sum(ended.values()) == 4, "nothing is kept for other online jobs"
    found = driver.cancel(1)
    assert out.SetTimer(driver.now_ns + 5 * MS) in found


def test_steady() -> None:
    driver = Driver(4)
    driver.offline(1, m=3)
    driver.now_ns = TURN
    driver.offline(2, m=3)
    changed = [fire(driver, TURN + HOLD * turn) for turn in range(1, 600)]
    assert (driver.allocation(1), driver.allocation(2)) == ("2", "2")
    assert len([one for one in changed if one]) <= 3
    assert changed[30:] == [[]] * len(changed[30:])


def test_what_is_left_of_shares_takes_long_turns() -> None:
    driver = Driver(4)
    for number in (1, 2, 3):
        driver.offline(number)
        fire(driver, driver.now_ns + HOLD + TURN)
    changes = 0
    for _ in range(600):
        changes += bool(fire(driver, driver.now_ns + HOLD))
    # Each has the fourth SM in turn: for a second or more, in these 60 s.
    assert 30 <= changes <= 60
    served = [driver.job(number).served_at(driver.now_ns) for number in (1, 2, 3)]
    assert max(served) - min(served) < 2 * SCALE * 1000 * MS


def test_unequal_shares_wake_nobody_if_nobody_may_take() -> None:
    driver = Driver(8)
    driver.offline(1, "1")
    driver.offline(2)
    fire(driver, 100 * MS)
    assert (driver.allocation(1), driver.allocation(2)) == ("1", "7")
    woken = 0
    while commands := [c for c in driver.at(driver.now_ns) if isinstance(c, out.SetTimer)]:
        driver.now_ns = commands[0].at_ns
        woken += 1
        assert woken < 10


def test_a_newcomer_is_not_kept_waiting_by_shares_that_change_seldom() -> None:
    driver = Driver(8)
    driver.offline(1, "1")
    driver.offline(2, weight=8)
    fire(driver, 100 * MS)
    fire(driver, 1000 * MS)
    planned_ns = driver.scheduler.devices[0].rebalance_at_ns
    assert planned_ns is not None
    assert planned_ns > driver.now_ns + HORIZON_HOLDS * HOLD
    driver.offline(3, weight=8)
    assert fire(driver, driver.now_ns + HOLD) == [(2, 4), (3, 3)]


def test_useful() -> None:
    driver = Driver(4)
    driver.offline(1, "1", weight=1000)
    driver.offline(2, m=2)
    # Job 2 has far more than its part, and no slice of it would be used by anybody else.
    for _ in range(100):
        assert fire(driver, driver.now_ns + HOLD) == []
    assert (driver.allocation(1), driver.allocation(2)) == ("1", "3")


def test_whole() -> None:
    driver = Driver(4)
    driver.offline(1)
    driver.now_ns = TURN
    driver.offline(2, whole=True, blocks=3)
    at_ns, sizes = driver.now_ns, []
    while driver.state(2) == "waiting":
        at_ns += HOLD
        assert at_ns < 3000 * MS, "it is not starved"
        sizes = fire(driver, at_ns)
    assert sizes == [(1, 1), (2, 3)]
    assert at_ns > TURN + HOLD, "and it has waited for more than its part"


def test_a_small_job_in_form_whole_starts_after_the_hold_time() -> None:
    driver = Driver(4)
    driver.offline(1)
    driver.now_ns = TURN
    driver.offline(2, whole=True, blocks=2)
    assert fire(driver, TURN + HOLD) == [(1, 2), (2, 2)]


def test_released_capacity_is_kept_for_a_job_with_larger_slices() -> None:
    driver = Driver(4)
    driver.offline(1, m=8)
    driver.offline(2, "1")
    at_ns = TURN
    driver.now_ns = at_ns
    driver.offline(3, "1")
    fire(driver, at_ns + HOLD)
    fire(driver, at_ns + HOLD + TURN)
    assert [driver.allocation(job) for job in (1, 2, 3)] == ["2", "1", "1"]
    driver.now_ns = 2000 * MS
    driver.done(3)
    driver.left(1, 24)
    driver.resize(2, quota="2")
    told = driver.at(2000 * MS + HOLD + TURN)
    assert slices(told) == [(1, 16)]
    for held in range(23, 16, -1):
        assert slices(driver.left(1, held)) == [], "job 1 could take each of these back"
    assert slices(driver.left(1, 16)) == [(2, 2)]


# -- the service decides ---------------------------------------------------------------------------


def test_a_job_that_was_squeezed_catches_up() -> None:
    driver = Driver(8)
    driver.offline(1)
    driver.offline(2)
    for _ in range(30):
        fire(driver, driver.now_ns + HOLD)
    assert (driver.allocation(1), driver.allocation(2)) == ("4", "4")
    [(victim, keeps), _] = slices(driver.online(3, "4"))
    assert keeps == 0
    driver.left(victim, 0)
    driver.now_ns += HOLD - 1  # it has nothing for just less than a hold
    other = 3 - victim
    driver.now_ns += 1000 * MS
    settled(driver, driver.done(3))
    assert driver.job(victim).slices >= driver.job(other).slices
    fire(driver, driver.now_ns + TURN)
    assert driver.job(victim).slices > driver.job(other).slices
    for _ in range(100):
        fire(driver, driver.now_ns + HOLD)
    assert driver.job(victim).slices == driver.job(other).slices == 4
    ahead = driver.job(other).served_at(driver.now_ns) - driver.job(victim).served_at(driver.now_ns)
    assert ahead < SCALE * 1000 * MS, "of some 4 that it was behind"


def test_many_jobs_take_turns_on_few_slices() -> None:
    driver = Driver(2)
    for number in range(1, 7):
        driver.offline(number)
    for _ in range(600):
        fire(driver, driver.now_ns + HOLD)
    served = [driver.job(number).served_at(driver.now_ns) for number in range(1, 7)]
    assert sum(job.alloc for job in driver.scheduler.jobs.values()) == 2 * SCALE
    assert max(served) * 100 < min(served) * 105


def test_who_waits_for_its_turn_says_so() -> None:
    driver = Driver(1)
    driver.offline(1)
    driver.offline(2)
    at_ns = 0
    while driver.state(1) == "running":
        at_ns += HOLD
        fire(driver, at_ns)
    assert driver.reason(1) == "it is the turn of other offline jobs, which were served less"


# -- the old behaviour -----------------------------------------------------------------------------


def test_under_arrival_offline_jobs_take_nothing_from_each_other() -> None:
    driver = Driver(4, policy="arrival")
    driver.offline(1)
    found = driver.offline(2, weight=1000)
    assert not [c for c in found if isinstance(c, out.SetTimer)]
    assert slices(driver.at(60_000 * MS)) == []
    assert driver.state(2) == "waiting"
    assert driver.scheduler.devices[0].service is None


def test_online_jobs_of_a_chain_and_exhausted_jobs_are_not_hungry() -> None:
    driver = Driver(4)
    driver.offline(1, launches=(LaunchShape(1, MANY), LaunchShape(1, MANY)))
    driver.left(1, 4, exhausted=True)
    driver.online(2, "1")
    service = driver.scheduler.devices[0].service
    assert service is not None
    assert (service.weight, driver.job(1).hunger, driver.job(2).hunger) == (0, None, None)


@pytest.mark.parametrize("wrong", [{"rebalance_hold_ns": 0}, {"rebalance_limit": 0}])
def test_settings_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument, match="must be 1 or more, not 0"):
        Driver(1, **wrong)


def test_a_lost_host_forgets_what_was_planned() -> None:
    driver = Driver(2)
    driver.offline(1)
    driver.offline(2)
    driver.fail()
    device = driver.scheduler.devices[0]
    assert device.rebalance_at_ns is None
    assert slices(driver.at(HOLD)) == []
    assert JobId(2) in driver.scheduler.jobs
    assert slices(driver.up(0, 2)) == [(2, 2)]
