"""Shares over virtual minutes, and faults that each property of shares catches.

The simulation is `tests.property.share_simulation`. Hypothesis chooses jobs, weights, quotas, sizes
and bursts; two cases are those in which the arrival policy fails, and does.
"""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpud.core.device import DeviceRecord
from gpud.core.job import JobRecord
from gpud.core.policies import victims
from gpud.core.policies.arrival import Arrival
from gpud.core.policies.fair_share import Candidate
from gpud.core.policies.reservations import Reservations
from gpud.core.scheduler import Scheduler, Settings
from gpud.core.service import ServiceRecord
from tests.property.share_simulation import (
    MINUTE,
    MS,
    SECOND,
    SHARE_CHECKS,
    ShareWorld,
    Unfair,
    due_of,
)


def arrival() -> Scheduler:
    return Scheduler(Settings(policy="arrival"))


def two_jobs(world: ShareWorld, weight: int = 1) -> ShareWorld:
    """Two batch jobs, half a second apart."""
    world.offline(weight=weight)
    world.run(SECOND // 2)
    world.offline()
    world.run(MINUTE + 5 * SECOND)
    return world


def bursts(world: ShareWorld, m: int = 1, reservation: int = 2) -> ShareWorld:
    """Nine batch jobs, one of them of weight 3, beside requests of 12 ms, 25 in a second."""
    for number in range(9):
        world.offline(m=m, weight=1 if number else 3)
    world.bursts(reservation, 12 * MS, 40 * MS)
    world.run(MINUTE + 5 * SECOND)
    return world


@pytest.mark.parametrize("weight", [1, 3])
def test_two_jobs_half_a_second_apart_share_by_weight(weight: int) -> None:
    world = two_jobs(ShareWorld(4), weight)
    assert world.checker.windows() < Fraction(1, 100)
    shares = [world.share(job) for job in world.jobs]
    assert shares == [Fraction(4 * weight, weight + 1), Fraction(4, weight + 1)]
    record = list(world.jobs.values())
    assert record[0].shrinks + record[1].shrinks <= 2
    with pytest.raises(Unfair, match="shares: from"):
        two_jobs(ShareWorld(4, scheduler=arrival()), weight).checker.windows()


@pytest.mark.parametrize(
    ("reservation", "m"),
    [(2, 1), *(pytest.param(*one, marks=pytest.mark.ci) for one in ((2, 8), (4, 1), (4, 8)))],
)
def test_bursts_do_not_change_what_weights_say(m: int, reservation: int) -> None:
    world = bursts(ShareWorld(4), m, reservation)
    assert world.checker.windows() < Fraction(4, 100)
    with pytest.raises(Unfair, match="shares: from"):
        bursts(ShareWorld(4, scheduler=arrival()), m, reservation).checker.windows()


def test_few_jobs_are_disturbed_by_a_burst() -> None:
    world = ShareWorld(4)
    for _ in range(4):
        world.offline(m=8, quota=1)
    bursts_count = 0
    for _ in range(200):
        before = sum(one.shrinks for one in world.jobs.values())
        world.online(1, 12 * MS)
        assert sum(one.shrinks for one in world.jobs.values()) == before + 1
        bursts_count += 1
        world.run(world.now_ns + 40 * MS)
    disturbed = [one.shrinks for one in world.jobs.values() if one.reservation is None]
    assert sum(disturbed) == bursts_count
    assert max(disturbed) - min(disturbed) <= 4, "and not the same job each time"


def test_a_quota_beside_bursts() -> None:
    world = ShareWorld(4)
    for quota in (2, 1, 1):
        world.offline(quota=quota)
    world.bursts(2, 50 * MS, 100 * MS)
    world.run(MINUTE + 10 * SECOND)
    world.checker.windows()


def test_a_newcomer_shares_from_its_arrival() -> None:
    world = ShareWorld(4)
    for number in range(3):
        world.offline(m=4, weight=number + 1)
        world.run(world.now_ns + 10 * SECOND)
    world.bursts(3, 20 * MS, 80 * MS)
    world.run(world.now_ns + MINUTE + 5 * SECOND)
    world.checker.windows()


JOBS = st.lists(
    st.tuples(
        st.sampled_from((1, 2, 3, 8, 16)),  # M
        st.sampled_from((1, 1, 1, 2, 3)),  # weight
        st.sampled_from((None, None, None, "1", "2", "5/2")),  # quota
    ),
    min_size=2,
    max_size=6,
)
BURSTS = st.none() | st.tuples(
    st.sampled_from(("1", "2", "5/2", "4")),
    st.sampled_from((15, 40, 100)),
    st.sampled_from((1, 2, 8)),
)


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(jobs=JOBS, online=BURSTS, sms=st.sampled_from((4, 6)), seed=st.integers(0, 99))
def test_shares(jobs: list[Any], online: Any, sms: int, seed: int) -> None:
    world = ShareWorld(sms, seed=seed)
    draw = random.Random(seed)
    for m, weight, quota in jobs:
        world.offline(m=m, weight=weight, quota=quota)
        world.run(world.now_ns + draw.choice((0, 50 * MS, SECOND)))
    if online is not None:
        reservation, run_ms, m = online
        world.bursts(reservation, run_ms * MS, 6 * run_ms * MS, m=m)
    world.run(world.now_ns + MINUTE + 3 * SECOND)
    world.checker.windows()


# -- users -----------------------------------------------------------------------------------------


def ten_and_one(world: ShareWorld, seconds: int = 65) -> ShareWorld:
    """A user has ten jobs when another comes with one; there are requests now and then."""
    for _ in range(10):
        world.offline(m=4, user=1)
    world.run(2 * SECOND)
    world.offline(m=4, user=2)
    world.bursts(1, 20 * MS, 200 * MS)
    world.run(world.now_ns + seconds * SECOND)
    return world


@pytest.mark.parametrize("weights", [(1, 1), (1, 3)])
def test_by_user(weights: tuple[int, int]) -> None:
    world = ten_and_one(ShareWorld(4, users=[(weight, None) for weight in weights]))
    world.checker.windows()
    jobs = [one for one in world.jobs.values() if one.reservation is None]
    served = [one.seconds[-1] - one.seconds[-61] for one in jobs]
    assert served[10] / sum(served[:10]) == pytest.approx(weights[1] / weights[0], rel=0.05)


def test_by_job() -> None:
    world = ShareWorld(6, users=[(1, None), (2, None)])
    for user, weight in ((1, 1), (1, 3), (2, 1), (2, 1)):
        world.offline(m=8, weight=weight, user=user)
    world.run(MINUTE + 5 * SECOND)
    world.checker.windows()
    shares = [world.share(job) for job in world.jobs]
    assert [float(one) for one in shares] == pytest.approx([0.5, 1.5, 2, 2], abs=0.26)


def test_what_a_user_cannot_use_is_the_others() -> None:
    world = ShareWorld(8, users=[(1, None), (1, None)])
    for user, quota in ((1, "1/2"), (1, None), (2, None)):
        world.offline(m=4, quota=quota, user=user)
    world.run(MINUTE + 5 * SECOND)
    world.checker.windows()
    assert [float(world.share(job)) for job in world.jobs] == [0.5, 3.5, 4]


def test_capped() -> None:
    world = ShareWorld(8, users=[(1, 2), (1, None)])
    for _ in range(3):
        world.offline(m=2, user=1)
    world.run(SECOND)
    assert sum(world.share(job) for job in world.jobs) == 2, "though the rest is free"
    world.offline(m=2, user=2)
    world.bursts(2, 50 * MS, 300 * MS)
    world.run(MINUTE + 5 * SECOND)
    world.checker.windows()


@pytest.mark.parametrize("seed", range(2))
def test_capped_beside_bursts(seed: int) -> None:
    """What online jobs take, a user with a cap need not lack: the other has more than its part."""
    world = ShareWorld(8, seed=seed, users=[(1, 2), (1, None)])
    for user in (1, 1, 1, 2):
        world.offline(m=2, user=user)
    world.bursts(2, 50 * MS, 300 * MS)
    world.run(MINUTE + 5 * SECOND)
    assert world.checker.windows() < Fraction(3, 100)


def test_one_job_beside_many_that_need_a_whole_sm() -> None:
    world = ShareWorld(2, users=[(1, None), (1, None)])
    for _ in range(50):
        world.offline(user=1)
    one = world.offline(user=2)
    world.run(65 * SECOND)
    assert float(world.jobs[one].capsm_s) == pytest.approx(65, rel=0.02)


def test_a_heavy_job_beside_many_that_need_a_whole_sm() -> None:
    """The same within one user, by weights."""
    world = ShareWorld(2)
    for _ in range(50):
        world.offline()
    heavy = world.jobs[world.offline(weight=50)]
    world.run(10 * SECOND)  # at first each of the others has its turn as a newcomer
    before = heavy.capsm_s
    world.run(70 * SECOND)
    assert float(heavy.capsm_s - before) == pytest.approx(60, rel=0.02)


def test_in_turn() -> None:
    """Who has one job in the queue is not behind the thousand of another."""
    world = ShareWorld(2, users=[(1, None), (1, None)])
    for _ in range(200):
        world.offline(quota=1, user=1)
    one = world.offline(quota=1, user=2)
    world.run(SECOND // 2)
    assert world.jobs[one].capsm_s > 0


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    jobs=st.lists(
        st.tuples(st.sampled_from((2, 4, 8)), st.sampled_from((1, 1, 3)), st.integers(1, 3)),
        min_size=2,
        max_size=7,
    ),
    users=st.lists(
        st.tuples(st.sampled_from((1, 1, 2, 5)), st.sampled_from((None, None, 2, 3))),
        min_size=3,
        max_size=3,
    ),
    burst=st.booleans(),
    seed=st.integers(0, 99),
)
def test_shares_of_users(jobs: list[Any], users: list[Any], burst: bool, seed: int) -> None:
    if burst:  # parts are exact on the whole device: beside bursts a cap may come to more or less
        users = [(weight, None) for weight, _ in users]
    world = ShareWorld(6, seed=seed, users=users)
    draw = random.Random(seed)
    for m, weight, user in jobs:
        world.offline(m=m, weight=weight, user=user)
        world.run(world.now_ns + draw.choice((0, 50 * MS, SECOND)))
    if burst:
        world.bursts(1, 15 * MS, 200 * MS, m=8)
    world.run(world.now_ns + MINUTE + 3 * SECOND)
    world.checker.windows()


def test_due_of() -> None:
    """What the checker expects is weighted max-min: nobody can have more by weight at no cost."""
    seconds = [Fraction(n) for n in (60, 30, 30)]
    assert due_of([1, 1, 1], seconds, [Fraction(240)] * 3) == [40, 40, 40]
    assert due_of([3, 1, 1], seconds, [Fraction(240)] * 3) == [72, 24, 24]
    assert due_of([1, 1, 1], seconds, [Fraction(240), Fraction(10), Fraction(240)]) == [55, 10, 55]
    assert due_of([1, 1], seconds[:2], [Fraction(45)] * 2) == [45, 45]


# -- planted faults --------------------------------------------------------------------------------


class SameVictims(Reservations):
    """Who gives way to online jobs is chosen by size, and that it did is forgotten."""

    def choose_victims(
        self, device: DeviceRecord, shortfall: int, most: int
    ) -> list[victims.Victim] | None:
        return victims.choose_by_size(device.shrinkable, shortfall, most)

    def rank(self, device: DeviceRecord, candidates: list[JobRecord]) -> list[Candidate]:
        return Arrival.rank(self, device, candidates)

    def rebalance(self, device: DeviceRecord) -> None:
        device.rebalancing = False
        super().rebalance(device)


class SavesUp(ServiceRecord):
    """A newcomer begins where the first job began, and is owed all of it."""

    __slots__ = ()

    def join(self, job: JobRecord, running: Any) -> None:
        job.service_base = 0

    def limit(self, job: JobRecord, capacity: int) -> None:
        pass


class Impatient(Reservations):
    """Jobs give whenever something happens."""

    def rebalance(self, device: DeviceRecord) -> None:
        device.rebalance_hold_ns = 5 * MS
        device.rebalancing = True
        super().rebalance(device)


class Restless(Reservations):
    """A job may give as often as it likes."""

    def rebalance(self, device: DeviceRecord) -> None:
        super().rebalance(device)
        for job in device.jobs.values():
            job.kept_until_ns = 0
        if device.rebalance_at_ns is not None:
            device.rebalance_at_ns = device.now_ns + device.rebalance_hold_ns


class Wasteful(Reservations):
    """What has come free is not handed out."""

    def distribute(self, device: DeviceRecord) -> bool:
        return bool(device.waiting) and super().distribute(device)


def faulty(name: str) -> Scheduler:
    policies = {"same": SameVictims, "impatient": Impatient, "wasteful": Wasteful}
    scheduler = Scheduler(Settings())
    if name in policies:
        scheduler.policy = policies[name]()
    elif name == "restless":
        scheduler = Scheduler(Settings(rebalance_hold_ns=20 * MS, rebalance_limit=1))
        scheduler.policy = Restless()
    return scheduler


def a_day(world: ShareWorld) -> None:
    """Jobs come and go, with and without bursts."""
    world.offline(m=2)
    world.run(20 * SECOND)
    late = world.offline(m=2, weight=2)
    world.run(world.now_ns + 5 * SECOND)
    for _ in range(4):
        world.offline(m=2)
    world.bursts(2, 12 * MS, 80 * MS)
    world.run(world.now_ns + MINUTE + SECOND)
    world.checker.windows()
    world.end(late)
    world.run(world.now_ns + SECOND)


def test_a_day_is_fair() -> None:
    a_day(ShareWorld(4))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("same", "shares"),
        ("saves up", "shares"),
        ("impatient", "patient"),
        ("restless", "bounded"),
        ("wasteful", "idle"),
    ],
)
def test_a_planted_fault_is_caught(name: str, expected: str) -> None:
    world = ShareWorld(4, scheduler=faulty(name))
    if name == "saves up":
        service = world.scheduler.devices[0].service
        assert service is not None
        service.__class__ = SavesUp
    with pytest.raises(Unfair) as caught:
        a_day(world)
    assert caught.value.name == expected


