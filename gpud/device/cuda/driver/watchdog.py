"""A watchdog for driver calls that may wait for kernels: running blocks leave for a stuck call.

Problem: some driver calls wait until the device is idle, and block every other call of the process
meanwhile. A persistent kernel runs for hours, and only the host ends it, by calls that would block
as well: a deadlock.

Approach: such a call is made inside `DriverWatchdog.blocking_call`. If it has not returned after a
few milliseconds it is *stuck*, and a guard thread tells all blocks to leave at their next task
block. It does so by stores to host memory, without a driver call, and without a lock that a thread
blocked in the driver might hold. It repeats them, for launches that were being made meanwhile.
While a call is stuck no launch is begun; afterwards runs continue where they were.

What the driver does, as far as it is known:
* to load a kernel "may require context synchronization" (CUDA Programming Guide 13, 4.7.4);
* on H100 a load was seen to wait until the device is idle, and to hold a lock of the context
  that any other call needs: with a persistent kernel, for ever (meta-pytorch/torchcomms, pull
  requests 2334 and 2470, 2026);
* setting an attribute of a function was seen to wait for copies (intel/llvm, pull request 16928).

Properties:
* a call that returns in time disturbs no run;
* the guard thread never waits for the driver or for a lock of the device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["DriverWatchdog"]

_SECONDS: Final = 5e-3
"""A load of machine code takes a millisecond or less; a guess until it has been measured."""

_REPEAT_S: Final = 2e-3


class DriverWatchdog:
    """Guards driver calls that may wait for kernels.

    Args:
        seconds: after how long a call is stuck.

    Attributes:
        stuck: how many calls are stuck now.
    """

    def __init__(self, seconds: float = _SECONDS) -> None:
        self.stuck = 0
        self._seconds = seconds
        self._counting = threading.Lock()
        self._halt: Callable[[], None] | None = None
        self._resume: Callable[[], None] | None = None

    def arm(self, halt: Callable[[], None], resume: Callable[[], None]) -> None:
        """Start guarding calls: from now on kernels may be running.

        Args:
            halt: has all blocks leave; called by another thread, without any lock, once or more.
            resume: called when no call is stuck any more, likewise.
        """
        self._halt, self._resume = halt, resume

    @contextmanager
    def blocking_call(self) -> Iterator[None]:
        """Context manager around calls that may wait for kernels; the device's lock may be held."""
        if self._halt is None:
            yield
            return
        over = threading.Event()
        guard = threading.Thread(target=self._watch, args=(over,), name="watchdog", daemon=True)
        guard.start()
        try:
            yield
        finally:
            over.set()
            guard.join()

    def _watch(self, over: threading.Event) -> None:
        assert self._halt is not None
        assert self._resume is not None
        if over.wait(self._seconds):
            return
        with self._counting:
            self.stuck += 1
        try:
            self._halt()
            while not over.wait(_REPEAT_S):
                self._halt()
        finally:
            with self._counting:
                self.stuck -= 1
            self._resume()
