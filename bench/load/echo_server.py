"""A bare msgpack echo over a Unix socket: the latency floor of any request to a daemon.

    python -m bench.load.echo_server SOCKET [--relay]

A server in its own process: uvloop, one Protocol, gpud's framing (four bytes of length, then
msgpack); each message is decoded and encoded again, and nothing else. `Echo` is the blocking
client. The time that gpud needs beyond this is its own.

With ``--relay`` the server passes each message on to a process whose reading thread hands it to a
second thread, which answers. These are the hops of a job through front, device host and SM, without
their work.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import cast

import msgpack
import uvloop

__all__ = ["Echo"]

_LENGTH = struct.Struct("<I")
_MESSAGE = [7, 1, 0, b"\x91\x96" + bytes(40), None, [1, 1], 0, []]
"""About as large as a submission of a kernel without parameters."""


class Echo:
    """An echo server and a connection to it; both end with the context.

    Args:
        relay: whether a message takes as many hops as a job.
    """

    def __init__(self, *, relay: bool = False) -> None:
        self._relay = relay

    def __enter__(self) -> Echo:
        self._folder = tempfile.TemporaryDirectory(prefix="gpud-")
        path = Path(self._folder.name) / "echo"
        root = Path(__file__).resolve().parents[2]
        command = [
            sys.executable,
            "-m",
            "bench.load.echo_server",
            str(path),
            *["--relay"] * self._relay,
        ]
        self._server = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE)
        assert self._server.stdout is not None
        self._server.stdout.readline()  # sent once it listens
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._reader = self._socket.makefile("rb")
        self._pack = msgpack.Packer().pack
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self._socket.close()
        self._server.terminate()
        self._server.wait()
        assert self._server.stdout is not None
        self._server.stdout.close()
        self._folder.cleanup()

    def call(self) -> None:
        """One round trip."""
        self._send()
        self._receive()

    def pipelined(self, count: int, in_flight: int = 64) -> None:
        """Send ``count`` messages one by one, with at most ``in_flight`` unanswered."""
        for number in range(count):
            if number >= in_flight:
                self._receive()
            self._send()
        for _ in range(min(count, in_flight)):
            self._receive()

    def _send(self) -> None:
        body = self._pack(_MESSAGE)
        self._socket.sendall(_LENGTH.pack(len(body)) + body)

    def _receive(self) -> None:
        (size,) = _LENGTH.unpack(self._reader.read(4))
        msgpack.unpackb(self._reader.read(size))


class _Server(asyncio.Protocol):
    def __init__(self) -> None:
        self._buffer = bytearray()
        self._pack = msgpack.Packer().pack

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        at, replies = 0, []
        while len(self._buffer) - at >= 4:
            (size,) = _LENGTH.unpack_from(self._buffer, at)
            if len(self._buffer) - at < 4 + size:
                break
            body = self._pack(msgpack.unpackb(self._buffer[at + 4 : at + 4 + size]))
            replies.append(_LENGTH.pack(len(body)) + body)
            at += 4 + size
        del self._buffer[:at]
        self._transport.write(b"".join(replies))


async def _serve(path: str) -> None:
    server = await asyncio.get_running_loop().create_unix_server(_Server, path)
    print("listening", flush=True)
    await server.serve_forever()


# -- a relay -------------------------------------------------------------------------------------


def _relay(path: str) -> None:
    """Serve one client; a separate process answers its messages, see `_answer`."""
    front, host = socket.socketpair()
    if os.fork() == 0:
        front.close()
        _answer(host)
        os._exit(0)
    host.close()
    uvloop.run(_pass_on(path, front))


async def _pass_on(path: str, host: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.setblocking(False)
        print("listening", flush=True)
        client, _ = await loop.sock_accept(listener)
    ended = loop.create_future()

    def move(source: socket.socket, to: socket.socket) -> None:
        data = source.recv(1 << 18)
        if data:
            to.sendall(data)
        elif not ended.done():
            ended.set_result(None)

    loop.add_reader(client.fileno(), move, client, host)
    loop.add_reader(host.fileno(), move, host, client)
    await ended


def _answer(peer: socket.socket) -> None:
    box: SimpleQueue[bytes] = SimpleQueue()

    def send() -> None:
        while data := box.get():
            peer.sendall(data)

    threading.Thread(target=send, daemon=True).start()
    while data := peer.recv(1 << 18):
        box.put(data)


if __name__ == "__main__":
    if "--relay" in sys.argv[2:]:
        _relay(sys.argv[1])
    else:
        uvloop.run(_serve(sys.argv[1]))
