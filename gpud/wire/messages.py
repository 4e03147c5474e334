"""The client protocol: every message between a client and the daemon, declared once.

Each message is a named tuple whose annotations say what a field may hold (`gpud.wire.field_types`)
and what it means. Codec, validation and docs/reference/protocol.md derive from these declarations.

On the wire a message is one frame (`gpud.wire.framing`) holding a msgpack array: the message's
code, then its fields in order. Trailing fields that have a default may be left out, so a field can
be added at the end without breaking older peers.

A ``request`` is a number that the client chooses; the reply carries it. Jobs are numbered by the
client, 1, 2, 3 ... in each session, so that a submission needs no acknowledgement: the only reply
to `Submit` is `Finished`. A job is identified by the pair (session, number), written "3.17".
Amounts of CapSM are exact pairs (numerator, denominator). Times are nanoseconds.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from gpud.wire.field_types import (
    amount,
    blob,
    choice,
    flag,
    listed,
    optional,
    pair,
    plain,
    text,
    uint,
)
from gpud.wire.message_table import MessageTable, Sender

__all__ = [
    "CLIENT_PROTOCOL", "TOPICS", "VERSION", "Allocate", "Allocated", "Answer", "Arena",
    "AskHistory", "Began", "BeginIteration", "Cancel", "CancelLaunch", "CloseLane",
    "CloseWorkload", "Compile", "Compiled", "Describe", "Download", "Drain", "EndIteration",
    "Failed", "Finished", "FitWorkload", "Follow", "Free", "Goodbye", "GrowWorkload", "Happened",
    "Hello", "LaneOpened", "LaunchEnded", "LaunchRecord", "Measure", "Measured", "OpenLane",
    "OpenWorkload", "Pause", "PrepareLaunch", "Query", "ReadSymbol", "Reload", "Resize", "Resume",
    "SetSetting", "Submit", "TurnRecalled", "Unload", "Upload", "Welcome", "WorkloadOpened",
    "WriteSymbol", "ZoneLent",
]  # fmt: skip

VERSION = 2
"""Version of the protocol. It changes when an older peer would misunderstand a newer one.

