"""The scheduler's record of one client session: its jobs and its streams."""

from __future__ import annotations

from gpud.core.job import JobRecord
from gpud.core.lifecycles import SESSIONS, Lifecycle, SessionInput, SessionState
from gpud.core.users import UserRecord
from gpud.units import JobId, SessionId

__all__ = ["SessionRecord"]


class SessionRecord(Lifecycle[SessionState, SessionInput]):
    """A client's session.

    Attributes:
        user: whose it is.
        jobs: those that have not ended, by id, in the order of submission.
    """

    def __init__(self, session: SessionId, user: UserRecord, now_ns: int) -> None:
        super().__init__(SESSIONS, SessionState.OPEN, now_ns)
        self.session = session
        self.user = user
        self.jobs: dict[JobId, JobRecord] = {}
        self._last: dict[int, JobRecord] = {}  # the tail of each stream

    @property
    def what(self) -> str:
        """How messages refer to the session."""
        return f"session {self.session}"

    def add(self, job: JobRecord) -> None:
        """Append a job to its stream; a lane is in none."""
        self.jobs[job.id] = job
        if job.lane:
            return
        stream = job.submission.stream
        before = self._last.get(stream)
        if before is not None:
            job.stream_prev = before
            before.stream_next = job
        self._last[stream] = job

    def remove(self, job: JobRecord) -> JobRecord | None:
        """Remove a job from its stream; return the job that has become its head, if any."""
        del self.jobs[job.id]
        if job.lane:
            return None
        before, after = job.stream_prev, job.stream_next
        job.stream_prev = job.stream_next = None
        if before is not None:
            before.stream_next = after
        if after is not None:
            after.stream_prev = before
            return after if before is None else None
        if before is not None:
            self._last[job.submission.stream] = before
        else:
            del self._last[job.submission.stream]
        return None
