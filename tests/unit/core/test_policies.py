"""Fair sharing and victim selection, by the names of their properties; and the baselines."""

from __future__ import annotations

from collections.abc import Callable
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

MS = 1_000_000

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
PARTS = st.none() | st.integers(0, 20).map(lambda sms: level(sms * SCALE, 3))


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


@given(FREE, TAKERS, PARTS)
def test_fits(free: int, candidates: list[Candidate], part: int | None) -> None:
    grants = fill(free, candidates, part)
    assert sum(n * taker.piece for n, taker in zip(grants, candidates, strict=True)) <= free
    assert all(0 <= n <= taker.room for n, taker in zip(grants, candidates, strict=True))


@given(FREE, TAKERS, PARTS)
def test_exhaustive(free: int, candidates: list[Candidate], part: int | None) -> None:
    grants = fill(free, candidates, part)
    left = free - sum(n * taker.piece for n, taker in zip(grants, candidates, strict=True))
    assert not [
        taker
        for n, taker in zip(grants, candidates, strict=True)
        if n < taker.room and taker.piece <= left
    ]


@given(FREE, TAKERS)
def test_least_first_and_steady(free: int, candidates: list[Candidate]) -> None:
    assert fill(free, candidates) == one_by_one(free, candidates) == fill(free, list(candidates))


