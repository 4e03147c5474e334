"""Tasks for a replay in virtual time: what arrives, a cluster to run it on, and other schedulers.

The part of tasks that have GPUs is that of the public Helios traces (S-Lab-System-Group/HeliosData:
1,580,464 of 3,362,981 jobs). That most have one GPU, that durations are heavy-tailed (here
log-normal), and that arrivals follow the day, is as described there (SC 2021) and for Philly (Jeon
et al., ATC 2019). The parameters are ours, and so is how many cores users ask for: too few as often
as too many.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Any

from gpud.tasks.core import commands as out
from gpud.tasks.core import events as ev
from gpud.tasks.core.scheduler import TaskScheduler
from gpud.tasks.core.settings import Settings

__all__ = ["POLICIES", "Arrival", "Result", "Simulation", "trace"]

GPUS, CORES = 8, 64  # of a node
S = 1_000_000_000
_KNEES = {"image": 6, "speech": 4, "language": 2}  # cores for each GPU
_DAY_S = 86_400


@dataclass(frozen=True)
class Arrival:
    """A task: with so many cores for each GPU its GPUs are fully used."""

    at_s: float
    number: int
    user: str
    category: str
    gpus: int
    asked: int  # cores, as its user would have it
    knee: int  # cores that it needs; of a CPU task those that it asked for
    work_s: float  # how long it runs with them


def trace(count: int, nodes: int, seed: int, *, gpu_load: float, cpu_load: float) -> list[Arrival]:
    """Make tasks that ask for so much of the cluster's GPUs and cores, on average."""
    chance = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for number in range(count):
        gpu = chance.random() < 1_580_464 / 3_362_981
        user = f"u{min(int(chance.paretovariate(0.8)), 40)}"
        if gpu:
            gpus = chance.choices((1, 2, 4, 8), (70, 12, 10, 8))[0]
            category = chance.choice(tuple(_KNEES))
            knee = max(1, _KNEES[category] + chance.choice((-1, 0, 0, 1))) * gpus
            asked = min(CORES, chance.choices((1, 2, 4, 8), (3, 3, 2, 2))[0] * gpus)
            work_s = min(chance.lognormvariate(math.log(600), 2), 3 * _DAY_S)
        else:
            gpus, category = 0, ""
            knee = asked = chance.choices((1, 2, 4, 8, 16), (50, 15, 15, 12, 8))[0]
            work_s = min(chance.lognormvariate(math.log(120), 2), _DAY_S)
        rows.append({"number": number + 1, "user": user, "category": category, "gpus": gpus,
                     "asked": asked, "knee": knee, "work_s": max(1.0, work_s)})  # fmt: skip
    gpu_work = sum(row["gpus"] * row["work_s"] for row in rows)
    span_s = gpu_work / (gpu_load * GPUS * nodes)
    cpu_work = sum(row["knee"] * row["work_s"] for row in rows if not row["gpus"])
    scale = cpu_load * CORES * nodes * span_s / cpu_work
    at_s = sorted(_daily(chance, span_s) for _ in rows)
    return [
        Arrival(**{**row, "at_s": at, "work_s": row["work_s"] * (1 if row["gpus"] else scale)})
        for row, at in zip(rows, at_s, strict=True)
    ]


def _daily(chance: random.Random, span_s: float) -> float:
    while True:  # by day three times as many come as by night
        at_s = chance.random() * span_s
        if chance.random() < (2 + math.sin(2 * math.pi * at_s / _DAY_S)) / 3:
            return at_s


@dataclass
class _Run:
    arrival: Arrival
    left_s: float
    cores: int = 0
    node: int = -1
    since_s: float = 0.0
    version: int = 0
    started_s: float = -1.0

    @property
    def rate(self) -> float:
        """Its speed: linear in cores up to the knee."""
        return min(1.0, self.cores / self.arrival.knee)


@dataclass
class Result:
    """What came of a replay; utilisation while tasks arrived, waiting times of all tasks."""

    gpu_utilisation: float = 0.0
    core_utilisation: float = 0.0
    finished_in_span: int = 0
    gpu_wait_s: list[float] = field(default_factory=list)
    cpu_wait_s: list[float] = field(default_factory=list)
    freezes: int = 0


