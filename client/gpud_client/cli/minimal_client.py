"""A minimal blocking client for gpuctl: one request at a time, without NumPy or threads.

Problem: most commands of gpuctl send one query. The client library loads arrays, threads and
futures, and NumPy with them, which takes a tenth of a second before the first byte is sent.

Approach: the same messages and codec, on a blocking socket with a timeout; one request at a time.
Only `gpuctl run` needs more, and uses the library.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Self

from gpud.errors import ConnectionLost, GpudError, from_wire
from gpud.wire.framing import FrameDecoder
from gpud.wire.message_table import Sender
from gpud.wire.messages import (
    CLIENT_PROTOCOL,
    VERSION,
    Answer,
    Cancel,
    Describe,
    Failed,
    Follow,
    Goodbye,
    Happened,
    Hello,
    Query,
    Resize,
    Welcome,
)
from gpud.wire.socket_path import socket_path
from gpud_client.connection.daemon_socket import MAX_FRAME_BYTES, connect_socket

__all__ = ["MinimalClient"]

_TIMEOUT_S = 20.0
_READ_BYTES = 1 << 18


class MinimalClient:
    """A session with the daemon whose socket is at ``path``; closed at the end of a ``with`` block.

    Every method blocks until the answer arrives, 20 seconds at most, and raises the daemon's error.

    Args:
        path: Of the socket; None: the default of `gpud_client.connect`.

    Raises:
        ConnectionLost: no daemon listens there, or another program does.
    """

    welcome: Welcome

    def __init__(self, path: str | None = None) -> None:
        self.path = socket_path(path)
        self._next = 0
        self._decoder = FrameDecoder(MAX_FRAME_BYTES)
        self._bodies: Iterator[bytes] = iter(())
        self._socket = connect_socket(str(self.path))
        self._socket.settimeout(_TIMEOUT_S)
        try:
            found = self._ask(Hello(self._number(), VERSION, "gpuctl"))
            if not isinstance(found, Welcome):
                raise ConnectionLost(f"{self.path} does not speak gpud's protocol")
            self.welcome = found
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def query(self, topic: str, limit: int = 0) -> dict[str, Any]:
        """Query a topic, one of `gpud.wire.messages.TOPICS`."""
        return self._map(Query(self._number(), topic, limit))

    def describe(self, job: tuple[int, int]) -> dict[str, Any] | None:
        """A job as a row of topic "jobs"; None if there is no such job."""
        rows: list[dict[str, Any] | None] = self._value(Describe(self._number(), (job,)))
        return rows[0]

    def resize(
        self, job: tuple[int, int], *, reservation: Fraction | None, quota: Fraction | None
    ) -> Any:
        """Change the reservation or the quota of a job, in CapSM."""
        return self._value(Resize(self._number(), job, _pair(reservation), _pair(quota)))

    def cancel(self, job: tuple[int, int]) -> bool:
        """Cancel a job; returns whether it had not ended yet."""
        return bool(self._value(Cancel(self._number(), job)))

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield every event from now on, until the connection is lost."""
        self._value(Follow(self._number(), True))
        self._socket.settimeout(None)
        while True:
            message = self._receive()
            if isinstance(message, Happened):
                yield message.event

    # -- one request at a time ---------------------------------------------------------------

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _map(self, request: Any) -> dict[str, Any]:
        found = self._value(request)
        if not isinstance(found, dict):
            raise GpudError(f"the daemon answered with {type(found).__name__}, not with a map")
        return found

    def _value(self, request: Any) -> Any:
        found = self._ask(request)
        return found.value if isinstance(found, Answer) else None

    def _ask(self, request: Any) -> Any:
        """Send a request and return the message that answers it."""
        try:
            self._socket.sendall(CLIENT_PROTOCOL.encode(request))
        except OSError as error:
            # A daemon that refuses a connection sends the reason before it closes it.
            self._drain()
            raise self._lost(error) from error
        while True:
            message = self._receive()
            if isinstance(message, Failed) and message.request in (request.request, 0):
                raise from_wire(message.error)
            if getattr(message, "request", None) == request.request:
                return message

    def _receive(self) -> Any:
        while True:
            for body in self._bodies:
                message = CLIENT_PROTOCOL.decode(body, Sender.DAEMON)
                if isinstance(message, Goodbye):
                    error = from_wire(message.error)
                    raise ConnectionLost(f"the daemon closed the connection: {error}") from error
                return message
            try:
                data = self._socket.recv(_READ_BYTES)
            except TimeoutError as error:
                raise ConnectionLost(
                    f"the daemon at {self.path} does not answer; its log may say why"
                ) from error
            except OSError as error:
                raise self._lost(error) from error
            if not data:
                raise self._lost(None)
            self._decoder.feed(data)
            self._bodies = iter(self._decoder.frames())

    def _drain(self) -> None:
        """Raise the error of the daemon's `Goodbye`, if it has sent one."""
        try:
            while True:
                self._receive()
        except ConnectionLost as error:
            if isinstance(error.__cause__, GpudError):
                raise

    def _lost(self, error: OSError | None) -> ConnectionLost:
        cause = "it closed the connection" if error is None else f"{error.strerror or error}"
        return ConnectionLost(f"the daemon at {self.path} has gone ({cause}); see its log")


def _pair(amount: Fraction | None) -> tuple[int, int] | None:
    return None if amount is None else (amount.numerator, amount.denominator)
