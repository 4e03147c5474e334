"""What the scheduler decides: the outputs of `gpud.core.scheduler.Scheduler`.

Commands are carried out in order by `gpud.server`. Those that go to a device host are answered by
exactly one kind of event each, as said there.
"""

from __future__ import annotations

from typing import NamedTuple

from gpud.errors import GpudError
from gpud.units import JobId, SessionId

__all__ = [
    "CloseSession",
    "Command",
    "Confirm",
    "Drained",
    "EndJob",
    "FinishJob",
    "KillJob",
    "PrepareJob",
    "Refuse",
    "ReplaceDevice",
    "ResizeJob",
    "SetTimer",
    "StartJob",
]


class PrepareJob(NamedTuple):
    """Give a device what a job needs: programs, memory, values. It has no capacity meanwhile.

    `gpud.core.events.JobPrepared` follows, unless the job ends or the device fails first.
    """

    job: JobId
    device: int


class StartJob(NamedTuple):
    """Launch a job for which the device is prepared.

    `gpud.core.events.JobEnded` comes when it has ended, or the device fails.

    Attributes:
        occupancy: M of the job, the least of its launches'.
        slices: how many slices of 1/occupancy CapSM it has.
        epoch: 0.
        online: its blocks go first where there is room.
        exclusive: so many whole SMs are its own, and it runs nowhere else; 0: none are.
    """

    job: JobId
    device: int
    occupancy: int
    slices: int
    epoch: int
    online: bool
    exclusive: int = 0


class ResizeJob(NamedTuple):
    """Give a job that was started another number of slices.

    `gpud.core.events.BlocksLeft` with this epoch follows at least once, unless the job ends first.
    """

    job: JobId
    device: int
    slices: int
    epoch: int


class EndJob(NamedTuple):
    """Release everything of a job that was started; `gpud.core.events.JobEnded` follows."""

    job: JobId
    device: int


class KillJob(NamedTuple):
    """End the task blocks of a job where they are: it was told to end and has not.

    Only of jobs that were submitted as killable. `gpud.core.events.JobEnded` follows, if it works.
    """

    job: JobId
    device: int


class FinishJob(NamedTuple):
    """A job is over: tell its owner, and forget it.

    Attributes:
        state: ``done``, ``failed`` or ``cancelled``.
        error: why, where the scheduler knows: refused, cancelled, timed out, device lost. None for
            a job that is done, and for one that failed on its device, which said why itself.
    """

    job: JobId
    state: str
    error: GpudError | None


class CloseSession(NamedTuple):
    """Nothing of a session that has gone is left on any device: give its memory back."""

    session: SessionId


class ReplaceDevice(NamedTuple):
    """End a device's host and start a new one; `DeviceFailed`, then `DeviceReady` follow.

    Attributes:
        culprit: the job that did not end when it was told to.
    """

    device: int
    culprit: JobId | None
    reason: str


class SetTimer(NamedTuple):
    """Send `gpud.core.events.TimerFired` at this time, absolute; replaces the one set before."""

    at_ns: int


class Confirm(NamedTuple):
    """A resize was carried out."""

    ticket: int


class Refuse(NamedTuple):
    """A resize was refused; nothing was changed by it."""

    ticket: int
    error: GpudError


class Drained(NamedTuple):
    """After `gpud.core.events.DrainRequested`: no job is left."""


Command = (
    PrepareJob
    | StartJob
    | ResizeJob
    | EndJob
    | KillJob
    | FinishJob
    | CloseSession
    | ReplaceDevice
    | SetTimer
    | Confirm
    | Refuse
    | Drained
)
