"""Jobs of a lane as futures of `concurrent.futures`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from gpud_client.launch.jobs import Job
from gpud_client.launch.lane_job_base import LaneJobBase

__all__ = ["LaneJob"]


class LaneJob(LaneJobBase, Job):
    """A job of a `Lane`."""

    def __getattr__(self, name: str) -> Any:
        if name in ("_condition", "_waiters"):  # somebody waits for it as for any future
            self._watch()
            return Job.__getattr__(self, name)
        return super().__getattr__(name)

    def done(self) -> bool:
        """Return whether the job has ended: done, failed or cancelled."""
        self._look()
        return Job.done(self)

    def cancelled(self) -> bool:
        """Return whether the job has ended because it was cancelled."""
        self._look()
        return Job.cancelled(self)

    def add_done_callback(self, fn: Callable[[Future[None]], object]) -> None:
        """Call ``fn(job)`` when the job has ended; see `Job.add_done_callback`."""
        super().add_done_callback(fn)
        if not self._settled:
            self._watch()

    def _wait_for_end(self, timeout: float | None) -> BaseException | None:
        if timeout is None and self._first == self._last and self._lane._is_done(self._last):
            self._asked = True
            return None
        if not (self._over or (self._lane._wait(self._last, timeout) and self._look())):
            late = self._channel.run(self._late(timeout))
            if not self._settled:
                raise late
        self._asked = True
        return None if self._error is None else self._ask()
