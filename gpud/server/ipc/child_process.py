"""A child process connected by a socket pair: a device host, or a compile process.

A child can crash, hang or be killed at any moment. Its owner is notified exactly once, through
``on_end``, and may `kill` it at any time before.

Tickets: a command that has a reply carries a number, which the reply repeats. When the child ends,
all pending reply callbacks get an error.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpud.errors import GpudError, ProtocolError, from_wire
from gpud.server.ipc.event_loop import STALLS
from gpud.server.ipc.stream import Limits, Outbox, Stream
from gpud.wire.framing import FrameError
from gpud.wire.message_table import MessageTable, Sender

__all__ = ["ENDED", "ChildProcess", "OnReply"]

_LOG = logging.getLogger(__name__)
_DAEMON = Sender.DAEMON  # a global, as in `gpud.server.handlers.connection`
_LINK = Limits(message=256 << 20, high=1 << 62, low=1 << 61, hard=None)
_LAST_WORDS_S = 0.5
_VMSTAT = Path("/proc/vmstat")
_SOCKET_BUFFER_BYTES = 1 << 20
_OOM_SCORE = 500
"""Added to a child's ``oom_score_adj``: as if it used half of the machine's memory in addition."""
_MOST_OOM_SCORE = 1000

ENDED = "was ended with the daemon"
"""The reason for the end of a child that did not fail."""

OnReply = Callable[[Any, GpudError | None], None]
"""Called with the replied value and None, or with None and an error."""


class ChildProcess:
    """One child process.

    Args:
        what: its name in the log, such as ``device host 0``.
        table: the messages of the socket; the daemon has the client's role.
        outbox: of the event loop.
        handlers: called with the child's messages, by their class.
        on_end: called once when the child has ended, with the reason, worded to follow its name:
            "was ended by SIGKILL".

    Attributes:
        alive: whether messages can be sent.
        send: sends a message; it is dropped if the child has ended, or is not there yet.
        send_with: `send` with a descriptor, which the caller may close then.
    """

    def __init__(
        self,
        what: str,
        table: MessageTable,
        outbox: Outbox,
        *,
        handlers: Mapping[type, Callable[[Any], None]],
        on_end: Callable[[str], None],
    ) -> None:
        self.what = what
        self._table = table
        self._outbox = outbox
        self._handlers = handlers
        self._on_end = on_end
        self._stream: Stream | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._tickets: dict[int, OnReply] = {}
        self._next_ticket = 1
        self._tasks: list[asyncio.Task[None]] = []
        self._over = False
        self.alive = False
        self.send: Callable[[Any], None] = _drop
        self.send_with: Callable[[Any, int], None] = _drop_with
        self._last_line = ""
        self._oom_kills = oom_kills()

    @property
    def pid(self) -> int | None:
        """The process id; None before the start, or if there is no process."""
        return None if self._process is None else self._process.pid

    async def start(self, arguments: Sequence[str]) -> None:
        """Start ``python ARGUMENTS --fd N``.

        Raises:
            OSError: the process cannot be started.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *arguments,
                    "--fd",
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                    # Ctrl-C in a terminal is for the daemon, which ends its children in order.
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            raise
        _prefer_for_oom_kill(self._process.pid)
        if self._over:  # killed while it was being started
            ours.close()
            self._signal()
        else:
            self.attach(ours)
        self._tasks = [
            asyncio.ensure_future(self._log_output()),
            asyncio.ensure_future(self._wait()),
        ]

    def attach(self, ours: socket.socket) -> None:
        """Communicate over ``ours``. Tests call it without `start`, without a process."""
        self._stream = Stream(
            ours,
            self._outbox,
            _LINK,
            encode=self._table.encode,
            on_body=self._on_body,
            on_end=self._on_link_end,
            on_broken=self._on_broken,
        )
        self._stream.start()
        self.alive = True
        self.send = self._stream.send
        self.send_with = self._stream.send_with

    def request(
        self, make: Callable[[int], Any], on_reply: OnReply, descriptor: int | None = None
    ) -> None:
        """Send ``make(ticket)``; ``on_reply`` gets its reply."""
        stream = self._stream
        if stream is None or not self.alive:
            on_reply(None, GpudError(f"the {self.what} is gone"))
            return
        ticket = self._next_ticket
        self._next_ticket = ticket + 1 if ticket < 0xFFFFFFFF else 1
        self._tickets[ticket] = on_reply
        message = make(ticket)
        if descriptor is None:
            stream.send(message)
        else:
            stream.send_with(message, descriptor)

    def reply(self, ticket: int, value: Any, error: dict[str, Any] | None = None) -> None:
        """Pass a reply to its callback: to be called by the owner's handlers."""
        on_reply = self._tickets.pop(ticket, None)
        if on_reply is not None:
            on_reply(value, None if error is None else from_wire(error))

    def kill(self, why: str) -> None:
        """Kill the child. ``on_end`` is called before this returns, with ``why``."""
        self._signal()
        self._end(why)

    async def closed(self) -> None:
        """Wait until the process has ended; `kill` it or close its socket first."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self, timeout_s: float) -> None:
        """Close the socket, on which a child exits; kill it if it has not within ``timeout_s``."""
        self._end(ENDED)
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
            if late:
                self._signal()
                await asyncio.wait(self._tasks)

    # -- events

    def _on_body(self, body: bytes) -> None:
        try:
            message = self._table.decode(body, _DAEMON)
        except ProtocolError as error:
            self.kill(f"sent what is no message: {error}")
            return
        STALLS.handling = type(message)
        try:
            self._handlers[type(message)](message)
        except Exception:  # noqa: BLE001 - one message of one child must not stop the loop
            _LOG.exception("a message of the %s was not handled: %.200r", self.what, message)

    def _on_broken(self, error: FrameError) -> None:
        self.kill(f"sent what is no message: {error}")

    def _on_link_end(self, reason: str) -> None:
        self.alive = False
        if self._over:
            return
        if self._process is None:
            self._end("has closed its link")
            return
        # `_wait` reports how the process ended; one that has closed its socket and still runs is
        # useless, so it is killed.
        self._signal()

    async def _wait(self) -> None:
        assert self._process is not None
        code = await self._process.wait()
        # Its last line of output says more. The timeout: its own children may keep the pipe open.
        await asyncio.wait([self._tasks[0]], timeout=_LAST_WORDS_S)
        words = f": {self._last_line}" if code > 0 and self._last_line else ""
        if code == -signal.SIGKILL and oom_kills() > self._oom_kills:
            words = ", as the system ran out of memory"
        self._end(_described(code) + words)

    async def _log_output(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:  # a line over asyncio's limit, which the reader has skipped
                continue
            if not line:
                return
            self._last_line = line.decode(errors="replace").rstrip()
            _LOG.warning("%s: %s", self.what, self._last_line)

    def _signal(self) -> None:
        # Not `Process.kill`: it looks for the exit status itself, and asyncio then misses it.
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    def _end(self, reason: str) -> None:
        if self._over:
            return
        self._over = True
        self.alive = False
        if self._stream is not None:
            self._stream.abort(reason)
        tickets, self._tickets = self._tickets, {}
        for on_reply in tickets.values():
            try:
                on_reply(None, GpudError(f"the {self.what} {reason}"))
            except Exception:  # noqa: BLE001 - the other callbacks must be called
                _LOG.exception("the end of the %s was not handled", self.what)
        self._on_end(reason)


def _drop_with(message: Any, descriptor: int) -> None:
    """Drop a message with a descriptor."""


def _drop(message: Any) -> None:
    """Send a message to a child that is not there."""


def _prefer_for_oom_kill(pid: int) -> None:
    """Raise a child's OOM score, so that the kernel kills it before the daemon."""
    with suppress(OSError):
        place = Path(f"/proc/{pid}/oom_score_adj")
        place.write_text(str(min(_MOST_OOM_SCORE, int(place.read_text()) + _OOM_SCORE)))


def oom_kills() -> int:
    """How many processes the OOM killer has killed since boot; 0 if unknown."""
    with suppress(OSError):
        for line in _VMSTAT.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _described(code: int) -> str:
    """Return an exit status in words."""
    if code >= 0:
        return f"ended with exit status {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"
