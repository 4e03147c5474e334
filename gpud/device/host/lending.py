"""The shares that idle lanes lend, and how the device host takes them back without the front.

Problem: a launch that comes in an idle lane must start as soon as blocks can leave. To ask the
front who gives way would take longer than that.

Approach: the front has decided before, by a `TakeBackPlan`. The lane's thread calls
`Lending.take_back` before it starts the launch: the jobs that the plan names are made smaller, as
by a `ResizeJob`, and their blocks leave at the end of their task blocks. What was taken is reported
after the launch has been started. See `gpud.core.lanes` for what the front does with the report.

Properties:
* a plan is carried out once, and only in the idle period for which it was made;
* each `LaneLent` is followed by one `LaneTookBack`, unless the lane has ended;
* plans that are carried out at the same time take from a job together no more than it has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from gpud.device.host.messages import LaneLent, LaneTookBack, TakeBackPlan
from gpud.device.host.running_job import RunningJob

__all__ = ["Lending", "PlannedLane"]

Steps = tuple[tuple[int, int], ...]


class PlannedLane(Protocol):
    """A lane that is told how its share will be taken back."""

    def plan(self, steps: Sequence[tuple[int, Any, int]]) -> None:
        """Take back so: each job's number, its run, and how many slices it loses."""


class Lending:
    """The lanes of one device host that are idle, and their plans.

    Args:
        jobs: the jobs of the host, by number.
        send: sends an event to the front; called from any thread.
    """

    def __init__(self, jobs: Mapping[int, RunningJob], send: Callable[[Any], None]) -> None:
        self._jobs = jobs
        self._send = send
        self._lock = threading.Lock()
        self._periods: dict[int, int] = {}  # how often each lane has been idle
        self._plans: dict[int, Steps] = {}  # of those that are idle
        self._lanes: dict[int, PlannedLane] = {}

    def idle(self, lane: int, planned: PlannedLane) -> None:
        """Report that nothing runs in a lane, nor has come for the hold time.

        Args:
            lane: its number.
            planned: is told of plans for it.
        """
        with self._lock:
            self._lanes[lane] = planned
            period = self._periods[lane] = self._periods.get(lane, 0) + 1
            self._plans[lane] = ()
        self._send(LaneLent(lane, period))

    def plan(self, command: TakeBackPlan) -> None:
        """Keep a plan, unless its lane has woken or ended meanwhile."""
        with self._lock:
            if command.job in self._plans and self._periods[command.job] == command.epoch:
                self._plans[command.job] = command.steps
                runs = [(number, self._jobs.get(number), n) for number, n in command.steps]
                self._lanes[command.job].plan(
                    [(number, running.run, n) for number, running, n in runs if running]
                )

    def take_back(self, lane: int, before: Steps | None = None) -> Steps | None:
        """Carry out the plan of a lane that wakes; `report` is to be called soon after.

        Args:
            lane: its number.
            before: what the lane has taken by itself; None: nothing is taken yet.

        Returns:
            What was taken; None if the lane was not idle.
        """
        with self._lock:
            steps = self._plans.pop(lane, None)
        if steps is None:
            return None
        if before is not None:
            steps = before
        taken = []
        for number, slices in steps:
            running = self._jobs.get(number)
            gives = 0 if running is None else running.take(slices, slices if before else 0)
            if gives:
                taken.append((number, gives))
        return tuple(taken)

    def report(self, lane: int, taken: Steps) -> None:
        """Report that a lane has woken, and what was taken back for it."""
        with self._lock:
            period = self._periods[lane]
        self._send(LaneTookBack(lane, period, taken))

    def forget(self, lane: int) -> None:
        """Forget a lane that has ended."""
        with self._lock:
            self._plans.pop(lane, None)
            self._periods.pop(lane, None)
            self._lanes.pop(lane, None)
