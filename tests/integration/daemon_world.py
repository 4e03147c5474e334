"""A real daemon in this process, and clients that speak to it as bytes over its socket."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

from gpud.config import Config, load
from gpud.server.daemon import Daemon
from gpud.server.hosts.compile_pool import CompilePool
from gpud.server.hosts.compile_process import Source
from gpud.server.state.access import Peer, peer_of
from gpud.server.state.modules import CompiledProgram
from gpud.wire import messages as wm
from gpud.wire.framing import FrameDecoder
from gpud.wire.message_table import Sender
from tests.fake_host.host import FakeHost
from tests.support.receive import incoming

_T = TypeVar("_T")
TIMEOUT_S = 20.0
_LOOKS = 100
"""Without a pause: what happens in this process alone takes a few turns of the event loop."""
_compiled: dict[tuple[Any, ...], dict[Source, CompiledProgram]] = {}


def _known(pool: CompilePool) -> dict[Source, CompiledProgram]:
    """What daemons of this configuration compiled before: most tests need no compile process."""
    return _compiled.setdefault((pool._arguments, pool._bounds_checks), {})


# Two kernels; FakeHost looks at their names only, so a test may call them what it likes.
PTX = """
.version 8.0
.target sm_75
.address_size 64
.visible .entry {name}(.param .u64 p)
{{
  .reg .b32 %r<4>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [p];
  cvta.to.global.u64 %rd2, %rd1;
  mov.u32 %r1, %ctaid.x;
  mul.wide.u32 %rd3, %r1, 4;
  add.s64 %rd2, %rd2, %rd3;
  st.global.u32 [%rd2], %r1;
  ret;
}}
"""
# It ends when the word that it is given is not 0.
LOOP = """
.version 8.0
.target sm_75
.address_size 64
.visible .entry {name}(.param .u64 p)
{{
  .reg .b32 %r<4>;
  .reg .b64 %rd<4>;
  .reg .pred %p<2>;
  ld.param.u64 %rd1, [p];
  cvta.to.global.u64 %rd2, %rd1;
again:
  ld.volatile.global.u32 %r1, [%rd2];
  setp.eq.u32 %p1, %r1, 0;
  @%p1 bra again;
  ret;
}}
"""


async def until(condition: Callable[..., object], pause_s: float = 0.0) -> None:
    """Wait until ``condition`` holds; a pause leaves processors to other processes."""
    async with asyncio.timeout(60):
        looks = 0
        while not condition():
            looks += 1
            await asyncio.sleep(pause_s if looks < _LOOKS else max(pause_s, 0.001))


class Client:
    """A client in the raw: what it sends is what the test says."""

    def __init__(self, path: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        try:
            self.sock.connect(path)
        except OSError:
            self.sock.close()
            raise
        self.sock.setblocking(False)
        self.received: list[Any] = []
        self.descriptors: list[int] = []
        self.closed = False
        self._decoder = FrameDecoder()
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._request = 0
        self.session = 0
        self.welcome: Any = None
        self.read()

    def read(self) -> None:
        """Begin, or go on, to read."""
        self._loop.add_reader(self.sock.fileno(), self._readable)

    def pause(self) -> None:
        """Read no more, as a client that hangs."""
        self._loop.remove_reader(self.sock.fileno())

    def _readable(self) -> None:
        bodies = incoming(self.sock, self._decoder, self.descriptors)
        if bodies is None:
            self.closed = True
            self._loop.remove_reader(self.sock.fileno())
        for body in bodies or ():
            message = wm.CLIENT_PROTOCOL.decode(body, Sender.DAEMON)
            wm.CLIENT_PROTOCOL.check(message)
            self.received.append(message)
        self._arrived.set()

    def raw(self, data: bytes) -> None:
        """Send bytes."""
        self.sock.sendall(data)

    def send(self, message: Any) -> None:
        """Send a message."""
        self.raw(wm.CLIENT_PROTOCOL.encode(message))

    async def expect(
        self, cls: type[_T], condition: Callable[[_T], bool] = lambda message: True
    ) -> _T:
        """The first message of this class that fits; it is taken out of ``received``."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                for index, message in enumerate(self.received):
                    if type(message) is cls and condition(message):
                        del self.received[index]
                        return message
                if self.closed:
                    raise AssertionError(
                        f"closed before a {cls.__name__} came; there are {self.received}"
                    )
                self._arrived.clear()
                await self._arrived.wait()

    async def end(self) -> None:
        """Wait until the daemon has closed the connection."""
        await until(lambda: self.closed)

    def next_request(self) -> int:
        self._request += 1
        return self._request

    async def ask(self, make: Callable[[int], Any], cls: type[_T]) -> _T:
        """Send a request; its answer, which must be of this class."""
        request = self.next_request()
        self.send(make(request))
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                for index, message in enumerate(self.received):
                    if getattr(message, "request", None) == request:
                        del self.received[index]
                        if type(message) is not cls:
                            raise AssertionError(f"{cls.__name__} expected, not {message}")
                        return message
                if self.closed:
                    raise AssertionError("closed before the answer came")
                self._arrived.clear()
                await self._arrived.wait()

    async def refused(self, make: Callable[[int], Any]) -> dict[str, Any]:
        """Send a request that fails; its error."""
        return (await self.ask(make, wm.Failed)).error

    # -- what most tests do

    async def hello(self, program: str = "test") -> Client:
        self.welcome = await self.ask(lambda r: wm.Hello(r, wm.VERSION, program), wm.Welcome)
        self.session = self.welcome.session
        return self

    async def compile(self, source: str, *, device: int = 0, names: Iterable[str] = ()) -> Any:
        return await self.ask(lambda r: wm.Compile(r, device, source, tuple(names)), wm.Compiled)

    async def kernel(self, name: str = "k", *, device: int = 0, threads: int = 32) -> int:
        """Compile and measure a kernel of that name; returns its module."""
        compiled = await self.compile(PTX.format(name=name), device=device)
        await self.measure(compiled.module, threads)
        module: int = compiled.module
        return module

    async def measure(self, module: int, threads: int = 32) -> int:
        found = await self.ask(lambda r: wm.Measure(r, module, 0, (threads, 1, 1), 0), wm.Measured)
        return found.occupancy

    async def allocate(self, size: int, device: int = 0) -> int:
        return (await self.ask(lambda r: wm.Allocate(r, device, size), wm.Allocated)).address

    async def query(self, topic: str, limit: int = 0) -> dict[str, Any]:
        answer = await self.ask(lambda r: wm.Query(r, topic, limit), wm.Answer)
        value: dict[str, Any] = answer.value
        return value

    def submit(self, number: int, module: int, blocks: int = 4, **more: Any) -> None:
        """Submit a launch of the module's first kernel."""
        launches = more.pop("launches", None)
        if launches is None:
            launches = [launch(module, blocks)]
        data = wm.CLIENT_PROTOCOL.encode_records(launches)
        self.send(wm.Submit(number, more.pop("device", 0), data, **more))

    async def finished(self, number: int) -> Any:
        return await self.expect(wm.Finished, lambda message: message.number == number)

    def close(self) -> None:
        if self.sock.fileno() >= 0:
            self._loop.remove_reader(self.sock.fileno())
            self.sock.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()


