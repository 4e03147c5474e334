"""The processor time of other processes, and the cores that they may use."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["children", "confine", "family_ns", "processor_ns"]


def processor_ns(pid: int) -> int:
    """Return the processor time that the threads of a process have had."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def children(pid: int) -> Iterator[int]:
    """Yield the processes that a process has started and that run."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


def family_ns(pid: int) -> int:
    """Return the processor time of a process and of all that it has started and that run."""
    return processor_ns(pid) + sum(family_ns(child) for child in children(pid))


def confine(pid: int, cores: Collection[int]) -> None:
    """Have the threads that a process has run on these cores only."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(task.name), cores)