class Simulation:
    """A cluster in virtual time, on which a policy starts tasks and gives them cores."""

    def __init__(self, arrivals: list[Arrival], nodes: int, policy: Callable[..., Any]) -> None:
        self.now_s, self.nodes = 0.0, nodes
        self.result = Result()
        self._span_s = arrivals[-1].at_s
        self._runs: dict[int, _Run] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._policy = policy(self)
        for arrival in arrivals:
            self.at(arrival.at_s, partial(self._arrive, arrival))

    def run(self) -> Result:
        """Run until every task has ended."""
        while self._events:
            self.now_s, _, happen = heapq.heappop(self._events)
            happen()
        ended = self.result
        ended.gpu_utilisation /= self._span_s * GPUS * self.nodes
        ended.core_utilisation /= self._span_s * CORES * self.nodes
        return ended

    def at(self, at_s: float, happen: Callable[[], None]) -> None:
        """Have something happen at a time."""
        self._count += 1
        heapq.heappush(self._events, (at_s, self._count, happen))

    def start(self, number: int, node: int, cores: int) -> None:
        """Start a task, or let it go on."""
        run = self._runs[number]
        if run.started_s < 0:
            run.started_s = self.now_s
            waits = self.result.gpu_wait_s if run.arrival.gpus else self.result.cpu_wait_s
            waits.append(self.now_s - run.arrival.at_s)
        run.node = node
        self.resize(number, cores)

    def resize(self, number: int, cores: int) -> None:
        """Give a task other cores; 0: freeze it."""
        run = self._runs[number]
        self._account(run)
        run.cores = cores
        run.version += 1
        if cores:
            version = run.version
            self.at(self.now_s + run.left_s / run.rate, lambda: self._end(number, version))

    def arrival(self, number: int) -> Arrival:
        """Return a task that has arrived and not ended."""
        return self._runs[number].arrival

    def _arrive(self, arrival: Arrival) -> None:
        self._runs[arrival.number] = _Run(arrival, arrival.work_s)
        self._policy.arrived(arrival)

    def _account(self, run: _Run) -> None:
        done_s = (self.now_s - run.since_s) * run.rate if run.cores else 0.0
        run.left_s = max(0.0, run.left_s - done_s)
        within_s = max(0.0, min(self.now_s, self._span_s) - run.since_s) if run.cores else 0.0
        useful_s = within_s * run.rate
        self.result.gpu_utilisation += run.arrival.gpus * useful_s
        self.result.core_utilisation += min(run.cores, run.arrival.knee) * within_s
        run.since_s = self.now_s

    def _end(self, number: int, version: int) -> None:
        run = self._runs.get(number)
        if run is None or run.version != version:
            return
        self._account(run)
        self.result.finished_in_span += self.now_s <= self._span_s
        del self._runs[number]
        self._policy.ended(run.arrival, run.node, run.cores)


# -- gpud's scheduler ------------------------------------------------------------------------------


class _Gpud:
    """The real scheduler, told of virtual time."""

    def __init__(self, simulation: Simulation, settings: Settings, noise: float = 0.02) -> None:
        self._simulation = simulation
        self._scheduler = TaskScheduler(settings)
        self._chance = random.Random(1)
        self._noise = noise
        names = tuple(f"g{gpu}" for gpu in range(GPUS))
        for node in range(simulation.nodes):
            self._send(ev.NodeChanged(0, node, tuple(range(CORES)), names))

    def arrived(self, arrival: Arrival) -> None:
        cores = None if arrival.gpus else arrival.asked
        terms = ev.TaskTerms(
            arrival.user, f"{arrival.user}.{arrival.category}", cores, Fraction(arrival.gpus),
            category=arrival.category,
        )  # fmt: skip
        self._send(ev.TaskSubmitted(0, arrival.number, terms))

    def ended(self, arrival: Arrival, node: int, cores: int) -> None:
        attempt = self._scheduler.tasks[arrival.number].attempt
        self._send(ev.TaskEnded(0, arrival.number, attempt, 0))

    def _send(self, event: ev.Event) -> None:
        simulation = self._simulation
        for command in self._scheduler.handle(event._replace(now_ns=round(simulation.now_s * S))):
            match command:
                case out.StartTask():
                    simulation.start(command.task, command.node, len(command.cpus))
                case out.SetCores() | out.ThawTask():
                    simulation.resize(command.task, len(command.cpus))
                case out.FreezeTask():
                    simulation.result.freezes += 1
                    simulation.resize(command.task, 0)
                case out.MeasureWindow():
                    self._measure(command)
                case out.SetTimer():
                    simulation.at(
                        max(simulation.now_s, command.at_ns / S),
                        lambda: self._send(ev.TimerFired(0)),
                    )

    def _measure(self, command: out.MeasureWindow) -> None:
        if self._scheduler.tasks[command.task].search is None:
            return  # nothing contends for bandwidth here

        def measured() -> None:
            task = self._scheduler.tasks.get(command.task)
            if task is not None and task.attempt == command.attempt:
                knee = self._simulation.arrival(task.id).knee
                true = 950 * min(1.0, len(task.cpus) / knee)
                seen = max(0, round(true * (1 + self._chance.gauss(0, self._noise))))
                self._send(ev.WindowMeasured(0, task.id, command.attempt, seen))

        self._simulation.at(self._simulation.now_s + command.window_ns / S, measured)


# -- others ----------------------------------------------------------------------------------------