def launch(module: int, blocks: int = 4, threads: int = 32, parameters: bytes = bytes(8)) -> Any:
    """A launch of a module's first kernel."""
    return wm.LaunchRecord(module, 0, (blocks, 1, 1), (threads, 1, 1), 0, parameters)


class World:
    """A daemon, its hosts and its clients."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpud-"))
        self.hosts: list[FakeHost] = []
        self.clients: list[Client] = []
        self.peers: dict[int, Peer] = {}  # by the number of the connection, from 0
        self.accepted = 0
        self.daemon: Daemon

    def config(self, file: Path | None = None, **settings: Any) -> Config:
        flags = {"socket": str(self.folder / "s"), "cache_dir": str(self.folder / "cache")}
        return load({**flags, **settings}, environ={"HOME": str(self.folder)}, file=file)

    async def start(self, *hosts: FakeHost, devices: Iterable[str] = (), **settings: Any) -> World:
        """Start the daemon on these hosts, or on real ones for ``devices``."""
        self.hosts = list(hosts)
        specs = list(devices) or [f"cpu:{host.sms}" for host in hosts]
        self.daemon = Daemon(
            self.config(devices=specs, **settings),
            connect=[host.connect for host in hosts] if hosts else None,
            credentials=self._credentials,
            validate=True,
        )
        with pytest.MonkeyPatch.context() as change:
            change.setattr(CompilePool, "prestart", lambda pool: pool._cached.update(_known(pool)))
            await self.daemon.start()
        return self

    @property
    def host(self) -> FakeHost:
        return self.hosts[0]

    def _credentials(self, sock: socket.socket) -> Peer:
        found = self.peers.get(self.accepted, peer_of(sock))
        self.accepted += 1
        return found

    def connect(self) -> Client:
        client = Client(self.daemon.address)
        self.clients.append(client)
        return client

    async def client(self, uid: int | None = None) -> Client:
        """A client that has said hello, maybe as another user."""
        if uid is not None:
            self.peers[self.accepted] = Peer(4242, uid, uid)
        return await self.connect().hello()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if hasattr(self, "daemon"):
            if hasattr(self.daemon, "compiler"):
                _known(self.daemon.compiler).update(self.daemon.compiler._cached)
            await self.daemon.stop()
        for client in self.clients:
            client.close()
        for host in self.hosts:
            host.close()
        shutil.rmtree(self.folder)
