"""When a lane is lent, and what happens when something comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from gpud.device.host import messages as m
from gpud.device.host.lane_watch import ALONE_S, BUSY_HOLDS, LaneWatch
from gpud.device.host.lending import Lending
from gpud.device.host.running_job import RunningJob
from gpud.units import JobId
from tests.unit.host.test_running_job import FakeRun

TIMEOUT_S = 10.0
LANE = 100


class FakeLane:
    """A lane whose launches the test makes, and which keeps a list of what it was told."""

    def __init__(self, told: list[str]) -> None:
        self.told = told
        self.launches: int | None = 0
        self.steps: list[tuple[int, Any, int]] = []
        self.by_itself: tuple[tuple[int, int], ...] | None = None
        self.looks = threading.Semaphore(0)
        self.overdue = threading.Semaphore(0)
        self.lent = threading.Event()
        self.taken_up = threading.Event()
        self.record = threading.Event()

    def end_overdue(self) -> None:
        self.overdue.release()

    def activity(self) -> int | None:
        self.looks.release()
        return self.launches

    def lend(self) -> None:
        self.told.append("lend")
        self.lent.set()

    def wait_for_record(self) -> None:
        self.record.wait(TIMEOUT_S)

    def plan(self, steps: Sequence[tuple[int, Any, int]]) -> None:
        self.steps = list(steps)

    def taken_back(self) -> tuple[tuple[int, int], ...] | None:
        return self.by_itself

    def take_up(self) -> None:
        self.told.append("take up")
        self.taken_up.set()

    def interrupt(self) -> None:
        self.record.set()

    def close(self) -> None:
        self.told.append("close")


class Case:
    """A watched lane beside a job with 4 slices."""

    def __init__(self, hold_s: float = 0.001, *, wanted: bool = True) -> None:
        self.told: list[str] = []
        self.sent: list[Any] = []
        self.woke = threading.Event()
        self.problems: list[BaseException] = []
        run = FakeRun()
        run.during_resize = lambda: self.told.append(f"job has {run.sizes[-1]}")
        command = m.StartRun(7, 1, b"", 1, 4, 0, online=False)
        job = RunningJob(command, self.sent.append, lambda running: None)
        job.start(run)
        self.told.clear()
        self.lane = FakeLane(self.told)
        self.lending = Lending({7: job}, self.send)
        self.watch = LaneWatch(
            LANE, self.lane, self.lending, hold_s, self.problems.append, lambda: wanted
        )
        self.watch.start()

    def send(self, event: Any) -> None:
        self.sent.append(event)
        self.told.append(type(event).__name__)
        if isinstance(event, m.LaneTookBack):
            self.woke.set()

    def wait_until_idle(self) -> None:
        assert self.lane.lent.wait(TIMEOUT_S)
        while not self.sent:
            threading.Event().wait(0.001)


@pytest.fixture
def case() -> Iterator[Case]:
    case = Case()
    yield case
    case.watch.stop()
    case.watch._thread.join(TIMEOUT_S)
    assert not case.watch._thread.is_alive()
    assert not case.problems


def test_a_launch_gets_the_share_back_before_the_front_hears_of_it(case: Case) -> None:
    case.wait_until_idle()
    case.lending.plan(m.TakeBackPlan(JobId(LANE), 0, 1, ((JobId(7), 3),)))
    case.lane.launches = 1
    case.lane.record.set()
    assert case.woke.wait(TIMEOUT_S)
    assert case.told[:5] == ["lend", "LaneLent", "job has 1", "take up", "LaneTookBack"]
    assert case.sent[1] == m.LaneTookBack(LANE, 1, ((7, 3),))


def test_a_lane_in_use_is_not_lent(case: Case) -> None:
    case.lane.launches = None
    for _ in range(20):
        assert case.lane.looks.acquire(timeout=TIMEOUT_S)
    assert len([one for one in case.told if one == "lend"]) <= 1  # before it was in use


def test_timeouts_are_looked_at_often_however_long_the_hold_is() -> None:
    case = Case(hold_s=3600)
    for _ in range(3):
        assert case.lane.overdue.acquire(timeout=TIMEOUT_S)
    assert not case.lane.looks.acquire(blocking=False)
    case.watch.stop()
    case.watch._thread.join(TIMEOUT_S)
    assert not case.watch._thread.is_alive()


def test_a_lane_that_ends_while_it_lends_takes_nothing_back(case: Case) -> None:
    case.wait_until_idle()
    case.watch.stop()
    case.watch._thread.join(TIMEOUT_S)
    assert case.told == ["lend", "LaneLent", "close"]
    assert case.lending.take_back(LANE) is None


def test_a_lane_that_cannot_be_taken_up_is_the_devices_fault() -> None:
    case = Case()
    case.wait_until_idle()
    problem = RuntimeError("no blocks")

    def fail() -> None:
        raise problem

    case.lane.take_up = fail  # type: ignore[method-assign]
    case.lane.record.set()
    case.watch._thread.join(TIMEOUT_S)
    assert case.problems == [problem]


def test_a_lane_beside_lanes_alone_is_looked_at_less_often_and_lent_later() -> None:
    began = time.monotonic()
    case = Case(hold_s=0.0002, wanted=False)
    case.wait_until_idle()
    assert time.monotonic() - began >= ALONE_S
    case.watch.stop()
    case.watch._thread.join(TIMEOUT_S)
    case = Case(hold_s=0.0002, wanted=False)
    case.lane.launches = None  # it is in use
    began = time.monotonic()
    for _ in range(4):
        assert case.lane.looks.acquire(timeout=TIMEOUT_S)
    assert time.monotonic() - began >= 2 * BUSY_HOLDS * ALONE_S
    case.watch.stop()
    case.watch._thread.join(TIMEOUT_S)