2: `Resume`, `Began` and `Allocate.at`, which clients use only if `Welcome` says 2 or more.
"""

CLIENT_PROTOCOL = MessageTable("client", VERSION)
"""Every message of the protocol by code and by class."""

_client = CLIENT_PROTOCOL.message(Sender.CLIENT)
_daemon = CLIENT_PROTOCOL.message(Sender.DAEMON)
_record = CLIENT_PROTOCOL.record()

TOPICS = (
    "status", "jobs", "kernels", "memory", "workloads", "events", "trace", "doctor", "config",
)  # fmt: skip
"""The topics of `Query`."""

Request = Annotated[int, uint(32), "chosen by the client; the reply carries it"]
Device = Annotated[int, uint(8), "index of the device in `Welcome`"]
Module = Annotated[int, uint(32), "as `Compiled` named it"]
Dim3 = Annotated[tuple[int, int, int], listed(uint(32, least=1), 3, 3), "x, y, z"]
Workload = Annotated[int, uint(32), "as `WorkloadOpened` numbered it"]
JobRef = Annotated[tuple[int, int], pair(uint(32), uint(32)), "(session, number)"]
Amount = Annotated[tuple[int, int] | None, optional(amount()), "CapSM, exact; nil for none"]


# -- records: parts of messages ------------------------------------------------------------------


@_record
class LaunchRecord(NamedTuple):
    """One launch of a job. `Submit` holds a list of these, packed as one binary field."""

    module: Module
    kernel: Annotated[int, uint(16), "index of the kernel in `Compiled`"]
    grid: Dim3
    block: Dim3
    shared: Annotated[int, uint(32), "dynamic shared memory of a block, in bytes"]
    parameters: Annotated[bytes, blob(1 << 16), "the kernel's parameter buffer"]


# -- from the client -----------------------------------------------------------------------------


@_client(1)
class Hello(NamedTuple):
    """The first message of a connection; answered by `Welcome`."""

    request: Request
    version: Annotated[int, uint(16), "the newest protocol version that the client speaks"]
    program: Annotated[str, text(256), "the client program's name, shown by gpuctl"]


@_client(2)
class Compile(NamedTuple):
    """Compile and rewrite a program for a device; answered by `Compiled`."""

    request: Request
    device: Device
    source: Annotated[
        str, text(1 << 24), "CUDA C++, or PTX: text whose first word begins with a dot"
    ]
    names: Annotated[
        tuple[str, ...], listed(text(4096), 0, 256), "kernels to instantiate and look up"
    ]
    options: Annotated[tuple[str, ...], listed(text(4096), 0, 256), "further NVRTC options"] = ()
    form: Annotated[
        str | None,
        optional(choice("persistent", "sliced", "whole")),
        "bring every kernel into this form; nil: gpud chooses",
    ] = None
    progress: Annotated[
        str | None,
        optional(choice("independent", "blocks")),
        "of every kernel: no task block waits for one that has not begun, or they wait for one "
        "another; nil: gpud finds out",
    ] = None
    check: Annotated[
        bool,
        flag(),
        "for the checking mode of a CPU device; the session's arrays have shadows, see "
        "`gpud.checked_memory`",
    ] = False


@_client(3)
class Unload(NamedTuple):
    """Unload a module once the jobs that were submitted before have ended. Not answered."""

    module: Module


@_client(4)
class Measure(NamedTuple):
    """Prepare a kernel for a block shape and return its occupancy; answered by `Measured`.

    A launch is accepted only for a shape that was measured before in the same session. Offline jobs
    with a timeout, and all jobs of a CPU device, run another entry of a kernel with loops, whose
    blocks can be killed in the middle of a task block. On a GPU that entry is prepared here if
    ``killable`` is set, otherwise by the first such job, at the expense of its time.
    """

    request: Request
    module: Module
    kernel: Annotated[int, uint(16), "index of the kernel in `Compiled`"]
    block: Dim3
    shared: Annotated[int, uint(32), "dynamic shared memory of a block, in bytes"]
    killable: Annotated[
        bool, flag(), "the entry that offline jobs with a timeout run, with kill polls"
    ] = False


@_client(5)
class Allocate(NamedTuple):
    """Allocate an array of zeroes; answered by `Allocated`."""

    request: Request
    device: Device
    size: Annotated[int, uint(64, least=1), "bytes"]
    at: Annotated[
        int | None,
        optional(uint(64)),
        "its device address, which an array had at a daemon that has ended; nil: any",
    ] = None


@_client(6)
class Free(NamedTuple):
    """Free an array once the jobs that were submitted before have ended. Not answered."""

    device: Device
    array: Annotated[int, uint(64), "its device address"]


@_client(7)
class Submit(NamedTuple):
    """Run a sequence of one or more launches as a job; answered by `Finished` when it has ended.

    ``reservation`` makes the job online, ``quota`` offline; neither means offline with the whole
    device as quota; both are refused.
    """

    number: Annotated[
        int, uint(32, least=1), "of the job: 1 for the session's first, then one more each"
    ]
    device: Device
    launches: Annotated[bytes, blob(1 << 24), "msgpack of a list of `LaunchRecord`, one or more"]
    reservation: Amount = None
    quota: Amount = None
    stream: Annotated[int, uint(32), "jobs of one stream run in order; 0 is the default one"] = 0
    after: Annotated[
        tuple[JobRef, ...], listed(pair(uint(32), uint(32)), 0, 4096), "jobs to follow"
    ] = ()
    deadline_ns: Annotated[
        int | None, optional(uint(63)), "from now; orders waiting online jobs"
    ] = None
    timeout_ns: Annotated[
        int | None, optional(uint(63)), "running time after which the job is ended"
    ] = None
    weight: Annotated[
        int, uint(16, least=1, most=1000), "an offline job's weight when capacity is shared"
    ] = 1
    exclusive: Annotated[
        bool, flag(), "online: the reservation is in whole SMs, on which no other job runs"
    ] = False
    memory: Annotated[
        tuple[int, ...] | None,
        optional(listed(uint(63), 3, 3)),
        "the workload in whose memory arguments lie, and the bytes of persistent and of temporary "
        "memory that they are; nil: none of them does",
    ] = None


@_client(8)
class Resize(NamedTuple):
    """Change a job's reservation or its quota, not both; answered by `Answer`."""

    request: Request
    job: JobRef
    reservation: Amount = None
    quota: Amount = None


