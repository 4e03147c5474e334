"""Reads jobs' progress from their devices when a client queries it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gpud.errors import GpudError
from gpud.server.hosts.runner import Runner
from gpud.server.state.submitted_job import Job
from gpud.units import JobId

__all__ = ["refresh_progress"]

_TIMEOUT_S = 0.5


def refresh_progress(runner: Runner, jobs: Iterable[Job], then: Callable[[], None]) -> None:
    """Request the jobs' progress from their devices; call ``then`` when all have replied.

    For a device that does not reply within `_TIMEOUT_S`, the last known progress is kept.
    """
    wanted: dict[int, list[JobId]] = {}
    for job in jobs:
        if job.started_ns is not None and runner.devices[job.device].state == "ready":
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
            job = runner.jobs.get(JobId(number))
            if job is not None:
                job.progress = (done, total)
                job.first_block_ns, job.release_ns = first_ns, release_ns
        left -= 1
        if left == 0:
            finish()

    timer = runner.loop.call_later(_TIMEOUT_S, finish)
    for index, numbers in wanted.items():
        runner.devices[index].read_progress(tuple(numbers), on_reply)
