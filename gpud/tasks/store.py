"""Tasks in an SQLite database: what was submitted, every attempt, every result.

Problem: a runner may be killed at any moment, and the machine may lose its power. No task may be
lost, and none may be run a second time without anybody knowing.

Approach: one transaction for each change, committed before anything is done about it. An attempt is
in the database before its process is started; whether the process was started is in the attempt's
folder (`gpud.tasks.runner.attempts`). Environments are kept once, as most tasks share theirs.

Properties:
    durable: what a method has returned for survives the process, and a power failure;
    whole: a change is there with all its parts or not at all;
    private: the file is readable by its owner alone.

All calls come from one thread.
"""

# ruff: noqa: S608  (the names in statements are this module's own; values are bound)

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

from gpud.errors import InternalError, InvalidArgument
from gpud.tasks.core.events import NeedLearned, TaskTerms
from gpud.tasks.core.record import TaskRecord

__all__ = ["TaskStore"]

_VERSION = 1
_APPLICATION_ID = 0x67707574  # "gput"

_SCHEMA = """
CREATE TABLE environment (id INTEGER PRIMARY KEY, digest BLOB UNIQUE, variables BLOB NOT NULL);
CREATE TABLE task (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    submitted_ns INTEGER NOT NULL, uid INTEGER NOT NULL,
    name TEXT NOT NULL, command TEXT NOT NULL, directory TEXT NOT NULL,
    environment INTEGER NOT NULL REFERENCES environment, surroundings TEXT NOT NULL,
    terms TEXT NOT NULL, ended INTEGER NOT NULL DEFAULT 0, state TEXT NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0,
    losses INTEGER NOT NULL DEFAULT 0, front INTEGER NOT NULL DEFAULT 0,
    queued_ns INTEGER NOT NULL, started_ns INTEGER, ended_ns INTEGER,
    node INTEGER, cpus TEXT NOT NULL DEFAULT '[]', gpus TEXT NOT NULL DEFAULT '[]',
    ran_ns INTEGER NOT NULL DEFAULT 0, since_ns INTEGER NOT NULL DEFAULT 0,
    stop TEXT, exit_status INTEGER, reason TEXT NOT NULL DEFAULT ''
);
CREATE INDEX task_ended ON task (ended, id);
CREATE TABLE attempt (
    task INTEGER NOT NULL, number INTEGER NOT NULL, boot TEXT NOT NULL, node INTEGER NOT NULL,
    cpus TEXT NOT NULL, gpus TEXT NOT NULL, gpu_amount TEXT NOT NULL,
    started_ns INTEGER NOT NULL, ended_ns INTEGER, ran_ns INTEGER, exit_status INTEGER,
    cpu_ns INTEGER, memory_bytes INTEGER, reason TEXT,
    PRIMARY KEY (task, number)
) WITHOUT ROWID;
CREATE TABLE need (
    user TEXT, program TEXT, category TEXT, cores TEXT NOT NULL,
    PRIMARY KEY (user, program, category)
) WITHOUT ROWID;
CREATE TABLE gpu (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
"""


