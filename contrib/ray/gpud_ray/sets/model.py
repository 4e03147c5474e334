"""What planners know: tasks, GPUs, and what is free on a GPU.

Memory is in MiB, CapSM in thousandths of an SM, so that sums are exact integers. A task that says
no CapSM wants a whole GPU's. Durations are those of the task alone, on a GPU of `REFERENCE_CORES`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

__all__ = [
    "GPU",
    "MAX_MEMORY_MB",
    "MAX_THREADS",
    "REFERENCE_CORES",
    "Policy",
    "Room",
    "Stage",
    "Task",
    "check_unique",
    "run_s",
]

MAX_THREADS: Final = 1023
MAX_MEMORY_MB: Final = 2048
"""The source's limits for a task; set files and the generator hold them unless told otherwise."""

REFERENCE_CORES: Final = 4352
"""Of the GPU that durations refer to: 68 SMs of 64 cores, 11 GB."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task of a set.

    Attributes:
        id: its number; baselines go by it.
        threads: of a block, the source's "size".
        memory_mb: the most device memory that it has at one time.
        capsm_milli: the most CapSM that it can use, in thousandths of an SM; None: a whole GPU.
        duration_s: how long it runs alone; None: unknown, all such tasks count as equally long.
        arrival_s: when it becomes known.
    """

    id: int
    memory_mb: int
    threads: int = 256
    capsm_milli: int | None = None
    duration_s: float | None = None
    arrival_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no planner could handle.

        Raises:
            ValueError: a number is out of its range.
        """
        if self.memory_mb < 0:
            raise ValueError(f"task {self.id}: memory of {self.memory_mb} MiB; at least 0")
        if self.threads < 1:
            raise ValueError(f"task {self.id}: {self.threads} threads; at least 1")
        if self.capsm_milli is not None and self.capsm_milli < 1:
            raise ValueError(f"task {self.id}: CapSM of {self.capsm_milli}/1000; more than 0")
        for name in ("duration_s", "arrival_s"):
            value = getattr(self, name)
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"task {self.id}: {name} is {value}; at least 0")

    def capsm_on(self, gpu: GPU) -> int:
        """Return what it can use of a GPU, in thousandths of an SM."""
        return (
            gpu.capsm_milli if self.capsm_milli is None else min(self.capsm_milli, gpu.capsm_milli)
        )


@dataclass(frozen=True, slots=True)
class GPU:
    """A GPU of some node.

    Attributes:
        id: its number in the whole cluster.
        memory_mb: memory for tasks.
        cores: arithmetic units; a GPU with half of `REFERENCE_CORES` takes twice as long.
        capsm_milli: thousandths of its SMs.
        node: the name of its node.
    """

    id: int
    memory_mb: int
    cores: int = REFERENCE_CORES
    capsm_milli: int = 68_000
    node: str = ""

    def __post_init__(self) -> None:
        """Refuse a GPU that could run nothing.

        Raises:
            ValueError: a number is not positive.
        """
        for name in ("memory_mb", "cores", "capsm_milli"):
            if getattr(self, name) < 1:
                raise ValueError(f"GPU {self.id}: {name} is {getattr(self, name)}; at least 1")


def run_s(task: Task, gpu: GPU) -> float:
    """Return how long a task runs alone on a GPU; 1 s if its duration is unknown."""
    duration_s = 1.0 if task.duration_s is None else task.duration_s
    return duration_s * REFERENCE_CORES / gpu.cores


def check_unique(tasks: Iterable[Task]) -> None:
    """Refuse two tasks with one number.

    Raises:
        ValueError: a number is there twice.
    """
    seen: dict[int, None] = {}
    for task in tasks:
        if task.id in seen:
            raise ValueError(f"two tasks have the number {task.id}; give each its own")
        seen[task.id] = None


@dataclass(slots=True)
class Room:
    """What is free on a GPU now.

    ``free_capsm`` is negative while a task has less CapSM than it could use; ``free_mb`` while
    other programs have taken memory that its tasks were to use.
    """

    gpu: GPU
    foreign_mb: int = 0
    free_mb: int = field(init=False)
    free_capsm: int = field(init=False)
    running: dict[int, Task] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin without tasks."""
        self.free_mb = self.gpu.memory_mb - self.foreign_mb
        self.free_capsm = self.gpu.capsm_milli

    def offer(self, foreign_mb: int) -> None:
        """Take what an offer says: how much memory programs outside of the run have."""
        self.free_mb -= foreign_mb - self.foreign_mb
        self.foreign_mb = foreign_mb

    def add(self, task: Task) -> None:
        """Count a task that starts."""
        self.running[task.id] = task
        self.free_mb -= task.memory_mb
        self.free_capsm -= task.capsm_on(self.gpu)

    def remove(self, task: Task) -> None:
        """Count a task that has ended."""
        del self.running[task.id]
        self.free_mb += task.memory_mb
        self.free_capsm += task.capsm_on(self.gpu)


class Stage(Protocol):
    """Where a policy acts: the simulator, or a run on real nodes.

    Attributes:
        now_s: seconds since the run began.
        rooms: of the GPUs, in order of their numbers.
    """

    now_s: float
    rooms: list[Room]

    def start(self, task: Task, index: int) -> None:
        """Run a task on the GPU of ``rooms[index]``, now."""

    def wake(self, at_s: float) -> None:
        """Call the policy again at a time, even if nothing ends."""


class Policy(Protocol):
    """Decides which task runs where and when; the same one in virtual and in real time."""

    name: str

    def arrive(self, tasks: Sequence[Task], stage: Stage) -> None:
        """Take tasks that have arrived, or that failed and are tried again."""

    def act(self, stage: Stage) -> None:
        """Start what shall start now; called after arrivals, ends and wake-ups."""
