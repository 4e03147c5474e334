"""Finds out which workload's memory the arguments of a job are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpud_client.launch.kernels import Launch
from gpud_client.workloads.memory import MemoryPart

__all__ = ["memory_used"]


def memory_used(launches: Sequence[Launch]) -> tuple[int, int, int] | None:
    """Return the number of a workload, and the bytes of its persistent and temporary memory used.

    None: the arrays of the launches are of no workload.

    Raises:
        ValueError: they are of two.
    """
    parts: dict[int, MemoryPart] = {}
    owner: Any = None
    for launch in launches:
        for index, array in enumerate(launch._arrays):
            part = array._allocation
            if not isinstance(part, MemoryPart):
                continue
            if owner is not None and part.owner is not owner:
                raise ValueError(
                    f"array {index} of {launch.kernel.name} is of workload {part.owner.id}, and "
                    f"others are of {owner.id}: an iteration uses the memory of its own workload; "
                    "copy the values with get() and set(), or share an array of the session"
                )
            owner = part.owner
            parts[part.address] = part
    if owner is None:
        return None
    persistent = sum(one.size for one in parts.values() if one.of is owner._range)
    whole = sum(one.size for one in parts.values())
    return owner._number, persistent, whole - persistent
