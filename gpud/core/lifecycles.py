"""The lifecycles of jobs, sessions and devices, as transition tables: (state, input) -> state.

An input for which the table has no transition is a bug in gpud: `Lifecycle.step` raises, with the
object's history. docs/reference/lifecycles.md is generated from these tables.
"""

from __future__ import annotations

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

_HISTORY_INPUTS = 32  # bounds the memory of a job that is paused and resumed for days


class JobState(StrEnum):
    """The states of a job; `JOBS` explains them."""

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
    """What causes a job's transitions."""

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
    CLOSE = "close"


class SessionState(StrEnum):
    """The states of a session."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class SessionInput(StrEnum):
    """What causes a session's transitions."""

    CLOSE = "close"
    LAST_JOB_GONE = "last job gone"


class DeviceState(StrEnum):
    """The states of a device."""

    STARTING = "starting"
    READY = "ready"
    REPLACING = "replacing"
    GONE = "gone"


class DeviceInput(StrEnum):
    """What causes a device's transitions."""

    UP = "up"
    REPLACE = "replace"
    FAIL = "fail"
    GIVE_UP = "give up"


S = TypeVar("S", bound=StrEnum)
I = TypeVar("I", bound=StrEnum)  # noqa: E741  the table's input

Table = Mapping[tuple[S, I], S]

JOBS: Table[JobState, JobInput] = {
    # It waits for its predecessors.
    (JobState.BLOCKED, JobInput.PREPARE): JobState.PREPARING,
    (JobState.BLOCKED, JobInput.READY): JobState.WAITING,
    (JobState.BLOCKED, JobInput.CANCEL): JobState.CANCELLED,
    (JobState.BLOCKED, JobInput.FAIL): JobState.FAILED,
    # It waits until its device has what it needs: modules, memory, values.
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
    # Its host was lost before it received the job; the next one must be prepared first.
    (JobState.WAITING, JobInput.REQUEUE): JobState.PREPARING,
    (JobState.RUNNING, JobInput.REQUEUE): JobState.PREPARING,
    (JobState.PAUSED, JobInput.REQUEUE): JobState.PREPARING,
    # It has started; its allocation is 0 now. Its last blocks may still complete it.
    (JobState.PAUSED, JobInput.RESUME): JobState.RUNNING,
    (JobState.PAUSED, JobInput.END): JobState.ENDING,
    (JobState.PAUSED, JobInput.COMPLETE): JobState.DONE,
    (JobState.PAUSED, JobInput.FAIL): JobState.FAILED,
    # It is being ended and has blocks left. The cause decides whether it is cancelled or failed.
    (JobState.ENDING, JobInput.CANCEL): JobState.CANCELLED,
    (JobState.ENDING, JobInput.FAIL): JobState.FAILED,
    # It is a lane, which has no end of its own.
    (JobState.ENDING, JobInput.CLOSE): JobState.DONE,
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
    """An object's state and its recent history.

    Args:
        table: its transitions.
        state: its initial state.
        now_ns: time of its creation.

    Attributes:
        history: the latest inputs with their times, the last 16 to 32 of many.
    """

    __slots__ = ("_table", "history", "state")

    def __init__(self, table: Table[S, I], state: S, now_ns: int) -> None:
        self.state = state
        # A list: a deque takes 760 bytes however few are in it.
        self.history: list[tuple[int, str]] = [(now_ns, state)]
        self._table = table

    @property
    def what(self) -> str:
        """How messages refer to the object, such as ``"job 3.17"``."""
        raise NotImplementedError

    def step(self, by: I, now_ns: int) -> S:
        """Make the transition for an input and return the new state.

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
        if len(self.history) > _HISTORY_INPUTS:
            del self.history[: _HISTORY_INPUTS // 2]
        return after
