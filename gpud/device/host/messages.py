"""The messages between the front and a device host: commands to the host, events to the front.

They use the codec of the client protocol (`gpud.wire`), over a socket pair between the two
processes. Both run the same version of gpud, so none is negotiated.

A command with a ``ticket`` is answered by exactly one `Replied` or `Refused` with it. `StartRun`
is answered by exactly one `RunEnded`, after the run's last block has left; `ResizeJob` by at least
one `SlicesHeld` of its epoch, unless `RunEnded` comes first. `ResizeJob`, `TakeBackPlan`, `EndJob`
and `KillJob` are the scheduler's own commands (`gpud.core.commands`).
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from gpud.core.commands import EndJob, KillJob, ResizeJob, TakeBackPlan
from gpud.wire.field_types import blob, choice, flag, listed, optional, pair, plain, text, uint
from gpud.wire.message_table import MessageTable, Sender

__all__ = [
    "HOST_PROTOCOL",
    "AddLaunchSite",
    "CancelLaneLaunch",
    "ClearZone",
    "CloseArena",
    "Commit",
    "DownloadRange",
    "EndJob",
    "ExportMemory",
    "HostLaunch",
    "HostReady",
    "KillJob",
    "LaneLaunchEnded",
    "LaneLent",
    "LaneTookBack",
    "LendZone",
    "LoadModule",
    "Log",
    "MeasureKernel",
    "OpenArena",
    "Ping",
    "ReadProgress",
    "ReadVariable",
    "Refused",
    "Release",
    "Replied",
    "ResizeJob",
    "RunEnded",
    "Shrink",
    "SlicesHeld",
    "StartLane",
    "StartRun",
    "TakeBackPlan",
    "UnloadModule",
    "UploadRange",
    "WriteVariable",
]

HOST_PROTOCOL = MessageTable("host", 1)
_front = HOST_PROTOCOL.message(Sender.CLIENT)
_host = HOST_PROTOCOL.message(Sender.DAEMON)

Ticket = Annotated[int, uint(32), "chosen by the front; the answer carries it"]
Module = Annotated[int, uint(32), "chosen by the front; unique among all sessions"]
Job = Annotated[int, uint(64), "`gpud.units.JobId`"]
Session = Annotated[int, uint(32), "`gpud.units.SessionId`"]
Dim3 = Annotated[tuple[int, int, int], listed(uint(32), 3, 3), "x, y, z"]


@HOST_PROTOCOL.record()
class HostLaunch(NamedTuple):
    """One launch of a job; `MeasureKernel` was sent before for its kernel and block shape."""

    module: Module
    entry: Annotated[str, text(4096), "the kernel's name in the PTX"]
    form: Annotated[str, choice("persistent", "sliced", "whole"), "for this block shape"]
    grid: Dim3
    block: Dim3
    shared: Annotated[int, uint(32), "dynamic shared memory of a block, in bytes"]
    occupancy: Annotated[int, uint(16), "M of this launch, as `MeasureKernel` replied"]
    # Last, so that launches that differ in it alone begin alike: see `gpud.wire.beginnings`.
    parameters: Annotated[bytes, blob(1 << 16), "the buffer, without the hidden parameter"]


# -- commands --------------------------------------------------------------------------------------


@_front(1)
class OpenArena(NamedTuple):
    """Map a session's memory; the descriptor of its file comes with the message.

    Replies the device address of its first byte: ``base`` if that is not 0.
    """

    ticket: Ticket
    session: Session
    base: Annotated[int, uint(64), "device address that it must have; 0: the device chooses"]
    size: Annotated[int, uint(64), "bytes, a power of two"]


@_front(2)
class CloseArena(NamedTuple):
    """Unmap a session's memory and unload its modules. All its jobs have ended before."""

    session: Session


@_front(3)
class LoadModule(NamedTuple):
    """Load rewritten PTX. Replies nil."""

    ticket: Ticket
    module: Module
    session: Session
    ptx: Annotated[str, text(1 << 26), "the rewritten program"]
    variables: Annotated[
        tuple[int, int] | None,
        optional(pair(uint(64), uint(64))),
        "address and size of its variables in the arena; nil: they are its own",
    ] = None


