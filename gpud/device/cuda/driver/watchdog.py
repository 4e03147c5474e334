"""A watchdog for driver calls that may wait for kernels: running blocks leave for a stuck call.

Problem: some driver calls wait until the device is idle, and block every other call of the process
meanwhile. A persistent kernel runs for hours, and only the host ends it, by calls that would block
as well: a deadlock.

Approach: such a call is made inside `DriverWatchdog.blocking_call`. If it takes much longer than on
an idle device it is *stuck*, and a guard thread tells all blocks to leave at their next task block.
It does so by stores to host memory, without a driver call, and without a lock that a thread blocked
in the driver might hold. It repeats them, for launches that were being made meanwhile. While a call
is stuck no launch is begun; afterwards runs continue where they were.

How long a call takes on an idle device differs between functions and machines by orders of
magnitude: a green context, page-locking under virtualisation and the first load take many
milliseconds. So calls are timed whenever nothing is on the device, from its opening on. The *limit*
of a function is `_TIMES` its longest time there, in proportion to the size that is allocated or
loaded. A function that was never timed has the largest limit of all.

What the driver does, as far as it is known:
* to load a kernel "may require context synchronization" (CUDA Programming Guide 13, 4.7.4);
* on H100 a load was seen to wait until the device is idle, and to hold a lock of the context
  that any other call needs: with a persistent kernel, for ever (meta-pytorch/torchcomms, pull
  requests 2334 and 2470, 2026);
* setting an attribute of a function was seen to wait for copies (intel/llvm, pull request 16928).

Properties:
* a call that returns in time disturbs no run;
* a limit is at least `_LEAST_S` and at most `_MOST_S`;
* the guard thread never waits for the driver or for a lock of the device.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["DriverWatchdog"]

_LEAST_S: Final = 5e-3
_MOST_S: Final = 1.0
_TIMES: Final = 5
"""How much longer than on an idle device a call may take; a guess until it has been measured."""

_REPEAT_S: Final = 2e-3


class DriverWatchdog:
    """Guards driver calls that may wait for kernels. Thread-safe.

    Args:
        seconds: after how long a call is stuck at the earliest.

    Attributes:
        stuck: how many calls are stuck now.
    """

    def __init__(self, seconds: float = _LEAST_S) -> None:
        self.stuck = 0
        self._seconds = seconds
        self._counting = threading.Lock()
        self._halt: Callable[[], None] | None = None
        self._resume: Callable[[], None] | None = None
        self._idle: Callable[[], bool] = _always
        self._longest: dict[str, tuple[float, int]] = {}

    def arm(
        self,
        halt: Callable[[], None],
        resume: Callable[[], None],
        idle: Callable[[], bool] | None = None,
    ) -> None:
        """Start guarding calls: from now on kernels may be running.

        Args:
            halt: has all blocks leave; called by another thread, without any lock, once or more.
            resume: called when no call is stuck any more, by that thread too.
            idle: returns whether nothing is on the device; None: that is not known.
        """
        self._halt, self._resume, self._idle = halt, resume, idle or _never

    @contextmanager
    def blocking_call(self, function: str, size: int = 0) -> Iterator[None]:
        """Context manager around calls that may wait for kernels; the device's lock may be held.

        Args:
            function: which is called.
            size: bytes that it allocates or loads; 0: its duration does not depend on a size.
        """
        idle, began = self._idle(), time.monotonic()
        over = threading.Event()
        guard: threading.Thread | None = None
        if self._halt is not None:
            limit_s = self.limit_s(function, size)
            guard = threading.Thread(
                target=self._watch, args=(over, limit_s), name="watchdog", daemon=True
            )
            guard.start()
        try:
            yield
        finally:
            over.set()
            if guard is not None:
                guard.join()
            if idle and self._idle():
                self._timed(function, size, time.monotonic() - began)

    def limit_s(self, function: str, size: int = 0) -> float:
        """Return after how many seconds a call is stuck."""
        with self._counting:
            known = self._longest.get(function)
            if known is None:
                taken_s = max((longest for longest, _ in self._longest.values()), default=0.0)
            else:
                longest, of_size = known
                taken_s = longest * max(1.0, size / of_size if of_size else 1.0)
        return min(max(self._seconds, _TIMES * taken_s), _MOST_S)

    def _timed(self, function: str, size: int, seconds: float) -> None:
        """Keep the longest time of a call on an idle device, and the size to which it belongs."""
        with self._counting:
            longest, _ = self._longest.get(function, (0.0, 0))
            if seconds > longest:
                self._longest[function] = seconds, size

    def _watch(self, over: threading.Event, limit_s: float) -> None:
        assert self._halt is not None
        assert self._resume is not None
        if over.wait(limit_s):
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


def _always() -> bool:
    return True


def _never() -> bool:
    return False