def test_in_turn() -> None:
    """Who is below an equal part comes first, though others are lower by their small weights."""
    part = level(2 * SCALE, 100)
    light = [Candidate(-SCALE // 10, SCALE, 2, 1)] * 3
    heavy = Candidate(-SCALE // 2, SCALE, 2, 50)
    assert fill(SCALE, [*light, heavy]) == [1, 0, 0, 0]
    assert fill(SCALE, [*light, heavy], part) == [0, 0, 0, 1]
    assert fill(2 * SCALE, [*light, heavy], part) == [1, 0, 0, 1], "with one it is at its part"


def test_in_turn_a_large_slice_is_not_cut_into_by_small_ones() -> None:
    small, large = Candidate(SCALE // 4, slice_of(8), 8, 1), Candidate(0, SCALE, 1, 1)
    assert fill(SCALE, [small, large], level(SCALE, 1)) == [0, 1]


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


def released(chosen: list[victims.Victim]) -> int:
    return sum(job.alloc - slices * job.slice for job, slices in chosen)


@given(CANDIDATES, SHORTFALL)
def test_enough_and_tight(entries: list[victims.Entry], shortfall: int) -> None:
    total = sum(entry[2].alloc for entry in entries)
    chosen = victims.choose_by_size(entries, shortfall, max(total, shortfall))
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
    chosen = victims.choose_by_size(entries, shortfall, most)
    total = sum(entry[2].alloc for entry in entries)
    if chosen is not None:
        assert shortfall <= released(chosen) <= most
    elif entries:
        # Selection fails only if less than the shortfall and a largest slice is available.
        assert min(total, most) < shortfall + max(entry[2].slice for entry in entries)


@given(CANDIDATES, SHORTFALL)
def test_few(entries: list[victims.Entry], shortfall: int) -> None:
    fresh = [entry for entry in entries if not entry[2].exhausted]
    chosen = victims.choose_by_size(fresh, shortfall, MANY * SCALE)
    if any(entry[2].alloc >= shortfall for entry in fresh):
        assert chosen is not None
        [(job, _)] = chosen
        assert job.alloc == min(e[2].alloc for e in fresh if e[2].alloc >= shortfall)


def test_ties() -> None:
    entries = sorted(
        (*size_key(job), job) for job in (candidate(n, 1, 4, False) for n in (1, 2, 3))
    )
    assert [
        job.id for job, _ in victims.choose_by_size(entries, 4 * SCALE, MANY * SCALE) or []
    ] == [3]
    assert [
        job.id for job, _ in victims.choose_by_size(entries, 7 * SCALE, MANY * SCALE) or []
    ] == [3, 2]


def rated(*levels: int) -> Callable[[list[victims.Entry]], list[tuple[int, bool]]]:
    """Jobs 1, 2, ... have these levels of service; a negative one is that of a job behind."""

    def rate(pool: list[victims.Entry]) -> list[tuple[int, bool]]:
        found = [levels[entry[2].id - 1] for entry in pool]
        return [(abs(one), one < 0) for one in found]

    return rate


@given(CANDIDATES, SHORTFALL, st.lists(st.integers(-9, 9), min_size=8, max_size=8))
def test_enough_tight_and_few_by_service(
    entries: list[victims.Entry], shortfall: int, levels: list[int]
) -> None:
    total = sum(entry[2].alloc for entry in entries)
    chosen = victims.choose_by_service(entries, shortfall, max(total, shortfall), rated(*levels))
    if total < shortfall:
        assert chosen is None
        return
    assert chosen is not None
    assert released(chosen) >= shortfall
    assert released(chosen) - chosen[-1].job.slice < shortfall
    assert all(slices == 0 for _, slices in chosen[:-1])
    fresh = [entry for entry in entries if not entry[2].exhausted]
    if len(fresh) == len(entries):
        fit = [e[2] for e in fresh if e[2].alloc >= shortfall and levels[e[2].id - 1] >= 0]
        if fit:
            [(job, _)] = chosen
            assert levels[job.id - 1] == max(levels[one.id - 1] for one in fit)


def test_a_job_that_is_behind_gives_way_only_if_the_others_cannot() -> None:
    entries = sorted(
        (*size_key(job), job) for job in (candidate(n, 1, n, False) for n in (1, 2, 3))
    )
    assert victims.choose_by_service(entries, 3 * SCALE, MANY * SCALE, rated(5, 5, -1)) == [
        (entries[1][2], 0), (entries[0][2], 0),
    ]  # fmt: skip
    assert victims.choose_by_service(entries, 4 * SCALE, MANY * SCALE, rated(5, 5, -1)) == [
        (entries[1][2], 0), (entries[0][2], 0), (entries[2][2], 2),
    ]  # fmt: skip


def test_turns() -> None:
    driver = Driver(4)
    for job in (1, 2, 3, 4):
        driver.offline(job, "1")
    gave = dict.fromkeys((1, 2, 3, 4), 0)
    for burst in range(40):
        driver.now_ns = burst * 40 * MS
        number = 100 + burst
        [(victim, keeps), _] = slices(driver.online(number, "1"))
        assert keeps == 0
        gave[victim] += 1
        driver.now_ns += 10 * MS
        driver.left(victim, 0)
        assert slices(driver.done(number)) == [(victim, 1)]
        driver.left(victim, 1)
    assert list(gave.values()) == [10, 10, 10, 10]


# -- the table, and the baselines ------------------------------------------------------------------


def test_policies_are_found_by_name() -> None:
    assert list(POLICIES) == ["reservations", "arrival", "fifo", "equal"]
    assert all(policy.name == name for name, policy in POLICIES.items())
    with pytest.raises(
        InvalidArgument, match="no policy 'fair'; there are arrival, equal, fifo, r"
    ):
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
    assert slices(driver.offline(2)) == [(1, 4), (2, 4)]
    assert slices(driver.offline(3, "2")) == [(1, 3), (2, 3), (3, 2)]
    driver.left(1, 3)
    assert slices(driver.done(2)) == [(1, 6)]


def test_weighted() -> None:
    driver = Driver(8, policy="equal")
    driver.offline(1, weight=3)
    assert slices(driver.offline(2)) == [(1, 6), (2, 2)]
    driver.left(1, 6)
    assert slices(driver.offline(3, "1", weight=1000)) == [(1, 5), (3, 1)]


def test_no_reservations() -> None:
    driver = Driver(8, policy="equal")
    refusal = error(driver.online(1, "2"))
    assert isinstance(refusal, InvalidArgument)
    assert "policy 'equal' keeps no reservations" in str(refusal)
    assert "with weight for a larger share" in str(refusal)
    assert not driver.scheduler.jobs


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
