"""Notices workloads that have the turn and do nothing while others wait.

A workload whose turn is leased does not say when an iteration of it has ended. Seen from here it is
idle when its session has no job, and has submitted none for the time that a turn waits for the next
iteration. It may be in an iteration all the same, and compute something by itself: being asked for
its turn then costs it one request.

Timers are set only while somebody waits, and only when the session's jobs have ended: at most one
in each such time, and one for each job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from gpud.server.workloads.workload import Workload

__all__ = ["IdleTurns"]


class IdleTurns:
    """Watches workloads with leased turns.

    Args:
        loop: the event loop.
        linger_ns: returns for how long a workload's turn waits for the next iteration; None: it is
            of no interest any more whether it is idle.
        report: called once for a workload that is idle.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        linger_ns: Callable[[Workload], int | None],
        report: Callable[[Workload], None],
    ) -> None:
        self._loop = loop
        self._linger_ns = linger_ns
        self._report = report

    def watch(self, workload: Workload) -> None:
        """Report a workload when it is idle."""
        if not workload.watched:
            workload.watched = True
            self._look(workload)

    def _look(self, workload: Workload) -> None:
        workload.owner.when_idle(partial(self._quiet, workload))

    def _quiet(self, workload: Workload) -> None:
        linger_ns = self._linger_ns(workload)
        if linger_ns is None:
            workload.watched = False
            return
        number = workload.owner.last_number
        self._loop.call_later(linger_ns / 1e9, self._look_again, workload, number)

    def _look_again(self, workload: Workload, number: int) -> None:
        owner = workload.owner
        if owner.runs or owner.last_number != number:
            self._look(workload)
            return
        workload.watched = False
        if self._linger_ns(workload) is not None:
            self._report(workload)