class TaskStore:
    """The database of one runner.

    Args:
        path: of the file; it is created if it is missing.

    Raises:
        InvalidArgument: the file is damaged, no database of tasks, or of a newer gpud.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.close(descriptor)
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.row_factory = sqlite3.Row
            self._open()
        except sqlite3.DatabaseError as error:
            raise InvalidArgument(
                f"the database of tasks {path} cannot be used: {error}; move it away to begin with "
                "an empty one, or try `sqlite3 FILE .recover` to save what is in it"
            ) from error
        except OSError as error:
            raise InvalidArgument(
                f"the database of tasks {path} cannot be opened: {error.strerror}"
            ) from error

    def _open(self) -> None:
        db = self._db
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        application = db.execute("PRAGMA application_id").fetchone()[0]
        if not version and not db.execute("SELECT 1 FROM sqlite_master").fetchone():
            db.executescript(
                f"BEGIN; {_SCHEMA} PRAGMA application_id = {_APPLICATION_ID};"
                f"PRAGMA user_version = {_VERSION}; COMMIT;"
            )
            return
        if application != _APPLICATION_ID or version > _VERSION:
            raise InvalidArgument(
                f"{self.path} is no database of tasks, or one of a newer gpud; this one reads "
                f"version {_VERSION}: move the file away, or use that gpud"
            )
        broken = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if broken != "ok":
            raise sqlite3.DatabaseError(broken)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all changes within the block one change.

        Raises:
            InternalError: it could not be kept, such as when the disk is full; nothing has changed.
        """
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise InternalError(
                f"the database of tasks {self.path} cannot be written: {error}; is its disk full?",
                stage="tasks",
            ) from error

    # -- submissions

    def submit(
        self,
        now_ns: int,
        uid: int,
        *,
        name: str,
        command: list[str],
        directory: str,
        environment: bytes,
        surroundings: Mapping[str, Any],
        terms: TaskTerms,
        held: bool,
    ) -> int:
        """Keep a new task, and return its id; ids only grow and are never used again.

        Args:
            now_ns: nanoseconds since 1970.
            uid: of its user.
            name: for people.
            command: the program and its arguments, undecodable bytes escaped as Python does.
            directory: its working directory.
            environment: ``NAME=VALUE`` entries, each ended by a zero byte.
            surroundings: what else its process is started with: umask, limits, signals.
            terms: for the scheduler.
            held: whether it waits for ``release``.
        """
        digest = hashlib.sha256(environment).digest()
        db = self._db
        db.execute(
            "INSERT OR IGNORE INTO environment (digest, variables) VALUES (?, ?)",
            (digest, environment),
        )
        (row,) = db.execute("SELECT id FROM environment WHERE digest = ?", (digest,))
        cursor = db.execute(
            "INSERT INTO task (submitted_ns, uid, name, command, directory, environment, "
            "surroundings, terms, state, queued_ns) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                now_ns, uid, name, json.dumps(command), json.dumps(directory), row["id"],
                json.dumps(surroundings), json.dumps(_plain(terms)),
                "held" if held else "blocked", now_ns,
            ),
        )  # fmt: skip
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    # -- changes

    def keep(self, task: TaskRecord, now_ns: int, *, ended: bool) -> None:
        """Keep what the scheduler knows of a task."""
        stop = None if task.stop is None else json.dumps([task.stop.by, task.stop.reason])
        self._db.execute(
            "UPDATE task SET state = ?, ended = ?, attempt = ?, failures = ?, losses = ?, "
            "front = ?, queued_ns = ?, node = ?, cpus = ?, gpus = ?, ran_ns = ?, since_ns = ?, "
            "stop = ?, exit_status = ?, reason = ?, ended_ns = ? WHERE id = ?",
            (
                task.state, ended, task.attempt, task.failures, task.losses, task.front,
                task.queued_ns, task.node, json.dumps(task.cpus), json.dumps(task.gpus),
                task.ran_ns, task.since_ns, stop, task.status, task.reason,
                now_ns if ended else None, task.id,
            ),
        )  # fmt: skip

    def begin_attempt(self, task: TaskRecord, now_ns: int, boot: str) -> None:
        """Keep that an attempt is about to be started."""
        self._db.execute(
            "INSERT INTO attempt (task, number, boot, node, cpus, gpus, gpu_amount, started_ns) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                task.id, task.attempt, boot, task.node, json.dumps(task.cpus),
                json.dumps(task.gpus), str(task.terms.gpus), now_ns,
            ),
        )  # fmt: skip
        self._db.execute("UPDATE task SET started_ns = ? WHERE id = ?", (now_ns, task.id))

    def end_attempt(self, task: int, number: int, now_ns: int, **facts: int | str | None) -> None:
        """Keep how an attempt has ended: ``ran_ns``, ``exit_status``, ``reason`` and so on."""
        sets = "".join(f", {name} = ?" for name in facts)
        self._db.execute(
            f"UPDATE attempt SET ended_ns = ?{sets} WHERE task = ? AND number = ?",
            (now_ns, *facts.values(), task, number),
        )

    def forget_attempt(self, task: int, number: int) -> None:
        """Remove an attempt that was never started."""
        self._db.execute("DELETE FROM attempt WHERE task = ? AND number = ?", (task, number))
        self._db.execute(
            "UPDATE task SET attempt = ?, node = NULL, cpus = '[]', gpus = '[]', front = 1, "
            "state = 'queued' WHERE id = ?",
            (number - 1, task),
        )

    def keep_need(self, user: str, program: str, category: str, cores: Fraction) -> None:
        """Keep a need that was found."""
        self._db.execute(
            "INSERT OR REPLACE INTO need VALUES (?, ?, ?, ?)", (user, program, category, str(cores))
        )

    def keep_gpu(self, name: str) -> None:
        """Keep the name of a GPU; its place in `gpus` stays."""
        self._db.execute("INSERT OR IGNORE INTO gpu (name) VALUES (?)", (name,))

    # -- questions

    def gpus(self) -> list[str]:
        """Return the names of all GPUs that there ever were."""
        return [row["name"] for row in self._db.execute("SELECT name FROM gpu ORDER BY number")]

    def needs(self, now_ns: int) -> list[NeedLearned]:
        """Return the needs that were kept, as events."""
        return [
            NeedLearned(
                now_ns, row["user"], row["program"], row["category"], Fraction(row["cores"])
            )
            for row in self._db.execute("SELECT * FROM need")
        ]

    def unfinished(self) -> Iterable[dict[str, Any]]:
        """Return the rows of tasks that have not ended."""
        rows = self._db.execute("SELECT * FROM task WHERE ended = 0 ORDER BY id")
        return [_row(row) for row in rows]

    def task(self, task: int) -> dict[str, Any] | None:
        """Return a task's row; None if there is no such task."""
        row = self._db.execute("SELECT * FROM task WHERE id = ?", (task,)).fetchone()
        return None if row is None else _row(row)

    def tasks(self, *, ended: bool | None, limit: int, uid: int | None) -> list[dict[str, Any]]:
        """Return the latest tasks, at most ``limit`` (0: all), the latest last.

        Args:
            ended: whether they have ended; None: either.
            limit: how many at most; 0: all.
            uid: of this user only; None: of all.
        """
        wanted, values = ["1"], []
        if ended is not None:
            wanted.append("ended = ?")
            values.append(int(ended))
        if uid is not None:
            wanted.append("uid = ?")
            values.append(uid)
        rows = self._db.execute(
            f"SELECT * FROM task WHERE {' AND '.join(wanted)} ORDER BY id DESC LIMIT ?",
            (*values, limit or -1),
        )
        return [_row(row) for row in rows][::-1]

    def attempts(self, task: int) -> list[dict[str, Any]]:
        """Return the rows of a task's attempts, the first one first."""
        rows = self._db.execute("SELECT * FROM attempt WHERE task = ? ORDER BY number", (task,))
        return [
            {**dict(row), "cpus": json.loads(row["cpus"]), "gpus": json.loads(row["gpus"])}
            for row in rows
        ]

    def report(self, by: str, since_ns: int) -> list[dict[str, Any]]:
        """Add up what attempts had that ended since then, the largest use of GPUs first.

        Args:
            by: ``user``, ``program`` or ``category``.
            since_ns: nanoseconds since 1970.
        """
        sums: dict[str, list[Fraction]] = {}
        rows = self._db.execute(
            "SELECT terms, attempt.ran_ns, attempt.cpus, gpu_amount "
            "FROM attempt JOIN task ON task.id = task "
            "WHERE attempt.ended_ns >= ? AND attempt.ran_ns IS NOT NULL",
            (since_ns,),
        )
        for row in rows:
            name = json.loads(row["terms"])[by] or "-"
            one = sums.setdefault(name, [Fraction(0), Fraction(0), Fraction(0)])
            one[0] += 1
            one[1] += len(json.loads(row["cpus"])) * row["ran_ns"]
            one[2] += Fraction(row["gpu_amount"]) * row["ran_ns"]
        found = [
            {by: name, "attempts": int(count), "core_s": float(cores / 10**9),
             "gpu_s": float(gpus / 10**9)}
            for name, (count, cores, gpus) in sums.items()
        ]  # fmt: skip
        return sorted(found, key=lambda row: (-row["gpu_s"], -row["core_s"]))

    def environment(self, number: int) -> bytes:
        """Return an environment as `submit` has it."""
        (row,) = self._db.execute("SELECT variables FROM environment WHERE id = ?", (number,))
        return bytes(row["variables"])


def _plain(terms: TaskTerms) -> dict[str, Any]:
    return {**terms._asdict(), "gpus": str(terms.gpus)}


def _row(row: sqlite3.Row) -> dict[str, Any]:
    found = dict(row)
    for name in ("command", "directory", "surroundings", "cpus", "gpus", "stop"):
        found[name] = None if found[name] is None else json.loads(found[name])
    terms = json.loads(found["terms"])
    found["terms"] = TaskTerms(
        **{**terms, "gpus": Fraction(terms["gpus"]), "after": tuple(terms["after"])}
    )
    return found
