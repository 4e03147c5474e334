"""One compile process, which is starting, idle, or compiling a program."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpud.compiler.process.messages import (
    COMPILE_PROTOCOL,
    CompileDone,
    CompileFailed,
    CompileJob,
    CompileReady,
)
from gpud.server.ipc.child_process import ChildProcess
from gpud.server.ipc.stream import Outbox

__all__ = ["CompileProcess", "Source"]

_LOG = logging.getLogger(__name__)
_START_S = 60.0  # a process loads NVRTC, from a cold disk at worst


class Source(NamedTuple):
    """A request to compile: everything that the result depends on."""

    text: str
    names: tuple[str, ...]
    options: tuple[str, ...]
    form: str | None
    sm: int | None
    progress: str | None = None
    check: bool = False
    images: tuple[bytes, ...] = ()
    trusted: bool = False
    only: bool = False
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def size_bytes(self) -> int:
        """An estimate of its memory."""
        headers = (part for header in self.headers for part in header)
        parts = (*self.names, *self.options, *self.images, *headers)
        return len(self.text) + sum(64 + len(part) for part in parts)


class CompileProcess:
    """A process that compiles one program at a time.

    Args:
        outbox: of the event loop.
        arguments: of the process.
        on_ready: called once, when it has become idle.
        on_answer: called with itself, the program's source and the result; it is idle then.
        on_end: called once when it has ended, with the reason, and whether its program took too
            long; ``source`` is the program that it was compiling.

    Attributes:
        source: the program that it compiles; None if there is none.
        user: the user for whom it compiles.
        starting: whether it is not ready yet.
    """

    def __init__(
        self,
        outbox: Outbox,
        arguments: Sequence[str],
        *,
        on_ready: Callable[[], None],
        on_answer: Callable[[CompileProcess, Source, CompileDone | CompileFailed], None],
        on_end: Callable[[CompileProcess, str, bool], None],
    ) -> None:
        self.source: Source | None = None
        self.user = 0
        self.starting = True
        self._outbox = outbox
        self._arguments = ["-m", "gpud.compiler.process.main", *arguments]
        self._on_ready = on_ready
        self._on_answer = on_answer
        self._ended = on_end
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._too_long = False
        self._child = ChildProcess(
            "compile process",
            COMPILE_PROTOCOL,
            outbox,
            handlers={
                CompileReady: self._became_ready,
                CompileDone: self._answered,
                CompileFailed: self._answered,
            },
            on_end=self._on_end,
        )

    @property
    def pid(self) -> int | None:
        """The process id."""
        return self._child.pid

    @property
    def idle(self) -> bool:
        """Whether it can take a program."""
        return self.source is None and not self.starting and self._child.alive

    def start(self) -> None:
        """Start the process."""
        self._timer = self._outbox.loop.call_later(_START_S, self.kill, "did not become ready")
        self._task = asyncio.ensure_future(self._start())

    async def _start(self) -> None:
        try:
            await self._child.start(self._arguments)
        except OSError as error:
            self._child.kill(f"cannot be started: {error}")

    def compile(
        self,
        source: Source,
        user: int,
        cache_dir: str | None,
        limit_s: float,
        *,
        bounds_checks: bool,
    ) -> None:
        """Compile ``source`` within ``limit_s`` seconds; only if it is `idle`."""
        self.source, self.user = source, user
        self._child.send(
            CompileJob(
                1,
                source.text,
                source.names,
                source.options,
                form=source.form,
                sm=source.sm,
                cache_dir=cache_dir,
                bounds_checks=bounds_checks,
                progress=source.progress,
                check=source.check,
                images=source.images,
                trusted=source.trusted,
                only=source.only,
                headers=source.headers,
            )
        )
        self._timer = self._outbox.loop.call_later(limit_s, self._time_is_over)

    def kill(self, why: str) -> None:
        """Kill it; ``on_end`` is called before this returns."""
        self._child.kill(why)

    async def closed(self) -> None:
        """Wait until the process has ended."""
        if self._task is not None:
            await asyncio.wait([self._task])
        await self._child.closed()

    def _time_is_over(self) -> None:
        self._too_long = True
        self.kill("took too long for a program")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _became_ready(self, message: CompileReady) -> None:
        self._stop_timer()
        self.starting = False
        if not message.confined:
            _LOG.info(
                "the kernel has no Landlock: sources are kept from other users' files by looking "
                "at their text alone"
            )
        self._on_ready()

    def _answered(self, message: CompileDone | CompileFailed) -> None:
        self._stop_timer()
        source, self.source = self.source, None
        if source is not None:
            self._on_answer(self, source, message)

    def _on_end(self, reason: str) -> None:
        self._stop_timer()
        self._ended(self, reason, self._too_long)
