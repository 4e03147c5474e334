"""Attempts of tasks on this machine: started, adopted, stopped, and waited for.

Each attempt has a folder; who has its lock is its shepherd (`gpud.tasks.runner.shepherd`). What is
in the folder tells a runner that was not there how far the attempt has come:

    lock free, no ``started``: nothing of it has run;
    lock taken: it runs, or is about to;
    lock free, ``ended`` written: it has ended, and how is known;
    lock free, ``started`` but no ``ended``: its shepherd was killed, or the machine: it is lost.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from gpud.tasks.runner.processes import boot_id, descendants, end_marked

__all__ = ["Attempt", "Attempts", "Outcome"]

_LOOK_S = 0.05


class Outcome(NamedTuple):
    """How an attempt has ended.

    Attributes:
        status: its exit status; None: not known, or it was not started.
        stopped: whether it ended after it was told to.
        problem: why it could not be started, or that it was lost.
        lost: whether its end is not known.
        notes: what else is to be told.
    """

    status: int | None
    stopped: bool = False
    problem: str = ""
    lost: bool = False
    notes: str = ""
    cpu_ns: int | None = None
    memory_bytes: int | None = None
    dropped_bytes: int = 0


class Attempt:
    """One attempt with its folder; it runs, is about to, or has just ended.

    Attributes:
        task, number: which attempt of which task.
        shepherd: the pid of its shepherd; 0: not known yet.
    """

    def __init__(self, task: int, number: int, folder: Path) -> None:
        self.task, self.number, self.folder = task, number, folder
        self.shepherd = 0

    @property
    def mark(self) -> str:
        """The value of the variable by which its processes are known."""
        return f"{self.folder.parent}:{self.task}.{self.number}"

    def processes(self) -> list[int]:
        """Return the program's processes."""
        return descendants(self.shepherd) if self.shepherd else []

    def stop(self, reason: str, grace_s: float, number: int | None) -> None:
        """Have its shepherd end it: by signal ``number`` first, if there is one, then SIGTERM."""
        asked: dict[str, Any] = {"reason": reason, "grace_s": grace_s}
        if number is not None:
            asked["signal"] = number
        with suppress(OSError):  # the disk is full: then it is stopped in the usual way
            (self.folder / "stop").write_text(json.dumps(asked))
        if self.shepherd:
            with suppress(ProcessLookupError):
                os.kill(self.shepherd, signal.SIGTERM)

    def is_locked(self) -> bool:
        """Whether its shepherd is there."""
        try:
            lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        else:
            return False
        finally:
            os.close(lock)

    def started(self) -> dict[str, Any] | None:
        """Return what its shepherd wrote before the program began; None: nothing has run."""
        with suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads((self.folder / "started").read_text())
            return found
        return None

    def outcome(self) -> Outcome:
        """Return how it has ended; its lock must be free."""
        with suppress(OSError, ValueError):
            ended = json.loads((self.folder / "ended").read_text())
            return Outcome(
                ended["status"], ended["stopped"], ended["problem"], notes=ended["notes"],
                cpu_ns=ended.get("cpu_ns"), memory_bytes=ended.get("memory_bytes"),
                dropped_bytes=ended["dropped_bytes"],
            )  # fmt: skip
        started = self.started()
        left = end_marked(self.mark)
        if started is None:
            return Outcome(None, problem="it could not be started: is the disk full?")
        if started["boot"] != boot_id():
            return Outcome(None, problem="the machine was restarted", lost=True)
        problem = "its shepherd was killed"
        return Outcome(
            None, problem=f"{problem}, and {left} processes with it" if left else problem, lost=True
        )


