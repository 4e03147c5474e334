"""The jobs that have ended: the latest in memory, all of them in an archive if there is one.

Problem: a write to a disk may take as long as it likes, and thousands of jobs may end in a second.

Approach: a thread owns the archive. Jobs are collected for `_BATCH_S` and written together; a
selection first writes what has been collected, so that it has every job that had ended before it.
Without a file, a selection makes an archive of what is in memory.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from gpud.config import Config
from gpud.errors import GpudError
from gpud.errors.base import shorten_error
from gpud.server.state.access import Peer, may_manage
from gpud.server.state.sequence import NAMES_KEPT
from gpud.server.state.submitted_job import SubmittedJob
from gpud.telemetry.job_archive import ArchivedJob, JobArchive
from gpud.telemetry.metrics import Totals
from gpud.telemetry.records import Records
from gpud.units import JobId

__all__ = ["JobHistory"]

_LOG = logging.getLogger(__name__)
_TEXT_LENGTH = 2048  # of each text of an error in the history
_BATCH_S = 1.0
_MOST_PENDING = 100_000
"""Jobs that are collected at most: some 100 MB. More end in a second only if the disk stands."""

_T = TypeVar("_T")


class JobHistory:
    """The jobs that have ended.

    Args:
        records: keeps the latest of them, and the events of their ends.
        config: names the archive's file and its limit.
        loop: the event loop.

    Attributes:
        counts: how many have ended in each state since the start.
        totals: sums over them.

    Raises:
        InvalidArgument: the archive cannot be written.
    """

    def __init__(self, records: Records, config: Config, loop: asyncio.AbstractEventLoop) -> None:
        self.counts = {"done": 0, "failed": 0, "cancelled": 0}
        self.totals = Totals()
        self._records = records
        self._loop = loop
        self._by_id: dict[JobId, SubmittedJob] = {}
        self._pending: list[SubmittedJob] = []
        self._timer: asyncio.TimerHandle | None = None
        self._dropped = 0
        self._failed = False
        self._archive: JobArchive | None = None
        if config.history_file is not None:
            self._archive = JobArchive(config.history_file, config.history_file_bytes)
        self._thread = ThreadPoolExecutor(1, "history")

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
        memory_bytes: int,
    ) -> None:
        """Record the end of a job; its owner was notified. See `SubmittedJob.end`."""
        if error is not None:
            # A kernel's name may have a MiB, and is in the error of each of its jobs that fails.
            error = shorten_error(error, _TEXT_LENGTH, NAMES_KEPT)
        self.counts[state] += 1
        self.totals.add(job.online, stats["queued_s"], stats["capsm_seconds"])
        job.end(state, error, now_ns, stats, memory_bytes)
        records = self._records
        ended = records.ended
        if len(ended) == ended.maxlen and ended:
            self._by_id.pop(ended[0].id, None)
        ended.append(job)
        if ended:  # empty if the history is configured to keep none
            self._by_id[job.id] = job
        records.add_event(now_ns, f"job-{state}", job.uid, ("job", job.id), ("error", error))
        if self._archive is not None:
            self._collect(job)

    # -- the archive

    def ask(self, question: Callable[[JobArchive], _T]) -> asyncio.Future[_T]:
        """Return a future of ``question(archive)``, which runs on the history's thread."""
        batch = self._take()
        if self._archive is not None:
            archive = self._archive

            def answer() -> _T:
                self._write(batch)
                return question(archive)
        else:
            latest = list(self._records.ended)

            def answer() -> _T:
                made = JobArchive()
                try:
                    made.add(map(self._archived, latest))
                    return question(made)
                finally:
                    made.close()

        return self._loop.run_in_executor(self._thread, answer)

    async def close(self) -> None:
        """Write what has been collected and close the file."""
        batch = self._take()
        if self._archive is not None:
            await self._loop.run_in_executor(self._thread, self._write, batch)
            await self._loop.run_in_executor(self._thread, self._archive.close)
        self._thread.shutdown(wait=False)

    def _collect(self, job: SubmittedJob) -> None:
        if len(self._pending) >= _MOST_PENDING:
            self._dropped += 1
            return
        self._pending.append(job)
        if self._timer is None:
            self._timer = self._loop.call_later(_BATCH_S, self._write_batch)

    def _take(self) -> list[SubmittedJob]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._pending = self._pending, []
        return batch

    def _write_batch(self) -> None:
        batch = self._take()
        self._loop.run_in_executor(self._thread, self._write, batch)

    def _write(self, batch: list[SubmittedJob]) -> None:
        """Write jobs; an error is logged once, until it is over. On the history's thread."""
        assert self._archive is not None
        if not batch:
            return
        try:
            self._archive.add(map(self._archived, batch))
        except sqlite3.Error as error:
            self._dropped += len(batch)
            if not self._failed:
                self._failed = True
                _LOG.error("jobs that have ended cannot be written to the history: %s", error)
            return
        if self._failed or self._dropped:
            _LOG.warning("the history is written again; it lacks %d jobs", self._dropped)
            self._failed, self._dropped = False, 0

    def _archived(self, job: SubmittedJob) -> ArchivedJob:
        row = job.row(0, "", self._records.epoch_ns)
        row["kernels"] = json.dumps(row["kernels"])
        row["error"] = None if row["error"] is None else json.dumps(row["error"])
        return ArchivedJob(**{name: row[name] for name in ArchivedJob._fields})
