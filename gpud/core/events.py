"""What can happen: the inputs of `gpud.core.scheduler.Scheduler`.

Every event carries ``now_ns``, a monotonic time in nanoseconds; events arrive in its order. They
are plain data, so that a log of them can be kept and replayed (`gpud.core.replay`).
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from gpud.units import JobId, Partitions, SessionId

__all__ = [
    "BlocksLeft",
    "CancelRequested",
    "DeviceFailed",
    "DeviceReady",
    "DrainRequested",
    "Event",
    "JobEnded",
    "JobPrepared",
    "JobSubmitted",
    "LaunchShape",
    "ResizeRequested",
    "SessionClosed",
    "SessionOpened",
    "TimerFired",
]


class LaunchShape(NamedTuple):
    """What the scheduler has to know of one launch of a job.

    Attributes:
        occupancy: M, 1 or more.
        task_blocks: 1 or more.
        resizable: False for a kernel in form ``whole``.
    """

    occupancy: int
    task_blocks: int
    resizable: bool = True


class DeviceReady(NamedTuple):
    """A device host is up, for the first time or again.

    Attributes:
        device: its index.
        sms: S, its capacity in CapSM.
        name: the device as in ``--device``, for messages; by default its index.
        partitions: which numbers of its SMs can be one job's alone.
    """

    now_ns: int
    device: int
    sms: int
    name: str = ""
    partitions: Partitions = Partitions(why="the device does not say that it can")


class DeviceFailed(NamedTuple):
    """A device host is gone: what ran on it has ended.

    Attributes:
        reason: for people.
        final: no other host will be started, so jobs that wait for the device cannot run.
        culprit: the job that is known to have ended the host, or the only one that it ran; None
            where neither is known.
        unstarted: started jobs of which the host had not been told: the next one is prepared for
            them.
    """

    now_ns: int
    device: int
    reason: str
    final: bool = False
    culprit: JobId | None = None
    unstarted: tuple[JobId, ...] = ()


class SessionOpened(NamedTuple):
    """A client has connected."""

    now_ns: int
    session: SessionId


class SessionClosed(NamedTuple):
    """A client has gone: its jobs end."""

    now_ns: int
    session: SessionId


class JobSubmitted(NamedTuple):
    """A client wants a job run.

    Attributes:
        stream: jobs of one session, device-independent, with the same stream run in order.
        after: jobs that must have ended before; those that are unknown have ended.
        reservation: CapSM; the job is online. At most one of ``reservation`` and ``quota``.
        quota: CapSM; with neither, the job is offline and may have the whole device.
        deadline_ns: absolute, as ``now_ns``; orders waiting online jobs.
        timeout_ns: of running, from its start.
        weight: an offline job's part when capacity is shared among offline jobs.
        exclusive: its reservation is in whole SMs, on which nobody else's blocks are.
        prepared: the device has all that the job needs, which does not change while its host lives.
            If not, `gpud.core.commands.PrepareJob` asks for it when the job's turn has come.
        killable: its kernels look now and then whether they are to end, so that
            `gpud.core.commands.KillJob` ends them wherever they are.
    """

    now_ns: int
    job: JobId
    session: SessionId
    device: int
    launches: tuple[LaunchShape, ...]
    reservation: Fraction | None = None
    quota: Fraction | None = None
    stream: int = 0
    after: tuple[JobId, ...] = ()
    deadline_ns: int | None = None
    timeout_ns: int | None = None
    weight: int = 1
    killable: bool = False
    exclusive: bool = False
    prepared: bool = True


class JobPrepared(NamedTuple):
    """A device has what a job needs, values that its session wrote before it included.

    Answers `gpud.core.commands.PrepareJob`. A host that has failed prepares nothing any more.

    Attributes:
        failed: it cannot have it, by the job's own fault or by that of what it needs (the server
            keeps the error itself).
    """

    now_ns: int
    job: JobId
    failed: bool = False


class ResizeRequested(NamedTuple):
    """A job's owner wants another reservation or quota, exactly one of them.

    Answered by `gpud.core.commands.Confirm` or `gpud.core.commands.Refuse` with its ticket.
    """

    now_ns: int
    ticket: int
    job: JobId
    reservation: Fraction | None = None
    quota: Fraction | None = None


class CancelRequested(NamedTuple):
    """A job's owner, or an administrator, wants it ended. Unknown and ended jobs are ignored."""

    now_ns: int
    job: JobId


class BlocksLeft(NamedTuple):
    """A device says what a job occupies.

    Attributes:
        epoch: of the last `gpud.core.commands.ResizeJob` that the device has carried out.
        held: slices of the job that are occupied or, being launched, will be; released ones count
            until they have left.
        exhausted: every task block is claimed, so ``held`` can only fall.
    """

    now_ns: int
    job: JobId
    epoch: int
    held: int
    exhausted: bool


class JobEnded(NamedTuple):
    """A device says that a job's last block has left and nothing more of it will run.

    Attributes:
        failed: the job failed by its own fault (the server keeps the error itself).
        complete: every task block ran.
    """

    now_ns: int
    job: JobId
    failed: bool
    complete: bool


class TimerFired(NamedTuple):
    """The time of the last `gpud.core.commands.SetTimer` has come."""

    now_ns: int


class DrainRequested(NamedTuple):
    """Accept nothing more; `gpud.core.commands.Drained` when nothing is left.

    Attributes:
        until_ns: absolute; jobs that have not ended then are cancelled.
    """

    now_ns: int
    until_ns: int


Event = (
    DeviceReady
    | DeviceFailed
    | SessionOpened
    | SessionClosed
    | JobSubmitted
    | JobPrepared
    | ResizeRequested
    | CancelRequested
    | BlocksLeft
    | JobEnded
    | TimerFired
    | DrainRequested
)
