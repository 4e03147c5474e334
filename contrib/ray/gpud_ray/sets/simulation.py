"""Runs a task set in virtual time.

Problem: compare policies on GPUs that nobody has here, and in microseconds a task.

Approach: events. Between two events of a GPU each of its tasks proceeds at a constant rate; at an
event the rates are computed anew. What decides the figures are these assumptions, all of which are
fields of `DeviceModel`:

* a task can use so much of a GPU's CapSM and no more; alone it runs at rate 1;
* tasks that together want more share it: equally (what streams of one process do), or in the order
  of their start (what quotas of gpud do);
* memory is there or not. A task that starts without room fails after a part of its duration, and is
  given back to the policy at once, for a bounded number of tries;
* beyond a part of the memory, tasks may become slower (``pressure``); 1 means that they do not.

Not modelled: PCIe, caches, host processors, the network.

Properties:
    conserved: every task ends exactly once, as done or as failed;
    never_too_fast: no task ends before it arrived plus its duration, and no GPU does more work than
        its CapSM allows.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from gpud_ray.sets.model import GPU, Policy, Room, Task, check_unique, run_s

__all__ = ["DeviceModel", "Ran", "Sample", "Simulation", "Stuck", "Trace", "simulate"]

_EPSILON_S: Final = 1e-9


class Stuck(Exception):
    """A policy starts nothing although tasks wait and nothing runs."""


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """How simulated GPUs behave.

    Attributes:
        sharing: who gets CapSM when tasks want more than there is.
        pressure_above: the part of the memory from which tasks are slower.
        pressure: the factor of their speed then.
        fails_after: the part of its duration after which a task without memory fails.
        tries: how often a task is started at most.
    """

    sharing: Literal["equal", "in order"] = "equal"
    pressure_above: float = 0.9
    pressure: float = 1.0
    fails_after: float = 0.1
    tries: int = 3


@dataclass(frozen=True, slots=True)
class Ran:
    """One try of a task; ``done`` is false if memory was missing."""

    task: int
    gpu: int
    start_s: float
    end_s: float
    done: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """What is in use from a time on: parts of all GPUs' CapSM and memory."""

    at_s: float
    capsm: float
    memory: float


@dataclass(slots=True)
class Trace:
    """What happened: every try, who failed for good and why, and use over time."""

    ran: list[Ran] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    makespan_s: float = 0.0

    @property
    def done(self) -> int:
        """How many tasks were done."""
        return sum(one.done for one in self.ran)


@dataclass(slots=True)
class _Running:
    task: Task
    left_s: float
    started_s: float
    fits: bool
    granted: float = 0.0
    rate: float = 1.0


class _Device:
    """A simulated GPU."""

    __slots__ = ("last_s", "model", "room", "running", "version")

    def __init__(self, gpu: GPU, model: DeviceModel) -> None:
        self.room = Room(gpu)
        self.model = model
        self.running: list[_Running] = []
        self.last_s = 0.0
        self.version = 0

    def advance(self, now_s: float) -> None:
        """Let time pass."""
        passed_s = now_s - self.last_s
        if passed_s > 0:
            for one in self.running:
                one.left_s -= passed_s * one.rate
        self.last_s = now_s

    def grant(self) -> float | None:
        """Compute all rates; return when the first task ends, or None."""
        self.version += 1
        if not self.running:
            return None
        gpu = self.room.gpu
        wanted = [one.task.capsm_on(gpu) for one in self.running]
        left: float = gpu.capsm_milli
        factor = 1.0
        if self.model.pressure != 1.0:
            used = 1 - self.room.free_mb / gpu.memory_mb
            factor = self.model.pressure if used > self.model.pressure_above else 1.0
        equal = min(1.0, left / sum(wanted))
        end_s = float("inf")
        for one, want in zip(self.running, wanted, strict=True):
            granted = want * equal if self.model.sharing == "equal" else min(want, left)
            left -= granted
            one.granted = granted
            one.rate = granted / want * factor
            if one.rate > 0:
                end_s = min(end_s, self.last_s + max(0.0, one.left_s) / one.rate)
        return end_s

    def take_ended(self) -> list[_Running]:
        """Remove and return the tasks that have nothing left to do."""
        ended = [one for one in self.running if one.left_s <= _EPSILON_S]
        if ended:
            self.running = [one for one in self.running if one.left_s > _EPSILON_S]
            for one in ended:
                self.room.remove(one.task)
        return ended


