"""Fair sharing and victim selection, by the names of their properties; and the baselines."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpud.core.capacity import SCALE, slice_of
from gpud.core.events import JobSubmitted, LaunchShape
from gpud.core.job import JobRecord
from gpud.core.lifecycles import JobInput
from gpud.core.policies import POLICIES, victims
from gpud.core.policies.fair_share import Candidate, fill
from gpud.core.sort_keys import level, size_key
from gpud.errors import InvalidArgument
from gpud.units import JobId, SessionId
from tests.unit.core.driver import MANY, Driver, error, slices

# -- growth ----------------------------------------------------------------------------------------

TAKERS = st.lists(
    st.builds(
        lambda m, has, room, weight: Candidate(has * slice_of(m), slice_of(m), room, weight),
        st.integers(1, 32),
        st.integers(0, 40),
        st.integers(1, 40),
        st.sampled_from((1, 1, 1, 2, 3, 7, 1000)),
    ),
    min_size=1,
    max_size=12,
)
FREE = st.integers(0, 60).map(lambda thirds: thirds * SCALE // 3)


def one_by_one(free: int, candidates: list[Candidate]) -> list[int]:
    """The definition: one slice at a time to the job with the lowest level of which one fits."""
    grants = [0] * len(candidates)
    while True:
        found = [
            (level(taker.has + grants[index] * taker.piece, taker.weight), index)
            for index, taker in enumerate(candidates)
            if grants[index] < taker.room and taker.piece <= free
        ]
        if not found:
            return grants
        _, index = min(found)
        grants[index] += 1
        free -= candidates[index].piece


@given(FREE, TAKERS)
def test_fits(free: int, candidates: list[Candidate]) -> None:
    grants = fill(free, candidates)
    assert sum(n * taker.piece for n, taker in zip(grants, candidates, strict=True)) <= free
    assert all(0 <= n <= taker.room for n, taker in zip(grants, candidates, strict=True))


@given(FREE, TAKERS)
def test_exhaustive(free: int, candidates: list[Candidate]) -> None:
    grants = fill(free, candidates)
    left = free - sum(n * taker.piece for n, taker in zip(grants, candidates, strict=True))
    assert not [
        taker
        for n, taker in zip(grants, candidates, strict=True)
        if n < taker.room and taker.piece <= left
    ]


@given(FREE, TAKERS)
def test_least_first_and_steady(free: int, candidates: list[Candidate]) -> None:
    assert fill(free, candidates) == one_by_one(free, candidates) == fill(free, list(candidates))


def test_a_large_device_is_filled_without_handing_out_each_slice() -> None:
    candidates = [Candidate(0, slice_of(32), 132 * 32, weight) for weight in (1, 1, 2)]
    assert fill(132 * SCALE, candidates) == [1056, 1056, 2112]
    assert fill(SCALE, []) == []


# -- victims ---------------------------------------------------------------------------------------


def candidate(number: int, m: int, count: int, exhausted: bool) -> JobRecord:
    job = JobRecord(
        JobSubmitted(0, JobId(number), SessionId(1), 0, (LaunchShape(m, MANY),), quota=Fraction(99))
    )
    job.step(JobInput.READY, 0)
    job.step(JobInput.START, 0)
    job.begin(count)
    job.start_order = number
    job.exhausted = exhausted
    job.alloc = count * job.slice
    return job


CANDIDATES = st.lists(
    st.tuples(st.integers(1, 32), st.integers(1, 40), st.sampled_from((False, False, True))),
    max_size=8,
).map(
    lambda rows: sorted(
        (*size_key(job), job)
        for job in (candidate(index + 1, *row) for index, row in enumerate(rows))
    )
)
SHORTFALL = st.integers(1, 40).map(lambda sixths: sixths * SCALE // 6)


def released(chosen: list[tuple[JobRecord, int]]) -> int:
    return sum(job.alloc - slices * job.slice for job, slices in chosen)


@given(CANDIDATES, SHORTFALL)
def test_enough_and_tight(entries: list[victims.Entry], shortfall: int) -> None:
    total = sum(entry[2].alloc for entry in entries)
    chosen = victims.choose_victims(entries, shortfall, max(total, shortfall))
    if total < shortfall:
        assert chosen is None
        return
    assert chosen is not None
    assert released(chosen) >= shortfall
    # The last one releases no slice too many; those before it release all they have.
    last = chosen[-1][0]
    assert released(chosen) - last.slice < shortfall
    assert all(slices == 0 for _, slices in chosen[:-1])


@given(CANDIDATES, SHORTFALL, st.integers(0, 12))
def test_limited(entries: list[victims.Entry], shortfall: int, more: int) -> None:
    most = shortfall + more * SCALE // 12
    chosen = victims.choose_victims(entries, shortfall, most)
    total = sum(entry[2].alloc for entry in entries)
    if chosen is not None:
        assert shortfall <= released(chosen) <= most
    elif entries:
        # Selection fails only if less than the shortfall and a largest slice is available.
        assert min(total, most) < shortfall + max(entry[2].slice for entry in entries)


@given(CANDIDATES, SHORTFALL)
def test_few(entries: list[victims.Entry], shortfall: int) -> None:
    fresh = [entry for entry in entries if not entry[2].exhausted]
    chosen = victims.choose_victims(fresh, shortfall, MANY * SCALE)
    if any(entry[2].alloc >= shortfall for entry in fresh):
        assert chosen is not None
        [(job, _)] = chosen
        assert job.alloc == min(e[2].alloc for e in fresh if e[2].alloc >= shortfall)


def test_ties() -> None:
    entries = sorted(
        (*size_key(job), job) for job in (candidate(n, 1, 4, False) for n in (1, 2, 3))
    )
    assert [
        job.id for job, _ in victims.choose_victims(entries, 4 * SCALE, MANY * SCALE) or []
    ] == [3]
    assert [
        job.id for job, _ in victims.choose_victims(entries, 7 * SCALE, MANY * SCALE) or []
    ] == [3, 2]


# -- the table, and the baselines ------------------------------------------------------------------


def test_policies_are_found_by_name() -> None:
    assert list(POLICIES) == ["reservations", "fifo", "equal"]
    assert all(policy.name == name for name, policy in POLICIES.items())
    with pytest.raises(InvalidArgument, match="no policy 'fair'; there are equal, fifo, reservat"):
        Driver(1, policy="fair")


def test_fifo_runs_each_job_to_completion_in_order_of_arrival() -> None:
    driver = Driver(4, policy="fifo")
    assert slices(driver.offline(1, "3")) == [(1, 3)]
    assert slices(driver.online(2, "2")) == [], "nobody gives way"
    assert slices(driver.offline(3, "1")) == [], "nor is anybody passed by"
    assert isinstance(error(driver.resize(1, quota="1")), InvalidArgument)
    assert slices(driver.left(1, 1, exhausted=True)) == [(2, 2), (3, 1)]
    assert slices(driver.done(1)) == [], "and nobody grows"


def test_equal_gives_all_jobs_the_same() -> None:
    driver = Driver(8, policy="equal")
    assert slices(driver.offline(1)) == [(1, 8)]
    assert slices(driver.online(2, "7")) == [(1, 4), (2, 4)], "a reservation says nothing here"
    assert slices(driver.offline(3, "2")) == [(1, 3), (2, 3), (3, 2)]
    driver.left(1, 3)
    assert slices(driver.done(2)) == [(1, 6)]


def test_equal_gives_the_first_ones_a_slice_each_if_there_are_too_many() -> None:
    driver = Driver(2, policy="equal")
    for job in (1, 2, 3):
        driver.offline(job)
    assert [driver.state(job) for job in (1, 2, 3)] == ["running", "running", "waiting"]
    assert slices(driver.done(1)) == [(3, 1)]


def test_equal_does_not_resize_whole_jobs() -> None:
    driver = Driver(4, policy="equal")
    driver.offline(1, blocks=3, whole=True)
    driver.offline(2)
    assert (driver.allocation(1), driver.allocation(2)) == ("3", "1")
    driver.offline(3)
    assert driver.state(3) == "waiting"
