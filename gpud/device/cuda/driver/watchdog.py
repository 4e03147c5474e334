"""A watchdog for driver calls that may wait for kernels: what runs makes way for one that does.

Problem: the driver may wait until the device is at rest before it does what it is asked for, and
keeps every other call of the process waiting meanwhile. A persistent kernel runs for hours, and
only the host ends it, by calls that would wait, too. So nothing would ever go on.

Approach: such a call is made inside of `DriverWatchdog.blocking_call`. If it has not returned after
a few milliseconds it is *stuck*, and a thread that stands by has all blocks leave at their next
task block. That is done by stores to host memory: it needs no call of the driver, and no lock,
which somebody may have who is waiting in the driver. It is done again every so often, for launches
that were on their way. While a call is stuck nothing is begun; afterwards runs go on where they
were.

What the driver does, as far as it is known:
* to load a kernel "may require context synchronization" (CUDA Programming Guide 13, 4.7.4);
* on H100 a load was seen to wait until the device is at rest, and to hold a lock of the context
  that any other call needs: with a persistent kernel, for ever (meta-pytorch/torchcomms, pull
  requests 2334 and 2470, 2026);
* setting an attribute of a function was seen to wait for copies (intel/llvm, pull request 16928).

Properties:
* a call that returns in time disturbs nobody;
* nothing here waits for the driver or for a lock of the device.

Nothing here has run on a GPU yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["DriverWatchdog"]

_SECONDS: Final = 5e-3
"""A load of machine code takes a millisecond or less; a guess until it has been measured."""

_AGAIN_S: Final = 2e-3


class DriverWatchdog:
    """Watches calls of the driver.

    Args:
        seconds: after how long a call is stuck.

    Attributes:
        stuck: how many calls are.
    """

    def __init__(self, seconds: float = _SECONDS) -> None:
        self.stuck = 0
        self._seconds = seconds
        self._counting = threading.Lock()
        self._halt: Callable[[], None] | None = None
        self._resume: Callable[[], None] | None = None

    def arm(self, halt: Callable[[], None], resume: Callable[[], None]) -> None:
        """From now on there may be kernels.

        Args:
            halt: has all blocks leave; called by another thread, without any lock, once or more.
            resume: called when no call is stuck any more, likewise.
        """
        self._halt, self._resume = halt, resume

    @contextmanager
    def blocking_call(self) -> Iterator[None]:
        """Around calls that may wait for kernels; with the device's lock or without."""
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
            while not over.wait(_AGAIN_S):
                self._halt()
        finally:
            with self._counting:
                self.stuck -= 1
            self._resume()
