"""EGS: draws a part of the waiting tasks at random and divides it among the GPUs by backtracking.

Problem: tasks with irregular memory needs, GPUs with memory; disjoint groups of tasks, one for each
GPU, whose needs fit, such that little memory stays unused.

Approach: draw beta times n tasks at random, n the number of all tasks known. Take them in the order
in which they were drawn. Each goes to the GPU with the most free memory, if it fits; when the way
down fails, to the one with the second most, and so on; when none is left, back up to the task
before. When all have a GPU, that is a full division; its weight W is the sum over GPUs of used
divided by total memory. The division with the largest W is queued at the executors and leaves the
set; draw again.

What the source leaves open, and what is done here:

* The search is exponential. It ends after ``nodes`` placements for each task drawn, with the best
  full division so far; not before `_LEAST_NODES`, so that some eight tasks are searched to the end.
  All full divisions of a draw weigh the same when all GPUs have the same
  memory: then the first one ends it.
* When no full division was found, the longest beginning of the draw that did fit is taken, and what
  else of the draw fits beside it; the rest returns to the set.
* A group may have its own GPU's memory, and a draw is divided as soon as its memory is free, or
  nothing runs. ``literal`` keeps the source's rules: no group has more than the *smallest* GPU's
  memory (which its own example breaks), a draw has at most 50 tasks for each GPU, and is divided
  when the last one has ended.
* A division takes no time; in a simulation with ``pair_s``, so long for each pair of a task drawn
  and one that waits.

Source: the framework GSF and its algorithm EGS for GPU tasks with irregular memory needs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gpud_ray.sets.model import Stage, Task
from gpud_ray.sets.policies.baselines import Queues

__all__ = ["EGS", "Division", "divide"]

_LEAST_NODES: Final = 100_000  # all of 8 tasks on 4 GPUs
_LITERAL_A_GPU: Final = 50  # tasks of a draw


@dataclass(slots=True)
class Division:
    """Groups of tasks, one for each GPU.

    Attributes:
        groups: by GPU, in the order given.
        weight: sum over GPUs of used divided by total memory.
        left: tasks that have no GPU.
        nodes: placements that were tried.
        full_divisions: how many were found.
    """

    groups: list[list[Task]]
    weight: float
    left: list[Task] = field(default_factory=list)
    nodes: int = 0
    full_divisions: int = 0


def divide(
    tasks: Sequence[Task],
    free_mb: Sequence[int],
    total_mb: Sequence[int] | None = None,
    *,
    literal: bool = False,
    nodes: int = 100,
    least_nodes: int = _LEAST_NODES,
) -> Division:
    """Divide tasks among GPUs; see the module.

    Args:
        tasks: in the order in which they are placed.
        free_mb: memory that a group may have, by GPU.
        total_mb: memory that the weight refers to, by GPU; None: the same.
        literal: no group has more than the memory of the smallest GPU.
        nodes: the most placements that are tried, for each task.
        least_nodes: the search does not end before so many.
    """
    total_mb = free_mb if total_mb is None else total_mb
    free = list(free_mb)
    if literal:
        free = [min(mb, *total_mb) for mb in free]
    return _Backtracking(tasks, free, total_mb, max(least_nodes, nodes * len(tasks))).run()


class _Backtracking:
    def __init__(
        self, tasks: Sequence[Task], free: list[int], total: Sequence[int], budget: int
    ) -> None:
        self._tasks, self._free, self._total, self._budget = tasks, free, total, budget
        self._needs = [task.memory_mb for task in tasks]
        self._nodes = self._full = self._deepest = 0
        self._best: list[int] | None = None
        self._best_weight = -1.0
        self._partial: list[int] = []

    def run(self) -> Division:
        """Search within the bounds; return the best division, full or not."""
        if self._could_be_full():
            self._descend()
        if self._best is None:
            return self._made(self._fill(self._partial))
        return self._made(dict(enumerate(self._best)))

    def _could_be_full(self) -> bool:
        """Tell whether memory suffices in sum; if not, divide the beginning for which it does."""
        left, count = sum(self._free), 0
        for need in self._needs:
            if need > left:
                break
            left -= need
            count += 1
        if count == len(self._needs):
            return True
        self._needs = self._needs[:count]
        self._descend()
        self._partial = self._best if self._best is not None else self._partial
        self._best = None
        self._full = 0
        return False

    def _descend(self) -> None:
        needs, free = self._needs, self._free
        equal = len(set(self._total)) == 1
        placed: list[int] = []
        # For each task on the way down: the GPUs that it has not tried yet, the best one last.
        untried = [self._order(0)]
        while untried:
            depth = len(untried) - 1
            if depth == len(needs):
                self._record(placed)
                if equal:
                    break
            elif untried[-1]:
                if self._nodes >= self._budget:
                    break
                self._nodes += 1
                index = untried[-1].pop()
                free[index] -= needs[depth]
                placed.append(index)
                if len(placed) > self._deepest:
                    self._deepest = len(placed)
                    self._partial = list(placed)
                untried.append(self._order(depth + 1))
                continue
            untried.pop()
            if placed:
                free[placed.pop()] += needs[len(placed)]
        while placed:
            free[placed.pop()] += needs[len(placed)]

    def _order(self, depth: int) -> list[int]:
        """Return the GPUs with room for a task, the one with the most free memory last."""
        if depth == len(self._needs):
            return []
        free, need = self._free, self._needs[depth]
        fits = [index for index, mb in enumerate(free) if mb >= need]
        fits.sort(key=lambda index: (free[index], -index))
        return fits

    def _record(self, placed: list[int]) -> None:
        self._full += 1
        used = [0] * len(self._free)
        for index, need in zip(placed, self._needs, strict=True):
            used[index] += need
        weight = sum(mb / total for mb, total in zip(used, self._total, strict=True))
        if weight > self._best_weight:
            self._best_weight, self._best = weight, list(placed)

    def _fill(self, placed: list[int]) -> dict[int, int]:
        """Add what else fits to the longest beginning: the task's place and its GPU."""
        chosen = dict(enumerate(placed))
        free = list(self._free)
        for place, index in chosen.items():
            free[index] -= self._tasks[place].memory_mb
        for place in range(len(placed), len(self._tasks)):
            index = max(range(len(free)), key=lambda index: (free[index], -index))
            if free[index] >= self._tasks[place].memory_mb:
                free[index] -= self._tasks[place].memory_mb
                chosen[place] = index
        return chosen

    def _made(self, chosen: dict[int, int]) -> Division:
        groups: list[list[Task]] = [[] for _ in self._free]
        for place, index in chosen.items():
            groups[index].append(self._tasks[place])
        weight = sum(
            sum(task.memory_mb for task in group) / total
            for group, total in zip(groups, self._total, strict=True)
        )
        left = [task for place, task in enumerate(self._tasks) if place not in chosen]
        return Division(groups, weight, left, self._nodes, self._full)


