"""Which jobs must wait for what their sessions have written: on a device that has to be given it.

Problem: a job finds what its session wrote before it, though the values still have to be copied to
the device. It must not wait for what is written after it, or a session that goes on writing would
never run.

Approach: a write on its way is known by a number, and by the last job that the session had
submitted before it. Jobs and writes of a session are both told in their order, so the oldest write
that has not arrived says which jobs wait.

Properties:
    found: a job waits as long as a write that was told before it was submitted has not arrived;
    no_later: a job does not wait for a write that was told after it was submitted.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpud.units import SessionId

__all__ = ["PendingWrites"]


class PendingWrites:
    """Of one device. Jobs are those of one session, by their numbers there."""

    def __init__(self) -> None:
        self._last_jobs: dict[SessionId, dict[int, int]] = {}  # by write, in order
        self._numbers = 0

    def begin(self, session: SessionId, last_job: int) -> int:
        """A session has written something, after its job ``last_job``; the write's number."""
        self._numbers += 1
        self._last_jobs.setdefault(session, {})[self._numbers] = last_job
        return self._numbers

    def end(self, session: SessionId, writes: Iterable[int]) -> None:
        """Writes have arrived, or nobody needs them any more; unknown ones are ignored."""
        left = self._last_jobs.get(session)
        if left is None:
            return
        for number in writes:
            left.pop(number, None)
        if not left:
            del self._last_jobs[session]

    def is_waited_for(self, session: SessionId, job: int) -> bool:
        """Whether a job, which may still be to come, must wait for some."""
        left = self._last_jobs.get(session)
        return left is not None and next(iter(left.values())) < job

    def closed(self, session: SessionId) -> None:
        """A session has gone."""
        self._last_jobs.pop(session, None)
