"""Handles requests about jobs: resize, cancel, describe. Users manage all jobs of their own."""

from __future__ import annotations

import time
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from gpud.errors import GpudError, InvalidArgument, UnknownName
from gpud.server.handlers import answers
from gpud.server.handlers.progress import refresh_progress
from gpud.server.state.submitted_job import Job
from gpud.units import JobId, SessionId, job_id, job_name
from gpud.wire import messages as wm

if TYPE_CHECKING:
    from gpud.server.state.session import Session

__all__ = ["cancel", "describe", "resize"]


def resize(session: Session, message: wm.Resize) -> None:
    """Handle `Resize`: answers when the scheduler has confirmed it."""
    job = _job(session, message.job)
    if (message.reservation is None) == (message.quota is None):
        raise InvalidArgument("a resize gives a reservation or a quota, one of them")

    def on_resized(error: GpudError | None) -> None:
        session.reply(message.request, None, error)

    reservation = None if message.reservation is None else Fraction(*message.reservation)
    quota = None if message.quota is None else Fraction(*message.quota)
    session.front.runner.resize(job.id, reservation, quota, on_resized)


def cancel(session: Session, message: wm.Cancel) -> None:
    """Handle `Cancel`: answers whether the job had not ended yet."""
    one = _id(message.job)
    if session.front.ended_job(session, one):
        session.send(wm.Answer(message.request, False))
        return
    job = _job(session, message.job)
    session.front.runner.cancel(job)
    session.send(wm.Answer(message.request, True))


def describe(session: Session, message: wm.Describe) -> None:
    """Handle `Describe`: answers one row for each job, None for one that is unknown."""
    front = session.front
    jobs = [front.visible_job(session, _id(ref)) for ref in message.jobs]

    def row(job: Job | None) -> dict[str, Any] | None:
        return None if job is None else front.job_row(job, time.monotonic_ns())

    def on_progress() -> None:
        front.answers.answer(session, message.request, answers.rows(jobs, row))

    refresh_progress(front.runner, [job for job in jobs if job is not None], on_progress)


def _id(ref: tuple[int, int]) -> JobId:
    return job_id(SessionId(ref[0]), ref[1])


def _job(session: Session, ref: tuple[int, int]) -> Job:
    one = _id(ref)
    job = session.front.visible_job(session, one)
    if job is None:
        raise UnknownName(f"there is no job {job_name(one)}, or it has ended; see gpuctl ps")
    return job
