"""What a run knows of its device: what it launches with, and whom it tells of changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from gpud.device.cuda.execution.watcher import Watcher
from gpud.device.cuda.launch.resources import LaunchResources
from gpud.device.cuda.memory.arenas import CUDAArenas
from gpud.device.cuda.memory.quiescer import Quiescer
from gpud.device.cuda.placement.green_context import GreenContext
from gpud.device.cuda.placement.partitioner import Partitioner

__all__ = ["RunContext"]


@dataclass(frozen=True, slots=True)
class RunContext:
    """The parts of a device that its runs share.

    Attributes:
        lock: guards all runs.
        resources: what they launch with.
        watcher: polls them, and makes their callbacks.
        quiescer: says which of them may have no blocks now.
        partitioner: says where they may run.
        check_open: raises RuntimeError if the device is closed.
        give_partition: takes back the partition of a run that is over; called with the lock.
    """

    lock: threading.RLock
    resources: LaunchResources
    watcher: Watcher
    quiescer: Quiescer
    partitioner: Partitioner
    arenas: CUDAArenas
    check_open: Callable[[], None]
    give_partition: Callable[[GreenContext], None]
