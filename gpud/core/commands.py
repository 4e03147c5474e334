"""Commands: the outputs of `gpud.core.scheduler.Scheduler`.

`gpud.server` executes commands in order. Each command to a device host is answered by exactly one
kind of event, which its docstring names. `ResizeJob`, `EndJob` and `KillJob` are sent to the host
as they are (`gpud.device.host.messages`), so their fields say what a message may hold.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from gpud.errors import GpudError
from gpud.units import JobId, SessionId
from gpud.wire.field_types import listed, pair, uint

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
    "TakeBackPlan",
]


_Job = Annotated[JobId, uint(64), "the job"]
_STEPS = listed(pair(uint(64), uint(32)), 0, 1 << 16)
_Device = Annotated[int, uint(8), "index of the device; the host has no use for it"]


class PrepareJob(NamedTuple):
    """Load what a job needs onto a device: modules, memory, values. The job has no capacity yet.

    `gpud.core.events.JobPrepared` follows, unless the job ends or the device fails first.
    """

    job: JobId
    device: int


class StartJob(NamedTuple):
    """Launch a job for which the device is prepared.

    `gpud.core.events.JobEnded` follows when the job has ended, unless the device fails first.

    Attributes:
        occupancy: M of the job, the smallest of its launches'.
        slices: the job's allocation in slices of 1/occupancy CapSM.
        epoch: 0.
        online: the job's blocks have priority when they are placed on SMs.
        exclusive: number of whole SMs dedicated to the job, which runs on no others; 0: none.
        quota: slices whose work it may do at most; 0: as much as it can.
    """

    job: JobId
    device: int
    occupancy: int
    slices: int
    epoch: int
    online: bool
    exclusive: int = 0
    quota: int = 0


class ResizeJob(NamedTuple):
    """Change the number of slices of a started job.

    `gpud.core.events.BlocksLeft` with this epoch follows at least once, unless the job ends first.

    What the job holds then is at most by its growth more than what it held, or than its size before
    if that was more. So a launch that was too small for that size may be filled up to it later, but
    only as far as blocks that are leaving have not the room: how many of those that are held are
    leaving is known to the device alone, and a quota counts them.
    """

    job: _Job
    device: _Device
    slices: Annotated[int, uint(32), "its slices from now on; 0 stops it until the next resize"]
    epoch: Annotated[int, uint(32), "one more each time"]
    booked: Annotated[
        int, uint(32), "slices taken from it by take-back plans that `slices` takes into account"
    ] = 0
    quota: Annotated[int, uint(32), "slices whose work it may do at most; 0: no limit"] = 0


class TakeBackPlan(NamedTuple):
    """Say what the device is to do when a launch comes in a lane that lends its share.

    It replaces the lane's plan before. The device forgets it if the lane is not, or not any more,
    in the idle period that ``epoch`` names. `gpud.core.events.LaneWoke` follows when it has been
    carried out.

    Attributes:
        epoch: as in `gpud.core.events.LaneIdle`.
        steps: which jobs lose how many of their slices, in this order.
    """

    job: Annotated[JobId, uint(64), "the lane"]
    device: _Device
    epoch: Annotated[int, uint(32), "number of the lane's idle period"]
    steps: Annotated[tuple[tuple[JobId, int], ...], _STEPS, "[job, slices that it loses], in order"]


class EndJob(NamedTuple):
    """Release all blocks of a started job; `gpud.core.events.JobEnded` follows."""

    job: _Job
    device: _Device


class KillJob(NamedTuple):
    """Kill the running task blocks of a job that has not ended within the grace period.

    Only for jobs that were submitted as killable. `gpud.core.events.JobEnded` follows if the kill
    succeeds.
    """

    job: _Job
    device: _Device


class FinishJob(NamedTuple):
    """A job has ended: report the result to its owner and discard the job.

    Attributes:
        state: ``done``, ``failed`` or ``cancelled``.
        error: the cause if the scheduler knows it: refused, cancelled, timed out, device lost. None
            for a job that is done, and for one that failed on its device, which reported the error.
    """

    job: JobId
    state: str
    error: GpudError | None


class CloseSession(NamedTuple):
    """A closed session has no job left on any device: free its memory."""

    session: SessionId


class ReplaceDevice(NamedTuple):
    """Kill a device's host and start a new one.

    `gpud.core.events.DeviceFailed`, then `gpud.core.events.DeviceReady` follow.

    Attributes:
        culprit: the job that did not end within the grace period.
    """

    device: int
    culprit: JobId | None
    reason: str


class SetTimer(NamedTuple):
    """Send `gpud.core.events.TimerFired` at this absolute time; replaces the previous timer."""

    at_ns: int


class Confirm(NamedTuple):
    """A resize was carried out."""

    ticket: int


class Refuse(NamedTuple):
    """A resize was refused; it has changed nothing."""

    ticket: int
    error: GpudError


class Drained(NamedTuple):
    """After `gpud.core.events.DrainRequested`: no job is left."""


Command = (
    PrepareJob
    | StartJob
    | ResizeJob
    | TakeBackPlan
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
