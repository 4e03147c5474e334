"""Messages about jobs: submitting, changing and watching them."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from gpud.wire.field_types import blob, choice, flag, listed, optional, pair, plain, uint
from gpud.wire.messages.protocol import (
    Amount,
    Device,
    Dim3,
    JobRef,
    Module,
    Request,
    from_client,
    from_daemon,
    record,
)

__all__ = [
    "Began",
    "Cancel",
    "Describe",
    "Finished",
    "LaunchRecord",
    "Resize",
    "StreamFailure",
    "Submit",
    "Why",
]


@record
class LaunchRecord(NamedTuple):
    """One launch of a job. `Submit` holds a list of these, packed as one binary field."""

    module: Module
    kernel: Annotated[int, uint(16), "index of the kernel in `Compiled`"]
    grid: Dim3
    block: Dim3
    shared: Annotated[int, uint(32), "dynamic shared memory of a block, in bytes"]
    parameters: Annotated[bytes, blob(1 << 16), "the kernel's parameter buffer"]


@from_client(7)
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
    sticky: Annotated[
        bool,
        flag(),
        "it fails if a job before it in its stream has failed, or was cancelled by another session "
        "or an administrator, and `StreamFailure` has not said since that this was seen",
    ] = False


@from_client(38)
class StreamFailure(NamedTuple):
    """Say that a program has seen that jobs of a stream have failed. Not answered.

    What it submits to the stream from now on runs. In a session that goes on with another daemon it
    is also said what it has not seen.
    """

    stream: Annotated[int, uint(32), "as in `Submit`"]
    job: Annotated[int, uint(32, least=1), "the number of the latest of these jobs"]
    seen: Annotated[bool, flag(), "whether it has; else sticky jobs of the stream fail"] = True


@from_client(8)
class Resize(NamedTuple):
    """Change a job's reservation or its quota, not both; answered by `Answer`."""

    request: Request
    job: JobRef
    reservation: Amount = None
    quota: Amount = None


@from_client(9)
class Cancel(NamedTuple):
    """End a job. `Answer` holds false if it had ended already; `Finished` follows as usual."""

    request: Request
    job: JobRef


@from_client(10)
class Describe(NamedTuple):
    """Ask for the state of jobs; `Answer` holds a list of maps as in topic "jobs", nil: unknown."""

    request: Request
    jobs: Annotated[tuple[JobRef, ...], listed(pair(uint(32), uint(32)), 1, 4096), "which"]


@from_client(19)
class Why(NamedTuple):
    """Ask what a job waits for, and why its share changed; `Answer` holds a map.

    ``id``, ``state``, ``lines`` (sentences, the most important first), and ``job``, the row as in
    topic "jobs". Also of jobs that have ended recently.
    """

    request: Request
    job: JobRef


@from_daemon(80)
class Began(NamedTuple):
    """A job has begun: its kernels may have changed arrays. Sent after `Resume` only."""

    number: Annotated[int, uint(32), "of the job in this session"]


@from_daemon(71)
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
