"""What the parts of the tasks' scheduler share: tasks, nodes, queues, timers, and the commands."""

from __future__ import annotations

from heapq import heappop, heappush

from gpud.tasks.core import commands as out
from gpud.tasks.core.fair_queue import FairQueue
from gpud.tasks.core.lifecycle import TaskInput
from gpud.tasks.core.need_history import NeedHistory
from gpud.tasks.core.node import NodeRecord
from gpud.tasks.core.record import TaskRecord
from gpud.tasks.core.settings import Settings

__all__ = ["TaskTable"]


class TaskTable:
    """The state of one scheduler.

    Attributes:
        tasks: those that have not ended, by id.
        nodes: by number.
        queues: ``multi`` and ``gpu`` for tasks with many and with fewer GPUs, ``cpu`` for others.
        needs: the history of cores that GPU tasks needed.
        changed: tasks that the present event has changed, ended ones too.
        out: the commands of the present event.
        dirty: whether something may fit now that did not before.
        timers: a heap of (time, task or 0, its attempt).
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tasks: dict[int, TaskRecord] = {}
        self.nodes: dict[int, NodeRecord] = {}
        self.queues = {name: FairQueue() for name in ("multi", "gpu", "cpu")}
        self.needs = NeedHistory()
        self.now_ns = 0
        self.changed: dict[int, TaskRecord] = {}
        self.out: list[out.Command] = []
        self.dirty = False
        self.timers: list[tuple[int, int, int]] = []

    def next_event(self, now_ns: int) -> None:
        """Begin to handle an event; time never goes back."""
        self.now_ns = max(self.now_ns, now_ns)
        self.out, self.changed = [], {}

    def send(self, command: out.Command) -> None:
        """Add a command to those of this event."""
        self.out.append(command)

    def step(self, task: TaskRecord, by: TaskInput) -> None:
        """Make a transition of a task."""
        task.ran_ns, task.since_ns = task.ran_until(self.now_ns), self.now_ns
        task.step(by, self.now_ns)
        self.changed[task.id] = task
        self.dirty = True

    # -- queues

    def queue_of(self, task: TaskRecord) -> FairQueue:
        """Return the queue to which a task belongs."""
        if not task.is_gpu:
            return self.queues["cpu"]
        return self.queues["multi" if task.terms.gpus >= self.settings.multi_gpus else "gpu"]

    def enter(self, task: TaskRecord) -> None:
        """Put a task into its queue."""
        self.queue_of(task).add(task)

    def leave(self, task: TaskRecord) -> None:
        """Take a task out of its queue, and let go what is kept for it."""
        self.queue_of(task).remove(task)
        for node in self.nodes.values():
            if node.kept.get(task.is_gpu) == task.id:
                del node.kept[task.is_gpu]

    # -- timers

    def wake_at(self, at_ns: int) -> None:
        """Have waiting tasks looked at again at a time."""
        heappush(self.timers, (at_ns, 0, 0))

    def watch_limit(self, task: TaskRecord) -> None:
        """Set the timer of a running task's time limit."""
        if task.terms.time_limit_ns is not None:
            left_ns = max(0, task.terms.time_limit_ns - task.ran_until(self.now_ns))
            heappush(self.timers, (self.now_ns + left_ns, task.id, task.attempt))

    def due(self) -> tuple[int, int] | None:
        """Remove and return the task and attempt of the first timer whose time has come."""
        if self.timers and self.timers[0][0] <= self.now_ns:
            return heappop(self.timers)[1:]
        return None
