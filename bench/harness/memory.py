"""The memory of processes, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["anonymous_bytes", "peak_bytes", "resident_bytes"]


def resident_bytes(pid: int) -> int:
    """Return the resident set of a process, shared pages included."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def anonymous_bytes(pid: int) -> int:
    """Return a process's own resident memory: pages that belong to no file."""
    return _field(f"/proc/{pid}/smaps_rollup", "Anonymous:")


def peak_bytes() -> int:
    """Return the largest resident set that this process has had."""
    # Not getrusage: for a new process it includes the peak of the process that started it.
    return _field("/proc/self/status", "VmHWM:")


def _field(path: str, name: str) -> int:
    """Return a field in kB; 0 if there is none."""
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    return 0
