"""A pool of compile processes with a fair queue between users and a cache of results.

Problem: a source can make the compiler run for minutes, exhaust its memory, or crash it. One user's
such sources must not keep another's from being compiled.

Approach: a process compiles one program at a time. The front tracks which, kills the process
when the program's time is over, and when a process ends it answers the program's clients and starts
another process. Users take turns (`gpud.processes.fair_order`), and each has at most one program
under way, so that a second process is left for other users; it is started when it is first needed.
A program that is blamed for its process's end (`gpud.processes.culprits`) is not refused for good:
who requests it again delays no other user by it, and the machine may have more memory by then.

Terms:
    request (`Source`): everything that a result depends on; equal requests that are pending at the
        same time are compiled once, at the turn of the first.
    waiter (`CompileWaiter`): a client's pending request.

Properties:
    one_answer: every waiter is answered once, even if the process fails, unless it is cancelled;
    others_unharmed: a program that kills its process costs those behind it a new process's start;
    not_blamed_at_once: a process may have been killed from outside, even before it had read its
        program, so a program is tried on a second process before it is blamed;
    in_order: a user's programs are compiled in the order in which they were requested;
    fair: a user with one program waits for at most one program of each other user, divided by
        the number of processes, however many programs those have requested;
    abandoned_dropped: a request without waiters is not begun, or ended after `_ABANDONED_S`; a
        queued one is dropped at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable

from gpud.compiler.process.messages import CompileDone, CompileFailed
from gpud.errors import CompileError, GpudError, InternalError, from_wire
from gpud.processes.culprits import Culprits, Verdict
from gpud.processes.fair_order import FairOrder
from gpud.server.hosts.compile_process import CompileProcess, Source
from gpud.server.ipc.child_process import ENDED
from gpud.server.ipc.stream import Outbox
from gpud.server.state.modules import CompiledProgram

__all__ = ["CompilePool", "CompileWaiter"]

_LOG = logging.getLogger(__name__)
_CACHE_BYTES = 64 << 20
_ABANDONED_S = 1.0  # starting a process takes as long as compiling some programs

OnCompiled = Callable[[CompiledProgram | None, GpudError | None], None]


class CompileWaiter:
    """A client's pending request for a program.

    Args:
        user: the user whose turn it takes.
        on_compiled: called once with the program or an error, unless it was cancelled.
    """

    __slots__ = ("cancelled", "on_cancelled", "on_compiled", "user")

    def __init__(self, user: int, on_compiled: OnCompiled) -> None:
        self.user = user
        self.on_compiled = on_compiled
        self.cancelled = False
        self.on_cancelled: Callable[[], None] | None = None

    def cancel(self) -> None:
        """Withdraw the request; ``on_compiled`` is not called any more."""
        self.cancelled = True
        if self.on_cancelled is not None:
            self.on_cancelled()


class CompilePool:
    """The compile processes, the queue of requests, and the cache of results.

    Args:
        outbox: of the event loop.
        timeout_s: how long one program may take.
        cache_dir: of the disk cache; None for the default one, "" for none.
        processes: how many there may be.
        arguments: further arguments for each process: see `gpud.compiler.process.main`.
        bounds_checks: whether programs are compiled with bounds checks.
    """

    def __init__(
        self,
        outbox: Outbox,
        *,
        timeout_s: float,
        cache_dir: str | None,
        processes: int = 1,
        arguments: tuple[str, ...] = (),
        bounds_checks: bool = True,
    ) -> None:
        self._outbox = outbox
        self._timeout_s = timeout_s
        self._cache_dir = cache_dir
        self._most_processes = processes
        self._arguments = arguments
        self._bounds_checks = bounds_checks
        self._cached: OrderedDict[Source, CompiledProgram] = OrderedDict()
        self._cached_bytes = 0
        self._waiting: dict[Source, dict[CompileWaiter, None]] = {}  # queued and under way
        self._order: FairOrder[int, Source] = FairOrder()  # by user
        self._processes: list[CompileProcess] = []
        self._leaving: set[asyncio.Task[None]] = set()
        self._culprits: Culprits[Source] = Culprits()
        self._closed = False
        self.compiled = 0

    def prestart(self) -> None:
        """Start a process before the first request."""
        if not self._processes:
            self._start_process()

    def compile(self, source: Source, waiter: CompileWaiter) -> None:
        """Request ``source``; the waiter may be answered before this returns."""
        kept = self._cached.get(source)
        if kept is not None:
            self._cached.move_to_end(source)
            waiter.on_compiled(kept, None)
            return
        if self._closed:
            waiter.on_compiled(None, CompileError("the daemon is ending; nothing more is compiled"))
            return
        waiter.on_cancelled = lambda: self._cancelled(source, waiter)
        self._waiting.setdefault(source, {})[waiter] = None
        if not any(process.source == source for process in self._processes):
            self._order.put(waiter.user, source)
        self._dispatch()

    def describe(self) -> str:
        """Return the state of the pool, for `gpuctl doctor`."""
        pids = ", ".join(map(str, self.pids)) or "none"
        return f"processes: {pids}; {self.compiled} programs compiled, {len(self._waiting)} waiting"

    @property
    def pids(self) -> list[int]:
        """The process ids of the processes."""
        return [process.pid for process in self._processes if process.pid is not None]

    def kill(self) -> None:
        """Kill the processes; pending requests get an error."""
        self._closed = True
        for process in list(self._processes):
            process.kill(ENDED)
        for source in list(self._waiting):
            self._answer(source, None, CompileError("the daemon is ending"))

    async def close(self) -> None:
        """`kill`, and wait until the processes have ended."""
        self.kill()
        while self._leaving:
            await asyncio.wait(self._leaving)

    # -- the queue

    def _dispatch(self) -> None:
        """Give each idle process a program, or start one more process."""
        if self._closed:
            return
        while (turn := self._order.take()) is not None:
            user, source = turn
            under_way = any(process.source == source for process in self._processes)
            if under_way or source not in self._waiting:
                self._order.done(user, keeps_turn=True)
                continue
            process = next((one for one in self._processes if one.idle), None)
            if process is None:
                self._order.put_back(user, source, keeps_turn=True)
                if not any(one.starting for one in self._processes):
                    self._start_process()
                return
            process.compile(
                source, user, self._cache_dir, self._timeout_s, bounds_checks=self._bounds_checks
            )

    def _cancelled(self, source: Source, waiter: CompileWaiter) -> None:
        """Drop a waiter, and its request if it was the last one."""
        waiters = self._waiting.get(source, {})
        waiters.pop(waiter, None)
        if waiters:
            return
        self._waiting.pop(source, None)
        self._culprits.answered(source)
        self._order.remove_all(source)
        for process in self._processes:
            if process.source == source:
                self._outbox.loop.call_later(_ABANDONED_S, self._end_abandoned, process, source)

    def _end_abandoned(self, process: CompileProcess, source: Source) -> None:
        """Kill a process whose request has no waiters any more."""
        if process in self._processes and process.source == source and source not in self._waiting:
            process.kill("was ended: its request was cancelled")

    # -- the processes

    def _start_process(self) -> None:
        """Start one more process, unless there are `_most_processes`."""
        if len(self._processes) >= self._most_processes:
            return
        process = CompileProcess(
            self._outbox,
            [
                *self._arguments,
                *([] if self._cache_dir is None else ["--cache-dir", self._cache_dir]),
            ],
            on_ready=self._dispatch,
            on_answer=self._on_answer,
            on_end=self._on_end,
        )
        self._processes.append(process)
        process.start()

    def _on_end(self, process: CompileProcess, reason: str, too_long: bool) -> None:
        """Replace a process that was killed, by the daemon or from outside, or has crashed."""
        leaving = asyncio.ensure_future(process.closed())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        self._processes.remove(process)
        source = process.source
        if self._closed:
            return
        if too_long:
            problem = CompileError(
                f"compiling took longer than {self._timeout_s:g} s and was ended; make the program "
                "smaller, or raise compile_timeout in the daemon's configuration"
            )
        else:
            _LOG.warning("the compile process %s", reason)
            problem = CompileError(
                f"the compiler crashed on this program: its process {reason}; it may have run out "
                "of memory: compile_memory_bytes in the daemon's configuration"
            )
        verdict = self._culprits.ended(source, too_long=too_long)
        if source is not None:
            if verdict is Verdict.TRY_AGAIN and source in self._waiting:
                self._order.put_back(process.user, source, keeps_turn=True)
            else:
                self._order.done(process.user)
                self._answer(source, None, problem)
        elif verdict is Verdict.CANNOT_RUN:
            problem = CompileError(
                f"the compile process does not start: it {reason}; see gpud doctor"
            )
            for waiting in list(self._waiting):
                self._answer(waiting, None, problem)
        self._dispatch()

    def _on_answer(
        self, process: CompileProcess, source: Source, message: CompileDone | CompileFailed
    ) -> None:
        self.compiled += 1
        self._order.done(process.user)
        if isinstance(message, CompileFailed):
            self._answer(source, None, from_wire(message.error))
        else:
            try:
                program = CompiledProgram(message)
            except ValueError as error:
                problem = InternalError(f"the compile process sent {error}", stage="server")
                self._answer(source, None, problem)
            else:
                self._cache(source, program)
                self._answer(source, program, None)
        self._dispatch()

    # -- results

    def _answer(
        self, source: Source, program: CompiledProgram | None, error: GpudError | None
    ) -> None:
        self._culprits.answered(source)
        for waiter in self._waiting.pop(source, ()):
            if waiter.cancelled:
                continue
            waiter.on_cancelled = None
            try:
                waiter.on_compiled(program, error)
            except Exception:  # noqa: BLE001 - one client's answer must not cost the others theirs
                _LOG.exception("what was compiled for user %d was not handled", waiter.user)

    def _cache(self, source: Source, program: CompiledProgram) -> None:
        self._cached[source] = program
        self._cached_bytes += program.size_bytes + source.size_bytes
        while self._cached_bytes > _CACHE_BYTES and len(self._cached) > 1:
            oldest, dropped = self._cached.popitem(last=False)
            self._cached_bytes -= dropped.size_bytes + oldest.size_bytes