@_front(4)
class UnloadModule(NamedTuple):
    """Unload a module. All jobs that use it have ended before."""

    module: Module


@_front(5)
class MeasureKernel(NamedTuple):
    """Compile a kernel for a block shape. Replies M, 1 or more; refused if no block fits an SM."""

    ticket: Ticket
    module: Module
    entry: Annotated[str, text(4096), "the kernel's name in the PTX"]
    block: Dim3
    shared: Annotated[int, uint(32), "dynamic shared memory of a block, in bytes"]


@_front(6)
class StartRun(NamedTuple):
    """Start to run a job's sequence, with ``slices`` slices of 1/``occupancy`` CapSM.

    Launch k of the sequence has ``slices * occupancy_k // occupancy`` persistent blocks, where
    occupancy_k is the M of launch k; the job's ``occupancy`` is the least of these.
    """

    job: Job
    session: Session
    launches: Annotated[
        bytes,
        blob(1 << 25),
        "one or more `HostLaunch`, as `MessageTable.encode_records` encodes them; the host keeps "
        "the prepared sequence by these bytes",
    ]
    occupancy: Annotated[int, uint(16), "M of the job"]
    slices: Annotated[int, uint(32), "its slices at the start"]
    epoch: Annotated[int, uint(32), "0 for the start, one more with each `ResizeJob`"]
    online: Annotated[bool, flag(), "its blocks start before those of offline jobs"]
    exclusive: Annotated[int, uint(16), "whole SMs reserved for it alone; 0: none"] = 0
    quota: Annotated[int, uint(32), "slices whose work it may do at most; 0: no limit"] = 0


_front(7)(ResizeJob)
_front(8)(EndJob)
_front(12)(KillJob)
_front(18)(TakeBackPlan)


@_front(9)
class ReadProgress(NamedTuple):
    """Replies [job, done, total, first_block_ns, release_ns] for each job that has not ended.

    The fields are those of `RunEnded`.
    """

    ticket: Ticket
    jobs: Annotated[tuple[int, ...], listed(uint(64), 0, 1 << 20), "the jobs asked for"]


@_front(10)
class ReadVariable(NamedTuple):
    """Read bytes of a module variable. Replies them."""

    ticket: Ticket
    module: Module
    name: Annotated[str, text(4096), "the variable"]
    offset: Annotated[int, uint(63), "in bytes"]
    size: Annotated[int, uint(63), "in bytes"]


@_front(11)
class WriteVariable(NamedTuple):
    """Write bytes of a module variable. Replies nil."""

    ticket: Ticket
    module: Module
    name: Annotated[str, text(4096), "the variable"]
    offset: Annotated[int, uint(63), "in bytes"]
    data: Annotated[bytes, blob(1 << 24), "the bytes to write"]


@_front(17)
class Ping(NamedTuple):
    """Check that the thread that maps memory still works through its queue. Replies nil."""

    ticket: Ticket


Offset = Annotated[int, uint(63), "of the first byte, from the start of the arena"]
Size = Annotated[int, uint(63, least=1), "in bytes"]


@_front(13)
class Commit(NamedTuple):
    """Back a part of an arena with memory, on a device that copies arrays. Replies nil.

    For each session, this and the next three commands are executed in order.
    """

    ticket: Ticket
    session: Session
    offset: Offset
    size: Size
    from_file: Annotated[bool, flag(), "fill it from the session's file; else with zeroes"]
    shrinks: Annotated[bool, flag(), "a `Shrink` will follow: use small allocations"] = False


@_front(14)
class Release(NamedTuple):
    """Undo a `Commit` of the same part. Replies nil. All jobs that could use it have ended."""

    ticket: Ticket
    session: Session
    offset: Offset
    size: Size


