"""The link between the front and a device host: commands down, events up, declared once.

The same codec as the client protocol's (`gpud.wire`), over a socket pair that only the two
processes have. Both are gpud of one version, so there is no version to agree on.

A command with a ``ticket`` is answered by exactly one `Replied` or `Refused` with it. `StartJob`
is answered by exactly one `JobEnded`, after the job's last block has left; `ResizeJob` by at least
one `BlocksLeft` of its epoch, unless `JobEnded` comes first.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from gpud.wire.field_types import blob, choice, flag, listed, plain, text, uint
from gpud.wire.message_table import MessageTable, Sender

__all__ = [
    "HOST_PROTOCOL",
    "BlocksLeft",
    "CloseArena",
    "Commit",
    "Download",
    "EndJob",
    "HostReady",
    "JobEnded",
    "KillJob",
    "Launch",
    "Load",
    "Log",
    "Measure",
    "OpenArena",
    "Ping",
    "ReadProgress",
    "ReadSymbol",
    "Refused",
    "Release",
    "Replied",
    "ResizeJob",
    "StartJob",
    "Unload",
    "Upload",
    "WriteSymbol",
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
class Launch(NamedTuple):
    """One launch of a job, whose kernel was measured for this block shape on this host."""

    module: Module
    entry: Annotated[str, text(4096), "the kernel's name in the PTX"]
    form: Annotated[str, choice("persistent", "sliced", "whole"), "for this block shape"]
    grid: Dim3
    block: Dim3
    shared: Annotated[int, uint(32), "dynamic shared memory of a block, in bytes"]
    parameters: Annotated[bytes, blob(1 << 16), "the buffer as the kernel was before rewriting"]
    occupancy: Annotated[int, uint(16), "M of this launch, as `Measure` replied"]


# -- commands --------------------------------------------------------------------------------------


@_front(1)
class OpenArena(NamedTuple):
    """Map a session's memory; comes with the descriptor of its file.

    Replies the device address of its first byte: ``base`` if that is not 0.
    """

    ticket: Ticket
    session: Session
    base: Annotated[int, uint(64), "where it must lie; 0: the device chooses"]
    size: Annotated[int, uint(64), "bytes, a power of two"]


@_front(2)
class CloseArena(NamedTuple):
    """Unmap a session's memory and unload its modules. No job of the session is left."""

    session: Session


@_front(3)
class Load(NamedTuple):
    """Load rewritten PTX. Replies nil."""

    ticket: Ticket
    module: Module
    session: Session
    ptx: Annotated[str, text(1 << 26), "the rewritten program"]


@_front(4)
class Unload(NamedTuple):
    """Forget a module. No job of it is left."""

    module: Module


@_front(5)
class Measure(NamedTuple):
    """Compile a kernel for a block shape. Replies M, 1 or more; refuses if none fits."""

    ticket: Ticket
    module: Module
    entry: Annotated[str, text(4096), "the kernel's name in the PTX"]
    block: Dim3
    shared: Annotated[int, uint(32), "dynamic shared memory of a block, in bytes"]


@_front(6)
class StartJob(NamedTuple):
    """Start a job with ``slices`` slices of 1/``occupancy`` CapSM.

    Launch k of the chain has ``slices * occupancy_k // occupancy`` persistent blocks, where
    occupancy_k is its own M; the job's ``occupancy`` is the least of these.
    """

    job: Job
    session: Session
    launches: Annotated[
        bytes,
        blob(1 << 25),
        "one or more `Launch`, as `MessageTable.encode_records` has them; what the host has ready "
        "for some bytes it keeps for the same bytes",
    ]
    occupancy: Annotated[int, uint(16), "M of the job"]
    slices: Annotated[int, uint(32), "what it has now"]
    epoch: Annotated[int, uint(32), "0 for the start, one more with each `ResizeJob`"]
    online: Annotated[bool, flag(), "its blocks start before those of offline jobs"]
    exclusive: Annotated[int, uint(16), "so many whole SMs are its own, 0: none"] = 0


@_front(7)
class ResizeJob(NamedTuple):
    """Give a running job another number of slices; 0 stops it where it is."""

    job: Job
    slices: Annotated[int, uint(32), "from now on"]
    epoch: Annotated[int, uint(32), "see `StartJob`"]


@_front(8)
class EndJob(NamedTuple):
    """Release all blocks of a job and run no more of it; `JobEnded` follows when they have left."""

    job: Job


@_front(9)
class ReadProgress(NamedTuple):
    """Replies [job, done, total, first_block_ns, release_ns], as `JobEnded`, for each job there."""

    ticket: Ticket
    jobs: Annotated[tuple[int, ...], listed(uint(64), 0, 1 << 20), "which"]


