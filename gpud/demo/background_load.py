"""How much of the machine other programs used while something was measured.

Problem: figures from a machine that is busy with something else mean little, and nothing in them
shows it. Approach: processor time of all cores less that of this process and all below it, from
Linux's /proc, at two moments.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["BackgroundLoad", "others"]

_PROC = Path("/proc")

Moment = tuple[float, float, float]
"""Wall time, busy time of all cores, busy time of ours; in seconds since some moment."""


class BackgroundLoad:
    """Watches from its making on.

    A process of ours that ends in between is counted by its parent only if that waited for it, as
    parents do; what it used before counts as ours from then on.
    """

    def __init__(self) -> None:
        self._began = _now()

    def share(self) -> float | None:
        """Cores that others used on average, as a share of all; None where it cannot be told."""
        now = _now()
        if self._began is None or now is None:
            return None
        return others(self._began, now, os.cpu_count() or 1)


def others(before: Moment, after: Moment, cores: int) -> float:
    """The share of ``cores`` that was busy with what is not ours; 0 if no time has passed."""
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
    """Ticks of a process and all below it, those included that it has waited for."""
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
