"""What a node's framework sees of its machine, and how it splits the cores among executors.

Each executor has its own part of the cores, by affinity, which its programs inherit. Where a cgroup
can be made, the executor is in one of its own, whose cpuset holds that part even against programs
that change their affinity. That needs write access to the cgroup, which root and a systemd unit
with ``Delegate=yes`` have; where it fails the reason is in the node's notes, and affinity is all.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["CoreGroup", "MachineState", "split_cores"]

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "gpud-executor-"


def split_cores(cores: list[int], executors: int) -> list[list[int]]:
    """Split cores equally; with fewer cores than executors, executors share them in turn."""
    if len(cores) < executors:
        return [[cores[index % len(cores)]] for index in range(executors)]
    each, more = divmod(len(cores), executors)
    parts, at = [], 0
    for index in range(executors):
        size = each + (index < more)
        parts.append(cores[at : at + size])
        at += size
    return parts


class CoreGroup:
    """A cgroup with some cores; ``problem`` says why there is none."""

    def __init__(self, name: str, cores: list[int]) -> None:
        self.problem = ""
        self._path: Path | None = None
        try:
            parent, two = _own_cgroup()
            _sweep(parent)
            path = parent / f"{_PREFIX}{os.getpid()}-{name}"
            if two and "cpuset" not in (parent / "cgroup.subtree_control").read_text().split():
                (parent / "cgroup.subtree_control").write_text("+cpuset")
            path.mkdir()
            self._path = path
            if not two:
                (path / "cpuset.mems").write_text((parent / "cpuset.mems").read_text())
            (path / "cpuset.cpus").write_text(",".join(map(str, cores)))
        except OSError as error:
            self.problem = f"no cgroup: {error.filename or _ROOT}: {error.strerror}"
            self.remove()

    def add(self, pid: int) -> None:
        """Put a process into it."""
        if self._path is not None:
            try:
                (self._path / "cgroup.procs").write_text(str(pid))
            except OSError as error:
                self.problem = f"no cgroup: {error.filename or self._path}: {error.strerror}"
                self.remove()

    def remove(self) -> None:
        """Remove it; its processes have ended, or are about to: then a later framework does it."""
        if self._path is not None:
            with suppress(OSError):
                self._path.rmdir()
            self._path = None


def _sweep(parent: Path) -> None:
    """Remove cgroups of frameworks that were killed."""
    for path in parent.glob(f"{_PREFIX}*-*"):
        pid = path.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path("/proc", pid).exists():
            with suppress(OSError):
                path.rmdir()


def _own_cgroup() -> tuple[Path, bool]:
    """Return this process's cgroup that can hold a cpuset, and whether it is of version 2."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    rows = [line.split(":", 2) for line in lines]
    if (_ROOT / "cgroup.controllers").exists():
        own = next(path for number, _, path in rows if number == "0")
        return _ROOT / own.lstrip("/"), True
    own = next((path for _, names, path in rows if "cpuset" in names.split(",")), "/")
    return _ROOT / "cpuset" / own.lstrip("/"), False


@dataclass(slots=True)
class MachineState:
    """Reads what processors, memory and disk are doing."""

    folder: str = "/"
    _before: tuple[int, int] = field(default=(0, 0))

    def read(self) -> dict[str, Any]:
        """Return the state since the last reading; what cannot be read is None."""
        return {
            "cpu_busy_percent": self._cpu(),
            "memory_free_mb": _memory_free_mb(),
            "disk_free_mb": shutil.disk_usage(self.folder).free >> 20,
            "load": round(os.getloadavg()[0], 2),
        }

    def _cpu(self) -> float | None:
        try:
            fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        except OSError:
            return None
        ticks = [int(one) for one in fields]
        busy, total = sum(ticks) - ticks[3] - ticks[4], sum(ticks)
        before, self._before = self._before, (busy, total)
        passed = total - before[1]
        return round(100 * (busy - before[0]) / passed, 1) if passed else None


def _memory_free_mb() -> int | None:
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) >> 10
    return None
