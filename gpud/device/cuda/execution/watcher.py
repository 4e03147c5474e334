"""The thread that sees launches end and blocks leave.

Problem: nothing tells the host that a block has left a launch that goes on; and nobody may spin.

Approach: one thread, which sleeps until there is something to see: forever if nothing is on the
device, until the driver posts the semaphore at the end of a launch, and otherwise for a while that
doubles as long as nothing changes. It looks at words in host memory (how many blocks of each launch
are left), which costs about as much as the sleep's end.

Properties:
* with nothing on the device it does not run;
* what ends is seen when the driver says so, and at the latest after `_LONGEST_S`, even if the
  context is lost and nothing is posted any more;
* callbacks are called without the device's lock;
* whatever fails here, every gang hears of it: nobody else would see launches end.

It has not run on a GPU yet.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gpud.device.cuda.driver.semaphore import Semaphore
from gpud.device.cuda.placement.compaction import Compaction
from gpud.errors import DeviceLost, GpudError

if TYPE_CHECKING:
    from gpud.device.cuda.execution.gang import Gang

__all__ = ["Watcher"]

_SHORTEST_S: Final = 50e-6
_LONGEST_S: Final = 2e-3


class Watcher:
    """Looks after the gangs that have launches on the device.

    Args:
        lock: the device's.
        tell: calls what is to be called without the lock.

    Attributes:
        semaphore: ends its sleep.
        compaction: has offline blocks make room for online ones.
    """

    def __init__(self, lock: threading.RLock, tell: Callable[[], None]) -> None:
        self._lock = lock
        self._tell = tell
        self.semaphore = Semaphore()
        self.compaction = Compaction()
        self._gangs: dict[Gang, None] = {}
        self._held: dict[Gang, None] = {}
        self._pause = _SHORTEST_S
        self._ending = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch; tests that look themselves do without."""
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def add(self, gang: Gang) -> None:
        """Look after a gang, which has launches now. With the lock."""
        self._gangs[gang] = None

    def remove(self, gang: Gang) -> None:
        """Its launches are over. With the lock."""
        self._gangs.pop(gang, None)

    def hold(self, gang: Gang) -> None:
        """It has nothing on the device, and is to begin when it can. With the lock."""
        self._held[gang] = None

    def holds(self, gang: Gang) -> bool:
        """Whether a gang is to begin when it can. With the lock."""
        return gang in self._held

    @property
    def gangs(self) -> tuple[Gang, ...]:
        """Those that have launches on the device. With the lock."""
        return tuple(self._gangs)

    @property
    def busy(self) -> bool:
        """Whether anything is on the device."""
        return bool(self._gangs)

    def wake(self) -> None:
        """Something is about to happen: look again soon. With or without the lock."""
        self._pause = _SHORTEST_S
        self.semaphore.post()

    def poll(self) -> float | None:
        """Look at every gang once; how long to sleep, in seconds, None: until a post.

        Gangs that were held back are told first: they may begin now.
        """
        with self._lock:
            changed = False
            held, self._held = self._held, {}
            watched = (*held, *self._gangs)
            try:
                for gang in watched:
                    if gang in held:
                        gang.update_placement()
                    else:
                        changed |= gang.poll()
                if self.compaction.poll(self._gangs):
                    self.update_placement()
                    changed = True
            except Exception as error:  # noqa: BLE001 - this thread must not end unheard
                self._gangs |= dict.fromkeys(watched)  # some may have been taken out already
                self._lose(_as_loss(error))
            if changed:
                self._pause = _SHORTEST_S
            else:
                self._pause = min(2 * self._pause, _LONGEST_S)
            pause = self._pause if self._gangs or self._held else None
        self._tell()
        return pause

    def update_placement(self) -> None:
        """Tell every gang that the device's partitions are others now. With the lock."""
        held, self._held = self._held, {}
        for gang in (*held, *self._gangs):
            gang.update_placement()

    def end_all(self) -> None:
        """End every gang that has launches or is to; nobody looks after them any more."""
        for gang in (*self._held, *self._gangs):
            gang.end()

    def close(self) -> None:
        """End the thread."""
        self._ending = True
        self.semaphore.post()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _lose(self, error: GpudError) -> None:
        """The context is lost: every gang fails, and the host with the first that says so."""
        for gang in (*self._held, *self._gangs):
            gang.lose(error)
        self._gangs.clear()
        self._held.clear()

    def _run(self) -> None:
        pause: float | None = None
        while not self._ending:
            if self.semaphore.wait(pause):
                self._pause = _SHORTEST_S
            try:
                pause = self.poll()
            except Exception:  # noqa: BLE001 - of a callback; other runs have to be watched
                traceback.print_exc()
                pause = _LONGEST_S


def _as_loss(error: Exception) -> DeviceLost:
    """What ends the device host: nobody else would see launches end."""
    if isinstance(error, DeviceLost):
        return error
    told = "".join(traceback.format_exception(error)).strip()
    return DeviceLost(f"launches cannot be watched any more: {told}")
