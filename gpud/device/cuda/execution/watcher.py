"""The thread that detects finished launches and blocks that have left.

Problem: the device does not notify the host when a block leaves a launch that goes on; and the host
must not spin.

Approach: one thread, which sleeps between polls: indefinitely if nothing is on the device; else
until the driver posts the semaphore at the end of a launch, but at most for an interval that
doubles while nothing changes. A poll reads words in host memory (how many blocks of each launch are
left), which costs about as much as waking the thread.

Properties:
* with nothing on the device it does not run;
* the end of a launch is detected when the driver posts it, and at the latest after `_LONGEST_S`,
  even if the context is lost and nothing is posted any more;
* callbacks are called without the device's lock;
* if the thread fails, every run fails as on a lost device: no other thread polls launches.
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from gpud.device.cuda.driver.semaphore import Semaphore
from gpud.device.cuda.launch.sequence import CUDASequence
from gpud.device.cuda.placement.compaction import Compaction, PlacedRun
from gpud.errors import DeviceLost, GpudError

__all__ = ["WatchedRun", "Watcher"]

_SHORTEST_S: Final = 50e-6
_LONGEST_S: Final = 2e-3


class WatchedRun(PlacedRun, Protocol):
    """What the watcher, and who asks it for runs, needs of a run."""

    sequence: CUDASequence

    def poll(self) -> bool:
        """Detect what has changed on the device; return whether anything has."""

    def update_placement(self) -> None:
        """React to a change of partitions or barred SMs, or begin after waiting."""

    def reconsider(self) -> None:
        """Apply the number of slices again, as the session was quiesced or resumed."""

    def end(self) -> None:
        """Release all blocks and begin nothing more."""

    def lose(self, error: GpudError) -> None:
        """Be over with this error: the device is lost."""


class Watcher:
    """Polls the runs that have launches on the device, and makes their callbacks.

    Attributes:
        semaphore: a post ends the thread's sleep.
        compaction: makes room for online blocks.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._deferred: deque[Callable[[], None]] = deque()
        self.semaphore = Semaphore()
        self.compaction = Compaction()
        self._runs: dict[WatchedRun, None] = {}
        self._waiting: dict[WatchedRun, None] = {}
        self._pause = _SHORTEST_S
        self._ending = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; tests that poll by hand do without."""
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def add(self, run: WatchedRun) -> None:
        """Poll a run, which has launches now. With the lock."""
        self._runs[run] = None

    def remove(self, run: WatchedRun) -> None:
        """Stop polling a run, whose launches are over. With the lock."""
        self._runs.pop(run, None)

    def add_waiting(self, run: WatchedRun) -> None:
        """Have a run without launches begin as soon as it may. With the lock."""
        self._waiting[run] = None

    def is_waiting(self, run: WatchedRun) -> bool:
        """Return whether a run waits until it may begin. With the lock."""
        return run in self._waiting

    @property
    def runs(self) -> tuple[WatchedRun, ...]:
        """The runs that have launches on the device. With the lock."""
        return tuple(self._runs)

    @property
    def busy(self) -> bool:
        """Whether anything is on the device."""
        return bool(self._runs)

    def wake(self) -> None:
        """Poll again soon, because of a change. With or without the lock."""
        self._pause = _SHORTEST_S
        self.semaphore.post()

    def defer(self, call: Callable[[], None]) -> None:
        """Queue ``call`` for the next `run_deferred`, without the lock. With the lock."""
        self._deferred.append(call)

    def run_deferred(self) -> None:
        """Call what `defer` queued. Without the lock."""
        while self._deferred:
            try:
                call = self._deferred.popleft()
            except IndexError:  # another thread has it
                return
            call()

    def notify(self) -> None:
        """Make the deferred calls and poll soon, after a change. Without the lock."""
        self.run_deferred()
        self.wake()

    def poll(self) -> float | None:
        """Poll every run once; how long to sleep, in seconds, None: until a post.

        Waiting runs come first: they may begin now.
        """
        with self._lock:
            changed = False
            waiting, self._waiting = self._waiting, {}
            watched = (*waiting, *self._runs)
            try:
                for run in watched:
                    if run in waiting:
                        run.update_placement()
                    else:
                        changed |= run.poll()
                if self.compaction.poll(self._runs):
                    self.update_placement()
                    changed = True
            except Exception as error:  # noqa: BLE001 - this thread must not die silently
                self._runs |= dict.fromkeys(watched)  # some may have been taken out already
                self._lose(_as_loss(error))
            if changed:
                self._pause = _SHORTEST_S
            else:
                self._pause = min(2 * self._pause, _LONGEST_S)
            pause = self._pause if self._runs or self._waiting else None
        self.run_deferred()
        return pause

    def update_placement(self) -> None:
        """Have every run react to changed partitions or barred SMs. With the lock."""
        waiting, self._waiting = self._waiting, {}
        for run in (*waiting, *self._runs):
            run.update_placement()

    def end_all(self) -> None:
        """End every run that has launches or waits; none is polled any more."""
        for run in (*self._waiting, *self._runs):
            run.end()

    def close(self) -> None:
        """End the thread."""
        self._ending = True
        self.semaphore.post()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _lose(self, error: GpudError) -> None:
        """Fail every run: the context is lost."""
        for run in (*self._waiting, *self._runs):
            run.lose(error)
        self._runs.clear()
        self._waiting.clear()

    def _run(self) -> None:
        pause: float | None = None
        while not self._ending:
            if self.semaphore.wait(pause):
                self._pause = _SHORTEST_S
            try:
                pause = self.poll()
            except Exception:  # noqa: BLE001 - of a callback; other runs must be polled
                traceback.print_exc()
                pause = _LONGEST_S


def _as_loss(error: Exception) -> DeviceLost:
    """Return the error that ends the device host: no other thread polls launches."""
    if isinstance(error, DeviceLost):
        return error
    trace = "".join(traceback.format_exception(error)).strip()
    return DeviceLost(f"launches cannot be watched any more: {trace}")
