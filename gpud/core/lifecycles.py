"""What jobs, sessions and devices go through, as tables: (state, input) -> state.

An input that a table does not have for a state is a bug of ours: `Lifecycle.step` raises, with the
object's history. docs/reference/lifecycles.md is made of these tables.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from gpud.errors import InternalError

__all__ = [
    "DEVICES",
    "JOBS",
    "SESSIONS",
    "DeviceInput",
    "DeviceState",
    "JobInput",
    "JobState",
    "Lifecycle",
    "SessionInput",
    "SessionState",
    "Table",
]

_REMEMBERED = 32  # inputs: a job that is paused and resumed for days must not grow


class JobState(StrEnum):
    """Where a job is."""

    BLOCKED = "blocked"
    PREPARING = "preparing"
    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    ENDING = "ending"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobInput(StrEnum):
    """What happens to a job."""

    PREPARE = "prepare"
    READY = "ready"
    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    REQUEUE = "requeue"
    END = "end"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"


class SessionState(StrEnum):
    """Where a session is."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class SessionInput(StrEnum):
    """What happens to a session."""

    CLOSE = "close"
    LAST_JOB_GONE = "last job gone"


class DeviceState(StrEnum):
    """Where a device is."""

    STARTING = "starting"
    READY = "ready"
    REPLACING = "replacing"
    GONE = "gone"


class DeviceInput(StrEnum):
    """What happens to a device."""

    UP = "up"
    REPLACE = "replace"
    FAIL = "fail"
    GIVE_UP = "give up"


S = TypeVar("S", bound=StrEnum)
I = TypeVar("I", bound=StrEnum)  # noqa: E741  the table's input

Table = Mapping[tuple[S, I], S]

JOBS: Table[JobState, JobInput] = {
    # It waits for jobs that it must follow.
    (JobState.BLOCKED, JobInput.PREPARE): JobState.PREPARING,
    (JobState.BLOCKED, JobInput.READY): JobState.WAITING,
    (JobState.BLOCKED, JobInput.CANCEL): JobState.CANCELLED,
    (JobState.BLOCKED, JobInput.FAIL): JobState.FAILED,
    # It waits for what it needs to be on its device: programs, memory, values.
    (JobState.PREPARING, JobInput.READY): JobState.WAITING,
    (JobState.PREPARING, JobInput.CANCEL): JobState.CANCELLED,
    (JobState.PREPARING, JobInput.FAIL): JobState.FAILED,
    # It waits for capacity; nothing of it has run.
    (JobState.WAITING, JobInput.START): JobState.RUNNING,
    (JobState.WAITING, JobInput.CANCEL): JobState.CANCELLED,
    (JobState.WAITING, JobInput.FAIL): JobState.FAILED,
    # It has an allocation.
    (JobState.RUNNING, JobInput.PAUSE): JobState.PAUSED,
    (JobState.RUNNING, JobInput.END): JobState.ENDING,
    (JobState.RUNNING, JobInput.COMPLETE): JobState.DONE,
    (JobState.RUNNING, JobInput.FAIL): JobState.FAILED,
    # Its device was lost before it was told of the job; the next host has nothing of it yet.
    (JobState.WAITING, JobInput.REQUEUE): JobState.PREPARING,
    (JobState.RUNNING, JobInput.REQUEUE): JobState.PREPARING,
    (JobState.PAUSED, JobInput.REQUEUE): JobState.PREPARING,
    # It has run; its allocation is 0 now. Its last blocks may still complete it.
    (JobState.PAUSED, JobInput.RESUME): JobState.RUNNING,
    (JobState.PAUSED, JobInput.END): JobState.ENDING,
    (JobState.PAUSED, JobInput.COMPLETE): JobState.DONE,
    (JobState.PAUSED, JobInput.FAIL): JobState.FAILED,
    # It was told to end and has blocks left. Why it was told to end decides what it ends as.
    (JobState.ENDING, JobInput.CANCEL): JobState.CANCELLED,
    (JobState.ENDING, JobInput.FAIL): JobState.FAILED,
}

SESSIONS: Table[SessionState, SessionInput] = {
    (SessionState.OPEN, SessionInput.CLOSE): SessionState.CLOSING,
    (SessionState.CLOSING, SessionInput.LAST_JOB_GONE): SessionState.CLOSED,
}

DEVICES: Table[DeviceState, DeviceInput] = {
    (DeviceState.STARTING, DeviceInput.UP): DeviceState.READY,
    (DeviceState.STARTING, DeviceInput.FAIL): DeviceState.STARTING,
    (DeviceState.STARTING, DeviceInput.GIVE_UP): DeviceState.GONE,
    (DeviceState.READY, DeviceInput.FAIL): DeviceState.STARTING,
    (DeviceState.READY, DeviceInput.GIVE_UP): DeviceState.GONE,
    (DeviceState.READY, DeviceInput.REPLACE): DeviceState.REPLACING,
    (DeviceState.REPLACING, DeviceInput.FAIL): DeviceState.STARTING,
    (DeviceState.REPLACING, DeviceInput.GIVE_UP): DeviceState.GONE,
    (DeviceState.GONE, DeviceInput.UP): DeviceState.READY,
    (DeviceState.GONE, DeviceInput.FAIL): DeviceState.GONE,
    (DeviceState.GONE, DeviceInput.GIVE_UP): DeviceState.GONE,
}


class Lifecycle(Generic[S, I]):
    """One object's state and how it came there.

    Args:
        table: its transitions.
        state: its first state.
        now_ns: when it came to be.
    """

    __slots__ = ("_table", "history", "state")

    def __init__(self, table: Table[S, I], state: S, now_ns: int) -> None:
        self.state = state
        self.history: deque[tuple[int, str]] = deque(((now_ns, state),), _REMEMBERED)
        self._table = table

    @property
    def what(self) -> str:
        """Returns what the object is called in messages: ``"job 3.17"``."""
        raise NotImplementedError

    def step(self, by: I, now_ns: int) -> S:
        """Goes to the next state and returns it.

        Raises:
            InternalError: the table has no such transition. The state is unchanged.
        """
        after = self._table.get((self.state, by))
        if after is None:
            story = ", ".join(f"{text} at {at_ns} ns" for at_ns, text in self.history)
            raise InternalError(
                f"{self.what} is {self.state} and cannot take '{by}'; it was {story}",
                stage="scheduler",
            )
        self.state = after
        self.history.append((now_ns, by))
        return after
