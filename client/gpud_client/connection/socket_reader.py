"""Reads the socket, in a thread of its own or in one that waits, and calls users' callbacks.

Problem: many threads wait for what comes through one socket, and callbacks, futures and arrays that
are dropped need it to be read while nobody waits. Yet to wake one thread for reading, and by it
another one that waits, takes half of a client's processor time.

Approach: the session's thread blocks in `poll` and settles requests and jobs, which wakes the
threads that wait for them. When it has woken the only thread that did, it *lends* the reading for a
moment: if that thread waits again meanwhile, it reads for itself, and wakes nobody. A second thread
that waits calls the session's thread back. It does not lend once anything comes that no
thread waits for: to callbacks, lanes, workloads and subscribers.

Neither runs anything of the user's: callbacks may block, and wait for other jobs, so they are
called one after the other by another thread, which is made for the first of them.

Properties:
    idle: while nothing arrives, no thread wakes, but for that of a session in whose moment it is;
    whole: an interrupt of a thread that reads loses nothing of what has arrived;
    heard: what the daemon sent before it closed the connection is handled before it counts as lost;
    nobody_hangs: however reading ends, everything pending is settled, and all that wait wake.
"""

from __future__ import annotations

import logging
import queue
import select
import socket
import threading
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gpud.errors import GpudError
from gpud_client.connection.protocol_state import ProtocolState, connection_lost

__all__ = ["CallbackThread", "SocketReader"]

_LOG = logging.getLogger("gpud_client")
_READ_BYTES = 1 << 18
_SPACE = (socket.CMSG_SPACE(8 * array("i").itemsize),)
_FLAGS = (socket.MSG_CMSG_CLOEXEC,)
_LENT_S = 0.05  # the moment for which reading is lent; each use makes it anew


