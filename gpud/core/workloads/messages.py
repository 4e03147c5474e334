"""Events and commands of the workload manager."""

from __future__ import annotations

from typing import NamedTuple

from gpud.core.workloads.zones import Need, Region

__all__ = [
    "Admit", "Asked", "Clear", "Cleared", "Closed", "Command", "Ended", "Event", "Evict",
    "Evicted", "Fit", "Fitted", "Grant", "Grow", "GrowAsked", "Idled", "MemoryChanged", "Opened",
    "Overstay", "Paused", "Recall", "Refuse", "RefuseGrowth", "Restore", "Restored", "Tick", "Zone",
]  # fmt: skip


# -- events: what has happened, each with the time in nanoseconds ---------------------------------


class Opened(NamedTuple):
    """A workload asks to be admitted.

    Attributes:
        workload: its number, unique in the daemon.
        need: in bytes; None: not known, so that it gets half of what can be had for each kind, and
            a device where that is most, until `Fitted`.
        weight: the length of its turns beside those of others, 1 or more.
        device: on which; None: the manager chooses.
        movable: whether its region may be in host memory while others have their turns; not
            without ``need``.
    """

    now_ns: int
    workload: int
    need: Need | None
    weight: int
    device: int | None
    movable: bool = False


class Asked(NamedTuple):
    """A workload wants to begin an iteration."""

    now_ns: int
    workload: int


class Ended(NamedTuple):
    """A workload's iteration has ended, and nothing uses its temporary memory any more.

    Attributes:
        workload: its number.
        idle_ns: how long ago it ended, as the workload says.
    """

    now_ns: int
    workload: int
    idle_ns: int = 0


class Idled(NamedTuple):
    """A workload that goes on without asking seems to be between two iterations for too long.

    To be reported, rightly or not, when it has run nothing for the time that a turn waits for the
    next iteration: it is asked for its turn then, if others wait.
    """

    now_ns: int
    workload: int


class Cleared(NamedTuple):
    """A `Clear` was carried out."""

    now_ns: int
    workload: int


class Evicted(NamedTuple):
    """An `Evict` was carried out: the region is in host memory, and its device memory free."""

    now_ns: int
    workload: int


class Restored(NamedTuple):
    """A `Restore` was carried out: the region is on the device, as it was."""

    now_ns: int
    workload: int


class GrowAsked(NamedTuple):
    """A workload wants ``size`` bytes of persistent memory in all."""

    now_ns: int
    workload: int
    size: int


class Fitted(NamedTuple):
    """A workload has found out what it needs, which is no more than it has."""

    now_ns: int
    workload: int
    need: Need


class Closed(NamedTuple):
    """A workload has ended, by itself or with its session. All of its memory was cleared."""

    now_ns: int
    workload: int


class MemoryChanged(NamedTuple):
    """The bytes of each device's memory that are in use outside of the zones."""

    now_ns: int
    other_bytes: tuple[int, ...]


class Paused(NamedTuple):
    """A device is paused, or goes on: while it is paused no iteration begins on it."""

    now_ns: int
    device: int
    on: bool


class Tick(NamedTuple):
    """The time that `WorkloadManager.timer_ns` returned has come."""

    now_ns: int


Event = (
    Opened | Asked | Ended | Idled | Cleared | Evicted | Restored | GrowAsked | Fitted | Closed
    | MemoryChanged | Paused | Tick
)  # fmt: skip


# -- commands: what is to be done -----------------------------------------------------------------


class Admit(NamedTuple):
    """A workload has its place.

    Attributes:
        device: on which.
        region: its persistent memory; a movable one's is somewhere in the common region, or away.
        temporary: the bytes of temporary memory that it may use in its turns.
        reason: why this device, for people.
        away: whether the region, which is empty, is not on the device.
    """

    workload: int
    device: int
    region: Region
    temporary: int
    reason: str
    away: bool = False


class Refuse(NamedTuple):
    """A workload cannot ever be admitted: no device is large enough.

    Attributes:
        needed_bytes: of both zones together.
        most_bytes: of the largest device that it could be on.
    """

    workload: int
    needed_bytes: int
    most_bytes: int


class Zone(NamedTuple):
    """What all workloads of a device share has another size now.

    Attributes:
        size: bytes of the temporary zone and of the common region for movable ones.
    """

    device: int
    size: int


class Grant(NamedTuple):
    """A workload begins an iteration.

    Attributes:
        begins_turn: whether its turn begins with it, so that it has new temporary memory.
        standing: whether it may go on with further iterations, without asking, until `Recall`.
        alone: whether its device has no other workload, so that it is left alone.
    """

    workload: int
    begins_turn: bool
    standing: bool
    alone: bool


class Recall(NamedTuple):
    """A workload is to report the end of the iteration under way, at once if there is none.

    It is not alone on its device any more, or its time slice is over and others wait.
    """

    workload: int


class Clear(NamedTuple):
    """A turn is over: clear the workload's temporary memory, then report `Cleared`."""

    workload: int


class Evict(NamedTuple):
    """Move a region to host memory, free its device memory, then report `Evicted`."""

    workload: int


class Restore(NamedTuple):
    """Move a region back to the device, to the addresses that it had, then report `Restored`.

    Attributes:
        region: where it is counted now.
    """

    workload: int
    region: Region


class Fit(NamedTuple):
    """A workload has only what it needs now.

    Attributes:
        region: its persistent memory.
        temporary: the bytes of its temporary memory.
    """

    workload: int
    region: Region
    temporary: int


class Grow(NamedTuple):
    """A region has grown at its place."""

    workload: int
    region: Region


class RefuseGrowth(NamedTuple):
    """A region cannot grow so far.

    Attributes:
        asked_bytes: the persistent memory that was asked for.
        most_bytes: the most persistent memory that it can have at its place.
    """

    workload: int
    asked_bytes: int
    most_bytes: int


class Overstay(NamedTuple):
    """An iteration lasts too long while others wait.

    Attributes:
        began_ns: when it began.
        waiting: how many wait.
    """

    workload: int
    began_ns: int
    waiting: int


Command = (
    Admit | Refuse | Zone | Grant | Recall | Clear | Evict | Restore | Fit | Grow | RefuseGrowth
    | Overstay
)  # fmt: skip