@_front(10)
class ReadSymbol(NamedTuple):
    """Replies bytes of a module variable."""

    ticket: Ticket
    module: Module
    name: Annotated[str, text(4096), "the variable"]
    offset: Annotated[int, uint(63), "in bytes"]
    size: Annotated[int, uint(63), "in bytes"]


@_front(11)
class WriteSymbol(NamedTuple):
    """Writes bytes of a module variable. Replies nil."""

    ticket: Ticket
    module: Module
    name: Annotated[str, text(4096), "the variable"]
    offset: Annotated[int, uint(63), "in bytes"]
    data: Annotated[bytes, blob(1 << 24), "what to write"]


@_front(12)
class KillJob(NamedTuple):
    """End a job's blocks where they poll, in the middle of a task block; `JobEnded` follows.

    Only the loops of entries that were compiled with kill polls do that: others go on.
    """

    job: Job


@_front(17)
class Ping(NamedTuple):
    """Replies nil, from the thread that maps memory, as soon as that comes to it."""

    ticket: Ticket


Offset = Annotated[int, uint(63), "of the first byte, from the arena's"]
Size = Annotated[int, uint(63, least=1), "in bytes"]


@_front(13)
class Commit(NamedTuple):
    """Have memory behind a part of an arena, where arrays are copied. Replies nil.

    This and what follows are carried out in their order, for each session.
    """

    ticket: Ticket
    session: Session
    offset: Offset
    size: Size
    from_file: Annotated[bool, flag(), "begin with what the file has there; else with zeroes"]


@_front(14)
class Release(NamedTuple):
    """Undo a `Commit` of the same part. Replies nil. No job that could use it is left."""

    ticket: Ticket
    session: Session
    offset: Offset
    size: Size


@_front(15)
class Upload(NamedTuple):
    """Copy from the file to the device; the part is committed. Replies nil."""

    ticket: Ticket
    session: Session
    offset: Offset
    size: Size


@_front(16)
class Download(NamedTuple):
    """Copy from the device to the file; the part is committed. Replies nil."""

    ticket: Ticket
    session: Session
    offset: Offset
    size: Size


# -- events ----------------------------------------------------------------------------------------


@_host(64)
class HostReady(NamedTuple):
    """The device is there. The first event of a host."""

    name: Annotated[str, text(256), "for people"]
    kind: Annotated[str, text(16), '"cpu" or "cuda"']
    sms: Annotated[int, uint(16), "its capacity"]
    capability: Annotated[int, uint(16), "compute capability times ten"]
    memory_bytes: Annotated[int, uint(64), "for arrays"]
    arrays: Annotated[
        str,
        choice("shared", "copied"),
        "where they lie: in the sessions' files themselves, or in memory of the device's own",
    ] = "shared"
    uuid: Annotated[str, text(64), "of a GPU, as NVML takes it"] = ""
    partition_step: Annotated[
        int, uint(16), "whole SMs can be one job's own in multiples of so many; 0: they cannot"
    ] = 0
    partition_most: Annotated[int, uint(16), "SMs that can be jobs' own, all together"] = 0
    partition_why: Annotated[str, text(1024), "why they cannot, for people"] = ""


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
class BlocksLeft(NamedTuple):
    """What a job occupies. Sent after each `ResizeJob`, and when persistent blocks have left."""

    job: Job
    epoch: Annotated[int, uint(32), "of the last `ResizeJob` that the host has carried out"]
    held: Annotated[
        int,
        uint(32),
        "slices of 1/occupancy that the job's blocks occupy or, being launched, will occupy; those "
        "told to release count until they have left; rounded up",
    ]
    exhausted: Annotated[
        bool, flag(), "every task block of the last launch is claimed: `held` can only fall"
    ]


@_host(68)
class JobEnded(NamedTuple):
    """A job's last block has left and nothing more of it will run."""

    job: Job
    error: Annotated[dict[str, Any] | None, plain(), "nil if it ran to its end, or was ended"]
    complete: Annotated[bool, flag(), "every task block ran"]
    output: Annotated[bytes, blob(1 << 24), "what its kernels printed"]
    done: Annotated[int, uint(63), "task blocks done"]
    total: Annotated[int, uint(63), "task blocks in all"]
    first_block_ns: Annotated[
        int, uint(63), "from `StartJob` to its first task block, 0 if unknown"
    ]
    release_ns: Annotated[
        int, uint(63), "the longest time from a release to its last block gone, 0 without releases"
    ]


@_host(69)
class Log(NamedTuple):
    """Something for the daemon's log."""

    level: Annotated[int, uint(8), "as in Python's logging"]
    text: Annotated[str, text(1 << 16), "one line"]
