"""Commands: the outputs of `gpud.tasks.core.scheduler.TaskScheduler`, to be executed in order."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

__all__ = [
    "Command",
    "FinishTask",
    "FreezeTask",
    "KeepNeed",
    "MeasureWindow",
    "Refuse",
    "SetCores",
    "SetTimer",
    "StartTask",
    "StopTask",
    "ThawTask",
]


class StartTask(NamedTuple):
    """Start an attempt; `gpud.tasks.core.events.TaskEnded` follows when it has ended.

    Attributes:
        attempt: its number, from 1.
        cpus: the processors that it may use.
        gpus: indices of its GPUs on the node.
        part: which part of its only GPU it has; None: all of each.
    """

    task: int
    attempt: int
    node: int
    cpus: tuple[int, ...]
    gpus: tuple[int, ...]
    part: Fraction | None


class SetCores(NamedTuple):
    """Give a running task these processors instead of those it has."""

    task: int
    cpus: tuple[int, ...]


class FreezeTask(NamedTuple):
    """Suspend all processes of a task; they keep their memory."""

    task: int
    reason: str


class ThawTask(NamedTuple):
    """Let a frozen task go on, on these processors."""

    task: int
    cpus: tuple[int, ...]


class StopTask(NamedTuple):
    """End all processes of a task: SIGTERM, a grace time, SIGKILL. `TaskEnded` follows.

    Attributes:
        requeue: whether it will be run again, so that one that checkpoints gets its own signal.
    """

    task: int
    reason: str
    requeue: bool


class MeasureWindow(NamedTuple):
    """Measure the utilisation of a task's GPUs for so long; `WindowMeasured` follows."""

    task: int
    attempt: int
    window_ns: int


class KeepNeed(NamedTuple):
    """Keep how many cores a task was found to need, for each of its GPUs."""

    user: str
    program: str
    category: str
    cores: Fraction


class FinishTask(NamedTuple):
    """Tell everybody that a task has ended; its record is forgotten.

    Attributes:
        state: ``"done"``, ``"failed"`` or ``"cancelled"``.
        status: the exit status of its last attempt; None: it had none.
        reason: what to tell; empty: nothing.
    """

    task: int
    state: str
    status: int | None
    reason: str


class Refuse(NamedTuple):
    """The request that was just handled is refused."""

    reason: str


class SetTimer(NamedTuple):
    """Send `gpud.tasks.core.events.TimerFired` at that time, and forget any earlier one."""

    at_ns: int


Command = (
    StartTask
    | SetCores
    | FreezeTask
    | ThawTask
    | StopTask
    | MeasureWindow
    | KeepNeed
    | FinishTask
    | Refuse
    | SetTimer
)
