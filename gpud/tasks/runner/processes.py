"""The processes of a task, found through /proc."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["MARK", "boot_id", "descendants", "marked", "resident_bytes", "send", "threads"]

MARK = "GPUD_TASK_ATTEMPT"
"""The variable by which processes of an attempt are known whose parents have gone."""


def boot_id() -> str:
    """Return what tells this start of the machine from others."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def threads(pid: int) -> list[int]:
    """Return the threads of a process; none if it has ended."""
    with suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208  (quicker)
    return []


def descendants(pid: int) -> list[int]:
    """Return all processes that come from a process, without itself, parents first."""
    found: list[int] = []
    for thread in threads(pid):
        with suppress(OSError):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return [*found, *(one for child in found for one in descendants(child))]


def send(pids: list[int], number: int) -> None:
    """Send a signal to processes, if they are still there."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def resident_bytes(pids: list[int]) -> int:
    """Return the memory that processes have, pages that they share counted for each."""
    page, total = os.sysconf("SC_PAGE_SIZE"), 0
    for pid in pids:
        with suppress(OSError, IndexError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page
    return total


def marked(mark: str) -> Iterator[int]:
    """Yield our processes whose environment has the mark of an attempt."""
    entry = f"{MARK}={mark}".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            with suppress(OSError):
                if entry in (folder / "environ").read_bytes().split(b"\0"):
                    yield int(folder.name)


def end_marked(mark: str) -> int:
    """Kill what is left of an attempt whose shepherd has gone; returns how many there were."""
    ended = 0
    while left := list(marked(mark)):
        send(left, signal.SIGKILL)
        ended += len(left)
        if ended > 1 << 16:  # it forks faster than we kill
            break
    return ended
