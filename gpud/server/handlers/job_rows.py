"""Rows about jobs, with their progress as their devices report it.

Properties:
    bounded: a session of which `_MOST_ASKED` questions wait for a device's reply is not read from:
        a client that asks without end makes neither device nor front late for others.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from gpud.core.explain import changes_of, explain, seconds
from gpud.core.scheduler import Scheduler
from gpud.core.wait_reasons import lending_note, waiting_reason
from gpud.errors import GpudError
from gpud.server.hosts.devices import Devices
from gpud.server.state.access import Peer, may_manage, user_name
from gpud.server.state.job_history import JobHistory
from gpud.server.state.job_tables import ActiveJobs
from gpud.server.state.others import Others
from gpud.server.state.session import Session
from gpud.server.state.submitted_job import SubmittedJob
from gpud.units import JobId, job_name

__all__ = ["JobRows"]

_SILENT_S = 10.0
"""A job of which no task block has ended for so long is said to make no progress."""

_TIMEOUT_S = 0.5

_MOST_ASKED = 16
"""A program's threads ask about jobs at a time, seldom more; a device answers in some 0.1 ms."""


class JobRows:
    """Makes rows about jobs.

    Args:
        loop: the event loop.
        jobs: those that have not ended.
        devices: by index.
        history: those that have ended.
        scheduler: knows why a job waits.
        others: says what users are shown of others' jobs.
        epoch_ns: offset from a monotonic time to nanoseconds since 1970.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        jobs: ActiveJobs,
        devices: Devices,
        scheduler: Scheduler,
        epoch_ns: int,
        history: JobHistory,
        others: Others,
    ) -> None:
        self._loop = loop
        self._jobs = jobs
        self._devices = devices
        self._scheduler = scheduler
        self._epoch_ns = epoch_ns
        self._history = history
        self._others = others
        self._asked: Counter[Session] = Counter()  # questions that wait for devices

    def row(self, job: SubmittedJob, now_ns: int) -> dict[str, Any]:
        """Return the job as shown in tables: see `SubmittedJob.row`."""
        row = job.row(now_ns, user_name(job.uid), self._epoch_ns)
        record = job.record
        if record is None:
            return {**row, "waits_for": None}
        device = self._scheduler.devices[record.device]
        if record.lending:
            return {**row, "waits_for": lending_note(record, device)}
        return {**row, "waits_for": waiting_reason(record, device)}

    def beside(self, job: SubmittedJob) -> list[SubmittedJob]:
        """Return a job and those that have a share of its device now."""
        others = (self._jobs.get(JobId(number)) for number in self._holders(job))
        return [job, *(other for other in others if other is not None and other is not job)]

    def _holders(self, job: SubmittedJob) -> list[JobId]:
        if job.record is None:
            return []
        device = self._scheduler.devices[job.device]
        return [one.id for one in device.jobs.values() if one.alloc]

    def why(self, job: SubmittedJob, peer: Peer) -> dict[str, Any]:
        """Return what `gpud.wire.messages.Why` is answered with."""
        now_ns = time.monotonic_ns()

        def name(number: JobId) -> str:
            other = self._jobs.get(number)
            if other is None:
                other = self._history.visible(peer, number)
            if other is None:
                return "a job that has ended"
            if may_manage(peer, other.uid):
                return f"job {job_name(number)} ({user_name(other.uid)}, {other.kernels[0]})"
            return self._others.job_of(other.uid)

        record = job.record
        if record is not None:
            device = self._scheduler.devices[record.device]
            lines = explain(record, device, now_ns, name, lambda one: self._left_s(one, now_ns))
            lines[1:1] = _no_progress(job, record.slices, now_ns)
        else:
            lines = [_ending(job, now_ns), *changes_of(job.changes, now_ns, name)]
        return {
            "id": job_name(job.id),
            "state": job.present_state,
            "lines": lines,
            "job": self.row(job, now_ns),
        }

    def _left_s(self, number: JobId, now_ns: int) -> float | None:
        """Estimate how long a job will run on, from what it has done since its start."""
        job = self._jobs.get(number)
        if job is None or job.started_ns is None or job.lane:  # whose progress is one launch's
            return None
        done, total = job.progress
        ran_s = (now_ns - job.started_ns) / 1e9
        return ran_s * (total - done) / done if 0 < done <= total else None

    def refresh(
        self, session: Session, jobs: Iterable[SubmittedJob], then: Callable[[], None]
    ) -> None:
        """Request the jobs' progress from their devices; call ``then`` when all have replied.

        For a device that does not reply within `_TIMEOUT_S`, the last known progress is kept.

        Args:
            session: who asks.
            jobs: about which.
            then: called once, maybe before this returns.
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
                self._answered(session)
                then()

        def on_reply(value: Any, error: GpudError | None) -> None:
            nonlocal left
            for number, done, total, first_ns, release_ns in value or () if error is None else ():
                job = self._jobs.get(JobId(number))
                if job is not None:
                    if done != job.progress[0]:
                        job.progressed_ns = time.monotonic_ns()
                    job.progress = (done, total)
                    job.first_block_ns, job.release_ns = first_ns, release_ns
            left -= 1
            if left == 0:
                finish()

        self._asked[session] += 1
        if self._asked[session] == _MOST_ASKED:
            session.stream.pause()
        timer = self._loop.call_later(_TIMEOUT_S, finish)
        for index, numbers in wanted.items():
            self._devices[index].read_progress(tuple(numbers), on_reply)

    def _answered(self, session: Session) -> None:
        if self._asked[session] == _MOST_ASKED:
            session.stream.resume()
        self._asked[session] -= 1
        if not self._asked[session]:
            del self._asked[session]


def _no_progress(job: SubmittedJob, blocks: int, now_ns: int) -> list[str]:
    """Say that nothing has ended for long, if that may be because others have not begun.

    Args:
        job: a job that has not ended.
        blocks: the resident blocks that it has room for.
        now_ns: the time.
    """
    done, total = job.progress
    since_ns = job.progressed_ns if done else job.started_ns
    if since_ns is None or job.lane or not 0 < blocks < total - done:
        return []
    silent_s = (now_ns - since_ns) / 1e9
    if silent_s < _SILENT_S:
        return []
    text = (
        f"no progress: none of its task blocks has ended for {seconds(silent_s)}; {done} of "
        f"{total} are done, and it has room for {blocks} at once. If they wait for one another, "
        "compile it with progress='blocks'; if they only take long, it needs nothing"
    )
    return [text]


def _ending(job: SubmittedJob, now_ns: int) -> str:
    """Say how a job ended."""
    ago = seconds((now_ns - (job.ended_ns or now_ns)) / 1e9)
    done, total = job.progress
    how = {"done": "ended", "cancelled": "was cancelled"}.get(job.state or "", "failed")
    ended = f"it {how} {ago} ago, with {done} of {total} task blocks run"
    return ended if job.error is None else f"{ended}: {job.error}"
