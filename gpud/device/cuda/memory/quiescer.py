"""Quiesces a session: no kernel of it on the device while memory behind its addresses is swapped.

Problem: the driver cannot swap the memory behind an address in one step: for a moment there is
none, and a kernel that reaches the place just then ends the context for everybody. Only kernels of
the session reach its places. But these may run for hours, and who needs the memory may be another.

Approach: what gpud can do with its kernels anyway. The session's runs are released as if they had
been given nothing: their blocks leave at their next task block, and nothing is lost. When the last
is gone, memory is swapped; then they begin anew with what they have left. Those that are not to be
interrupted, or do not leave in time, keep what they have: then nothing is swapped. It is not tried
again for a while: who waits has everybody's memory and copies wait.

Terms: an arena is *held* from the moment in which its runs are released until they may go on.

Properties:
* as long as an arena is held that was found to stand still, none of its kernels is on the device;
* a run of a held arena keeps the slices that it was given, and has them again afterwards;
* runs of other sessions do not notice.

A kernel that was compiled without fences belongs to no arena; sessions have none. Nothing here has
run on a GPU yet.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from gpud.device.cuda.execution.watcher import Watcher

if TYPE_CHECKING:
    from gpud.device.cuda.execution.gang import Gang
    from gpud.device.cuda.launch.chain import Chain

__all__ = ["TIMEOUT_S", "Quiescer", "all_runs", "no_runs", "offline_runs"]

TIMEOUT_S: Final = 0.5
"""How long blocks have to leave: a hundred times a long task block's 5 ms. Memory and copies of all
sessions wait meanwhile."""

_AGAIN_S: Final = 20 * TIMEOUT_S
"""How long an arena is left alone whose blocks did not leave: one part in twenty is waiting."""

_SHORTEST_S: Final = 50e-6
_LONGEST_S: Final = 2e-3


def no_runs(_: Gang) -> bool:
    """Interrupt nobody."""
    return False


def offline_runs(gang: Gang) -> bool:
    """Interrupt what is not online: another session's shortage must not cost it its latency."""
    return not gang.urgent


def all_runs(_: Gang) -> bool:
    """Interrupt whatever runs, for its own session asks for it."""
    return True


class Quiescer:
    """Holds arenas, one at a time. For one thread, but for `holds`.

    Runs that would begin meanwhile wait with the watcher.

    Args:
        lock: the device's.
        watcher: knows what is on the device.
        wake: see `gpud.device.cuda.device.CUDADevice.wake`.

    Attributes:
        sleep, clock: let time pass while blocks leave, and tell it; tests take steps instead.
    """

    def __init__(self, lock: threading.RLock, watcher: Watcher, wake: Callable[[], None]) -> None:
        self._lock = lock
        self._watcher = watcher
        self._wake = wake
        self._held: int | None = None
        self._left_alone: dict[int, float] = {}  # until when, by arena
        self.sleep: Callable[[float], None] = time.sleep
        self.clock: Callable[[], float] = time.monotonic

    def holds(self, chain: Chain) -> bool:
        """Whether runs of a chain must not have blocks now. With the lock."""
        return self._held is not None and self._held in chain.arenas

    @contextmanager
    def hold(self, arena: int, interrupt: Callable[[Gang], bool]) -> Iterator[bool]:
        """Whether no kernel of the arena at this address is on the device, as long as this lasts.

        Args:
            arena: its first address.
            interrupt: whether a run may be interrupted for it; if one may not, none is.
        """
        try:
            yield self._hold(arena, interrupt)
        finally:
            self._let_go()

    def _hold(self, arena: int, interrupt: Callable[[Gang], bool]) -> bool:
        with self._lock:
            running = self._running(arena)
            if running and self.clock() < self._left_alone.get(arena, 0):
                return False
            self._left_alone.pop(arena, None)
            if not all(map(interrupt, running)):
                return False
            self._held = arena
            for gang in running:
                gang.follow()
        end, pause = self.clock() + TIMEOUT_S, _SHORTEST_S
        while running:
            self._wake()
            with self._lock:
                running = self._running(arena)
            if running:
                if self.clock() >= end:
                    self._left_alone[arena] = end + _AGAIN_S
                    return False
                self.sleep(pause)
                pause = min(2 * pause, _LONGEST_S)
        return True

    def _let_go(self) -> None:
        with self._lock:
            arena, self._held = self._held, None
            for gang in () if arena is None else self._running(arena):
                gang.follow()
        self._wake()

    def _running(self, arena: int) -> list[Gang]:
        return [gang for gang in self._watcher.gangs if arena in gang.chain.arenas]
