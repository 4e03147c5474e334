"""Submitted jobs as futures of `concurrent.futures`."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

from gpud.errors import GpudError, JobCancelled
from gpud_client.connection.faces import Blocking
from gpud_client.connection.pending import wake
from gpud_client.displays import LIVE_S, Display, is_notebook, show_in_place
from gpud_client.launch.job_base import JobBase

__all__ = ["Job"]

# For making a job's condition, or for its end without one. It is held for a few steps; a collector
# that runs in them may have finalizers that ask for another job's.
_MAKING = threading.RLock()


class Job(JobBase, Blocking, concurrent.futures.Future[None]):
    """A submitted job: a `concurrent.futures.Future` with state, statistics and resizing.

    Made by `Kernel.submit` and `Session.sequence`. It works wherever a future does, as with
    `concurrent.futures.wait`, ``as_completed`` and `asyncio.wrap_future`. Thread-safe.

    If this object is dropped, the job goes on and its arrays stay allocated; closing the session
    cancels it.
    """

    # A future's state. Its lock and its waiters are made when somebody first asks for them: most
    # jobs are waited for with `result`, which needs neither.
    _state = "PENDING"
    _result = None
    _exception: BaseException | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "_condition":
            self._channel.call_back(always=True)
            made = threading.Condition()
            with _MAKING:
                return self.__dict__.setdefault(name, made)
        if name == "_waiters":
            return self.__dict__.setdefault(name, [])
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def done(self) -> bool:
        """Return whether the job has ended: done, failed or cancelled."""
        if self._state != "PENDING":  # set before those who wait for futures are told
            return True
        self._channel.call_back(always=False)
        return False

    def cancelled(self) -> bool:
        """Return whether the job has ended because it was cancelled."""
        return self._state == "CANCELLED_AND_NOTIFIED"

    def result(self, timeout: float | None = None) -> None:
        """Wait until the job has ended. Returns nothing: results are in the arrays.

        Args:
            timeout: In seconds; None: no limit.

        Raises:
            JobError: The job failed, or was cancelled (`JobCancelled`). Its output arrays hold
                unspecified values.
            TimeoutError: It has not ended in time; the message states its progress. It goes on.
            ConnectionLost: The connection to the daemon is lost; how the job ends is unknown.
        """
        error = self._wait_for_end(timeout)
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until the job has ended; returns its error, None if it is done.

        Args:
            timeout: In seconds; None: no limit.

        Raises:
            JobCancelled: It was cancelled.
            TimeoutError: It has not ended in time. It goes on.
        """
        error = self._wait_for_end(timeout)
        if isinstance(error, CancelledError):
            raise error
        return error

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[None]], object]) -> None:
        """Call ``fn(job)`` when the job has ended; at once if it has.

        A thread of the session calls it, and other callbacks after it; it may do whatever a program
        can. Its exceptions are logged.
        """
        self._callbacks.append(fn)
        self._channel.call_back(always=True)
        if self._settled:
            self._call_back()

    def _display(self) -> Display:
        with suppress(GpudError):  # the connection is lost: what is known is shown
            return self._displayed(self._channel.run(self._describe()))
        return super()._display()

    def _ipython_display_(self) -> None:
        """In a notebook, show its progress until it has ended; elsewhere as anything else."""
        if not is_notebook():
            raise NotImplementedError
        show_anew = show_in_place(self)

        def follow() -> None:
            while not self.done():
                time.sleep(LIVE_S)
                show_anew()

        if not self.done():
            threading.Thread(target=follow, name="gpud display", daemon=True).start()

    # -- settling: called in the thread that reads the connection

    def _finish(self) -> None:
        error = self._error
        if self._state == "PENDING":
            if error is not None:
                self._note_failure()
            state = "FINISHED"
            if isinstance(error, JobCancelled):
                state = "CANCELLED_AND_NOTIFIED"
            else:
                self._exception = error
            # Who has the condition finds the job either done, or is told: never both, which
            # `concurrent.futures.as_completed` does not bear.
            with _MAKING:
                alone = "_condition" not in self.__dict__
                if alone:
                    self._state = state
            if not alone:
                with self._condition:
                    self._state = state
                    self._tell_waiters()
        self._settled = True
        wake(self._waiting)
        if self._callbacks:
            self._channel.call_later(self._call_back)

    def _tell_waiters(self) -> None:
        for waiter in self._waiters:
            if self._state != "FINISHED":
                waiter.add_cancelled(self)
            elif self._exception is not None:
                waiter.add_exception(self)
            else:
                waiter.add_result(self)
        self._condition.notify_all()

    def _call_back(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:  # another thread was quicker
                return
            try:
                callback(self)
            except Exception:
                logging.getLogger("concurrent.futures").exception(
                    "exception calling callback for %r", self
                )

    def _wait_for_end(self, timeout: float | None) -> BaseException | None:
        if not self._settled and not self._channel.wait(self, timeout):
            late = self._channel.run(self._late(timeout))
            if not self._settled:
                raise late
        self._asked = True
        return None if self._error is None else self._ask()
