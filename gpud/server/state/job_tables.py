"""The tables of jobs: those that have not ended, and those that have ended recently."""

from __future__ import annotations

from typing import Any

from gpud.errors import GpudError
from gpud.errors.base import shorten_error
from gpud.server.state.access import Peer, may_manage
from gpud.server.state.sequence import NAMES_KEPT
from gpud.server.state.submitted_job import SubmittedJob
from gpud.telemetry.records import Records
from gpud.units import JobId

__all__ = ["ActiveJobs", "JobHistory"]

_TEXT_LENGTH = 2048  # of each text of an error in the history


class ActiveJobs(dict[JobId, SubmittedJob]):
    """The jobs that have not ended, by id, oldest first."""

    def visible(self, peer: Peer, job: JobId) -> SubmittedJob | None:
        """Return a job, if it has not ended and ``peer`` may see it."""
        known = self.get(job)
        return known if known is not None and may_manage(peer, known.uid) else None


class JobHistory:
    """The jobs that have ended.

    Args:
        records: keeps the latest of them, and the events of their ends.

    Attributes:
        counts: how many have ended in each state since the start.
    """

    def __init__(self, records: Records) -> None:
        self.counts = {"done": 0, "failed": 0, "cancelled": 0}
        self._records = records
        self._by_id: dict[JobId, SubmittedJob] = {}

    def visible(self, peer: Peer, job: JobId) -> SubmittedJob | None:
        """Return a job, if it has ended recently and ``peer`` may see it."""
        known = self._by_id.get(job)
        return known if known is not None and may_manage(peer, known.uid) else None

    def add(
        self,
        job: SubmittedJob,
        state: str,
        error: GpudError | None,
        now_ns: int,
        stats: dict[str, Any],
    ) -> None:
        """Record the end of a job; its owner was notified."""
        if error is not None:
            # A kernel's name may have a MiB, and is in the error of each of its jobs that fails.
            error = shorten_error(error, _TEXT_LENGTH, NAMES_KEPT)
        self.counts[state] += 1
        job.end(state, error, now_ns, stats)
        records = self._records
        ended = records.ended
        if len(ended) == ended.maxlen and ended:
            self._by_id.pop(ended[0].id, None)
        ended.append(job)
        if ended:  # empty if the history is configured to keep none
            self._by_id[job.id] = job
        records.add_event(now_ns, f"job-{state}", job.uid, ("job", job.id), ("error", error))
