"""Processes, looked at from outside: memory, descriptors, threads, children."""

from __future__ import annotations

import os
import select
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

# A child that has not come to its own program yet has its parent's command.
_ROLES = {
    "gpud.device.host.native_compile_process": "native",
    "gpud.device.host": "host",
    "gpud.compiler.process.main": "worker",
    "": "other",
}


class Sample(NamedTuple):
    """A process at a moment.

    Attributes:
        role: "front", "host", "native" (makes a host's machine code), "worker" or "other".
        private_bytes: resident memory that is the process's own: what a leak makes grow.
        shared_bytes: resident memory of shared files, as the arrays are.
    """

    pid: int
    role: str
    private_bytes: int
    shared_bytes: int
    descriptors: int
    threads: int


def samples(front: int) -> list[Sample]:
    """A daemon's process and all that come from it."""
    found = [_sample(front, "front"), *(_sample(pid) for pid in _descendants(front))]
    return [one for one in found if one is not None]


def _sample(pid: int, role: str = "") -> Sample | None:
    """How a process stands; None if it has ended. Its command tells its role, if nobody else."""
    folder = Path(f"/proc/{pid}")
    try:
        command = (folder / "cmdline").read_bytes().decode(errors="replace")
        lines = (folder / "status").read_text().splitlines()
        descriptors = sum(1 for _ in (folder / "fd").iterdir())
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)

    def kib(name: str) -> int:
        return int(fields.get(name, "0").split()[0]) << 10

    role = role or next(role for words, role in _ROLES.items() if words in command)
    private, shared = kib("RssAnon"), kib("RssShmem")
    return Sample(pid, role, private, shared, descriptors, int(fields.get("Threads", "0")))


def children(pid: int) -> list[int]:
    """The children of a process, whichever of its threads they are of; none if it has ended."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def _descendants(pid: int) -> list[int]:
    return [one for child in children(pid) for one in (child, *_descendants(child))]


def gone(pid: int, timeout_s: float = 60.0) -> bool:
    """Whether a process ends in time that need not be a child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)
