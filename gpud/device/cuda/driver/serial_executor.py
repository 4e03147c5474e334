"""Calls of the driver that may wait, on a thread that nobody else waits for.

Problem: what gives memory back, or makes a context, may wait for kernels, and they may run for
hours; everybody's copies, and everybody's launches, would wait with it.

Approach: such work is put aside: a thread of its own, which holds no lock, does one thing after the
other. Who lacks what is on its way back waits for a while, until something more is done.

What is known: "any CUDA API call may block or synchronize" (CUDA Driver API 13.0, "API
synchronization behavior"), which names no call. cuMemUnmap and cuMemRelease do not synchronize,
say NVIDIA/cuda-python, issue 2886, and PyTorch (``CUDACachingAllocator.cpp``, "in all cases"): what
is taken away must not be in use, and whoever takes it away need not wait for others. Nobody says so
of cuMemAddressFree or cuGreenCtxCreate. If one of them does wait, with a lock of the driver's own,
what runs makes way for it (`gpud.device.cuda.driver.watchdog`).

Properties:
* things are done in the order in which they were put;
* what fails is raised where somebody asks next.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

__all__ = ["SerialExecutor"]


class SerialExecutor:
    """Does things one after the other. Thread-safe.

    Args:
        name: of the thread, which is begun with the first thing.
        threaded: False: things are done where they are put, as tests want it that step by hand.

    Attributes:
        done: how many things were.
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
    def left(self) -> int:
        """How many things are not done."""
        return len(self._calls)

    def put(self, call: Callable[[], None]) -> None:
        """Have something done, soon.

        Raises:
            Exception: what something that was put before has failed with.
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
        """Wait until more than ``done`` things are; False: nothing is left, or time is over.

        Raises:
            Exception: what something has failed with.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.done > done or not self._calls, seconds)
        self.check()
        return self.done > done

    def check(self) -> None:
        """Raise what something that was put has failed with, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """End the thread, when all is done."""
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
            except BaseException as error:  # noqa: BLE001 - whoever asks next hears of it
                self._error = error
            del call  # and what it holds
            with self._changed:
                self._calls.popleft()
                self.done += 1
                self._changed.notify_all()
