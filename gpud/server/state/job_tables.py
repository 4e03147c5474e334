"""The table of the jobs that have not ended; for those that have see `job_history`."""

from __future__ import annotations

from gpud.server.state.access import Peer, may_manage
from gpud.server.state.submitted_job import SubmittedJob
from gpud.units import JobId

__all__ = ["ActiveJobs"]


class ActiveJobs(dict[JobId, SubmittedJob]):
    """The jobs that have not ended, by id, oldest first."""

    def visible(self, peer: Peer, job: JobId) -> SubmittedJob | None:
        """Return a job, if it has not ended and ``peer`` may see it."""
        known = self.get(job)
        return known if known is not None and may_manage(peer, known.uid) else None