@_front(33)
class Shrink(NamedTuple):
    """Undo a part of a `Commit` of the same part: of all but its first bytes. Replies nil."""

    ticket: Ticket
    session: Session
    offset: Offset
    size: Size
    kept: Annotated[int, uint(63, least=1), "bytes that stay"]


@_front(15)
class UploadRange(NamedTuple):
    """Copy from the file to the device; the part is committed. Replies nil."""

    ticket: Ticket
    session: Session
    offset: Offset
    size: Size


@_front(16)
class DownloadRange(NamedTuple):
    """Copy from the device to the file; the part is committed. Replies nil."""

    ticket: Ticket
    session: Session
    offset: Offset
    size: Size
    moves: Annotated[
        bool, flag(), "the same part, whole pages, will be committed from there, and copied again"
    ] = False


@_front(32)
class ExportMemory(NamedTuple):
    """Have a client map memory of its arena; the part is committed. Replies nil.

    A descriptor of a socket comes with the message; on it goes what
    `gpud.wire.messages.arrays.ArrayExported` says.
    """

    ticket: Ticket
    session: Session
    offset: Offset
    size: Size


@_front(20)
class StartLane(NamedTuple):
    """Open a lane, with ``slices`` slices; the descriptor of its ring comes with the message.

    To all that follows it is a job: `ResizeJob`, `EndJob`, `KillJob`, and `RunEnded` at its end.
    """

    job: Job
    session: Session
    occupancy: Annotated[int, uint(16), "its slices are 1/occupancy of an SM"]
    slices: Annotated[int, uint(32), "its slices at the start"]
    epoch: Annotated[int, uint(32), "as in `StartRun`"]
    online: Annotated[bool, flag(), "its blocks start before those of offline jobs"]
    exclusive: Annotated[int, uint(16), "whole SMs reserved for it alone; 0: none"] = 0
    quota: Annotated[int, uint(32), "slices whose work it may do at most; 0: no limit"] = 0


@_front(21)
class AddLaunchSite(NamedTuple):
    """Make a launch site of a lane. Replies its number."""

    ticket: Ticket
    job: Job
    module: Module
    entry: Annotated[str, text(4096), "the kernel's name in the PTX"]
    form: Annotated[str, choice("persistent", "sliced", "whole"), "for this block shape"]
    block: Dim3
    shared: Annotated[int, uint(32), "dynamic shared memory of a block, in bytes"]
    occupancy: Annotated[int, uint(16), "M, as `MeasureKernel` replied"]
    replaces: Annotated[
        int | None, optional(uint(32)), "the launch site whose number it takes; nil: a new one"
    ] = None


@_front(22)
class CancelLaneLaunch(NamedTuple):
    """Cancel a launch of a lane, unless it has ended."""

    job: Job
    launch: Annotated[int, uint(32), "its number in the lane"]


@_front(30)
class LendZone(NamedTuple):
    """Have a program map the device's temporary zone, which reads as zero.

    A descriptor of a socket comes with the message; the zone's own is sent on it with its size in
    bytes, eight bytes in the machine's order.
    """

    ticket: Ticket
    size: Annotated[
        int, uint(63, least=1), "bytes that the zone is to have; it gets whole granules"
    ]


@_front(31)
class ClearZone(NamedTuple):
    """Zero the temporary zone, which no program has mapped any more."""

    ticket: Ticket
    free: Annotated[bool, flag(), "give its memory back instead"]


# -- events ----------------------------------------------------------------------------------------


@_host(64)
class HostReady(NamedTuple):
    """The device is ready. The first event of a host."""

    name: Annotated[str, text(256), "the device's name, for messages"]
    kind: Annotated[str, text(16), '"cpu" or "cuda"']
    sms: Annotated[int, uint(16), "its capacity"]
    capability: Annotated[int, uint(16), "compute capability times ten"]
    memory_bytes: Annotated[int, uint(64), "for arrays"]
    arrays: Annotated[
        str,
        choice("shared", "copied"),
        "where kernels see arrays: in the sessions' files themselves, or in a copy on the device",
    ] = "shared"
    uuid: Annotated[str, text(64), "of a GPU, in the form that NVML accepts"] = ""
    partition_step: Annotated[
        int, uint(16), "whole SMs can be reserved for one job in multiples of this; 0: they cannot"
    ] = 0
    partition_most: Annotated[int, uint(16), "SMs that can be reserved for jobs, in total"] = 0
    partition_why: Annotated[str, text(1024), "why no SM can be reserved, for messages"] = ""


