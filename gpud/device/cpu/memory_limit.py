"""The memory limit of this process: the machine's memory, or less if a control group limits it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["memory_limit_bytes"]


def memory_limit_bytes(root: Path = Path("/")) -> int:
    """Return the least of the physical memory and the control groups' limits, version 1 and 2.

    Args:
        root: directory that contains ``proc`` and ``sys``.
    """
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *_group_limits(root)])


def _group_limits(root: Path) -> Iterator[int]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers == "":
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # The limits of all parent groups apply too. In a container the path may be the host's and
        # not exist; then the root of the container's own hierarchy has its limit.
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts), -1, -1):
            with suppress(OSError, ValueError):  # "max", or no such file
                yield int(base.joinpath(*parts[:depth], name).read_text())