class Attempts:
    """The attempts that run on this machine.

    Args:
        folder: in which each has its own.
        on_end: awaited with an attempt that has ended, and how.
    """

    def __init__(self, folder: Path, on_end: Callable[[Attempt, Outcome], Awaitable[None]]) -> None:
        self._folder = folder
        self._on_end = on_end
        self._waits: dict[int, asyncio.Task[None]] = {}
        self.running: dict[int, Attempt] = {}

    def folder_of(self, task: int, number: int) -> Path:
        """Return the folder of an attempt, which may not exist."""
        return self._folder / f"{task}.{number}"

    def start(self, task: int, number: int, asked: dict[str, Any]) -> None:
        """Start an attempt; ``on_end`` is told when it has ended, or why it did not start."""
        attempt = Attempt(task, number, self.folder_of(task, number))
        self.running[task] = attempt
        try:
            if attempt.folder.exists():  # of a runner that was killed before it started anything
                shutil.rmtree(attempt.folder)
            attempt.folder.mkdir(mode=0o700, parents=True)
            attempt.shepherd = _spawn(attempt, asked)
        except OSError as error:
            problem = f"it could not be started: {error.strerror}"
            self._wait(attempt, self._not_started(attempt, Outcome(None, problem=problem)))
            return
        self._wait(attempt, self._until_end(attempt))

    def adopt(self, task: int, number: int) -> None:
        """Wait for an attempt that an earlier runner has started, or that has ended since."""
        attempt = Attempt(task, number, self.folder_of(task, number))
        self.running[task] = attempt
        attempt.shepherd = (attempt.started() or {}).get("shepherd", 0)
        self._wait(attempt, self._until_end(attempt))

    def was_begun(self, task: int, number: int) -> bool:
        """Whether anything of an attempt has run, or still may."""
        attempt = Attempt(task, number, self.folder_of(task, number))
        # In this order: a shepherd writes ``started`` while it has the lock.
        return attempt.is_locked() or attempt.started() is not None

    def close(self) -> None:
        """Wait for none of them any more; they go on."""
        for wait in self._waits.values():
            wait.cancel()

    def _wait(self, attempt: Attempt, what: Any) -> None:
        self._waits[attempt.task] = asyncio.get_running_loop().create_task(what)

    async def _not_started(self, attempt: Attempt, outcome: Outcome) -> None:
        await self._ended(attempt, outcome)

    async def _until_end(self, attempt: Attempt) -> None:
        while attempt.is_locked():
            attempt.shepherd = attempt.shepherd or (attempt.started() or {}).get("shepherd", 0)
            if not attempt.shepherd or not await _gone(attempt.shepherd):
                await asyncio.sleep(_LOOK_S)
        if attempt.shepherd:
            with suppress(ChildProcessError):  # of an earlier runner
                os.waitpid(attempt.shepherd, os.WNOHANG)  # noqa: ASYNC222  (it does not wait)
        await self._ended(attempt, attempt.outcome())

    async def _ended(self, attempt: Attempt, outcome: Outcome) -> None:
        if self.running.get(attempt.task) is attempt:
            del self.running[attempt.task], self._waits[attempt.task]
        await self._on_end(attempt, outcome)


def _spawn(attempt: Attempt, asked: dict[str, Any]) -> int:
    """Start the shepherd, with the lock taken, and return its pid."""
    lock = os.open(attempt.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    told = os.memfd_create("task")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(told, json.dumps(asked).encode())
        os.lseek(told, 0, os.SEEK_SET)
        # -P: a folder of the user's has no say in what is imported.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gpud.tasks.runner.shepherd", str(attempt.folder),
             str(lock)],
            stdin=told, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(lock,),
        )  # fmt: skip
        process.returncode = 0  # this object is not who waits for it
        return process.pid
    finally:
        os.close(told)
        os.close(lock)


async def _gone(pid: int) -> bool:
    """Wait until a process has ended; False: it cannot be waited for."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if select.select([descriptor], [], [], 0)[0]:
            return True
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        loop.add_reader(descriptor, over.set)
        try:
            await over.wait()
        finally:
            loop.remove_reader(descriptor)
        return True
    finally:
        os.close(descriptor)
