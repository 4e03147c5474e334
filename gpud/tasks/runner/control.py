"""Gives tasks their cores, and freezes them: by cgroup v2 where it is delegated, else by affinity.

Affinity and SIGSTOP reach the processes that there are at the moment, and a program can undo them;
a cgroup holds all of them, always. `Control.describe` says which it is.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from gpud.tasks.runner.attempts import Attempt
from gpud.tasks.runner.processes import send, threads

__all__ = ["Control"]

_MOST_ROUNDS = 100


class Control:
    """Cores and freezing by affinity and signals."""

    describe = "affinity and SIGSTOP: cgroup v2 is not delegated to this user"
    freezes = True

    def prepare(self, attempt: str, cpus: tuple[int, ...], memory_bytes: int | None) -> list[str]:
        """Prepare cgroups for an attempt, and return those that its program is to enter."""
        return []

    def set_cpus(self, attempt: Attempt, cpus: tuple[int, ...]) -> None:
        """Let all processes of an attempt run on these processors only."""
        for pid in attempt.processes():
            for thread in threads(pid):
                with suppress(OSError):
                    os.sched_setaffinity(thread, cpus)

    def freeze(self, attempt: Attempt) -> None:
        """Suspend all processes of an attempt, those that it starts meanwhile included."""
        seen: list[int] = []
        for _ in range(_MOST_ROUNDS):
            pids = attempt.processes()
            if pids == seen:
                return
            send(pids, signal.SIGSTOP)
            seen = pids
            time.sleep(0)

    def thaw(self, attempt: Attempt) -> None:
        """Let them go on."""
        send(attempt.processes(), signal.SIGCONT)

    def about(self, attempt: Attempt) -> str:
        """Return what is known of an attempt's end beside its status; empty: nothing."""
        return ""

    def remove(self, attempt: str) -> None:
        """Remove what was prepared for an attempt that has ended."""
