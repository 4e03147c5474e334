"""Reads the socket in a thread of its own, and calls users' callbacks in another.

Problem: many threads wait for what comes through one socket, and callbacks, futures and arrays that
are dropped need it to be read while nobody waits.

Approach: one thread blocks in `recvmsg` and settles requests and jobs, which wakes the threads that
wait for them. It runs nothing of the user's: callbacks may block, and wait for other jobs, so they
are called one after the other by a second thread, which is made for the first of them.

Properties:
    idle: while nothing arrives, no thread wakes;
    heard: what the daemon sent before it closed the connection is handled before it counts as lost;
    nobody_hangs: however reading ends, everything pending is settled, and all that wait wake.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
from array import array
from collections.abc import Callable
from contextlib import suppress

from gpud.errors import GpudError
from gpud_client.connection.protocol_state import ProtocolState, connection_lost

__all__ = ["CallbackThread", "SocketReader"]

_LOG = logging.getLogger("gpud_client")
_READ_BYTES = 1 << 18
_DESCRIPTORS = socket.CMSG_SPACE(8 * array("i").itemsize)


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
        buffer = memoryview(bytearray(_READ_BYTES))
        core, receive = self._core, self._sock.recvmsg_into
        while True:
            size, ancillary, _, _ = receive([buffer], _DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
            if not size:
                return "it has ended; its log may say why"
            descriptors: list[int] = []
            for _, _, data in ancillary:
                descriptors += array("i", data[: len(data) - len(data) % 4])
            core.feed(buffer[:size], descriptors)
            core.settle()
            self._after_reading()


class CallbackThread:
    """Calls what is added, in order, in a thread that is made for the first callback."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None

    def add(self, callback: Callable[[], None]) -> None:
        """Queue a callback; it must not raise. Only one thread may call this."""
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
