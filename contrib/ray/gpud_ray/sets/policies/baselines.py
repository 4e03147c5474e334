"""The policies that EGS is compared with: greedy first fit, MCT, Min-min and Max-min.

They give each task to a GPU's queue, and an executor runs ``parallel`` tasks of its queue at once,
first in, first out.

* Greedy: tasks by number; each goes to the first GPU, by number, whose memory has room for it
  beside all that were given to it and have not ended. What fits nowhere waits for memory.
* MCT (minimum completion time): each task as it comes goes to the GPU that would complete it first.
* Min-min, Max-min: of all tasks that wait, the one whose best completion time is the least (the
  largest) goes to the GPU of that time; then again.

The last three know durations and no memory, as they are defined; the executor waits for memory,
unless it overcommits: then a task starts without, and fails.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

from gpud_ray.sets.model import Room, Stage, Task, run_s

__all__ = ["Greedy", "MaxMin", "MinMin", "MinimumCompletionTime", "Queues"]


class Queues:
    """A first-in, first-out queue for each GPU, of which up to ``parallel`` tasks run at once."""

    def __init__(self, parallel: int = 1, *, overcommit: bool = False) -> None:
        if parallel < 1:
            raise ValueError(f"{parallel} parallel tasks; at least 1")
        self._parallel = parallel
        self._overcommit = overcommit
        self._queues: dict[int, deque[Task]] = {}

    def put(self, task: Task, index: int) -> None:
        """Append a task to the queue of the GPU of ``rooms[index]``."""
        self._queues.setdefault(index, deque()).append(task)

    def feed(self, stage: Stage) -> None:
        """Start what may start."""
        for index, queue in self._queues.items():
            room = stage.rooms[index]
            while queue and len(room.running) < self._parallel:
                if queue[0].memory_mb > room.free_mb and not self._overcommit:
                    break
                stage.start(queue.popleft(), index)

    def unreserved_mb(self, stage: Stage) -> list[int]:
        """Return what memory is neither used nor promised to a task of the queue, by GPU."""
        free = [room.free_mb for room in stage.rooms]
        for index, queue in self._queues.items():
            free[index] -= sum(task.memory_mb for task in queue)
        return free

    @property
    def empty(self) -> bool:
        """Whether nothing is queued."""
        return not any(self._queues.values())


class Greedy:
    """First fit by number."""

    name = "greedy"

    def __init__(self, parallel: int = 1) -> None:
        self._queues = Queues(parallel)
        self._waiting: list[tuple[int, Task]] = []

    def arrive(self, tasks: Sequence[Task], stage: Stage) -> None:
        """See `Policy.arrive`."""
        for task in tasks:
            heapq.heappush(self._waiting, (task.id, task))

    def act(self, stage: Stage) -> None:
        """See `Policy.act`."""
        free = self._queues.unreserved_mb(stage)
        most, kept = max(free), []
        while self._waiting:
            entry = heapq.heappop(self._waiting)
            task = entry[1]
            if task.memory_mb > most:
                kept.append(entry)
                continue
            index = next(i for i, room_mb in enumerate(free) if room_mb >= task.memory_mb)
            free[index] -= task.memory_mb
            most = max(free)
            self._queues.put(task, index)
        self._waiting = kept  # sorted, and so a heap
        self._queues.feed(stage)


class _CompletionTime:
    """What MCT, Min-min and Max-min share: when each of a GPU's ``parallel`` places is free."""

    def __init__(self, parallel: int = 1, *, overcommit: bool = False) -> None:
        self._queues = Queues(parallel, overcommit=overcommit)
        self._parallel = parallel
        self._places: list[list[float]] = []

    def act(self, stage: Stage) -> None:
        """See `Policy.act`."""
        self._queues.feed(stage)

    def _free_s(self, stage: Stage) -> list[list[float]]:
        """When places are free, by GPU; each list is a heap."""
        if not self._places:
            self._places = [[0.0] * self._parallel for _ in stage.rooms]
        for places in self._places:
            while places[0] < stage.now_s:
                heapq.heapreplace(places, stage.now_s)
        return self._places

    def _put(self, task: Task, index: int, completed_s: float) -> None:
        heapq.heapreplace(self._places[index], completed_s)
        self._queues.put(task, index)

    @staticmethod
    def _best(task: Task, rooms: Sequence[Room], places: list[list[float]]) -> tuple[float, int]:
        """Return the first completion time and its GPU, among those that can ever hold the task."""
        return min(
            (places[index][0] + run_s(task, room.gpu), index)
            for index, room in enumerate(rooms)
            if room.gpu.memory_mb >= task.memory_mb
        )


class MinimumCompletionTime(_CompletionTime):
    """MCT: at once, in the order of arrival."""

    name = "MCT"

    def arrive(self, tasks: Sequence[Task], stage: Stage) -> None:
        """See `Policy.arrive`."""
        places = self._free_s(stage)
        for task in sorted(tasks, key=lambda task: task.id):
            completed_s, index = self._best(task, stage.rooms, places)
            self._put(task, index, completed_s)


class _Batch(_CompletionTime):
    """Min-min and Max-min: the task that ``first`` prefers among best completion times.

    Of tasks that can use the same GPUs, the least best completion time is always that of the
    shortest, and the largest that of the longest. So only one task of each such group is looked at.
    """

    _shortest_first: bool

    def arrive(self, tasks: Sequence[Task], stage: Stage) -> None:
        """See `Policy.arrive`."""
        places = self._free_s(stage)
        groups: dict[tuple[int, ...], list[Task]] = {}
        for task in tasks:
            usable = tuple(
                i for i, room in enumerate(stage.rooms) if room.gpu.memory_mb >= task.memory_mb
            )
            groups.setdefault(usable, []).append(task)
        waiting = list(groups.values())
        for group in waiting:  # the next one last
            group.sort(key=lambda task: (task.duration_s or 0.0, task.id))
            if self._shortest_first:
                group.reverse()
        while waiting:
            candidates = [
                (*self._best(group[-1], stage.rooms, places), number)
                for number, group in enumerate(waiting)
            ]
            choose = min if self._shortest_first else max
            completed_s, index, number = choose(candidates)
            self._put(waiting[number].pop(), index, completed_s)
            if not waiting[number]:
                del waiting[number]


class MinMin(_Batch):
    """Min-min: what can be completed first."""

    name = "Min-min"
    _shortest_first = True


class MaxMin(_Batch):
    """Max-min: what is completed last at best, so that long tasks do not remain for the end."""

    name = "Max-min"
    _shortest_first = False
