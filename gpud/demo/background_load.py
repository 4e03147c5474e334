"""The CPU load that other programs caused during a measurement.

Problem: results measured on a machine that is busy with other work mean little, and do not show it.
Approach: the CPU time of all cores, minus that of this process and its descendants, between two
readings of Linux's /proc.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["BackgroundLoad", "others"]

_PROC = Path("/proc")

Moment = tuple[float, float, float]
"""A reading: wall time, busy time of all cores, CPU time of this process tree; in seconds."""


class BackgroundLoad:
    """Measures the background load from its creation on.

    A descendant that ends in between is counted only if its parent waits for it, as parents do; its
    CPU time is then that of the parent.
    """

    def __init__(self) -> None:
        self._began = _now()

    def share(self) -> float | None:
        """Return the average share of all cores that other programs used; None if unknown."""
        now = _now()
        if self._began is None or now is None:
            return None
        return others(self._began, now, os.cpu_count() or 1)


def others(before: Moment, after: Moment, cores: int) -> float:
    """Return the share of ``cores`` that other processes used; 0 if no time has passed."""
    passed, busy, ours = (now - then for now, then in zip(after, before, strict=True))
    return max(0.0, busy - ours) / (passed * cores) if passed > 0 else 0.0


def _now() -> Moment | None:
    try:
        fields = (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:]
        user, nice, system, _, _, irq, soft, steal = (int(field) for field in fields[:8])
        ours = _tree(os.getpid())
    except (OSError, ValueError):
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    busy = user + nice + system + irq + soft + steal
    return time.monotonic(), busy / ticks, ours / ticks


def _tree(root: int) -> int:
    """Return the CPU ticks of a process and its descendants, including those already reaped."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended just now
            continue
        parents[int(folder.name)] = int(fields[1])
        ticks[int(folder.name)] = sum(int(field) for field in fields[11:15])
    inside = {root}
    while more := {pid for pid, parent in parents.items() if parent in inside} - inside:
        inside |= more
    return sum(ticks.get(pid, 0) for pid in inside)
