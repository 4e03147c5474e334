"""A thread that makes driver calls which may block, one after the other.

Problem: a call that frees memory or makes a context may wait for kernels, which may run for hours;
copies and launches of all sessions would wait with it.

Approach: such calls are queued for a thread of their own, which holds no lock and makes them in
order. A caller that needs their result (memory that is being freed) waits until one more is done,
with a timeout.

What is known: "any CUDA API call may block or synchronize" (CUDA Driver API 13.0, "API
synchronization behavior"), which names no call. cuMemUnmap and cuMemRelease do not synchronize,
say NVIDIA/cuda-python, issue 2886, and PyTorch (``CUDACachingAllocator.cpp``, "in all cases"): the
memory must not be in use, and the caller need not wait for other kernels. Neither says so of
cuMemAddressFree or cuGreenCtxCreate. If one of them does wait, holding a lock of the driver's,
the running kernels make way for it (`gpud.device.cuda.driver.watchdog`).

Properties:
* calls are made in the order in which they were queued;
* an exception is raised to the next caller of `put`, `wait`, `check` or `close`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

__all__ = ["SerialExecutor"]


class SerialExecutor:
    """Runs calls one after the other on one thread. Thread-safe.

    Args:
        name: of the thread, which is started with the first call.
        threaded: False: `put` runs the call itself, for tests that step by hand.

    Attributes:
        done: how many calls have finished.
    """

    def __init__(self, name: str, *, threaded: bool = True) -> None:
        self._name = name
        self._threaded = threaded
        self._changed = threading.Condition()
        self._calls: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._error: BaseException | None = None
        self.done = 0

    @property
    def pending(self) -> int:
        """How many calls have not finished."""
        return len(self._calls)

    def put(self, call: Callable[[], None]) -> None:
        """Queue a call.

        Raises:
            Exception: raised by an earlier call.
        """
        self.check()
        if not self._threaded:
            call()
            self.done += 1
            return
        with self._changed:
            self._calls.append(call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self, done: int, seconds: float) -> bool:
        """Wait until more than ``done`` calls have finished.

        Returns False if none is pending, or on timeout.

        Raises:
            Exception: raised by an earlier call.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.done > done or not self._calls, seconds)
        self.check()
        return self.done > done

    def check(self) -> None:
        """Raise the exception of an earlier call, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Finish all pending calls and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self.check()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._calls or self._closing)
                if not self._calls:
                    return
                call = self._calls[0]
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - raised to the next caller
                self._error = error
            del call  # and the objects that it references
            with self._changed:
                self._calls.popleft()
                self.done += 1
                self._changed.notify_all()