class Simulation:
    """One run; a `Stage` for the policy. Call `run` once.

    ``limit_s`` ends it early, when a planner already has a plan that takes no longer.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        gpus: Sequence[GPU],
        policy: Policy,
        model: DeviceModel | None = None,
        *,
        sampled: bool = False,
        limit_s: float = float("inf"),
    ) -> None:
        check_unique(tasks)
        self.now_s = 0.0
        self._model = model or DeviceModel()
        self._devices = [_Device(gpu, self._model) for gpu in gpus]
        self.rooms = [device.room for device in self._devices]
        self.trace = Trace()
        self._policy = policy
        self._arrivals = sorted(tasks, key=lambda task: (task.arrival_s, task.id), reverse=True)
        self._tries: dict[int, int] = {}
        self._ends: list[tuple[float, int, int]] = []
        self._wakes: list[float] = []
        self._touched: dict[int, None] = {}
        self._sampled = sampled
        self._limit_s = limit_s
        self._waiting = 0

    def start(self, task: Task, index: int) -> None:
        """See `Stage.start`."""
        device = self._devices[index]
        device.advance(self.now_s)
        fits = task.memory_mb <= device.room.free_mb
        left_s = run_s(task, device.room.gpu) * (1.0 if fits else self._model.fails_after)
        device.room.add(task)
        device.running.append(_Running(task, left_s, self.now_s, fits))
        self._touched[index] = None
        self._waiting -= 1

    def wake(self, at_s: float) -> None:
        """See `Stage.wake`."""
        heapq.heappush(self._wakes, max(at_s, self.now_s))

    def run(self) -> Trace:
        """Run to the end of the last task.

        Raises:
            Stuck: the policy lets tasks wait for nothing.
        """
        largest = max(device.room.gpu.memory_mb for device in self._devices)
        while True:
            self._arrive(largest)
            self._policy.act(self)
            self._settle()
            if self._sampled:
                self._sample()
            following_s = self._following()
            if following_s is None:
                break
            self.now_s = following_s
            if self.now_s >= self._limit_s:
                self.trace.makespan_s = float("inf")
                return self.trace
            self._end()
        if self._waiting:
            raise Stuck(f"{self._policy.name} lets {self._waiting} tasks wait for nothing")
        self.trace.makespan_s = max((one.end_s for one in self.trace.ran), default=0.0)
        return self.trace

    def _arrive(self, largest_mb: int) -> None:
        arrived = []
        while self._arrivals and self._arrivals[-1].arrival_s <= self.now_s:
            task = self._arrivals.pop()
            if task.memory_mb > largest_mb:
                self.trace.failed[task.id] = (
                    f"needs {task.memory_mb} MiB, the largest GPU has {largest_mb}"
                )
            else:
                arrived.append(task)
        if arrived:
            self._waiting += len(arrived)
            self._policy.arrive(arrived, self)

    def _settle(self) -> None:
        for index in self._touched:
            device = self._devices[index]
            end_s = device.grant()
            if end_s is not None:
                heapq.heappush(self._ends, (end_s, index, device.version))
        self._touched.clear()

    def _following(self) -> float | None:
        while self._ends and self._devices[self._ends[0][1]].version != self._ends[0][2]:
            heapq.heappop(self._ends)
        times = []
        if self._ends:
            times.append(self._ends[0][0])
        if self._arrivals:
            times.append(self._arrivals[-1].arrival_s)
        if self._wakes:
            times.append(self._wakes[0])
        return min(times) if times else None

    def _end(self) -> None:
        while self._wakes and self._wakes[0] <= self.now_s:
            heapq.heappop(self._wakes)
        again = []
        while self._ends and self._ends[0][0] <= self.now_s:
            _, index, version = heapq.heappop(self._ends)
            device = self._devices[index]
            if device.version != version:
                continue
            device.advance(self.now_s)
            for one in device.take_ended():
                again += self._ended(one, device)
            self._touched[index] = None
        if again:
            self._waiting += len(again)
            self._policy.arrive(again, self)

    def _ended(self, one: _Running, device: _Device) -> list[Task]:
        task = one.task
        self.trace.ran.append(
            Ran(task.id, device.room.gpu.id, one.started_s, self.now_s, done=one.fits)
        )
        if one.fits:
            return []
        tries = self._tries[task.id] = self._tries.get(task.id, 0) + 1
        if tries < self._model.tries:
            return [task]
        self.trace.failed[task.id] = f"out of memory in each of {tries} tries"
        return []

    def _sample(self) -> None:
        capsm = sum(device.room.gpu.capsm_milli for device in self._devices)
        memory = sum(device.room.gpu.memory_mb for device in self._devices)
        used = sum(one.granted for device in self._devices for one in device.running)
        held = sum(device.room.gpu.memory_mb - device.room.free_mb for device in self._devices)
        self.trace.samples.append(Sample(self.now_s, used / capsm, held / memory))


def simulate(
    tasks: Sequence[Task],
    gpus: Sequence[GPU],
    policy: Policy,
    model: DeviceModel | None = None,
    *,
    sampled: bool = False,
) -> Trace:
    """Run a set under a policy; see `Simulation`."""
    return Simulation(tasks, gpus, policy, model, sampled=sampled).run()
