"""The device host's end of its socket pair with the front: blocking, for several threads.

One thread receives; any thread sends. `Link.send` writes to the socket on the calling thread, so
that an event of an SM's thread is sent without waking another thread first.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from gpud.device.host.messages import HOST_PROTOCOL
from gpud.errors import FrameError, ProtocolError
from gpud.wire.framing import FrameDecoder
from gpud.wire.message_table import Sender

__all__ = ["Link", "Unreadable"]

_CHUNK_BYTES = 1 << 18
_FRAME_LIMIT_BYTES = 1 << 28
"""A rewritten program is the largest message from the front."""

_DESCRIPTORS = 16
_ANCILLARY_BYTES = socket.CMSG_SPACE(4 * _DESCRIPTORS)


class Unreadable(NamedTuple):
    """A frame that does not decode to a command.

    Attributes:
        kind: the message class of its code; None if the code is unknown.
        error: why it does not decode; has the ticket or job number if that could be read.
    """

    kind: type | None
    error: ProtocolError


class Link:
    """Sends and receives messages over a connected Unix stream socket, which it owns.

    Args:
        connection: the host's end; left in blocking mode.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        self._socket = connection
        self._encode = HOST_PROTOCOL.encode
        self._decoder = FrameDecoder(_FRAME_LIMIT_BYTES)
        self._buffer = bytearray(_CHUNK_BYTES)
        self._descriptors: deque[int] = deque()
        self._lock = threading.Lock()

    def receive(self) -> Iterator[Any]:
        """Yield each command as it arrives, until the front closes its end; blocks.

        A frame that does not decode to a command is yielded as `Unreadable`.

        Raises:
            FrameError: the framing is broken; nothing more can be read.
        """
        view = memoryview(self._buffer)
        decode, front = HOST_PROTOCOL.decode, Sender.CLIENT
        # `recvmsg` alone is woken, too, when the front has read what was sent to it.
        readable = select.poll()
        readable.register(self._socket, select.POLLIN)
        while True:
            readable.poll()
            try:
                count, ancillary, _, _ = self._socket.recvmsg_into([self._buffer], _ANCILLARY_BYTES)
            except ConnectionError:
                return
            if ancillary:
                self._keep(ancillary)
            if not count:
                return
            for body in self._decoder.feed_frames(view[:count]):
                try:
                    command = decode(body, front)
                except FrameError:
                    raise
                except ProtocolError as error:
                    code = body[1] if len(body) > 1 else -1
                    command = Unreadable(HOST_PROTOCOL.by_code.get(code), error)
                yield command

    def take_descriptor(self) -> int | None:
        """Take the oldest file descriptor received and not taken yet; the caller closes it."""
        return self._descriptors.popleft() if self._descriptors else None

    def send(self, event: Any) -> None:
        """Send an event; the events of one thread arrive in the order of their sending.

        Blocks while the socket's buffer is full. If the front has closed its end the event is
        dropped: the receiving thread sees that too, and ends the host. So is one sent after
        `close`.
        """
        data = self._encode(event)
        with self._lock:
            if self._socket.fileno() < 0:
                return
            try:
                self._socket.sendall(data)
            except ConnectionError:
                return

    def close(self) -> None:
        """Close the socket and descriptors that were not taken; other threads may be sending."""
        with suppress(OSError):  # the front may have closed its end
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes threads that are blocked in `send`
        with self._lock:
            self._socket.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _keep(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = memoryview(data)[: len(data) // 4 * 4]
                self._descriptors.extend(whole.cast("i"))
