"""Ours: tasks are packed by memory and CapSM at once, in an order that looking ahead has chosen.

Problem: GPUs with two constraints, memory and CapSM; tasks with known needs and, better, known
durations, some of which arrive while others run. The last task shall end early, a decision may take
microseconds, and no task may wait for ever.

Approach: list scheduling. Waiting tasks have an order. Whenever something is free, the GPU with the
most free CapSM takes the first task that fits; then again. A task *fits* if its memory is free and
at least ``least`` of the CapSM that it can use: one task of a GPU may begin with less and gets more
when others end, which gpud's resizing allows. Or a fixed number of tasks shares the GPU equally,
which is better when long tasks arrive late that can use little CapSM. What is best depends on the
set, so `plan` looks ahead: for what is known it simulates several `RULES`, and what EGS would do,
which finds the odd assignment to unequal GPUs that no order leads to. Then it changes the best
orders at the tasks that end last, or has a task avoid the GPU that it had (local search). What ends
first is kept. Each trial takes some milliseconds for 1,000 tasks; the number of trials and the time
are bounded.

Properties:
    both_constraints: memory is never exceeded, and at most one task of a GPU has less CapSM than it
        could use, unless they share equally;
    no_starvation: a task that ``overtaken`` later ones have passed gets the next room on a GPU that
        is kept for it;
    repeatable: with ``limit_s`` None, equal sets give equal plans.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpud_ray.sets.model import GPU, Room, Stage, Task
from gpud_ray.sets.policies.egs import EGS
from gpud_ray.sets.simulation import DeviceModel, Simulation, Trace

__all__ = ["RULES", "SHARED_EQUALLY", "SHARED_IN_ORDER", "Packing", "Plan", "Rule", "plan"]

SHARED_IN_ORDER = DeviceModel(sharing="in order")
"""Quotas: who started first has what it can use, the last one what is left."""

SHARED_EQUALLY = DeviceModel(sharing="equal")
"""Equal weights, without quotas."""

_EGS_PARALLEL = (2, 4, 1)
_POOL = 6  # plans that local search goes on from
_NEVER = 1 << 60  # more memory than any room has
_WHOLE = 1 << 60  # more CapSM than any GPU has


@dataclass(frozen=True, slots=True)
class _Shares:
    """A task's needs as parts of an average GPU, and its duration."""

    duration_s: float
    memory: float
    capsm: float


@dataclass(frozen=True, slots=True)
class Rule:
    """An order, and how much of its CapSM a task needs to start.

    Attributes:
        name: in reports.
        rank: of a task; the largest is the first.
        least: part of the CapSM that it can use; 1 for all of it.
        parallel: instead of ``least``: so many tasks of a GPU run at once and share it equally.
    """

    name: str
    rank: Callable[[_Shares], float]
    least: float = 1.0
    parallel: int | None = None

    @property
    def model(self) -> DeviceModel:
        """How tasks share a GPU under this rule."""
        return SHARED_IN_ORDER if self.parallel is None else SHARED_EQUALLY


_RANKS: dict[str, Callable[[_Shares], float]] = {
    "longest": lambda s: s.duration_s,
    "largest area": lambda s: s.duration_s * max(s.memory, s.capsm),
    "most memory time": lambda s: s.duration_s * s.memory,
    "most CapSM time": lambda s: s.duration_s * s.capsm,
    "largest": lambda s: max(s.memory, s.capsm),
}
_LEAST = (0.05, 1.0, 0.5)

RULES: tuple[Rule, ...] = (
    *(Rule(f"{name}, {part:g}", rank, part) for part in _LEAST for name, rank in _RANKS.items()),
    *(
        Rule(f"{name}, {count} share", _RANKS[name], parallel=count)
        for count in (4, 2, 8)
        for name in ("longest", "largest area")
    ),
)
"""What `plan` tries, in this order."""


def _shares(task: Task, gpus: Sequence[GPU]) -> _Shares:
    memory = sum(gpu.memory_mb for gpu in gpus) / len(gpus)
    capsm = sum(gpu.capsm_milli for gpu in gpus) / len(gpus)
    used = capsm if task.capsm_milli is None else task.capsm_milli
    duration_s = 1.0 if task.duration_s is None else task.duration_s
    return _Shares(duration_s, task.memory_mb / memory, min(1.0, used / capsm))


