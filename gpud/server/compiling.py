"""Compiling for the clients: one worker process, one program at a time, results kept.

Problem: a source can make the compiler run for minutes, fill its memory, or crash it.

Approach: the worker process does one program at a time; the front knows at any moment which, ends
the worker when the program's time is over or finds it dead, tells the program's client, starts
another worker and goes on with the next program.

Terms: *request*: everything that a result depends on; requests that are alike and under way at the
same time are compiled once.

Properties:
    one_answer: every request is answered once, whatever becomes of the worker;
    others_unharmed: a program that kills the worker costs those behind it a new worker's start;
    in_order: programs are compiled in the order in which they were asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from gpud.compiler.program import Program
from gpud.compiler.worker_messages import (
    COMPILE_PROTOCOL,
    CompileDone,
    CompileFailed,
    CompileJob,
)
from gpud.errors import CompileError, GpudError, InternalError, KernelNotFound, from_wire
from gpud.server.child import Child
from gpud.server.modules import CompiledProgram
from gpud.server.stream import Outbox

__all__ = ["Compiler", "Source"]

_LOG = logging.getLogger(__name__)
_KEPT_BYTES = 64 << 20
_MOST_IDLE_ENDS = 3  # of workers, one after the other, that had nothing to do
_START_S = 60.0  # a worker loads NVRTC, from a cold disk at worst

OnCompiled = Callable[[CompiledProgram | None, GpudError | None], None]


class Source(NamedTuple):
    """A request."""

    text: str
    names: tuple[str, ...]
    options: tuple[str, ...]
    form: str | None
    sm: int | None


class Compiler:
    """The compile worker and what it has made.

    Args:
        outbox: of the event loop.
        timeout_s: how long one program may take.
        cache_dir: of the disk cache; None for the default one, "" for none.
    """

    def __init__(self, outbox: Outbox, *, timeout_s: float, cache_dir: str | None) -> None:
        self._outbox = outbox
        self._timeout_s = timeout_s
        self._cache_dir = cache_dir
        self._kept: OrderedDict[Source, CompiledProgram] = OrderedDict()
        self._kept_bytes = 0
        self._waiting: OrderedDict[Source, list[OnCompiled]] = OrderedDict()
        self._current: Source | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._worker: Child | None = None
        self._starting: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False
        self.compiled = 0
        self._idle_ends = 0

    def prestart(self) -> None:
        """Start the worker before anybody asks for it."""
        self._go_on()

    def compile(self, source: Source, on_compiled: OnCompiled) -> None:
        """Have ``source`` compiled; ``on_compiled`` may be called before this returns."""
        kept = self._kept.get(source)
        if kept is not None:
            self._kept.move_to_end(source)
            on_compiled(kept, None)
            return
        if self._closed:
            on_compiled(None, CompileError("the daemon is ending; nothing more is compiled"))
            return
        self._waiting.setdefault(source, []).append(on_compiled)
        self._go_on()

    def describe(self) -> str:
        """How it stands, for people."""
        worker = "no worker" if self._worker is None else f"worker {self._worker.pid}"
        return f"{worker}, {self.compiled} programs compiled, {len(self._waiting)} waiting"

    def kill(self) -> None:
        """End the worker at once; what waits gets an error."""
        self._closed = True
        if self._worker is not None:
            self._worker.kill("was ended with the daemon")
        for source in list(self._waiting):
            self._answer(source, None, CompileError("the daemon is ending"))

    async def close(self) -> None:
        """`kill`, and wait until the process is gone."""
        self.kill()
        if self._starting is not None:
            await asyncio.wait([self._starting])
        if self._leaving:
            await asyncio.wait(self._leaving)

    # -- the worker

    def _go_on(self) -> None:
        """Give the worker the next program, or get a worker."""
        if self._current is not None or self._closed:
            return
        if self._worker is None:
            if self._starting is None:
                self._starting = asyncio.ensure_future(self._start())
            return
        if not self._worker.alive or not self._waiting:
            return
        source = self._current = next(iter(self._waiting))
        job = CompileJob(
            1,
            source.text,
            source.names,
            source.options,
            None,
            source.form,
            source.sm,
            self._cache_dir,
        )
        self._worker.send(job)
        # The first program of a worker waits for its start as well.
        limit_s = self._timeout_s + (0 if self.compiled else _START_S)
        self._timer = self._outbox.loop.call_later(limit_s, self._too_long)

    async def _start(self) -> None:
        worker = Child(
            "compile worker",
            COMPILE_PROTOCOL,
            self._outbox,
            on_message=self._on_message,
            on_end=lambda reason: self._on_end(worker, reason),
        )
        self._worker = worker
        try:
            await worker.start(["-m", "gpud.compiler.worker"])
        except OSError as error:
            self._worker = None
            problem = CompileError(f"the compile worker cannot be started: {error}")
            for source in list(self._waiting):
                self._answer(source, None, problem)
        finally:
            self._starting = None
        if self._closed:
            worker.kill("the daemon is ending")
            await worker.closed()
        self._go_on()

    def _too_long(self) -> None:
        source = self._current
        assert source is not None
        assert self._worker is not None
        problem = CompileError(
            f"compiling took longer than {self._timeout_s:g} s and was ended; make the program "
            "smaller, or raise compile_timeout in the daemon's configuration"
        )
        worker, self._worker, self._current = self._worker, None, None
        worker.kill("a program took too long")
        self._answer(source, None, problem)
        self._go_on()

    def _on_end(self, worker: Child, reason: str) -> None:
        leaving = asyncio.ensure_future(worker.closed())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        if worker is not self._worker:
            return  # we ended it, and have said so to those concerned
        if self._timer is not None:
            self._timer.cancel()
        source, self._current, self._worker = self._current, None, None
        if self._closed:
            return
        _LOG.warning("the compile worker %s", reason)
        if source is not None:
            problem = CompileError(f"the compiler crashed on this program: its process {reason}")
            self._answer(source, None, problem)
        else:
            self._idle_ends += 1
        if self._idle_ends < _MOST_IDLE_ENDS:
            if self._waiting:
                self._go_on()
            return
        # There is no program to blame, so it is the worker that cannot run here.
        self._idle_ends = 0
        problem = CompileError(f"the compile worker does not start: it {reason}; see gpud doctor")
        for waiting in list(self._waiting):
            self._answer(waiting, None, problem)

    def _on_message(self, message: Any) -> None:
        source, self._current = self._current, None
        if self._timer is not None:
            self._timer.cancel()
        if source is None:
            return
        self.compiled += 1
        self._idle_ends = 0
        if isinstance(message, CompileDone):
            try:
                program = _program(message.program, source.names)
            except KernelNotFound as error:
                self._answer(source, None, error)
            except ValueError as error:
                problem = InternalError(f"the compile worker sent {error}", stage="server")
                self._answer(source, None, problem)
            else:
                self._keep(source, program)
                self._answer(source, program, None)
        elif isinstance(message, CompileFailed):
            self._answer(source, None, from_wire(message.error))
        self._go_on()

    # -- results

    def _answer(
        self, source: Source, program: CompiledProgram | None, error: GpudError | None
    ) -> None:
        for on_compiled in self._waiting.pop(source, ()):
            on_compiled(program, error)

    def _keep(self, source: Source, program: CompiledProgram) -> None:
        self._kept[source] = program
        self._kept_bytes += program.size_bytes + len(source.text)
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
            oldest, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= dropped.size_bytes + len(oldest.text)


def _program(data: bytes, names: tuple[str, ...]) -> CompiledProgram:
    """What the worker sent; every name that was asked for must mean one of its kernels."""
    program = Program.decode(data)
    for name in names:
        if program.lowered_names.get(name, name) not in program.kernels:
            known = [kernel.name for kernel in program.kernels.values()]
            raise KernelNotFound(name, known, log=program.log)
    return CompiledProgram(program, names)