def no_factors(capacity: int, jobs: Any) -> dict[int, int]:
    return {}


@pytest.mark.parametrize(
    ("what", "put", "expected"),
    [
        ("gpud.core.weighing.factors", no_factors, "shares"),
        ("gpud.core.policies.caps.groups", lambda candidates: (), "capped"),
        ("gpud.core.users.Account.is_full", lambda self, need: need < 0, "capped"),
        ("gpud.core.users.Account.is_full", lambda self, need: True, "idle"),
    ],
)
def test_a_planted_fault_of_users_is_caught(
    what: str, put: Any, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if expected == "capped":
        monkeypatch.setattr(Arrival, "keep_caps", lambda self, device: None)
        monkeypatch.setattr("gpud.core.policies.caps.groups", lambda candidates: ())
    monkeypatch.setattr(what, put)
    hold = None if expected == "shares" else 2
    with pytest.raises(Unfair) as caught:
        ten_and_one(ShareWorld(4, users=[(1, hold), (1, None)])).checker.windows()
    assert caught.value.name == expected


def test_every_property_has_a_planted_fault() -> None:
    assert set(SHARE_CHECKS) == {"shares", "patient", "bounded", "idle", "capped"}


def test_equal_events_give_equal_shares() -> None:
    first, second = (bursts(ShareWorld(4, seed=5)) for _ in range(2))
    assert first.changes == second.changes


def test_a_plan_is_not_made_while_nobody_lacks_anything() -> None:
    world = ShareWorld(4)
    world.offline(quota=2)
    world.offline(quota=2)
    world.run(MINUTE)
    assert world.scheduler.devices[0].rebalance_at_ns is None