class Packing:
    """The policy; with a `Plan`, in its order.

    Args:
        plan: what `plan` returned; None: rule 0 for all tasks.
        overtaken: how many later tasks may start before one that waits.
    """

    name = "gpud"

    def __init__(self, plan: Plan | None = None, *, overtaken: int = 100) -> None:
        self._plan = plan or Plan(RULES[0], {})
        self._limit = overtaken
        self._batch = 0
        self._batch_of: dict[int, int] = {}  # of waiting tasks, the oldest first
        self._tasks: list[Task] = []  # in order, with those that have started
        self._memory: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._capsm: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._ranks: dict[int, float] = {}
        self._passed = 0
        self._kept: int | None = None  # the index of the GPU that is kept for the oldest task
        self._seen: list[tuple[int, int]] = []
        self._avoided: dict[int, npt.NDArray[np.bool_]] = {}  # by the index of a GPU

    @property
    def model(self) -> DeviceModel:
        """How GPUs share in a simulation of this policy."""
        return self._plan.rule.model

    def arrive(self, tasks: Sequence[Task], stage: Stage) -> None:
        """See `Policy.arrive`."""
        gpus = [room.gpu for room in stage.rooms]
        self._batch += 1
        # Before the new ones count as waiting: one that is tried again is still in the order.
        waiting = [task for task in self._tasks if task.id in self._batch_of]
        for task in tasks:
            self._batch_of[task.id] = self._batch
            rank = self._plan.ranks.get(task.id)
            if rank is None:
                rank = self._plan.rule.rank(_shares(task, gpus))
            self._ranks[task.id] = rank
        waiting += tasks
        waiting.sort(key=lambda task: (-self._ranks[task.id], task.id))
        self._tasks = waiting
        self._memory = np.array([task.memory_mb for task in waiting], np.int64)
        self._capsm = np.array(
            [_WHOLE if task.capsm_milli is None else task.capsm_milli for task in waiting], np.int64
        )
        self._seen = []
        self._avoided = {
            index: np.array([gpu.id in self._plan.avoid.get(task.id, ()) for task in waiting])
            for index, gpu in enumerate(gpus)
            if any(gpu.id in avoided for avoided in self._plan.avoid.values())
        }

    def act(self, stage: Stage) -> None:
        """See `Policy.act`."""
        if not self._batch_of:
            return
        rooms = stage.rooms
        if not self._seen:
            self._seen = [(-1, -1)] * len(rooms)
        open_ = [
            index
            for index, room in enumerate(rooms)
            if (room.free_mb, room.free_capsm) != self._seen[index]
        ]
        while open_ and self._batch_of:
            index = max(open_, key=lambda i: (rooms[i].free_capsm * rooms[i].gpu.cores, -i))
            place = self._place_for(index, rooms[index])
            if place is None:
                open_.remove(index)
                self._seen[index] = (rooms[index].free_mb, rooms[index].free_capsm)
            else:
                self._start(place, index, stage)

    def _place_for(self, index: int, room: Room) -> int | None:
        """Return the place in the order of the task that this GPU takes next, or None."""
        rule = self._plan.rule
        fits = self._memory <= room.free_mb
        if index in self._avoided:
            fits &= ~self._avoided[index]
        if rule.parallel is not None:
            if len(room.running) >= rule.parallel:
                return None
        elif room.free_capsm <= 0:
            return None
        else:
            wanted = np.minimum(self._capsm, room.gpu.capsm_milli) * rule.least
            fits &= wanted <= room.free_capsm
        if self._kept == index:
            oldest = next(iter(self._batch_of))
            place = next(i for i, task in enumerate(self._tasks) if task.id == oldest)
            return place if fits[place] else None
        place = int(fits.argmax())
        return place if fits[place] else None

    def _start(self, place: int, index: int, stage: Stage) -> None:
        task = self._tasks[place]
        self._memory[place] = _NEVER
        oldest = next(iter(self._batch_of))
        batch = self._batch_of.pop(task.id)
        if task.id == oldest:
            self._passed, self._kept = 0, None
            self._seen = [(-1, -1)] * len(stage.rooms)
        elif batch > self._batch_of[oldest]:
            self._passed += 1
            if self._passed > self._limit and self._kept is None:
                needed = next(one.memory_mb for one in self._tasks if one.id == oldest)
                avoided = self._plan.avoid.get(oldest, frozenset[int]())
                self._kept = max(
                    (
                        i
                        for i, room in enumerate(stage.rooms)
                        if room.gpu.memory_mb >= needed and room.gpu.id not in avoided
                    ),
                    key=lambda i: (stage.rooms[i].free_mb, -i),
                )
        stage.start(task, index)


@dataclass(slots=True)
class Plan:
    """What looking ahead has found.

    Attributes:
        rule: the best one.
        ranks: by task, where local search has changed the rule's order.
        avoid: by task, the numbers of GPUs that shall not run it.
        makespan_s: that it leads to in the simulation.
        trials: how many orders were simulated.
    """

    rule: Rule
    ranks: Mapping[int, float]
    avoid: Mapping[int, frozenset[int]] = field(default_factory=dict)
    makespan_s: float = float("inf")
    trials: int = 0


