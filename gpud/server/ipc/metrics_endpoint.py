"""Serves the metrics over HTTP, on a Unix socket or on the loopback interface, in a thread.

Whoever reads slowly or says nothing is disconnected; the event loop only ever makes the text.

Properties:
    few: at most `MOST_REQUESTS` are under way, each on a thread; more are disconnected;
    short: a request is disconnected after `DEADLINE_S`, whatever it does meanwhile.
"""

from __future__ import annotations

import asyncio
import socket
import socketserver
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from gpud.errors import InvalidArgument
from gpud.server.ipc.listener import Listener, listen

__all__ = ["DEADLINE_S", "MOST_REQUESTS", "MetricsEndpoint"]

MOST_REQUESTS = 16
DEADLINE_S = 10.0

_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_READ_S = 5.0
_MAKE_S = 5.0
_LOOPBACK = "127.0.0.1"


class MetricsEndpoint:
    """A listening endpoint; ``GET /metrics`` is answered with the text.

    Args:
        where: the path of a Unix socket, or a port of the loopback interface; 0: any.
        make: makes the text, on the loop.
        loop: the event loop.

    Attributes:
        address: where it listens, human-readable.
        port: the port; 0 for a Unix socket.

    Raises:
        InvalidArgument: nothing can listen there.
    """

    def __init__(
        self,
        where: Path | int,
        make: Callable[[], Awaitable[bytes]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._make = make
        self._loop = loop
        self._listener: Listener | None = None
        if isinstance(where, Path):
            self._listener = listen(where, flag="--metrics-socket")
            self._server: _Server = _UnixServer(self._listener.socket)
            self.port, self.address = 0, str(where)
        else:
            try:
                self._server = _Server((_LOOPBACK, where), _Handler)
            except OSError as error:
                raise InvalidArgument(
                    f"the metrics cannot be served at port {where}: {error.strerror or error}; "
                    "choose another with --metrics-port"
                ) from error
            self.port = int(self._server.server_port)
            self.address = f"http://{_LOOPBACK}:{self.port}/metrics"
        self._server.set_app(self._answer)
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )
        self._thread.start()

    async def close(self) -> None:
        """Listen no more."""
        # In a thread: a request that is being answered may wait for the loop.
        await self._loop.run_in_executor(None, self._server.shutdown)
        if self._listener is not None:
            self._listener.close()  # while the socket is open: it then removes the file
        self._server.server_close()

    def _answer(self, request: dict[str, Any], start: Any) -> Iterable[bytes]:
        """Answer a request, as WSGI has it. On a thread of the request's own."""
        if request["PATH_INFO"] != "/metrics":
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [b"GET /metrics\n"]
        if request["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start("405 Method Not Allowed", [("Allow", "GET, HEAD")])
            return []
        text = asyncio.run_coroutine_threadsafe(self._text(), self._loop).result(_MAKE_S)
        start("200 OK", [("Content-Type", _CONTENT_TYPE), ("Content-Length", str(len(text)))])
        return [text] if request["REQUEST_METHOD"] == "GET" else []

    async def _text(self) -> bytes:
        return await self._make()


class _Handler(WSGIRequestHandler):
    timeout = _READ_S

    def address_string(self) -> str:
        return "local"

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the base's name
        """Log nothing: requests come every few seconds."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._until_s: dict[socket.socket, float] = {}
        self._under_way = threading.Lock()
        super().__init__(*arguments, **named)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a thread, unless too many do."""
        with self._under_way:
            taken = len(self._until_s) < MOST_REQUESTS
            if taken:
                self._until_s[request] = time.monotonic() + DEADLINE_S
        if taken:
            super().process_request(request, client_address)
        else:
            super().shutdown_request(request)

    def service_actions(self) -> None:
        """End what is overdue; called twice a second."""
        now_s = time.monotonic()
        with self._under_way:
            for request, until_s in self._until_s.items():
                if now_s > until_s:
                    with suppress(OSError):
                        request.shutdown(socket.SHUT_RDWR)  # its thread then ends

    def shutdown_request(self, request: Any) -> None:
        """Close a request that was answered, or has failed."""
        with self._under_way:
            self._until_s.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: the client has gone, or said nothing in time."""


class _UnixServer(_Server):
    """On a Unix socket that listens already."""

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.server_name, self.server_port = "localhost", 0
        self.setup_environ()

    def get_request(self) -> tuple[Any, Any]:
        request, _ = self.socket.accept()
        return request, ("local", 0)
