"""Messages about lanes, whose launches themselves are in shared memory (`gpud.wire.lane_ring`)."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from gpud.wire.field_types import blob, choice, flag, optional, pair, plain, uint
from gpud.wire.messages.protocol import (
    Amount,
    Device,
    Dim3,
    Module,
    Request,
    from_client,
    from_daemon,
)

__all__ = ["CancelLaunch", "CloseLane", "LaneOpened", "LaunchEnded", "OpenLane", "PrepareLaunch"]


@from_client(20)
class OpenLane(NamedTuple):
    """Open a lane: a job that stays open, whose launches are in shared memory.

    Answered by `LaneOpened` when it has its share, or by `Finished` if it never has.
    """

    number: Annotated[int, uint(32, least=1), "of the lane, which is a job: as in `Submit`"]
    device: Device
    reservation: Amount = None
    quota: Amount = None
    weight: Annotated[
        int, uint(16, least=1, most=1000), "an offline lane's weight when capacity is shared"
    ] = 1
    deadline_ns: Annotated[
        int | None, optional(uint(63)), "from now; orders online jobs that wait for their share"
    ] = None
    exclusive: Annotated[
        bool, flag(), "online: the reservation is in whole SMs, on which no other job runs"
    ] = False


@from_daemon(75)
class LaneOpened(NamedTuple):
    """A lane is open. The descriptor of its ring's file comes with the message."""

    number: Annotated[int, uint(32), "of the lane"]
    size: Annotated[int, uint(32), "of the file in bytes; see `gpud.wire.lane_ring`"]


@from_client(21)
class PrepareLaunch(NamedTuple):
    """Make a launch site of a lane: a kernel with a block shape, which was measured before.

    `Answer` holds its number, for launch records; it may wait for the lane's present launch. A lane
    has as many as `gpud.wire.lane_ring` says: then one that is used no more is replaced. A kernel
    that no lane can launch is refused with the error `LaneRefused`, and is submitted as a job.
    """

    request: Request
    lane: Annotated[int, uint(32), "the lane's number"]
    module: Module
    kernel: Annotated[int, uint(16), "index of the kernel in `Compiled`"]
    block: Dim3
    shared: Annotated[int, uint(32), "dynamic shared memory of a block, in bytes"]
    replaces: Annotated[
        int | None,
        optional(uint(32)),
        "a launch site of the lane, of which no launch is under way, whose number this one takes; "
        "nil: it gets a new number",
    ] = None


@from_client(22)
class CancelLaunch(NamedTuple):
    """Cancel a launch of a lane. Not answered; its completion follows as usual."""

    lane: Annotated[int, uint(32), "the lane's number"]
    launch: Annotated[int, uint(32), "the launch's number in the lane"]


@from_daemon(76)
class LaunchEnded(NamedTuple):
    """More about the end of a launch of a lane; sent before a completion that refers to it."""

    lane: Annotated[int, uint(32), "the lane's number"]
    launch: Annotated[int, uint(32), "the launch's number in the lane"]
    state: Annotated[str, choice("done", "failed", "cancelled"), "how it ended"]
    error: Annotated[dict[str, Any] | None, plain(), "nil if it has not failed"]
    output: Annotated[bytes, blob(1 << 24), "the printf output of its kernel"]
    progress: Annotated[tuple[int, int], pair(uint(63), uint(63)), "task blocks: done, total"]


@from_client(23)
class CloseLane(NamedTuple):
    """Close a lane; launches that have not ended are cancelled. Answered by `Finished`."""

    lane: Annotated[int, uint(32), "the lane's number"]
