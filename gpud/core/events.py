"""Events: the inputs of `gpud.core.scheduler.Scheduler`.

Every event carries ``now_ns``, a monotonic time in nanoseconds, and events arrive in the order of
these times. They are plain data, so that they can be logged and replayed (`gpud.core.replay`).
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
    "FailureSeen",
    "JobEnded",
    "JobPrepared",
    "JobRefused",
    "JobSubmitted",
    "LaneCloseRequested",
    "LaneIdle",
    "LaneWoke",
    "LaunchShape",
    "PauseRequested",
    "ResizeRequested",
    "ResumeRequested",
    "SessionClosed",
    "SessionOpened",
    "TimerFired",
    "TimesChanged",
    "UserChanged",
]


class LaunchShape(NamedTuple):
    """What the scheduler needs to know about one launch of a job.

    Attributes:
        occupancy: M, 1 or more.
        task_blocks: number of blocks in the grid, 1 or more.
        resizable: False for a kernel in form ``whole``.
    """

    occupancy: int
    task_blocks: int
    resizable: bool = True


class DeviceReady(NamedTuple):
    """A device host has started, for the first time or after a failure.

    Attributes:
        device: index of the device.
        sms: S, the capacity of the device in CapSM.
        name: the device as in ``--device``, for messages; by default its index.
        partitions: how many SMs the device can dedicate to single jobs.
    """

    now_ns: int
    device: int
    sms: int
    name: str = ""
    partitions: Partitions = Partitions(why="the device does not say that it can")


class DeviceFailed(NamedTuple):
    """A device host has exited or was killed: nothing runs on the device any more.

    Attributes:
        reason: human-readable.
        final: no new host will be started, so jobs that wait for the device cannot run.
        culprit: the job that is known to have crashed the host, or the only one that ran on it;
            None if neither is known.
        unstarted: jobs whose `gpud.core.commands.StartJob` had not been sent to the host; the next
            host is prepared for them.
    """

    now_ns: int
    device: int
    reason: str
    final: bool = False
    culprit: JobId | None = None
    unstarted: tuple[JobId, ...] = ()


class UserChanged(NamedTuple):
    """What a user may have was said, for the first time or anew. Others have weight 1 and no caps.

    Attributes:
        user: identifies the user.
        name: for messages.
        weight: the user's weight when offline jobs of several users share a device.
        reserve, hold: the most that the user's online jobs, and all its jobs, may have together on
            each device: a number of CapSM or a percentage of the device; None for any share.
    """

    now_ns: int
    user: int
    name: str = ""
    weight: int = 1
    reserve: str | None = None
    hold: str | None = None


class TimesChanged(NamedTuple):
    """The settings of these names were changed by an administrator; see `gpud.core.settings`."""

    now_ns: int
    hold_ns: int
    rebalance_hold_ns: int
    rebalance_limit: int
    grace_ns: int


class SessionOpened(NamedTuple):
    """A client has connected.

    Attributes:
        user: whose it is.
    """

    now_ns: int
    session: SessionId
    user: int = 0


class SessionClosed(NamedTuple):
    """A client has disconnected: its jobs are ended."""

    now_ns: int
    session: SessionId


class JobSubmitted(NamedTuple):
    """A client has submitted a job.

    Attributes:
        stream: jobs of one session that have the same stream run in order, on whatever devices.
        after: jobs that must have ended before this one runs; unknown jobs count as ended.
        reservation: CapSM; makes the job online. At most one of ``reservation`` and ``quota``.
        quota: CapSM; with neither, the job is offline and may have the whole device.
        deadline_ns: absolute, as ``now_ns``; orders waiting online jobs.
        timeout_ns: the longest running time, from the job's start.
        weight: an offline job's weight when capacity is shared among offline jobs.
        exclusive: the reservation is in whole SMs, on which no other job's blocks run.
        prepared: the device already holds all that the job needs, and will until its host is lost.
            If not, `gpud.core.commands.PrepareJob` is issued when the job is unblocked.
        killable: the job's kernels poll a kill flag, so that `gpud.core.commands.KillJob` ends
            their task blocks at any point.
        sticky: it fails if a job before it in its stream has failed, or was cancelled by another
            than its owner, and no `FailureSeen` has come since.
        lane: the job is a lane: it has no launches of its own and stays open until it is closed,
            cancelled, or fails. A launch in it is no event. It is in no stream, and its slices are
            of 1/`gpud.core.capacity.MOST_SLICES` CapSM.
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
    lane: bool = False
    sticky: bool = False


class JobRefused(NamedTuple):
    """A sticky job was refused before it could be submitted: for its stream it has failed."""

    now_ns: int
    job: JobId
    session: SessionId
    stream: int


