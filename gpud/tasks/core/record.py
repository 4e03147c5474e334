"""A task as the scheduler knows it."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from gpud.core.lifecycles import Lifecycle
from gpud.tasks.core.core_search import CoreSearch
from gpud.tasks.core.events import TaskTerms
from gpud.tasks.core.lifecycle import HAS_CORES, TASKS, TaskInput, TaskState

__all__ = ["Stop", "TaskRecord"]


class Stop(NamedTuple):
    """Why a task's processes were told to end, and what it becomes then.

    Attributes:
        by: `TaskInput.CANCEL`, `TaskInput.FAIL` or `TaskInput.REQUEUE`.
        reason: told with the task.
    """

    by: TaskInput
    reason: str


class TaskRecord(Lifecycle[TaskState, TaskInput]):
    """A task that has not ended, with what it has.

    Attributes:
        cores: how many it is to have now.
        front: whether it goes before others of its queue: it was stopped or lost.
        queued_ns: since when it waits.
        attempt: the number of its last attempt; 0: none has begun.
        failures, losses: how many attempts have failed, and were lost.
        node, cpus, gpus: where its attempt runs and what it has there.
        part: which part of its only GPU it has; None: all of each.
        order: the number of its start, later ones higher.
        since_ns: when it last began to run or was thawed.
        ran_ns: how long its attempt has run before that.
        memory_bytes: that it has, as was measured.
        stop: why it is being stopped; None: it is not.
        search: for its cores; None: they are given, or it has ended.
        best_permille: the highest utilisation of its GPUs in a window; None: not known.
        fallen: whether its utilisation has fallen by the settings' part of that.
        halved_for: the GPU task for which it has fewer cores than it asked for.
        reason: what to tell of its last attempt.
        status: the exit status of its last attempt.
    """

    __slots__ = (
        "attempt", "best_permille", "cores", "cpus", "failures", "fallen", "front", "gpus",
        "halved_for", "id", "losses", "memory_bytes", "node", "order", "part", "queued_ns",
        "ran_ns", "reason", "search", "since_ns", "status", "stop", "terms",
    )  # fmt: skip

    def __init__(self, task: int, terms: TaskTerms, state: TaskState, now_ns: int) -> None:
        super().__init__(TASKS, state, now_ns)
        self.id = task
        self.terms = terms
        self.cores = terms.cores or 1
        self.front = False
        self.queued_ns = now_ns
        self.attempt = self.failures = self.losses = self.order = 0
        self.node: int | None = None
        self.cpus: tuple[int, ...] = ()
        self.gpus: tuple[int, ...] = ()
        self.part: Fraction | None = terms.gpus if 0 < terms.gpus < 1 else None
        self.since_ns = self.ran_ns = 0
        self.memory_bytes = terms.memory_bytes or 0
        self.stop: Stop | None = None
        self.search: CoreSearch | None = None
        self.best_permille: int | None = None
        self.fallen = False
        self.halved_for: int | None = None
        self.reason = ""
        self.status: int | None = None

    @property
    def what(self) -> str:
        """How messages refer to the task."""
        return f"task {self.id}"

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU task."""
        return self.terms.gpus > 0

    @property
    def has_cores(self) -> bool:
        """Whether processors of its node are its own now."""
        return self.state in HAS_CORES

    def ran_until(self, now_ns: int) -> int:
        """Return for how long its attempt has run, without the time in which it was frozen."""
        runs = self.has_cores
        return self.ran_ns + (now_ns - self.since_ns if runs else 0)