class SocketReader:
    """Reads one socket, from its construction until the connection ends.

    Args:
        sock: connected and blocking.
        core: the protocol's state.
        where: the socket's path, for messages.
        after_reading: called after messages were handled; must not block.
        on_end: called when nothing is read any more, with the reader and the reason. It sets
            `ended` and calls `close`.

    Attributes:
        ended: set when all that was received has been handled.
        sleepers: what threads wait for without reading; they add it before they look whether it is
            settled, and then call `recall`.
        lent: whether a thread that waits may `read_for` itself.
        always: whether reading is never lent.
    """

    def __init__(
        self,
        sock: socket.socket,
        core: ProtocolState,
        where: str,
        after_reading: Callable[[], None],
        on_end: Callable[[SocketReader, GpudError], None],
    ) -> None:
        self.ended = threading.Event()
        self.sleepers: list[Any] = []
        self.lent = False
        self.always = False
        self._borrowed = False  # since the session's thread looked
        self._recalled = threading.Event()
        self._turn = threading.Lock()  # whoever reads has it; in the end the session's thread
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._buffers = ([self._buffer],)
        self._receive = sock.recvmsg_into
        # `recvmsg` alone is woken, too, when the daemon has read what was sent to it.
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._received: list[Any] = []  # what a call has received and `core` has not
        self._sock = sock
        self._core = core
        self._where = where
        self._after_reading = after_reading
        self._on_end = on_end
        self._thread: threading.Thread | None = threading.Thread(
            target=self._run, name="gpud_client reader", daemon=True
        )

    def start(self) -> None:
        """Begin to read."""
        assert self._thread is not None
        self._thread.start()

    def hang_up(self) -> None:
        """End the connection; safe in a finalizer."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket, which no thread uses any more."""
        self._sock.close()

    def join(self, timeout_s: float) -> None:
        """Wait until its thread has ended, unless it is called there."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def forked(self) -> None:
        """Reset in a forked child process, which has none of the parent's other threads."""
        self.lent = False
        self._thread = None

    def _run(self) -> None:
        try:
            error = connection_lost(self._where, self._read())
        except GpudError as failed:
            error = connection_lost(self._where, failed)
        except OSError as failed:
            error = connection_lost(self._where, failed.strerror or str(failed))
        except Exception as failed:  # noqa: BLE001  (all others would wait for ever)
            _LOG.exception("the thread that reads from the daemon failed")
            error = connection_lost(self._where, f"reading failed: {failed!r}")
        # Sending fails from now on, so that nothing becomes pending after the rest was settled.
        self.hang_up()
        self._on_end(self, error)

    def _read(self) -> str:
        """Handle what arrives, until the connection ends; returns why it has.

        Raises:
            GpudError: The daemon has said why, or has sent what cannot be understood.
            OSError: Reading failed.
        """
        while True:
            self._turn.acquire()
            self._core.settle()  # a thread that has read may have been interrupted
            while self._handle_next(None):
                if self._may_lend():
                    self._lend()
                    break
            else:
                return "it has ended; its log may say why"

    def _handle_next(self, limit_ms: float | None) -> bool:
        """Wait for what arrives next, and handle it; returns whether there was anything."""
        received = self._received
        if not received:
            if not self._readable.poll(limit_ms):
                return False
            # An interrupt is handled before or after this statement, never between the system call
            # and storing what it returns.
            received += map(self._receive, self._buffers, _SPACE, _FLAGS)
        if not received[0][0]:
            received.clear()
            return False
        self._core.feed(self._buffer, received)
        self._core.settle()
        self._after_reading()
        return True

    # -- lending

    def read_for(self, target: Any, until_s: float | None) -> bool:
        """Read in this thread until a target is settled; returns whether it is.

        If not, another thread reads, or will when it is called back.

        Args:
            target: a request or a job.
            until_s: how long at most, on the monotonic clock.
        """
        held: list[bool] = []
        try:
            held += map(self._turn.acquire, (False,))
            if not held[0] or not self.lent:
                return False
            self._borrowed = True
            while not target._settled:
                left_ms = None if until_s is None else max(0.0, until_s - time.monotonic()) * 1e3
                if not self._handle_next(left_ms):
                    return False
            return True
        except Exception:  # noqa: BLE001  (the session's thread finds the same, and ends it)
            return False
        finally:
            if held and held[0]:
                if not target._settled:  # there may be something that is not handled
                    self.lent = False
                self._turn.release()  # no call before this one: an interrupt could come there
                if not self.lent:
                    self._recalled.set()

    def recall(self) -> None:
        """Have the session's thread read again at once, if it lends."""
        if self.lent:
            self._recalled.set()

    def _may_lend(self) -> bool:
        """Whether only threads profit from reading, and the one that waited is settled."""
        sleepers, core = tuple(self.sleepers), self._core
        if self.always or core.resumable is not None:  # which must notice at once when it is lost
            return False
        alone = len(sleepers) == 1 and sleepers[0]._settled
        return alone and not core.lanes and not core.workloads and core.events is None

    def _lend(self) -> None:
        """Let others read, until none has for a moment, or one calls."""
        self.lent = True
        self._turn.release()
        self._borrowed = self._may_lend()  # or a thread has begun to wait before it could call
        while self._borrowed:
            self._borrowed = False
            if self._recalled.wait(_LENT_S):
                break
        self.lent = False
        self._recalled.clear()


class CallbackThread:
    """Calls what is added, in order, in a thread that is made for the first callback."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None

    def add(self, callback: Callable[[], None]) -> None:
        """Queue a callback; it must not raise. Only one thread at a time may call this."""
        self._queue.put(callback)
        if self.thread is None:
            self.thread = threading.Thread(
                target=self._run, name="gpud_client callbacks", daemon=True
            )
            with suppress(RuntimeError):  # the interpreter is shutting down
                self.thread.start()

    def end(self) -> None:
        """End the thread once it has called all that was added."""
        self._queue.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has ended, unless it is called there."""
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join(timeout_s)

    def _run(self) -> None:
        while (callback := self._queue.get()) is not None:
            callback()
            del callback  # which keeps its job and so the session
