"""What the device host takes back for lanes by itself, and what it tells the front."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from gpud.device.host import messages as m
from gpud.device.host.lending import Lending
from gpud.device.host.running_job import RunningJob
from gpud.units import JobId
from tests.unit.host.test_running_job import FakeRun

LANE, OTHER = 100, 101


class Told:
    """A lane that keeps the plans it is told of."""

    def __init__(self) -> None:
        self.plans: list[list[tuple[int, Any, int]]] = []

    def plan(self, steps: Sequence[tuple[int, Any, int]]) -> None:
        self.plans.append(list(steps))


class Case:
    """Two jobs with 4 and 2 slices, beside lanes."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.runs = {7: FakeRun(), 8: FakeRun()}
        self.jobs: dict[int, RunningJob] = {}
        for number, slices in ((7, 4), (8, 2)):
            command = m.StartRun(number, 1, b"", 1, slices, 0, online=False)
            self.jobs[number] = RunningJob(command, self.sent.append, self.forget)
            self.jobs[number].start(self.runs[number])
        self.lending = Lending(self.jobs, self.sent.append)

    def forget(self, running: RunningJob) -> None:
        del self.jobs[running.number]

    def plan(self, epoch: int, *steps: tuple[int, int], lane: int = LANE) -> None:
        named = tuple((JobId(job), slices) for job, slices in steps)
        self.lending.plan(m.TakeBackPlan(JobId(lane), 0, epoch, named))

    def wake(self, lane: int = LANE) -> None:
        taken = self.lending.take_back(lane)
        assert taken is not None
        self.lending.report(lane, taken)

    def sizes(self) -> list[int]:
        return [run.sizes[-1] for run in self.runs.values()]


def test_a_wake_takes_what_the_plan_says_and_reports_it() -> None:
    case = Case()
    case.lending.idle(LANE, Told())
    case.plan(1, (7, 3), (8, 1))
    case.wake()
    assert case.sizes() == [1, 1]
    assert case.sent == [m.LaneLent(LANE, 1), m.LaneTookBack(LANE, 1, ((7, 3), (8, 1)))]


def test_the_last_plan_counts() -> None:
    case = Case()
    case.lending.idle(LANE, Told())
    case.plan(1, (7, 3))
    case.plan(1, (8, 2))
    case.wake()
    assert case.sizes() == [4, 0]


def test_a_lane_that_is_not_idle_takes_nothing() -> None:
    case = Case()
    assert case.lending.take_back(LANE) is None
    case.lending.idle(LANE, Told())
    case.plan(1, (7, 3))
    case.wake()
    assert case.lending.take_back(LANE) is None
    assert case.sizes() == [1, 2]


def test_a_plan_for_another_idle_period_is_forgotten() -> None:
    case = Case()
    case.plan(1, (7, 3))
    case.lending.idle(LANE, Told())
    case.wake()
    case.plan(1, (7, 3))
    case.lending.idle(LANE, Told())
    case.plan(1, (7, 3))
    case.wake()
    assert case.sizes() == [4, 2]
    assert case.sent[-1] == m.LaneTookBack(LANE, 2, ())


def test_a_job_gives_what_it_has_and_one_that_has_ended_nothing() -> None:
    case = Case()
    case.lending.idle(LANE, Told())
    case.plan(1, (7, 3), (8, 5))
    case.jobs[7].end()
    case.wake()
    assert case.sent[-1] == m.LaneTookBack(LANE, 1, ((8, 2),))
    case.lending.idle(LANE, Told())
    case.plan(2, (8, 1), (9, 1))
    case.wake()
    assert case.sent[-1] == m.LaneTookBack(LANE, 2, ())


def test_what_two_lanes_take_adds_up_until_it_is_booked() -> None:
    case = Case()
    for lane in (LANE, OTHER):
        case.lending.idle(lane, Told())
        case.plan(1, (7, 1), lane=lane)
    case.wake()
    case.wake(OTHER)
    assert case.sizes() == [2, 2]
    job = case.jobs[7]
    job.resize(5, 1)  # decided before the front had heard of either
    assert case.sizes() == [3, 2]
    job.resize(4, 2, booked=1)
    assert case.sizes() == [3, 2]
    job.resize(2, 3, booked=1)
    assert case.sizes() == [2, 2]
    job.resize(1, 4)
    assert case.sizes() == [1, 2]


def test_a_lane_that_has_ended_is_forgotten() -> None:
    case = Case()
    case.lending.idle(LANE, Told())
    case.plan(1, (7, 1))
    case.lending.forget(LANE)
    assert case.lending.take_back(LANE) is None


def test_lanes_that_wake_at_once_take_no_more_than_there_is() -> None:
    case = Case()
    lanes = range(200, 220)
    for lane in lanes:
        case.lending.idle(lane, Told())
        case.plan(1, (7, 1), lane=lane)
    threads = [threading.Thread(target=case.wake, args=(lane,)) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    taken = [event.taken for event in case.sent if isinstance(event, m.LaneTookBack)]
    assert sorted(taken, reverse=True) == [((7, 1),)] * 4 + [()] * 16
    assert case.sizes() == [0, 2]


def test_a_lane_is_told_its_plan_with_the_runs_and_what_it_takes_by_itself_is_reported() -> None:
    case, lane = Case(), Told()
    case.lending.idle(LANE, lane)
    case.plan(1, (7, 3), (99, 1))  # 99 has ended
    assert lane.plans == [[(7, case.runs[7], 3)]]
    case.plan(2, (7, 1))  # for another idle period
    assert len(lane.plans) == 1
    case.plan(1, (8, 2))  # too late: the lane has taken back what it was told first
    taken = case.lending.take_back(LANE, ((7, 3),))
    assert taken == ((7, 3),)
    assert case.runs[7].forgotten == [3]
    assert case.sizes() == [1, 2]
