"""Events: the inputs of `gpud.tasks.core.scheduler.TaskScheduler`.

Every event carries ``now_ns``, nanoseconds since 1970, as time limits outlive the runner. They are
plain data, so that they can be logged and replayed (`gpud.tasks.core.replay`).
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

__all__ = [
    "BandwidthMeasured",
    "CancelRequested",
    "Event",
    "GPUMarked",
    "HoldRequested",
    "MemoryMeasured",
    "NeedLearned",
    "NodeChanged",
    "NodeLost",
    "ReleaseRequested",
    "TaskEnded",
    "TaskRestored",
    "TaskSubmitted",
    "TaskTerms",
    "TimerFired",
    "WindowMeasured",
]


class TaskTerms(NamedTuple):
    """What the scheduler needs to know of a task.

    Attributes:
        user: whose it is; queues are fair between users.
        program: what it runs, such as its script; needs are learned by it.
        cores: how many; None, for a task with GPUs: as many as it is found to need.
        gpus: how many; 0: a CPU task. Less than 1: a part of one.
        memory_bytes: the most that it takes; None: not known.
        category: of a GPU task, such as ``"image"``; empty: none.
        pipelined: whether its input is prepared while it computes.
        weights_bytes: of its model; None: not known.
        complexity: of what it does on the CPU, 0 to 100; None: not known.
        after: tasks that must be done before it.
        time_limit_ns: how long an attempt may run, the time in which it is frozen not counted.
        retries: how often it is run again after it has failed.
        requeue: whether it is run again after it was lost with its node.
    """

    user: str
    program: str
    cores: int | None = 1
    gpus: Fraction = Fraction(0)
    memory_bytes: int | None = None
    category: str = ""
    pipelined: bool = False
    weights_bytes: int | None = None
    complexity: int | None = None
    after: tuple[int, ...] = ()
    time_limit_ns: int | None = None
    retries: int = 0
    requeue: bool = True


class NodeChanged(NamedTuple):
    """A node is there, for the first time or with other GPUs.

    Attributes:
        cpus: numbers of its processors that tasks may have.
        gpus: names of its GPUs, by index.
        memory_bytes: of the node.
        freezes: whether its tasks can be frozen.
    """

    now_ns: int
    node: int
    cpus: tuple[int, ...]
    gpus: tuple[str, ...] = ()
    memory_bytes: int = 0
    freezes: bool = True


class NodeLost(NamedTuple):
    """A node has gone with everything that ran on it."""

    now_ns: int
    node: int
    reason: str


class GPUMarked(NamedTuple):
    """No task is to start on a GPU, such as when foreign processes hold its memory.

    Attributes:
        reason: human-readable; empty: it can be used again.
    """

    now_ns: int
    node: int
    gpu: int
    reason: str


class TaskSubmitted(NamedTuple):
    """A task was submitted. Of ``terms.after`` the scheduler must know all, or they are done."""

    now_ns: int
    task: int
    terms: TaskTerms
    held: bool = False


class TaskRestored(NamedTuple):
    """A task from before the runner was started; in the order in which they were queued.

    Attributes:
        attempt: number of its last attempt; 0: none has begun.
        failures, losses: how many attempts have failed, and were lost.
        node: where the last attempt runs; None: none does.
        cpus, gpus: what it has there.
        ran_ns: how long it has run so far.
        front: whether it is one of those that go before others.
    """

    now_ns: int
    task: int
    terms: TaskTerms
    held: bool = False
    attempt: int = 0
    failures: int = 0
    losses: int = 0
    node: int | None = None
    cpus: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    ran_ns: int = 0
    frozen: bool = False
    front: bool = False


class TaskEnded(NamedTuple):
    """An attempt has ended: nothing of it runs any more.

    Attributes:
        status: its exit status, 128 + the signal's number if a signal ended it; None: not known.
        stopped: whether it ended after it was told to.
        problem: why it could not be started, or how it was lost; empty: neither.
        lost: whether it vanished with its node or shepherd, so that its end is not known.
    """

    now_ns: int
    task: int
    attempt: int
    status: int | None
    stopped: bool = False
    problem: str = ""
    lost: bool = False


class HoldRequested(NamedTuple):
    """Its user holds a task back that has not started."""

    now_ns: int
    task: int


class ReleaseRequested(NamedTuple):
    """Its user lets a held task go."""

    now_ns: int
    task: int


class CancelRequested(NamedTuple):
    """A task is to end.

    Attributes:
        reason: who wants that, and why; told with the task.
        failed: whether the task has failed, as when it fills the disk, or is cancelled.
    """

    now_ns: int
    task: int
    reason: str
    failed: bool = False


class WindowMeasured(NamedTuple):
    """The answer to `gpud.tasks.core.commands.MeasureWindow`.

    Attributes:
        utilisation_permille: of the task's GPUs, on average; None: it cannot be measured.
    """

    now_ns: int
    task: int
    attempt: int
    utilisation_permille: int | None


class BandwidthMeasured(NamedTuple):
    """The memory bandwidth that tasks of a node used lately.

    Attributes:
        tasks: for each task the part of the node's bandwidth, in permille.
    """

    now_ns: int
    node: int
    tasks: tuple[tuple[int, int], ...]


class MemoryMeasured(NamedTuple):
    """The memory that tasks of a node have, in bytes."""

    now_ns: int
    node: int
    tasks: tuple[tuple[int, int], ...]


class NeedLearned(NamedTuple):
    """A need that was found before the runner was started."""

    now_ns: int
    user: str
    program: str
    category: str
    cores: Fraction


class TimerFired(NamedTuple):
    """The time of `gpud.tasks.core.commands.SetTimer` has come."""

    now_ns: int


Event = (
    NodeChanged
    | NodeLost
    | GPUMarked
    | TaskSubmitted
    | TaskRestored
    | TaskEnded
    | HoldRequested
    | ReleaseRequested
    | CancelRequested
    | WindowMeasured
    | BandwidthMeasured
    | MemoryMeasured
    | NeedLearned
    | TimerFired
)