@_client(9)
class Cancel(NamedTuple):
    """End a job. `Answer` holds false if it had ended already; `Finished` follows as usual."""

    request: Request
    job: JobRef


@_client(10)
class Describe(NamedTuple):
    """Ask for the state of jobs; `Answer` holds a list of maps as in topic "jobs", nil: unknown."""

    request: Request
    jobs: Annotated[tuple[JobRef, ...], listed(pair(uint(32), uint(32)), 1, 4096), "which"]


@_client(11)
class ReadSymbol(NamedTuple):
    """Read bytes of a module variable; `Answer` holds them. Does not wait for running jobs."""

    request: Request
    module: Module
    name: Annotated[str, text(4096), "as `Compiled` lists it"]
    offset: Annotated[int, uint(63), "in bytes"]
    size: Annotated[int, uint(63), "in bytes"]


@_client(12)
class WriteSymbol(NamedTuple):
    """Write bytes of a module variable; answered by `Answer`. Does not wait for running jobs."""

    request: Request
    module: Module
    name: Annotated[str, text(4096), "as `Compiled` lists it"]
    offset: Annotated[int, uint(63), "in bytes"]
    data: Annotated[bytes, blob(1 << 24), "what to write"]


@_client(13)
class Query(NamedTuple):
    """Ask about the daemon; `Answer` holds a map, restricted to what the user may see."""

    request: Request
    topic: Annotated[str, choice(*TOPICS), "what to report"]
    limit: Annotated[
        int, uint(32), "the most rows, latest first; 0 for all that are kept (4096 jobs)"
    ] = 0


@_client(14)
class Follow(NamedTuple):
    """Subscribe to events, sent as `Happened`; answered by `Answer`."""

    request: Request
    on: Annotated[bool, flag(), "false ends it"] = True


@_client(15)
class Upload(NamedTuple):
    """Copy a part of an array from the session's file to the device. Not answered.

    For devices whose arrays are ``copied``, after the part was written to the file. Jobs that are
    submitted later see it. A refusal is sent as `Failed` with request 0.
    """

    device: Device
    array: Annotated[int, uint(64), "its device address"]
    offset: Annotated[int, uint(63), "of the part's first byte, in the array"]
    size: Annotated[int, uint(63, least=1), "of the part, in bytes"]


@_client(16)
class Download(NamedTuple):
    """Copy a part of an array from the device to the session's file; answered by `Answer`.

    For devices whose arrays are ``copied``. Does not wait for running jobs.
    """

    request: Request
    device: Device
    array: Annotated[int, uint(64), "its device address"]
    offset: Annotated[int, uint(63), "of the part's first byte, in the array"]
    size: Annotated[int, uint(63, least=1), "of the part, in bytes"]


@_client(17)
class Resume(NamedTuple):
    """Make this session one that can outlive the daemon; answered by `Answer`.

    From now on `Began` is sent. When the daemon has ended, a client opens a session with the next
    one, sends this with the number of its latest job, and makes its arrays, with their addresses,
    and its modules again.
    """

    request: Request
    last_job: Annotated[int, uint(32), "jobs are numbered from the one after this"]


