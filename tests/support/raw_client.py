"""A client that speaks the protocol over a blocking socket, without the client library."""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gpud.wire import messages as wm
from gpud.wire.framing import FrameDecoder
from gpud.wire.message_table import Sender

_TIMEOUT_S = 60.0


class Raw:
    """A blocking client without the client library."""

    def __init__(self, path: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(path)
        self.descriptors: list[int] = []
        self.arena: Any = None
        self.session = 0
        self._decoder = FrameDecoder()
        self._received: list[Any] = []
        self._request = 0
        self._jobs = 0

    def send(self, message: Any) -> None:
        """Send a message."""
        self.sock.sendall(wm.CLIENT_PROTOCOL.encode(message))

    def expect(self, cls: type[Any]) -> Any:
        """Return the next message of this class; others are dropped."""
        while True:
            while self._received:
                message = self._received.pop(0)
                if type(message) is wm.Arena:
                    self.arena = message
                if type(message) is cls:
                    return message
                if type(message) in (wm.Failed, wm.Goodbye):
                    raise RuntimeError(str(message.error["message"]))
            data, descriptors, _, _ = socket.recv_fds(self.sock, 1 << 16, 8)
            if not data:
                raise ConnectionError("the daemon has closed the connection")
            self.descriptors += descriptors
            self._decoder.feed(data)
            for body in self._decoder.frames():
                self._received.append(wm.CLIENT_PROTOCOL.decode(body, Sender.DAEMON))

    def ask(self, make: Callable[[int], Any], cls: type[Any]) -> Any:
        """Send a request; its answer."""
        self._request += 1
        with suppress(BrokenPipeError):  # the reason can still be read
            self.send(make(self._request))
        return self.expect(cls)

    def hello(self) -> None:
        """Open a session."""
        self.session = self.ask(lambda r: wm.Hello(r, wm.VERSION, "dying"), wm.Welcome).session

    def module(self, source: str) -> int:
        """Compile and measure the kernel; returns the module."""
        module: int = self.ask(lambda r: wm.Compile(r, 0, source, ()), wm.Compiled).module
        self.ask(lambda r: wm.Measure(r, module, 0, (32, 1, 1), 0), wm.Measured)
        return module

    def allocate(self, size: int) -> int:
        """Allocate an array; returns its address."""
        address: int = self.ask(lambda r: wm.Allocate(r, 0, size), wm.Allocated).address
        return address

    def map(self) -> mmap.mmap:
        """Map the session's memory."""
        return mmap.mmap(self.descriptors[0], self.arena.size)

    def submit(self, module: int, address: int, blocks: int, **more: Any) -> None:
        """Submit a launch of the module's first kernel."""
        self._jobs += 1
        one = wm.LaunchRecord(
            module, 0, (blocks, 1, 1), (32, 1, 1), 0, address.to_bytes(8, "little")
        )
        self.send(wm.Submit(self._jobs, 0, wm.CLIENT_PROTOCOL.encode_records([one]), **more))

    def close(self) -> None:
        """Close the connection in the regular way."""
        self.sock.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