class FailureSeen(NamedTuple):
    """A client has seen that jobs of a stream have failed, all up to one of them.

    What it submits to the stream from now on runs.
    """

    now_ns: int
    session: SessionId
    stream: int
    job: JobId


class JobPrepared(NamedTuple):
    """A device holds all that a job needs, including values that its session wrote before it.

    Answers `gpud.core.commands.PrepareJob`; not sent for a host that has failed.

    Attributes:
        failed: preparation failed, because of the job or of something that it needs (the server
            keeps the error itself).
    """

    now_ns: int
    job: JobId
    failed: bool = False


class ResizeRequested(NamedTuple):
    """A job's owner requests a new reservation or quota, exactly one of them.

    Answered by `gpud.core.commands.Confirm` or `gpud.core.commands.Refuse` with the same ticket.
    """

    now_ns: int
    ticket: int
    job: JobId
    reservation: Fraction | None = None
    quota: Fraction | None = None


class CancelRequested(NamedTuple):
    """A job's owner or an administrator cancels a job. Unknown and ended jobs are ignored.

    Attributes:
        by_owner: the session that has submitted it cancels it, and so knows what is missing: sticky
            jobs behind it run.
    """

    now_ns: int
    job: JobId
    by_owner: bool = False


class LaneCloseRequested(NamedTuple):
    """A lane's owner closes it: what runs in it is ended, and the lane is done.

    Lanes that have ended, and unknown ones, are ignored.
    """

    now_ns: int
    job: JobId


class LaneIdle(NamedTuple):
    """A device reports that nothing runs in a lane, and nothing has come for the hold time.

    `gpud.core.commands.TakeBackPlan` with this epoch follows if the lane's share is lent.

    Attributes:
        epoch: number of the lane's idle period, from 1, counted by the device.
    """

    now_ns: int
    job: JobId
    epoch: int


class LaneWoke(NamedTuple):
    """A device reports that a launch has come in an idle lane; it runs in the lane's whole share.

    Follows each `LaneIdle`, unless the lane or its device ends first.

    Attributes:
        epoch: number of the idle period that has ended.
        taken: (job, slices) that the device took back by the last plan that it had, if any. Until
            `gpud.core.commands.ResizeJob` says that they are booked, they count as taken from
            whatever the job is resized to.
    """

    now_ns: int
    job: JobId
    epoch: int
    taken: tuple[tuple[JobId, int], ...] = ()


class BlocksLeft(NamedTuple):
    """A device reports how many slices a job occupies.

    Of a lane it is reported only after a `gpud.core.commands.ResizeJob`, and as the blocks leave
    that it released. All slices that launches in it may use count as held, whether any does or not.

    Attributes:
        epoch: of the last `gpud.core.commands.ResizeJob` that the device has executed.
        held: slices that the job's persistent blocks occupy, those being launched included;
            released blocks count until they have left.
        exhausted: every task block is claimed, so ``held`` can only fall.
    """

    now_ns: int
    job: JobId
    epoch: int
    held: int
    exhausted: bool


class JobEnded(NamedTuple):
    """A device reports that a job's last block has left and nothing more of it will run.

    Attributes:
        failed: the job's own code failed (the server keeps the error itself).
        complete: every task block ran.
    """

    now_ns: int
    job: JobId
    failed: bool
    complete: bool


class TimerFired(NamedTuple):
    """The time of the last `gpud.core.commands.SetTimer` has been reached."""

    now_ns: int


class PauseRequested(NamedTuple):
    """An administrator pauses a device: no job is started on it until `ResumeRequested`.

    Of a device that is paused, the latest request holds; it stays paused for whoever was first.

    Attributes:
        by: who, for messages.
        since: when, for messages.
        now: those that run give up what they have, too, as far as they can be resized and have no
            reservation. They keep what they have done.
    """

    now_ns: int
    device: int
    by: str
    since: str
    now: bool = False


class ResumeRequested(NamedTuple):
    """An administrator ends the pause of a device. Ignored if it is not paused."""

    now_ns: int
    device: int


class DrainRequested(NamedTuple):
    """The daemon is shutting down: accept no more jobs.

    `gpud.core.commands.Drained` follows when no job is left. Jobs that have not begun and wait for
    a paused device are cancelled at once, and lanes as soon as they are idle.

    Attributes:
        until_ns: absolute; jobs that have not ended by then are cancelled.
    """

    now_ns: int
    until_ns: int


Event = (
    DeviceReady
    | DeviceFailed
    | UserChanged
    | TimesChanged
    | SessionOpened
    | SessionClosed
    | JobSubmitted
    | JobRefused
    | FailureSeen
    | JobPrepared
    | ResizeRequested
    | CancelRequested
    | LaneCloseRequested
    | LaneIdle
    | LaneWoke
    | BlocksLeft
    | JobEnded
    | TimerFired
    | PauseRequested
    | ResumeRequested
    | DrainRequested
)