@_client(18)
class AskHistory(NamedTuple):
    """Ask for jobs that have ended, or for sums over them; answered by `Answer`.

    The answer is a map with "rows": jobs, the latest last, or sums, the largest use first. Users
    get their own jobs, root and the daemon's user those of all.
    """

    request: Request
    user: Annotated[str | None, optional(text(256)), "of this user only, by name or number"] = None
    since_s: Annotated[
        int | None, optional(uint(40)), "ended at this time or later, in seconds since 1970"
    ] = None
    until_s: Annotated[int | None, optional(uint(40)), "ended before this time"] = None
    state: Annotated[
        str | None, optional(choice("done", "failed", "cancelled")), "ended like this"
    ] = None
    by: Annotated[
        str | None,
        optional(choice("user", "program", "state", "device")),
        "sums by this instead of single jobs",
    ] = None
    limit: Annotated[int, uint(32, most=100_000), "the most rows; 0: as many as fit"] = 0


@_client(19)
class Why(NamedTuple):
    """Ask what a job waits for, and why its share changed; `Answer` holds a map.

    ``id``, ``state``, ``lines`` (sentences, the most important first), and ``job``, the row as in
    topic "jobs". Also of jobs that have ended recently.
    """

    request: Request
    job: JobRef


@_client(24)
class Pause(NamedTuple):
    """Pause devices, or let them go on; for root and the daemon's own user.

    Answered by `Answer` with a map: "devices", for each its "index", "spec", "paused" (as in topic
    "status"), and how many jobs are "running", with a share of it, "stopped", begun and without
    one, and "waiting".
    """

    request: Request
    devices: Annotated[list[int], listed(uint(8), 0, 256), "their indices; empty: all"]
    on: Annotated[bool, flag(), "false: let them go on"]
    now: Annotated[
        bool, flag(), "what runs gives up what it has, if it can be resized and has no reservation"
    ] = False


@_client(25)
class Drain(NamedTuple):
    """End the daemon in order, as SIGTERM does; for root and the daemon's own user.

    Answered by `Answer` with a map: "jobs", how many are waited for, and "timeout_s", how long.
    """

    request: Request


@_client(20)
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


@_client(21)
class PrepareLaunch(NamedTuple):
    """Make a launch site of a lane: a kernel with a block shape, which was measured before.

    `Answer` holds its number, for launch records; it may wait for the lane's present launch.
    """

    request: Request
    lane: Annotated[int, uint(32), "the lane's number"]
    module: Module
    kernel: Annotated[int, uint(16), "index of the kernel in `Compiled`"]
    block: Dim3
    shared: Annotated[int, uint(32), "dynamic shared memory of a block, in bytes"]


@_client(22)
class CancelLaunch(NamedTuple):
    """Cancel a launch of a lane. Not answered; its completion follows as usual."""

    lane: Annotated[int, uint(32), "the lane's number"]
    launch: Annotated[int, uint(32), "the launch's number in the lane"]


@_client(23)
class CloseLane(NamedTuple):
    """Close a lane; launches that have not ended are cancelled. Answered by `Finished`."""

    lane: Annotated[int, uint(32), "the lane's number"]


@_client(30)
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


@_client(31)
class BeginIteration(NamedTuple):
    """Wait for a workload's turn; answered by `Answer`, which holds a map.

    "new": whether a turn begins with this iteration, so that its temporary memory is all zeroes;
    "standing": whether the workload may end this iteration and begin further ones without saying
    so, until `TurnRecalled`.
    """

    request: Request
    workload: Workload


@_client(32)
class EndIteration(NamedTuple):
    """End an iteration once the jobs that were submitted before have ended. Not answered.

    A refusal is sent as `Failed` with request 0.
    """

    workload: Workload
    iterations: Annotated[
        int, uint(32, least=1), "how many there were: more than one if the turn was standing"
    ] = 1
    idle_ns: Annotated[int, uint(63), "how long ago the last of them ended"] = 0