class _Other:
    """A scheduler that gives tasks what their users ask for, in the order of `_order`."""

    strict = True  # the first that does not fit stops those behind it
    split = False  # whether cores are divided between CPU and GPU tasks

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._waiting: dict[int, Arrival] = {}
        self._free = [[CORES, GPUS] for _ in range(simulation.nodes)]
        self._cpu_room = [CORES - 4 * GPUS for _ in range(simulation.nodes)]
        self._has: dict[str, list[float]] = {}
        self._running: dict[int, tuple[float, int, Arrival]] = {}  # its end as its user says

    def arrived(self, arrival: Arrival) -> None:
        if self.split and arrival.gpus:  # nobody gets more than there is
            arrival = replace(arrival, asked=min(arrival.asked, 4 * arrival.gpus))
        self._waiting[arrival.number] = arrival
        self._schedule()

    def ended(self, arrival: Arrival, node: int, cores: int) -> None:
        _, _, arrival = self._running.pop(arrival.number)
        self._count(arrival, node, 1)
        self._schedule()

    def _count(self, arrival: Arrival, node: int, sign: int) -> None:
        self._free[node][0] += sign * arrival.asked
        self._free[node][1] += sign * arrival.gpus
        if not arrival.gpus:
            self._cpu_room[node] += sign * arrival.asked
        has = self._has.setdefault(arrival.user, [0.0, 0.0])
        has[0] -= sign * arrival.asked / CORES
        has[1] -= sign * arrival.gpus / GPUS

    def _node_for(self, arrival: Arrival) -> int | None:
        fits = []
        for node, (cores, gpus) in enumerate(self._free):
            room = cores
            if self.split:
                room = self._cpu_room[node] if not arrival.gpus else cores - self._cpu_room[node]
            if arrival.asked <= room and arrival.gpus <= gpus:
                fits.append((gpus, cores, node))
        return min(fits)[2] if fits else None

    def _order(self) -> list[Arrival]:
        return list(self._waiting.values())

    def _schedule(self) -> None:
        again = True
        while again and self._waiting:
            again = False
            refused: set[Any] = set()
            for arrival in self._order():
                kind = (arrival.asked, arrival.gpus)
                stopped = ("gpu" if arrival.gpus else "cpu") if self.split else ""
                if kind in refused or stopped in refused:
                    continue
                node = self._node_for(arrival)
                if node is not None:
                    self._start(arrival, node)
                    again = True
                    break
                refused.add(kind)
                if self.strict:
                    refused.add(stopped)
                    if not self.split:
                        break

    def _start(self, arrival: Arrival, node: int) -> None:
        del self._waiting[arrival.number]
        self._count(arrival, node, -1)
        rate = min(1.0, arrival.asked / arrival.knee)
        end_s = self._simulation.now_s + 2 * arrival.work_s / rate  # users ask for twice the time
        self._running[arrival.number] = end_s, node, arrival
        self._simulation.start(arrival.number, node, arrival.asked)


class _Split(_Other):
    """Half of the cores for CPU tasks, the others and the GPUs for GPU tasks; each in order."""

    split = True


class _Fair(_Other):
    """Plain DRF: the first task of the user whose dominant share is least."""

    strict = False

    def _order(self) -> list[Arrival]:
        first: dict[str, Arrival] = {}
        for arrival in self._waiting.values():
            first.setdefault(arrival.user, arrival)
        return sorted(first.values(), key=lambda one: max(self._has.get(one.user, [0.0, 0.0])))


class _Backfill(_Other):
    """EASY: in order, and others where they do not delay the first one, by what users say."""

    def _schedule(self) -> None:
        while self._waiting:
            first = next(iter(self._waiting.values()))
            node = self._node_for(first)
            if node is None:
                break
            self._start(first, node)
        if not self._waiting:
            return
        when_s, where = self._reserved(next(iter(self._waiting.values())))
        refused = set()
        for arrival in list(self._waiting.values())[1:200]:
            kind = (arrival.asked, arrival.gpus)
            if kind in refused:
                continue
            rate = min(1.0, arrival.asked / arrival.knee)
            short = self._simulation.now_s + 2 * arrival.work_s / rate <= when_s
            kept = self._free[where]
            if not short:
                self._free[where] = [-1, -1]
            node = self._node_for(arrival)
            self._free[where] = kept
            if node is not None:
                self._start(arrival, node)
            elif short:
                refused.add(kind)

    def _reserved(self, first: Arrival) -> tuple[float, int]:
        """Return when and where the first one can start at the latest."""
        free = [list(one) for one in self._free]
        for end_s, node, arrival in sorted(self._running.values(), key=lambda one: one[:2]):
            free[node][0] += arrival.asked
            free[node][1] += arrival.gpus
            if free[node][0] >= first.asked and free[node][1] >= first.gpus:
                return end_s, node
        return math.inf, 0


POLICIES: dict[str, Callable[[Simulation], Any]] = {
    "FIFO": _Other,
    "DRF": _Fair,
    "static split": _Split,
    "backfill": _Backfill,
    "the source's rules": lambda simulation: _Gpud(
        simulation, Settings(literal_search=True, lend_idle=False, split_gpus=True, least_run_ns=0)
    ),
    "gpud, GPUs split": lambda simulation: _Gpud(simulation, Settings(split_gpus=True)),
    "gpud": lambda simulation: _Gpud(simulation, Settings()),
}
"""By the name in the table; those of gpud find cores, the others give what was asked for."""
