"""The table of jobs and sessions: dependencies, and the bookkeeping when a job begins or ends.

Problem: a job must not start before its predecessors have ended, nor on a device that lacks what
it needs; and whatever ends it, it must leave its stream, its session and its device, be reported
to its owner once, and unblock its successors.

Approach: a single entry and a single exit. Each job enters through `JobTable.add` and leaves
through one of `refuse`, `ended` and `finish`; `end` requests the end of a job. When and why these
are called is decided in `gpud.core.scheduler`, a job's share of the device by the policy.

Properties (of the same names in `gpud.core.scheduler`, tested there): once, prepared, awake; and
order: no job is unblocked before all jobs ahead of it in its stream, and all in its ``after``,
have ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpud.core import commands as out
from gpud.core import events as ev
from gpud.core.device import DeviceRecord
from gpud.core.job import JobRecord
from gpud.core.lifecycles import DeviceState, JobInput, JobState, SessionInput, SessionState
from gpud.core.session import SessionRecord
from gpud.core.timers import Timer, Timers
from gpud.core.users import UserRecord
from gpud.errors import Draining, GpudError, InternalError, JobCancelled
from gpud.units import JobId, SessionId

__all__ = ["JobTable"]

# Members by global names: looking one up in its class takes ten times as long.
_BLOCKED, _ENDING = JobState.BLOCKED, JobState.ENDING
_OPEN, _CLOSING = SessionState.OPEN, SessionState.CLOSING
_READY, _BECOMES_READY = DeviceState.READY, JobInput.READY
_GOOD_ENDS = (JobInput.COMPLETE, JobInput.CLOSE)


class JobTable:
    """The jobs and sessions of one scheduler.

    Args:
        devices: device records by device index.
        timers: the scheduler's timers, to which a `Timer.GRACE` is added for each job being ended.
        grace_ns: see below.

    Attributes:
        grace_ns: the grace period, from `EndJob` until the job is killed.
        jobs: those that have not ended, by id.
        sessions: those that are not closed, by id.
        users: those of whom something was said, or who have had a session, by number.
        finished: the jobs that the present event has finished.
        out: the commands that the present event has caused.
        now_ns: time of the present event.
    """

    def __init__(self, devices: Mapping[int, DeviceRecord], timers: Timers, grace_ns: int) -> None:
        self.jobs: dict[JobId, JobRecord] = {}
        self.sessions: dict[SessionId, SessionRecord] = {}
        self.users: dict[int, UserRecord] = {}
        self.finished: dict[JobId, JobRecord] = {}
        self.out: list[out.Command] = []
        self.now_ns = 0
        self._devices = devices
        self._timers = timers
        self.grace_ns = grace_ns
        self._turns = 0

    def next_event(self, now_ns: int) -> list[out.Command]:
        """Begins a new event; returns the list that collects its commands."""
        self.now_ns = now_ns
        self.out = []
        if self.finished:
            self.finished = {}
        return self.out

    # -- beginning

    def add(self, job: JobRecord, session: SessionRecord, after: Iterable[JobId]) -> None:
        """Add an accepted job, at the end of its stream."""
        self.jobs[job.id] = job
        session.add(job)
        for other in dict.fromkeys(after):
            followed = self.jobs.get(other)
            if followed is not None and followed is not job:
                followed.followers.append(job.id)
                job.after_left += 1
        self._check_dependencies(job)

    def _check_dependencies(self, job: JobRecord) -> None:
        """Unblocks a job without unfinished predecessors: it is prepared, or waits for capacity."""
        if job.state is not _BLOCKED or job.after_left or job.stream_prev is not None:
            return
        self._turns += 1
        job.order = self._turns
        device = self._devices[job.device]
        if not job.online:
            job.tag = device.tag_for(self.sessions[job.session].user)
        if job.prepared_generation == device.host_generation:
            self.ready(job, device)
            return
        job.step(JobInput.PREPARE, self.now_ns)
        if device.state is _READY:
            self.prepare(job)

    def prepare(self, job: JobRecord) -> None:
        """Commands the job's device, which is ready, to be prepared for the job."""
        job.preparations += 1
        self.out.append(out.PrepareJob(job.id, job.device))

    def ready(self, job: JobRecord, device: DeviceRecord) -> None:
        """Queues an unblocked job on its device, which is prepared, to wait for capacity."""
        job.step(_BECOMES_READY, self.now_ns)
        device.now_ns = self.now_ns
        device.add(job, self.sessions[job.session].user)

    # -- ending

    def close_lane(self, job: JobRecord) -> None:
        """End a lane because it is not needed any more, as `end`."""
        if not job.started:
            self.finish(job, JobCancelled(f"{job.what} was closed before it was open"))
        else:
            self.end(job, None)

    def end(self, job: JobRecord, cause: GpudError | None) -> None:
        """End a job for ``cause``: at once if it has not started, else as its blocks leave."""
        if job.state is _ENDING:
            job.cause = job.cause or cause  # of a lane that is being closed
            return
        if not job.started:
            assert cause is not None, "only a started lane is ended without a cause"
            self.finish(job, cause)
            return
        job.cause = cause
        job.step(JobInput.END, self.now_ns)
        device = self._devices[job.device]
        device.now_ns = self.now_ns
        device.mark_ending(job)
        if device.state is _READY:
            self.out.append(out.EndJob(job.id, job.device))
            self._timers.add(self.now_ns + self.grace_ns, Timer.GRACE, job.id)

    def finish(self, job: JobRecord, error: GpudError) -> None:
        """Finishes a job of which nothing runs, as failed or cancelled according to its error."""
        self.ended(job, _input(error), error)

    def ended(self, job: JobRecord, by: JobInput, error: GpudError | None = None) -> None:
        """Remove a job that has ended from all tables, and unblock its successors.

        If it has failed, the sticky jobs behind it in its stream fail with it.
        """
        session = self.sessions[job.session]
        over = [job]
        if by not in _GOOD_ENDS and self._note_failure(job, session, error):
            over += session.sticky_behind(job)
        unblocked = [self._remove(job, session, by, error)]
        for one in over[1:]:
            unblocked.append(self._remove(one, session, JobInput.FAIL, session.failure(one)))
        if session.state is _CLOSING and not session.jobs:
            self._forget_session(session)
        for head in unblocked:
            if head is not None and head.id in self.jobs:
                self._check_dependencies(head)
        for one in over:
            for other in one.followers:
                follower = self.jobs.get(other)
                if follower is not None:
                    follower.after_left -= 1
                    self._check_dependencies(follower)

    def _remove(
        self, job: JobRecord, session: SessionRecord, by: JobInput, error: GpudError | None
    ) -> JobRecord | None:
        """Remove a job that has ended; return the one that has become the head of its stream."""
        job.step(by, self.now_ns)
        del self.jobs[job.id]
        device = self._devices[job.device]
        device.now_ns = self.now_ns
        device.remove(job)
        self._report_finished(job, error)
        return session.remove(job)

    def _note_failure(
        self, job: JobRecord, session: SessionRecord | None, error: GpudError | None
    ) -> bool:
        """Note for its stream that a job has failed; return whether those behind it fail, too."""
        if not job.submission.sticky or job.forgiven or isinstance(error, Draining):
            return False  # what comes behind is drained as well
        if session is None or session.state is not _OPEN:
            return False
        session.failed.setdefault(job.submission.stream, job.id)
        return True

    def refuse(self, job: JobRecord, error: GpudError) -> None:
        """Finishes a job that was not accepted."""
        job.step(_input(error), self.now_ns)
        self._report_finished(job, error)
        self._note_failure(job, self.sessions.get(job.session), error)

    def refused(self, event: ev.JobRefused) -> None:
        """Take notice that a sticky job was refused before it was submitted."""
        session = self.sessions.get(event.session)
        if session is not None and session.state is _OPEN:
            session.failed.setdefault(event.stream, event.job)

    def failure_seen(self, event: ev.FailureSeen) -> None:
        """Let what a client submits to a stream run, as it has seen what has failed there."""
        session = self.sessions.get(event.session)
        if session is not None and session.failed.get(event.stream, event.job + 1) <= event.job:
            del session.failed[event.stream]

    def _report_finished(self, job: JobRecord, error: GpudError | None) -> None:
        self.finished[job.id] = job
        self.out.append(out.FinishJob(job.id, str(job.state), error))

    # -- sessions

    def open_session(self, session: SessionId, user: int) -> None:
        """Add the session of a client that has connected."""
        if session in self.sessions:
            raise InternalError(f"session {session} was opened twice", stage="scheduler")
        record = self.users.get(user) or self.users.setdefault(user, UserRecord(user))
        self.sessions[session] = SessionRecord(session, record, self.now_ns)

    def change_user(self, user: UserRecord) -> None:
        """Apply what is said of a user, also to the jobs that it has."""
        self.users[user.number] = user
        for session in self.sessions.values():
            if session.user.number == user.number:
                session.user = user
        for device in self._devices.values():
            device.users.change(user)
            device.dirty = True

    def close_session(self, session: SessionId) -> None:
        """End the jobs of a disconnected client; its session closes when the last has ended."""
        record = self.sessions.get(session)
        if record is None or record.state is not _OPEN:
            return
        record.step(SessionInput.CLOSE, self.now_ns)
        if not record.jobs:
            self._forget_session(record)
            return
        # From the last to the first, so that no job is unblocked by the end of another.
        for job in reversed(list(record.jobs.values())):
            self.end(job, JobCancelled("the job's client has gone"))

    def _forget_session(self, session: SessionRecord) -> None:
        session.step(SessionInput.LAST_JOB_GONE, self.now_ns)
        del self.sessions[session.session]
        self.out.append(out.CloseSession(session.session))


def _input(error: GpudError) -> JobInput:
    return JobInput.CANCEL if isinstance(error, JobCancelled) else JobInput.FAIL