@_client(33)
class GrowWorkload(NamedTuple):
    """Grow a workload's persistent memory at its place; `Answer` holds its size then, in bytes."""

    request: Request
    workload: Workload
    size: Annotated[int, uint(63, least=1), "bytes in all"]


@_client(35)
class FitWorkload(NamedTuple):
    """Say what a workload needs that did not know it: the rest is given back. Not answered."""

    workload: Workload
    persistent: Annotated[int, uint(63, least=1), "bytes that live across iterations"]
    temporary: Annotated[int, uint(63), "bytes that live within an iteration, at most"]
    offset: Annotated[int, uint(63), "bytes by which it may grow; less if there is not as much"]


@_client(34)
class CloseWorkload(NamedTuple):
    """End a workload once the jobs that were submitted before have ended, and clear its memory.

    Answered by `Answer` when that is done. Users end their own workloads, root and the daemon's
    user those of all.
    """

    request: Annotated[int, uint(32), "the reply carries it; 0: no reply is wanted"]
    workload: Workload


@_client(26)
class SetSetting(NamedTuple):
    """Keep a setting in the daemon's file, then do as `Reload`; for root and the daemon's user."""

    request: Request
    key: Annotated[str, text(256), "as in the file"]
    value: Annotated[str, text(4096), "as a flag of `gpud serve` has it"]


@_client(27)
class Reload(NamedTuple):
    """Read the settings again; for root and the daemon's own user.

    What can change while the daemon runs does. Answered by `Answer` with a map: "file", which was
    read (nil if there is none); "changed", rows as in topic "config" of what is in force now; and
    "restart", of what differs and is in force after a restart, as "next" says.
    """

    request: Request


# -- from the daemon -----------------------------------------------------------------------------


@_daemon(64)
class Welcome(NamedTuple):
    """The connection is accepted as a session."""

    request: Request
    version: Annotated[int, uint(16), "the protocol version that both sides use"]
    session: Annotated[int, uint(32), "the session's number"]
    devices: Annotated[
        list[dict[str, Any]],
        plain(),
        'maps: "index", "spec" (as in --device), "state" ("starting", "ready", "failed" or '
        '"stopped"), "name", "kind" ("cpu" or "cuda"), "sms", "memory_bytes", "capability", '
        '"exclusive_step" (exclusive reservations are multiples of it, in SMs; 0: not supported), '
        '"online_sms" (the most that online jobs may have together, an exact number as text), '
        '"arrays" ("shared": the file of `Arena` is their memory; "copied": `Upload` and '
        "`Download` copy between it and the device)",
    ]
    limits: Annotated[dict[str, int], plain(), 'a map: "message_bytes", "jobs", "memory_bytes"']
    daemon: Annotated[dict[str, Any], plain(), 'a map: "version", "pid", "policy"']


@_daemon(65)
class Arena(NamedTuple):
    """The session's arena on a device; sent once, before the first `Allocated` on it.

    A file descriptor is attached if the client can map the memory: byte 0 of the file is the byte
    at device address ``base``.
    """

    device: Device
    base: Annotated[int, uint(64), "device address of the first byte"]
    size: Annotated[int, uint(64), "bytes of addresses; only allocated arrays take memory"]


@_daemon(66)
class Compiled(NamedTuple):
    """A program has been compiled."""

    request: Request
    module: Module
    kernels: Annotated[
        list[dict[str, Any]],
        plain(),
        'maps: "name", "entry", "form", "exit_aware", "why" (texts), "parameters" (lists: name, '
        'kind, size, align, offset), "shared_bytes", "max_threads", "killable" (it has loops), '
        '"cooperative" (all of its blocks must be resident), "rejected" (an error, or nil)',
    ]
    names: Annotated[
        dict[str, int], plain(), "a map: the index of the kernel for each of the requested names"
    ]
    symbols: Annotated[dict[str, int], plain(), "a map: the size in bytes of each module variable"]
    log: Annotated[str, text(1 << 24), "the compiler's log"] = ""