def plan(
    tasks: Sequence[Task],
    gpus: Sequence[GPU],
    *,
    trials: int = 40,
    limit_s: float | None = 0.1,
    bound_s: float = 0.0,
    seed: int = 0,
) -> Plan:
    """Choose an order for the tasks known, by simulating several.

    Args:
        tasks: those known; others may arrive later.
        gpus: as they are when nothing runs.
        trials: the most orders that are simulated.
        limit_s: seconds after which no further trial begins; None: no limit.
        bound_s: a makespan that cannot be beaten, see `bounds.lower_bound_s`: it ends the search.
        seed: of the local search.
    """
    end_s = None if limit_s is None else time.monotonic() + limit_s
    chance = random.Random(seed)  # noqa: S311  (no secret)
    pool: list[tuple[Plan, Trace]] = []  # the best few, the best one first
    made = 0
    while made < trials and not (pool and end_s is not None and time.monotonic() >= end_s):
        if pool and pool[0][0].makespan_s <= bound_s * (1 + 1e-9):
            break
        if made < len(RULES):
            candidate = Plan(RULES[made], {})
        elif made < len(RULES) + len(_EGS_PARALLEL):
            candidate = _from_egs(tasks, gpus, _EGS_PARALLEL[made - len(RULES)], seed)
        else:
            base = pool[0] if chance.random() < 0.5 else chance.choice(pool)
            candidate = _changed(*base, tasks, gpus, chance)
        made += 1
        limit = pool[-1][0].makespan_s if len(pool) == _POOL else float("inf")
        policy = Packing(candidate)
        trace = Simulation(tasks, gpus, policy, candidate.rule.model, limit_s=limit).run()
        candidate.makespan_s = trace.makespan_s
        known = [one[0].makespan_s for one in pool]
        if trace.makespan_s < limit and trace.makespan_s not in known:
            pool = sorted([*pool, (candidate, trace)], key=lambda one: one[0].makespan_s)[:_POOL]
    if not pool:
        raise ValueError(f"{trials} trials; at least 1")
    best = pool[0][0]
    best.trials = made
    return best


def _from_egs(tasks: Sequence[Task], gpus: Sequence[GPU], parallel: int, seed: int) -> Plan:
    """Make a plan of what EGS does: its GPUs, and its order of starts."""
    policy = EGS(parallel=parallel, seed=seed)
    trace = Simulation(tasks, gpus, policy, SHARED_EQUALLY).run()
    order = sorted(trace.ran, key=lambda ran: (ran.start_s, ran.task))
    every = frozenset(gpu.id for gpu in gpus)
    return Plan(
        Rule(f"EGS's groups, {parallel} share", _RANKS["longest"], parallel=parallel),
        {ran.task: -float(place) for place, ran in enumerate(order)},
        {ran.task: every - {ran.gpu} for ran in trace.ran},
    )


def _changed(
    best: Plan, trace: Trace, tasks: Sequence[Task], gpus: Sequence[GPU], chance: random.Random
) -> Plan:
    """Move a task that ends late, swap it with another, or have it avoid the GPU that it had."""
    if len(gpus) > 1 and chance.random() < 0.5:
        return _elsewhere(best, trace, tasks, gpus, chance)
    order = sorted(trace.ran, key=lambda ran: (ran.start_s, ran.task))
    ids = [ran.task for ran in order]
    late = sorted(range(len(order)), key=lambda i: -order[i].end_s)[: max(1, len(order) // 20)]
    place = chance.choice(late) if chance.random() < 0.7 else chance.randrange(len(ids))
    target = chance.randrange(len(ids))
    if chance.random() < 0.5:
        ids.insert(target, ids.pop(place))
    else:
        ids[place], ids[target] = ids[target], ids[place]
    # Ranks of a plan are of the same kind as those of tasks that arrive later: values of its rule.
    by_id = {task.id: task for task in tasks}
    ranks = sorted((best.rule.rank(_shares(by_id[i], gpus)) for i in ids), reverse=True)
    least = best.rule.least if chance.random() < 0.8 else chance.choice(_LEAST)
    rule = Rule(best.rule.name, best.rule.rank, least, best.rule.parallel)
    return Plan(rule, dict(zip(ids, _strictly_falling(ranks), strict=True)), best.avoid)


def _elsewhere(
    best: Plan, trace: Trace, tasks: Sequence[Task], gpus: Sequence[GPU], chance: random.Random
) -> Plan:
    """Have a task, most often one of the last, avoid its GPU, if another can hold it."""
    last = sorted(trace.ran, key=lambda ran: (-ran.end_s, ran.task))
    ran = chance.choice(last[: chance.choice((1, 2 * len(gpus), len(last)))])
    memory_mb = next(task.memory_mb for task in tasks if task.id == ran.task)
    avoided = best.avoid.get(ran.task, frozenset[int]()) | {ran.gpu}
    if not any(gpu.memory_mb >= memory_mb and gpu.id not in avoided for gpu in gpus):
        avoided = frozenset()
    return Plan(best.rule, best.ranks, {**best.avoid, ran.task: avoided})


def _strictly_falling(ranks: list[float]) -> list[float]:
    """Separate equal ranks by as little as floating point allows, keeping the order given."""
    for place in range(1, len(ranks)):
        if ranks[place] >= ranks[place - 1]:
            ranks[place] = float(np.nextafter(ranks[place - 1], -np.inf))
    return ranks
