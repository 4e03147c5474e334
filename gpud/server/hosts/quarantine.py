"""Quarantine of compilations during which a device host was lost: they are retried in isolation.

Problem: device hosts parse programs, and on a GPU the driver compiles them to machine code there. A
program that crashes this takes everybody else's jobs with it, each time that it is requested. But a
host that is lost during a compilation need not be lost because of it: jobs were running, and hosts
are killed from outside.

Approach: the compilation under way is suspected, not blamed. When it is next requested, a separate
host is started that does only this compilation. If that host survives, the kernel is cleared and
goes to the real host; if those that `gpud.processes.culprits` grants it do not, the kernel is
refused from then on. A trial host that cannot be started is not started again, but the case
cleared: here, unlike where there is only one kind of process, the real host can still try it.

Terms: a *case* is the input of a compilation: the program's text, and for a kernel its block shape;
a *trial* is a separate host that compiles one case.

Properties:
    no_false_blame: a case is refused only for hosts that were lost while they ran nothing else;
    bounded: a case costs the real host once, and `MOST_TRIES` trials;
    one_answer: every request about a case is answered once;
    digests_only: of a program that is not being tried, only a digest is kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from gpud.device.host import messages as hm
from gpud.errors import CompileError, GpudError
from gpud.errors.base import shorten
from gpud.processes.culprits import MOST_KEPT, MOST_TRIES, Culprits, Verdict
from gpud.server.ipc.child_process import ENDED, ChildProcess
from gpud.server.ipc.stream import Outbox

__all__ = ["Quarantine", "QuarantineCase"]

_LOG = logging.getLogger(__name__)
_START_S = 60.0
_END_S = 2.0

OnVerdict = Callable[[GpudError | None], None]


class QuarantineCase(NamedTuple):
    """The input of a compilation.

    Attributes:
        ptx: the program's text.
        entry: the kernel; None: the program is loaded.
        block, shared: the block shape and the dynamic shared memory in bytes.
    """

    ptx: str
    entry: str | None = None
    block: tuple[int, int, int] = (0, 0, 0)
    shared: int = 0

    @property
    def digest(self) -> QuarantineCase:
        """The same case with the program replaced by its digest."""
        return self._replace(ptx=hashlib.sha256(self.ptx.encode()).hexdigest())

    def __str__(self) -> str:
        if self.entry is None:
            return "loading the program"
        x, y, z = self.block
        return f"compiling {shorten(self.entry)} for blocks of {x} x {y} x {z}"


class Quarantine:
    """The suspected and refused cases of one device.

    Args:
        outbox: of the event loop.
        what: the device's name, for messages.
        start: starts a child process as a host of the device; None: no trials are possible, so
            nothing is ever suspected.
        limit_s: how long a trial may take, not counting the host's start.
    """

    def __init__(
        self,
        outbox: Outbox,
        what: str,
        start: Callable[[ChildProcess], Awaitable[None]] | None,
        limit_s: float,
    ) -> None:
        self._outbox = outbox
        self._what = what
        self._start = start
        self._limit_s = limit_s
        # Keyed by `QuarantineCase.digest`.
        self._culprits: Culprits[QuarantineCase] = Culprits()
        self._suspected: OrderedDict[QuarantineCase, list[OnVerdict]] = OrderedDict()
        self._trials: set[asyncio.Task[None]] = set()
        self._hosts: list[ChildProcess] = []

    def suspect(self, case: QuarantineCase, reason: str) -> None:
        """Suspect a case: the host was lost while it compiled it."""
        key = case.digest
        if self._start is None or key in self._suspected or self._culprits.refusal(key):
            return
        _LOG.warning("%s: its host %s while it was %s", self._what, reason, case)
        self._suspected[key] = []
        if len(self._suspected) > MOST_KEPT:
            oldest = next(iter(self._suspected))
            if not self._suspected[oldest]:
                del self._suspected[oldest]

    def ask(self, case: QuarantineCase, on_verdict: OnVerdict) -> None:
        """Call ``on_verdict`` with None if the case may be compiled, else with the error.

        The call is immediate unless the case is suspected; then it follows the trials.
        """
        if not self._culprits and not self._suspected:
            on_verdict(None)
            return
        key = case.digest
        refusal, waiting = self._culprits.refusal(key), self._suspected.get(key)
        if refusal is not None or waiting is None:
            on_verdict(refusal)
            return
        waiting.append(on_verdict)
        if len(waiting) == 1:
            task = asyncio.ensure_future(self._run_trials(case))
            self._trials.add(task)
            task.add_done_callback(self._trials.discard)

    def kill(self) -> None:
        """Kill all trials and start no more."""
        self._start = None
        for host in list(self._hosts):
            host.kill(ENDED)

    async def close(self) -> None:
        """`kill`, and wait until all trials have ended."""
        self.kill()
        if self._trials:
            await asyncio.wait(self._trials)

    # -- trials

    async def _run_trials(self, case: QuarantineCase) -> None:
        key, error = case.digest, None
        while (reason := await self._run_trial(case)) is not None and self._start is not None:
            _LOG.warning("%s: a trial of %s: the host %s", self._what, case, reason)
            if self._culprits.ended(key) is not Verdict.TRY_AGAIN:
                error = CompileError(
                    f"{case} ends the device's host: tried {MOST_TRIES} times in one of its own, "
                    f"it {reason}; the daemon does not try it again until it is restarted. Change "
                    "the kernel, and report this"
                )
                self._culprits.refuse(key, error)
                break
        else:
            self._culprits.answered(key)
        for on_verdict in self._suspected.pop(key, ()):
            on_verdict(error)

    async def _run_trial(self, case: QuarantineCase) -> str | None:
        """Compile the case in a separate host; returns how that ended, None if it survived."""
        start = self._start
        if start is None:
            return None
        trial = _Trial(self._outbox, self._what, case, self._limit_s)
        self._hosts.append(trial.host)
        try:
            return await trial.run(start)
        finally:
            self._hosts.remove(trial.host)


class _Trial:
    """A separate host that compiles one case."""

    def __init__(self, outbox: Outbox, what: str, case: QuarantineCase, limit_s: float) -> None:
        self._loop = outbox.loop
        self._case = case
        self._limit_s = limit_s
        self._began = False
        self._over: asyncio.Future[str | None] = self._loop.create_future()
        self.host = ChildProcess(
            f"trial host of {what}",
            hm.HOST_PROTOCOL,
            outbox,
            handlers={
                hm.HostReady: self._on_ready,
                hm.Replied: lambda message: self.host.reply(message.ticket, message.value),
                hm.Refused: lambda message: self.host.reply(message.ticket, None, message.error),
                hm.Log: lambda message: None,
            },
            # A host that ends before it is ready says nothing about the case.
            on_end=lambda reason: self._decide(reason if self._began else None),
        )
        self._timer = self._end_after(_START_S)

    async def run(self, start: Callable[[ChildProcess], Awaitable[None]]) -> str | None:
        """Run the trial; returns how its host ended, None if it survived. Closes the host."""
        try:
            await start(self.host)
            return await self._over
        except OSError:
            return None  # no trial host can be started, so the case is not blamed
        finally:
            self._timer.cancel()
            await self.host.close(_END_S)

    def _decide(self, reason: str | None) -> None:
        if not self._over.done():
            self._over.set_result(reason)

    def _end_after(self, limit_s: float) -> asyncio.TimerHandle:
        return self._loop.call_later(limit_s, self.host.kill, f"took longer than {limit_s:g} s")

    def _on_ready(self, _: hm.HostReady) -> None:
        self._began = True
        self._timer.cancel()
        self._timer = self._end_after(self._limit_s)
        self.host.request(lambda t: hm.LoadModule(t, 1, 1, self._case.ptx), self._loaded)

    def _loaded(self, _: Any, error: GpudError | None) -> None:
        _, entry, block, shared = self._case
        if error is not None or entry is None:
            self._measured(None, error)
        else:
            self.host.request(
                lambda t: hm.MeasureKernel(t, 1, entry, block, shared), self._measured
            )

    def _measured(self, _: Any, error: GpudError | None) -> None:
        # A plain GpudError means that the host is gone; `on_end` reports why.
        if type(error) is not GpudError:
            self._decide(None)
