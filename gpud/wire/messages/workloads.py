"""Messages about workloads, which take turns with a device's memory."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from gpud.wire.field_types import flag, optional, text, uint
from gpud.wire.messages.protocol import Device, Request, Workload, from_client, from_daemon

__all__ = [
    "BeginIteration",
    "CloseWorkload",
    "EndIteration",
    "FitWorkload",
    "GrowWorkload",
    "MoveRegion",
    "OpenWorkload",
    "RegionMoved",
    "TurnRecalled",
    "WorkloadOpened",
    "ZoneLent",
]


@from_client(30)
class OpenWorkload(NamedTuple):
    """Ask for memory for a workload; answered by `WorkloadOpened`, when there is room for it.

    Refused if no device can ever hold it. A workload that does not know what it needs gets half of
    what is left for each kind, and is to say with `FitWorkload` what it needs of that.
    """

    request: Request
    device: Annotated[
        int | None, optional(uint(8)), "index of the device in `Welcome`; nil: the daemon chooses"
    ]
    persistent: Annotated[
        int | None, optional(uint(63, least=1)), "bytes that live across iterations; nil: not known"
    ]
    temporary: Annotated[int, uint(63), "bytes that live within an iteration, at most"]
    offset: Annotated[int, uint(63), "bytes by which the persistent memory may grow"]
    weight: Annotated[int, uint(16, least=1, most=1000), "the length of its turns beside others'"]
    mapped: Annotated[
        bool,
        flag(),
        "the program has a context of its own on the GPU and maps its memory itself: sizes are "
        "counted, addresses are 0, and `ZoneLent` comes with each turn; `device` is not nil",
    ] = False
    movable: Annotated[
        bool, flag(), "its persistent memory may be in host memory between its turns"
    ] = False


@from_daemon(81)
class WorkloadOpened(NamedTuple):
    """A workload has its memory; `Arena` comes before if it is the session's first there."""

    request: Request
    workload: Annotated[int, uint(32), "the workload's number, unique in the daemon"]
    device: Device
    persistent: Annotated[int, uint(64), "device address of its persistent memory"]
    persistent_bytes: Annotated[int, uint(63), "its size, in whole pages"]
    temporary: Annotated[int, uint(64), "device address of its temporary memory; 0: none"]
    temporary_bytes: Annotated[int, uint(63), "its size, in whole pages"]
    reason: Annotated[str, text(4096), "why this device"]


@from_client(31)
class BeginIteration(NamedTuple):
    """Wait for a workload's turn; answered by `Answer`, which holds a map.

    "new": whether a turn begins with this iteration, so that its temporary memory is all zeroes;
    "standing": whether the workload may end this iteration and begin further ones without saying
    so, until `TurnRecalled`; "alone": whether the device has no other workload, so that nothing is
    cleared between its iterations.
    """

    request: Request
    workload: Workload


@from_daemon(84)
class ZoneLent(NamedTuple):
    """A program may map temporary memory itself; sent before the `Answer` to `BeginIteration`.

    A descriptor of a socket comes with the message. On it lies a message of eight bytes, the size
    of the memory in the machine's order, with a descriptor that the driver imports. The program
    unmaps the memory and releases it before it sends `EndIteration`.
    """

    workload: Workload


@from_daemon(82)
class TurnRecalled(NamedTuple):
    """Others want the device: the workload sends `EndIteration` at the end of its iteration.

    If it is in none it does so at once.
    """

    workload: Workload


@from_client(32)
class EndIteration(NamedTuple):
    """End an iteration once the jobs that were submitted before have ended. Not answered.

    A refusal is sent as `Failed` with request 0.
    """

    workload: Workload
    iterations: Annotated[
        int, uint(32, least=1), "how many there were: more than one if the turn was standing"
    ] = 1
    idle_ns: Annotated[int, uint(63), "how long ago the last of them ended"] = 0


@from_client(33)
class GrowWorkload(NamedTuple):
    """Grow a workload's persistent memory at its place; `Answer` holds its size then, in bytes."""

    request: Request
    workload: Workload
    size: Annotated[int, uint(63, least=1), "bytes in all"]


@from_client(35)
class FitWorkload(NamedTuple):
    """Say what a workload needs that did not know it: the rest is given back. Not answered."""

    workload: Workload
    persistent: Annotated[int, uint(63, least=1), "bytes that live across iterations"]
    temporary: Annotated[int, uint(63), "bytes that live within an iteration, at most"]
    offset: Annotated[int, uint(63), "bytes by which it may grow; less if there is not as much"]


@from_daemon(85)
class MoveRegion(NamedTuple):
    """A movable workload whose program maps its memory itself is to move what it keeps.

    It is in no iteration. The program answers with `RegionMoved`, also where there is nothing to
    move. Its next iteration begins when what it keeps is on the GPU.
    """

    workload: Workload
    away: Annotated[
        bool,
        flag(),
        "true: copy it to the machine's memory, and give the GPU's memory back; false: have memory "
        "of the GPU at the same addresses again, and copy it there",
    ]


@from_client(36)
class RegionMoved(NamedTuple):
    """A `MoveRegion` was carried out, or failed. Not answered.

    After a failure the workload is ended. A refusal is sent as `Failed` with request 0.
    """

    workload: Workload
    size: Annotated[int, uint(63), "bytes that were copied"]
    error: Annotated[str, text(1024), "why it failed, for people; empty: it did not"] = ""


@from_client(34)
class CloseWorkload(NamedTuple):
    """End a workload once the jobs that were submitted before have ended, and clear its memory.

    Answered by `Answer` when that is done. Users end their own workloads, root and the daemon's
    user those of all.
    """

    request: Annotated[int, uint(32), "the reply carries it; 0: no reply is wanted"]
    workload: Workload
