"""Pending writes: which jobs wait for data that is still being copied to their device.

Problem: a job must see what its session wrote before submitting it, although the values still have
to be copied to the device. It must not wait for later writes, or the jobs of a session that keeps
writing would never run.

Approach: a pending write has a number, and the number of the last job that the session had
submitted before it. Jobs and writes of a session are reported in order, so the oldest pending write
determines which jobs wait.

Properties:
    found: a job waits while a write that was reported before its submission has not arrived;
    no_later: a job does not wait for a write that was reported after its submission.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpud.units import SessionId

__all__ = ["PendingWrites"]


class PendingWrites:
    """The pending writes of one device. Jobs are given by their number in their session."""

    def __init__(self) -> None:
        self._last_jobs: dict[SessionId, dict[int, int]] = {}  # by write, in order
        self._numbers = 0

    def begin(self, session: SessionId, last_job: int) -> int:
        """Record a write of a session, after its job ``last_job``; return the write's number."""
        self._numbers += 1
        self._last_jobs.setdefault(session, {})[self._numbers] = last_job
        return self._numbers

    def end(self, session: SessionId, writes: Iterable[int]) -> None:
        """Remove writes that have arrived or are no longer needed; unknown ones are ignored."""
        left = self._last_jobs.get(session)
        if left is None:
            return
        for number in writes:
            left.pop(number, None)
        if not left:
            del self._last_jobs[session]

    def is_waited_for(self, session: SessionId, job: int) -> bool:
        """Whether a job, submitted or not yet, must wait for pending writes."""
        left = self._last_jobs.get(session)
        return left is not None and next(iter(left.values())) < job

    def closed(self, session: SessionId) -> None:
        """Remove a closed session."""
        self._last_jobs.pop(session, None)