@_daemon(67)
class Measured(NamedTuple):
    """A kernel is prepared for a block shape."""

    request: Request
    occupancy: Annotated[int, uint(16), "M: blocks that fit on one SM"]
    form: Annotated[str, text(16), "the form for this block shape"]


@_daemon(68)
class Allocated(NamedTuple):
    """An array of zeroes was allocated."""

    request: Request
    address: Annotated[int, uint(64), "device address; lies in the session's arena"]


@_daemon(69)
class Answer(NamedTuple):
    """A request has succeeded."""

    request: Request
    value: Annotated[Any, plain(), "the result, nil if there is none"] = None


@_daemon(70)
class Failed(NamedTuple):
    """A request was refused or failed; it has changed nothing."""

    request: Annotated[int, uint(32), "0 if the request's number could not be read"]
    error: Annotated[dict[str, Any], plain(), 'a map: "code", "message", "fields"']


@_daemon(71)
class Finished(NamedTuple):
    """A job has ended. Nothing of it runs any more."""

    number: Annotated[int, uint(32), "of the job in this session"]
    state: Annotated[str, choice("done", "failed", "cancelled"), "how it ended"]
    error: Annotated[dict[str, Any] | None, plain(), "nil if it is done"]
    output: Annotated[bytes, blob(1 << 24), "the printf output of its kernels"]
    stats: Annotated[
        dict[str, Any],
        plain(),
        'a map: "queued_s", "first_block_s", "run_s", "release_s" (seconds), "resizes", '
        '"capsm_seconds", "queued_as" (on a GPU, a map: how often its launches were queued in '
        "which way, and why); nil where unknown",
    ]
    progress: Annotated[tuple[int, int], pair(uint(63), uint(63)), "task blocks: done, total"]


@_daemon(72)
class Happened(NamedTuple):
    """An event, sent to clients that have subscribed with `Follow`."""

    event: Annotated[
        dict[str, Any], plain(), 'a map: "at_s" (seconds since 1970), "event", and more'
    ]


@_daemon(73)
class Goodbye(NamedTuple):
    """The last message of a connection: why the daemon closes it."""

    error: Annotated[dict[str, Any], plain(), 'a map: "code", "message", "fields"']


@_daemon(75)
class LaneOpened(NamedTuple):
    """A lane is open. The descriptor of its ring's file comes with the message."""

    number: Annotated[int, uint(32), "of the lane"]
    size: Annotated[int, uint(32), "of the file in bytes; see `gpud.wire.lane_ring`"]


@_daemon(76)
class LaunchEnded(NamedTuple):
    """More about the end of a launch of a lane; sent before a completion that refers to it."""

    lane: Annotated[int, uint(32), "the lane's number"]
    launch: Annotated[int, uint(32), "the launch's number in the lane"]
    state: Annotated[str, choice("done", "failed", "cancelled"), "how it ended"]
    error: Annotated[dict[str, Any] | None, plain(), "nil if it has not failed"]
    output: Annotated[bytes, blob(1 << 24), "the printf output of its kernel"]
    progress: Annotated[tuple[int, int], pair(uint(63), uint(63)), "task blocks: done, total"]


@_daemon(80)
class Began(NamedTuple):
    """A job has begun: its kernels may have changed arrays. Sent after `Resume` only."""

    number: Annotated[int, uint(32), "of the job in this session"]


@_daemon(81)
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


@_daemon(84)
class ZoneLent(NamedTuple):
    """A program may map temporary memory itself; sent before the `Answer` to `BeginIteration`.

    A descriptor of a socket comes with the message. On it lies a message of eight bytes, the size
    of the memory in the machine's order, with a descriptor that the driver imports. The program
    unmaps the memory and releases it before it sends `EndIteration`.
    """

    workload: Workload


@_daemon(82)
class TurnRecalled(NamedTuple):
    """Others want the device: the workload sends `EndIteration` at the end of its iteration.

    If it is in none it does so at once.
    """

    workload: Workload
