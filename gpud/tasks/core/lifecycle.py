"""The lifecycle of a task as a transition table: (state, input) -> state."""

from __future__ import annotations

from enum import StrEnum

from gpud.core.lifecycles import Table

__all__ = ["ENDED", "HAS_CORES", "TASKS", "WAITS", "TaskInput", "TaskState"]


class TaskState(StrEnum):
    """The states of a task; `TASKS` explains them."""

    HELD = "held"
    BLOCKED = "blocked"
    QUEUED = "queued"
    RUNNING = "running"
    FROZEN = "frozen"
    STOPPING = "stopping"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TaskInput(StrEnum):
    """What causes a task's transitions."""

    HOLD = "hold"
    RELEASE = "release"
    READY = "ready"
    START = "start"
    FREEZE = "freeze"
    THAW = "thaw"
    STOP = "stop"
    REQUEUE = "requeue"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"


TASKS: Table[TaskState, TaskInput] = {
    # It waits for its predecessors.
    (TaskState.BLOCKED, TaskInput.READY): TaskState.QUEUED,
    (TaskState.BLOCKED, TaskInput.HOLD): TaskState.HELD,
    (TaskState.BLOCKED, TaskInput.FAIL): TaskState.FAILED,
    (TaskState.BLOCKED, TaskInput.CANCEL): TaskState.CANCELLED,
    # Its user holds it back.
    (TaskState.HELD, TaskInput.RELEASE): TaskState.BLOCKED,
    (TaskState.HELD, TaskInput.FAIL): TaskState.FAILED,
    (TaskState.HELD, TaskInput.CANCEL): TaskState.CANCELLED,
    # It waits for cores and GPUs.
    (TaskState.QUEUED, TaskInput.START): TaskState.RUNNING,
    (TaskState.QUEUED, TaskInput.HOLD): TaskState.HELD,
    (TaskState.QUEUED, TaskInput.FAIL): TaskState.FAILED,
    (TaskState.QUEUED, TaskInput.CANCEL): TaskState.CANCELLED,
    # An attempt of it runs.
    (TaskState.RUNNING, TaskInput.FREEZE): TaskState.FROZEN,
    (TaskState.RUNNING, TaskInput.STOP): TaskState.STOPPING,
    (TaskState.RUNNING, TaskInput.REQUEUE): TaskState.QUEUED,
    (TaskState.RUNNING, TaskInput.COMPLETE): TaskState.DONE,
    (TaskState.RUNNING, TaskInput.FAIL): TaskState.FAILED,
    # Its processes are there and have no cores.
    (TaskState.FROZEN, TaskInput.THAW): TaskState.RUNNING,
    (TaskState.FROZEN, TaskInput.STOP): TaskState.STOPPING,
    (TaskState.FROZEN, TaskInput.REQUEUE): TaskState.QUEUED,
    (TaskState.FROZEN, TaskInput.COMPLETE): TaskState.DONE,
    (TaskState.FROZEN, TaskInput.FAIL): TaskState.FAILED,
    # Its processes were told to end; why decides what it becomes.
    (TaskState.STOPPING, TaskInput.REQUEUE): TaskState.QUEUED,
    (TaskState.STOPPING, TaskInput.COMPLETE): TaskState.DONE,
    (TaskState.STOPPING, TaskInput.FAIL): TaskState.FAILED,
    (TaskState.STOPPING, TaskInput.CANCEL): TaskState.CANCELLED,
}

WAITS = (TaskState.HELD, TaskState.BLOCKED, TaskState.QUEUED)
"""States in which nothing of a task runs."""

HAS_CORES = (TaskState.RUNNING, TaskState.STOPPING)
"""States in which a task has its cores; one that is frozen has its GPUs and its node only."""

ENDED = (TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED)
