"""The scheduler's record of one client session: its jobs and its streams."""

from __future__ import annotations

from gpud.core.job import JobRecord
from gpud.core.lifecycles import SESSIONS, Lifecycle, SessionInput, SessionState
from gpud.core.users import UserRecord
from gpud.errors import GpudError, LimitExceeded, PredecessorFailed
from gpud.units import JobId, SessionId, job_name

__all__ = ["SessionRecord"]

_MOST_FAILED = 4096  # streams with failures that are not seen


class SessionRecord(Lifecycle[SessionState, SessionInput]):
    """A client's session.

    Attributes:
        user: whose it is.
        jobs: those that have not ended, by id, in the order of submission.
        failed: the first job that failed, of each stream with failures that the client has not
            seen.
    """

    def __init__(self, session: SessionId, user: UserRecord, now_ns: int) -> None:
        super().__init__(SESSIONS, SessionState.OPEN, now_ns)
        self.session = session
        self.user = user
        self.jobs: dict[JobId, JobRecord] = {}
        self.failed: dict[int, JobId] = {}
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

    def sticky_behind(self, job: JobRecord) -> list[JobRecord]:
        """Return the sticky jobs behind a job in its stream, in order."""
        found, behind = [], job.stream_next
        while behind is not None:
            if behind.submission.sticky:
                found.append(behind)
            behind = behind.stream_next
        return found

    def failure(self, job: JobRecord) -> GpudError | None:
        """Return the error of a job if it cannot run, as one before it in its stream has failed."""
        failed = self.failed.get(job.submission.stream)
        if failed is None:
            if len(self.failed) < _MOST_FAILED:
                return None
            return LimitExceeded(
                f"{_MOST_FAILED} streams of the session have failed jobs whose errors nobody has "
                "asked for: ask for them with result() or exception()",
                limit="failed streams",
                value=_MOST_FAILED,
            )
        return PredecessorFailed(
            f"job {job.name} was not run: job {job_name(failed)}, before it in its stream, has "
            "failed, and nobody had asked for its error",
            job=job_name(failed),
        )

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