@_host(65)
class Replied(NamedTuple):
    """A command with a ticket is done."""

    ticket: Ticket
    value: Annotated[Any, plain(), "what the command replies"] = None


@_host(66)
class Refused(NamedTuple):
    """A command with a ticket failed."""

    ticket: Ticket
    error: Annotated[dict[str, Any], plain(), "`gpud.errors.GpudError.to_wire`"]


@_host(67)
class SlicesHeld(NamedTuple):
    """What a job occupies. Sent after each `ResizeJob`, and when persistent blocks have left."""

    job: Job
    epoch: Annotated[int, uint(32), "of the last `ResizeJob` that the host has carried out"]
    held: Annotated[
        int,
        uint(32),
        "slices of 1/occupancy that the job's blocks occupy or, being launched, will occupy; "
        "released blocks count until they have left; rounded up",
    ]
    exhausted: Annotated[
        bool, flag(), "every task block of the last launch is claimed: `held` can only fall"
    ]


@_host(68)
class RunEnded(NamedTuple):
    """A job's last block has left and nothing more of it will run."""

    job: Job
    error: Annotated[dict[str, Any] | None, plain(), "nil if it ran to its end or was ended"]
    complete: Annotated[bool, flag(), "every task block is done"]
    output: Annotated[bytes, blob(1 << 24), "what its kernels printed"]
    done: Annotated[int, uint(63), "task blocks done"]
    total: Annotated[int, uint(63), "task blocks in all"]
    first_block_ns: Annotated[
        int, uint(63), "time from `StartRun` to its first task block, 0 if unknown"
    ]
    release_ns: Annotated[
        int, uint(63), "its longest release, until the last block had left; 0 without releases"
    ]
    ways: Annotated[
        dict[str, Any] | None,
        plain(),
        "how often its launches were queued in which way, and why; nil: the device has one way",
    ] = None


@_host(70)
class LaneLent(NamedTuple):
    """Nothing runs in a lane, and nothing has come for the hold time."""

    job: Annotated[int, uint(64), "the lane"]
    epoch: Annotated[int, uint(32), "how often it has been idle"]


@_host(71)
class LaneTookBack(NamedTuple):
    """A launch has come in an idle lane. One follows each `LaneLent`, unless the lane ends."""

    job: Annotated[int, uint(64), "the lane"]
    epoch: Annotated[int, uint(32), "as in the `LaneLent` before"]
    taken: Annotated[
        tuple[tuple[int, int], ...],
        listed(pair(uint(64), uint(32)), 0, 1 << 16),
        "[job, slices] that were taken back, by the last `TakeBackPlan` of this epoch",
    ]


@_host(74)
class LaneLaunchEnded(NamedTuple):
    """The end of a lane's launch that failed, was cancelled, or has output."""

    job: Job
    launch: Annotated[int, uint(32), "its number in the lane"]
    site: Annotated[int, uint(32), "its launch site"]
    state: Annotated[str, choice("done", "failed", "cancelled"), "how it ended"]
    error: Annotated[dict[str, Any] | None, plain(), "`gpud.errors.GpudError.to_wire`"]
    output: Annotated[bytes, blob(1 << 24), "what its kernel printed"]
    done: Annotated[int, uint(63), "task blocks done"]
    total: Annotated[int, uint(63), "task blocks in all"]


@_host(69)
class Log(NamedTuple):
    """A line for the daemon's log."""

    level: Annotated[int, uint(8), "as in Python's logging"]
    text: Annotated[str, text(1 << 16), "one line"]
