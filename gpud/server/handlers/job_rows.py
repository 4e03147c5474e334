"""Rows about jobs, with their progress as their devices report it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from gpud.core.scheduler import Scheduler
from gpud.core.wait_reasons import waiting_reason
from gpud.errors import GpudError
from gpud.server.hosts.devices import Devices
from gpud.server.state.access import user_name
from gpud.server.state.job_tables import ActiveJobs
from gpud.server.state.submitted_job import SubmittedJob
from gpud.units import JobId

__all__ = ["JobRows"]

_TIMEOUT_S = 0.5


class JobRows:
    """Makes rows about jobs.

    Args:
        loop: the event loop.
        jobs: those that have not ended.
        devices: by index.
        scheduler: knows why a job waits.
        epoch_ns: offset from a monotonic time to nanoseconds since 1970.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        jobs: ActiveJobs,
        devices: Devices,
        scheduler: Scheduler,
        epoch_ns: int,
    ) -> None:
        self._loop = loop
        self._jobs = jobs
        self._devices = devices
        self._scheduler = scheduler
        self._epoch_ns = epoch_ns

    def row(self, job: SubmittedJob, now_ns: int) -> dict[str, Any]:
        """Return the job as shown in tables: see `SubmittedJob.row`."""
        row = job.row(now_ns, user_name(job.uid), self._epoch_ns)
        record = job.record
        if record is None:
            return {**row, "waits_for": None}
        device = self._scheduler.devices[record.device]
        return {**row, "waits_for": waiting_reason(record, device)}

    def refresh(self, jobs: Iterable[SubmittedJob], then: Callable[[], None]) -> None:
        """Request the jobs' progress from their devices; call ``then`` when all have replied.

        For a device that does not reply within `_TIMEOUT_S`, the last known progress is kept.
        """
        wanted: dict[int, list[JobId]] = {}
        for job in jobs:
            if job.started_ns is not None and self._devices[job.device].state == "ready":
                wanted.setdefault(job.device, []).append(job.id)
        left = len(wanted)
        if not left:
            then()
            return

        def finish() -> None:
            nonlocal left
            if left >= 0:
                left = -1
                timer.cancel()
                then()

        def on_reply(value: Any, error: GpudError | None) -> None:
            nonlocal left
            for number, done, total, first_ns, release_ns in value or () if error is None else ():
                job = self._jobs.get(JobId(number))
                if job is not None:
                    job.progress = (done, total)
                    job.first_block_ns, job.release_ns = first_ns, release_ns
            left -= 1
            if left == 0:
                finish()

        timer = self._loop.call_later(_TIMEOUT_S, finish)
        for index, numbers in wanted.items():
            self._devices[index].read_progress(tuple(numbers), on_reply)
