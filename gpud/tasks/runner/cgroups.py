"""Tasks in cgroups of their own, where a cgroup v2 is delegated to this user.

A cgroup holds all processes of a task, whatever they do: cores by cpuset, memory by memory.max,
freezing and killing by files. A controller that is not there is done without: cores are then given
by affinity. Delegated is the runner's own cgroup if it belongs to its user and is not the root, as
with ``Delegate=yes`` in its unit.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from gpud.tasks.runner.attempts import Attempt
from gpud.tasks.runner.control import Control

__all__ = ["CgroupControl", "find_control"]

_WANTED = ("cpuset", "cpu", "memory")


class CgroupControl(Control):
    """Cores and freezing by cgroup v2.

    Args:
        base: a cgroup of this user's without processes of its own, in which each attempt gets one.
    """

    def __init__(self, base: Path) -> None:
        self._base = base
        there = (base / "cgroup.controllers").read_text().split()
        self._controllers = [name for name in _WANTED if name in there]
        for name in list(self._controllers):
            try:
                (base / "cgroup.subtree_control").write_text(f"+{name}")
            except OSError:  # its parent does not give it on
                self._controllers.remove(name)
        has = ", ".join([*self._controllers, "freezer"])
        self.describe = f"cgroup v2 ({has})"

    def prepare(self, attempt: str, cpus: tuple[int, ...], memory_bytes: int | None) -> list[str]:
        """Make the cgroup of an attempt, with its cores and the most memory that it may take."""
        folder = self._base / attempt
        folder.mkdir(exist_ok=True)
        if "cpuset" in self._controllers:
            _write(folder / "cpuset.cpus", _list(cpus))
        if "memory" in self._controllers and memory_bytes is not None:
            _write(folder / "memory.max", str(memory_bytes))
        return [str(folder)]

    def set_cpus(self, attempt: Attempt, cpus: tuple[int, ...]) -> None:
        """Let all processes of an attempt run on these processors only."""
        folder = self._base / attempt.folder.name
        if "cpuset" in self._controllers and folder.exists():
            _write(folder / "cpuset.cpus", _list(cpus))
        # Processes that have set their own affinity keep it in a cpuset, so this is needed, too.
        super().set_cpus(attempt, cpus)

    def freeze(self, attempt: Attempt) -> None:
        """Suspend all processes of an attempt."""
        if not _write(self._base / attempt.folder.name / "cgroup.freeze", "1"):
            super().freeze(attempt)

    def thaw(self, attempt: Attempt) -> None:
        """Let them go on."""
        _write(self._base / attempt.folder.name / "cgroup.freeze", "0")
        super().thaw(attempt)  # of one that was frozen before there was a cgroup

    def about(self, attempt: Attempt) -> str:
        """Return what the cgroup tells of an attempt's end: whether its memory was too little."""
        with suppress(OSError, ValueError):
            events = (self._base / attempt.folder.name / "memory.events").read_text().split()
            if int(events[events.index("oom_kill") + 1]):
                return "it needed more memory than it may have (--memory) and was killed"
        return ""

    def remove(self, attempt: str) -> None:
        """Kill what is left of an attempt, and remove its cgroup."""
        folder = self._base / attempt
        _write(folder / "cgroup.kill", "1")
        with suppress(OSError):
            folder.rmdir()


def find_control() -> Control:
    """Return the best control that there is for this process."""
    with suppress(OSError, StopIteration, ValueError):
        own = next(
            line.split("::", 1)[1]
            for line in Path("/proc/self/cgroup").read_text().splitlines()
            if line.startswith("0::")
        )
        mount = next(
            fields[4]
            for fields in map(str.split, Path("/proc/self/mountinfo").read_text().splitlines())
            if fields[fields.index("-") + 1] == "cgroup2"
        )
        base = Path(mount, own.strip("/"))
        if own != "/" and base.stat().st_uid == os.getuid():
            # A cgroup that gives controllers on has no processes of its own.
            leaf = base / "runner"
            leaf.mkdir(exist_ok=True)
            (leaf / "cgroup.procs").write_text(str(os.getpid()))
            tasks = base / "tasks"
            for name in _WANTED:
                _write(base / "cgroup.subtree_control", f"+{name}")
            tasks.mkdir(exist_ok=True)
            return CgroupControl(tasks)
    return Control()


def _write(path: Path, text: str) -> bool:
    try:
        path.write_text(text)
    except OSError:
        return False
    return True


def _list(cpus: tuple[int, ...]) -> str:
    return ",".join(map(str, cpus))
