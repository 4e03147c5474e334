"""Quiesces a session: keeps its kernels off the device while its memory mappings change.

Problem: the driver cannot replace the memory behind an address in one step: for a moment there is
none, and a kernel that accesses the address just then ends the context for all sessions. Only the
session's own kernels access its addresses. But they may run for hours, and the session that needs
the memory may be another one.

Approach: the session's runs are released as if they had no slices: their blocks leave at their next
task block, and nothing is lost. When the last block is gone, mappings are changed; then the runs
begin again with the task blocks that are left. If a run must not be interrupted, or does not leave
in time, no mapping is changed, and for a while it is not tried again: the thread that waits also
serves all sessions' memory requests and copies.

Terms: a session, and its arena, is *quiesced* from the release of its runs until they may go on.

Properties:
* after a successful `Quiescer.quiesce`, no kernel of the session is on the device while it lasts;
* a run of a quiesced session keeps its number of slices, and uses them again afterwards;
* runs of other sessions are not affected.

A kernel that was compiled without bounds checks belongs to no arena; sessions have none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from gpud.device.cuda.execution.watcher import WatchedRun, Watcher
from gpud.device.cuda.launch.sequence import CUDASequence

__all__ = ["TIMEOUT_S", "Quiescer", "all_runs", "no_runs", "offline_runs"]

TIMEOUT_S: Final = 0.5
"""How long blocks have to leave: a hundred times a long task block's 5 ms. Memory requests and
copies of all sessions wait meanwhile."""

_RETRY_S: Final = 20 * TIMEOUT_S
"""How long until an arena whose blocks did not leave is tried again: at most 1/20 of the time is
spent waiting."""

_SHORTEST_S: Final = 50e-6
_LONGEST_S: Final = 2e-3


def no_runs(_: WatchedRun) -> bool:
    """Interrupt no run."""
    return False


def offline_runs(run: WatchedRun) -> bool:
    """Interrupt offline runs: another session's shortage must not delay online ones."""
    return not run.urgent


def all_runs(_: WatchedRun) -> bool:
    """Interrupt every run, because its own session needs the memory."""
    return True


class Quiescer:
    """Quiesces sessions, one at a time. For one thread, but for `is_quiesced`.

    Runs that would begin meanwhile wait in the watcher.

    Args:
        watcher: has the runs that are on the device.

    Attributes:
        sleep, clock: `time.sleep` and `time.monotonic`; tests replace them.
    """

    def __init__(self, lock: threading.RLock, watcher: Watcher) -> None:
        self._lock = lock
        self._watcher = watcher
        self._quiesced: int | None = None
        self._retry_after: dict[int, float] = {}  # until when, by arena
        self.sleep: Callable[[float], None] = time.sleep
        self.clock: Callable[[], float] = time.monotonic

    def is_quiesced(self, sequence: CUDASequence) -> bool:
        """Return whether a sequence belongs to a quiesced session, so that it may have no blocks.

        With the lock.
        """
        return self._quiesced is not None and self._quiesced in sequence.arenas

    @contextmanager
    def quiesce(self, arena: int, interrupt: Callable[[WatchedRun], bool]) -> Iterator[bool]:
        """Context manager; yields whether no kernel of the session is on the device while it lasts.

        Args:
            arena: the first address of the session's arena.
            interrupt: whether a run may be interrupted; if one may not, none is.
        """
        try:
            yield self._quiesce(arena, interrupt)
        finally:
            self._resume()

    def _quiesce(self, arena: int, interrupt: Callable[[WatchedRun], bool]) -> bool:
        with self._lock:
            running = self._running(arena)
            if running and self.clock() < self._retry_after.get(arena, 0):
                return False
            self._retry_after.pop(arena, None)
            if not all(map(interrupt, running)):
                return False
            self._quiesced = arena
            for run in running:
                run.reconsider()
        end, pause = self.clock() + TIMEOUT_S, _SHORTEST_S
        while running:
            self._watcher.notify()
            with self._lock:
                running = self._running(arena)
            if running:
                if self.clock() >= end:
                    self._retry_after[arena] = end + _RETRY_S
                    return False
                self.sleep(pause)
                pause = min(2 * pause, _LONGEST_S)
        return True

    def _resume(self) -> None:
        with self._lock:
            arena, self._quiesced = self._quiesced, None
            for run in () if arena is None else self._running(arena):
                run.reconsider()
        self._watcher.notify()

    def _running(self, arena: int) -> list[WatchedRun]:
        return [run for run in self._watcher.runs if arena in run.sequence.arenas]
