"""Ended jobs in an SQLite database: a file of bounded size that outlives the daemon, or memory.

Problem: who used the device last week is asked after restarts too, and by user, time and program;
the file must not grow without bound, and a full disk must not end a daemon.

Approach: one table, one row for each job, written in batches. When the file exceeds its limit, the
oldest tenth of the rows is deleted and their pages go back to the file system.

Properties:
    bounded: after `add` the file has at most its limit, but for its write-ahead log;
    private: the file is readable by its owner alone, and every selection can be limited to a user;
    durable: rows of a batch that `add` has returned for survive the process, not a power failure.

All calls come from one thread.
"""

# ruff: noqa: S608  (the names in statements are this module's own; values are bound)

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

from gpud.errors import InvalidArgument

__all__ = ["GROUPS", "ArchivedJob", "JobArchive", "Selection"]

_VERSION = 1
_APPLICATION_ID = 0x67707564  # "gpud"
_DELETED_PART = 10


class ArchivedJob(NamedTuple):
    """One ended job. Times are seconds since 1970, durations seconds, sizes bytes.

    Attributes:
        id: as ``gpuctl ps`` shows it; unique for one daemon only, not across restarts.
        kernels: names, as a JSON list.
        memory_bytes: of the arrays that its session had on the device at its end.
        error: the error's map as JSON; None if it is done.
    """

    ended_at_s: float
    submitted_at_s: float
    id: str
    uid: int
    program: str
    kernels: str
    launches: int
    state: str
    kind: str
    reservation: str | None
    quota: str | None
    weight: int
    device: int
    queued_s: float
    first_block_s: float | None
    run_s: float | None
    resizes: int
    capsm_seconds: float | None
    memory_bytes: int
    error: str | None


_TYPES = {float: "REAL", int: "INTEGER", str: "TEXT"}
_SCHEMA = ", ".join(
    f"{name} {_TYPES[(get_args(type_) or (type_,))[0]]}"
    for name, type_ in get_type_hints(ArchivedJob).items()
)
_PLACES = ", ".join("?" for _ in ArchivedJob._fields)

GROUPS = {"user": "uid", "program": "program", "state": "state", "device": "device"}
"""What jobs can be added up by, and the column of each."""


class Selection(NamedTuple):
    """Which jobs are meant; None: all.

    Attributes:
        uid: of this user.
        since_s: ended at this time or later.
        until_s: ended before this time.
        state: ended like this: "done", "failed" or "cancelled".
        limit: only so many, the latest; 0: all.
    """

    uid: int | None = None
    since_s: float | None = None
    until_s: float | None = None
    state: str | None = None
    limit: int = 0

    def condition(self) -> tuple[str, list[Any]]:
        """Return the SQL condition and its values."""
        parts = [
            (clause, value)
            for clause, value in (
                ("uid = ?", self.uid),
                ("ended_at_s >= ?", self.since_s),
                ("ended_at_s < ?", self.until_s),
                ("state = ?", self.state),
            )
            if value is not None
        ]
        clauses = " AND ".join(clause for clause, _ in parts)
        return f"WHERE {clauses}" if parts else "", [value for _, value in parts]


class JobArchive:
    """An open archive.

    Args:
        path: the file, created if it is not there; None: in memory.
        most_bytes: limit of the file.

    Raises:
        InvalidArgument: the file cannot be written, or is something else.
    """

    def __init__(self, path: Path | None = None, most_bytes: int = 1 << 62) -> None:
        self._most_bytes = most_bytes
        try:
            if path is not None:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                # Names of programs and times of work are private.
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._database = sqlite3.connect(
                ":memory:" if path is None else path, isolation_level=None, check_same_thread=False
            )
            self._open()
        except (OSError, sqlite3.Error) as error:
            raise InvalidArgument(
                f"the history {path} cannot be written: {error}; move the file away, or name "
                "another in the setting history_file"
            ) from error

    def _open(self) -> None:
        run = self._database.execute
        version, owner = (
            run(f"PRAGMA {name}").fetchone()[0] for name in ("user_version", "application_id")
        )
        empty = not run("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not empty and (owner, version) != (_APPLICATION_ID, _VERSION):
            raise sqlite3.DatabaseError(
                f"it is not a history of version {_VERSION}, which this gpud writes"
            )
        if empty:
            run("PRAGMA auto_vacuum = INCREMENTAL")
            run("VACUUM")
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = NORMAL")
        run(f"PRAGMA application_id = {_APPLICATION_ID}")
        run(f"PRAGMA user_version = {_VERSION}")
        run(f"CREATE TABLE IF NOT EXISTS jobs ({_SCHEMA})")
        run("CREATE INDEX IF NOT EXISTS by_time ON jobs (ended_at_s)")

    def add(self, jobs: Iterable[ArchivedJob]) -> None:
        """Add jobs, and delete the oldest if the file is too large.

        Raises:
            sqlite3.Error: they cannot be written, all or none of them; the archive stays usable.
        """
        run = self._database.execute
        run("BEGIN")
        try:
            self._database.executemany(f"INSERT INTO jobs VALUES ({_PLACES})", jobs)
            run("COMMIT")
        except sqlite3.Error:
            with suppress(sqlite3.Error):
                run("ROLLBACK")
            raise
        while self._bytes() > self._most_bytes:
            count = run("SELECT count(*) FROM jobs").fetchone()[0]
            if not count:
                return
            oldest = -(-count // _DELETED_PART)
            run("DELETE FROM jobs WHERE rowid IN (SELECT rowid FROM jobs ORDER BY ended_at_s "
                "LIMIT ?)", [oldest])  # fmt: skip
            # It frees a page at each step, and a cursor takes only those that are asked for.
            run("PRAGMA incremental_vacuum").fetchall()
            run("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _bytes(self) -> int:
        pages, size = (
            self._database.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "page_size")
        )
        return int(pages * size)

    def select(self, selection: Selection) -> list[dict[str, Any]]:
        """Return jobs as maps of `ArchivedJob`'s fields, the latest last."""
        where, values = selection.condition()
        cursor = self._database.execute(
            f"SELECT * FROM jobs {where} ORDER BY ended_at_s DESC, rowid DESC LIMIT ?",
            [*values, selection.limit or -1],
        )
        rows = [dict(zip(ArchivedJob._fields, row, strict=True)) for row in cursor]
        for row in rows:
            row["kernels"] = json.loads(row["kernels"])
            row["error"] = None if row["error"] is None else json.loads(row["error"])
        rows.reverse()
        return rows

    def report(self, selection: Selection, by: str) -> list[dict[str, Any]]:
        """Return sums over jobs by one of `GROUPS`, the largest use of the device first.

        Each map has the group's column, "jobs", "failed", "cancelled", "capsm_seconds", "run_s",
        "queued_s" (mean) and "queued_most_s", and "memory_bytes" (the most).
        """
        where, values = selection.condition()
        column = GROUPS[by]
        cursor = self._database.execute(
            f"SELECT {column}, count(*), sum(state = 'failed'), sum(state = 'cancelled'), "
            "coalesce(sum(capsm_seconds), 0), coalesce(sum(run_s), 0), avg(queued_s), "
            f"max(queued_s), max(memory_bytes) FROM jobs {where} GROUP BY {column} "
            f"ORDER BY 5 DESC, {column} LIMIT ?",
            [*values, selection.limit or -1],
        )
        names = (
            column, "jobs", "failed", "cancelled", "capsm_seconds", "run_s", "queued_s",
            "queued_most_s", "memory_bytes",
        )  # fmt: skip
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._database.close()
