"""Handles requests about jobs: resize, cancel, describe. Users manage all jobs of their own."""

from __future__ import annotations

import time
from fractions import Fraction
from typing import Any

from gpud.errors import GpudError, UnknownName
from gpud.server.handlers.answers import Answers, rows
from gpud.server.handlers.job_rows import JobRows
from gpud.server.hosts.runner import Runner
from gpud.server.state.job_history import JobHistory
from gpud.server.state.job_tables import ActiveJobs
from gpud.server.state.session import Session
from gpud.server.state.submitted_job import SubmittedJob
from gpud.units import JobId, SessionId, job_id, job_name
from gpud.wire import messages as wm

__all__ = ["JobRequests"]


class JobRequests:
    """Handles requests about jobs.

    Args:
        jobs: those that have not ended.
        history: those that have.
        runner: feeds the scheduler.
        job_rows: makes rows about jobs.
        answers: builds large answers in slices.
    """

    def __init__(
        self,
        jobs: ActiveJobs,
        history: JobHistory,
        runner: Runner,
        job_rows: JobRows,
        answers: Answers,
    ) -> None:
        self._jobs = jobs
        self._history = history
        self._runner = runner
        self._job_rows = job_rows
        self._answers = answers

    def resize(self, session: Session, message: wm.Resize) -> None:
        """Handle `Resize`: answer when the scheduler has confirmed it."""
        job = self._job(session, message.job)

        def on_resized(error: GpudError | None) -> None:
            session.reply(message.request, None, error)

        reservation = None if message.reservation is None else Fraction(*message.reservation)
        quota = None if message.quota is None else Fraction(*message.quota)
        self._runner.resize(job.id, reservation, quota, on_resized)

    def cancel(self, session: Session, message: wm.Cancel) -> None:
        """Handle `Cancel`: answer whether the job had not ended yet."""
        if self._history.visible(session.peer, _id(message.job)):
            session.send(wm.Answer(message.request, False))
            return
        job = self._job(session, message.job)
        self._runner.cancel(job, by_owner=job.session == session.number)
        session.send(wm.Answer(message.request, True))

    def describe(self, session: Session, message: wm.Describe) -> None:
        """Handle `Describe`: answer one row for each job, None for one that is unknown."""
        jobs = [self._jobs.visible(session.peer, _id(ref)) for ref in message.jobs]

        def row(job: SubmittedJob | None) -> dict[str, Any] | None:
            return None if job is None else self._job_rows.row(job, time.monotonic_ns())

        def on_progress() -> None:
            self._answers.answer(session, message.request, rows(jobs, row))

        self._job_rows.refresh(session, [job for job in jobs if job is not None], on_progress)

    def why(self, session: Session, message: wm.Why) -> None:
        """Handle `Why`: answer lines about a job, also one that has ended recently."""
        number = _id(message.job)
        job = self._jobs.visible(session.peer, number)
        if job is None:
            job = self._history.visible(session.peer, number)
        if job is None:
            raise UnknownName(
                f"there is no job {job_name(number)}, or it has ended long ago; see gpuctl ps and "
                "gpuctl history"
            )

        def on_progress() -> None:
            if not session.gone:
                session.send(wm.Answer(message.request, self._job_rows.why(job, session.peer)))

        # Those that hold what it needs, too, for how long they will run on.
        self._job_rows.refresh(session, self._job_rows.beside(job), on_progress)

    def _job(self, session: Session, ref: tuple[int, int]) -> SubmittedJob:
        number = _id(ref)
        job = self._jobs.visible(session.peer, number)
        if job is None:
            raise UnknownName(f"there is no job {job_name(number)}, or it has ended; see gpuctl ps")
        return job


def _id(ref: tuple[int, int]) -> JobId:
    return job_id(SessionId(ref[0]), ref[1])
