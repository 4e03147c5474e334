"""The processor time of other processes, read from the system."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["children", "family_ns", "processor_ns"]


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