class EGS:
    """EGS as a policy.

    Args:
        beta: the part of all tasks known that is drawn at once.
        parallel: tasks of a GPU that run at once.
        seed: of the draws.
        literal: keep the source's rules; see the module.
        pair_s: how long a division takes for each pair of a task drawn and a task that waits.
        overcommit: start tasks without looking at free memory.
    """

    name = "EGS"

    def __init__(
        self,
        beta: float = 0.4,
        parallel: int = 2,
        seed: int = 0,
        *,
        literal: bool = False,
        pair_s: float = 0.0,
        overcommit: bool = False,
    ) -> None:
        if not 0 < beta <= 1:
            raise ValueError(f"beta is {beta}; it has to be more than 0 and at most 1")
        self._beta, self._literal, self._pair_s = beta, literal, pair_s
        self._random = random.Random(seed)  # noqa: S311  (no secret)
        self._queues = Queues(parallel, overcommit=overcommit)
        self._overcommit = overcommit
        self._waiting: dict[int, Task] = {}
        self._known: dict[int, None] = {}
        self._drawn: list[Task] = []
        self._divided_s: float | None = None  # when the division will be there that was begun
        self.rounds = 0
        self.nodes = 0

    def arrive(self, tasks: Sequence[Task], stage: Stage) -> None:
        """See `Policy.arrive`."""
        for task in tasks:
            self._waiting[task.id] = task
            self._known[task.id] = None

    def act(self, stage: Stage) -> None:
        """See `Policy.act`."""
        while self._waiting and self._advance(stage):
            pass
        self._queues.feed(stage)

    def _advance(self, stage: Stage) -> bool:
        """Begin or end a division; tell whether another may follow at once."""
        if self._divided_s is None:
            if not self._draw(stage):
                return False
            took_s = self._pair_s * len(self._drawn) * len(self._waiting)
            self._divided_s = stage.now_s + took_s
            if took_s:
                stage.wake(self._divided_s)
        if stage.now_s < self._divided_s:
            return False
        self._divided_s = None
        return self._divide(stage)

    def _idle(self, stage: Stage) -> bool:
        return self._queues.empty and not any(room.running for room in stage.rooms)

    def _free_mb(self, stage: Stage) -> list[int]:
        if self._overcommit:
            return [room.gpu.memory_mb for room in stage.rooms]
        return self._queues.unreserved_mb(stage)

    def _draw(self, stage: Stage) -> bool:
        """Make the next draw, if there is none; tell whether it may be divided now."""
        if not self._drawn:
            count = min(len(self._waiting), max(1, round(self._beta * len(self._known))))
            if self._literal:
                count = min(count, _LITERAL_A_GPU * len(stage.rooms))
            self._drawn = self._random.sample(list(self._waiting.values()), count)
        if self._idle(stage):
            return True
        needs_mb = sum(task.memory_mb for task in self._drawn)
        return not self._literal and needs_mb <= sum(self._free_mb(stage))

    def _divide(self, stage: Stage) -> bool:
        """Queue the division of what was drawn; tell whether anything was placed."""
        total = [room.gpu.memory_mb for room in stage.rooms]
        free, idle = self._free_mb(stage), self._idle(stage)
        division = divide(self._drawn, free, total, literal=self._literal)
        self._drawn = []
        self.rounds += 1
        self.nodes += division.nodes
        queued = [(task, index) for index, group in enumerate(division.groups) for task in group]
        if idle and not queued:
            # Only under the literal rule: what no group may hold goes alone to a GPU that can.
            queued = [self._alone(stage)]
        for task, index in queued:
            del self._waiting[task.id]
            self._queues.put(task, index)
        return bool(queued)

    def _alone(self, stage: Stage) -> tuple[Task, int]:
        rooms = stage.rooms
        index = max(range(len(rooms)), key=lambda i: (rooms[i].gpu.memory_mb, -i))
        return next(iter(self._waiting.values())), index
