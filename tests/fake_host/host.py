"""A device host in virtual time, with scripted outcomes, for tests of everything above it.

Problem: tests of the front and of the scheduler need devices that behave exactly as scripted, in
every run: task blocks that take a known time, releases that come late, kernels that trap or never
end, a host that dies at a bad moment.

Approach: `FakeHost` speaks the host protocol on a socket, on the running asyncio loop and without
threads. Its clock stands still until the test calls `FakeHost.advance`; task blocks then end, and
blocks claim, leave and start, in an order that depends on the commands alone. A kernel's
`Behaviour` is looked up by its name; the PTX is not read.

Example, in an asyncio test::

    host = FakeHost(sms=4, kernels={"slow": Behaviour(block_ns=5_000_000, occupancy=2)})
    front = host.connect()            # the front's end of the socket pair, for the server
    ...                               # HostReady is sent; Load and Measure are answered at once
    await until(lambda: host.jobs)    # the server has sent StartRun
    host.advance(5_000_000)           # the first task blocks end; SlicesHeld, RunEnded are sent
    host.run()                        # until nothing more can happen
    host.die()                        # as if it had crashed; `connect` starts it again, empty
    host.close()

With ``auto=True`` time runs by itself: after each batch of commands the host runs on until nothing
more can happen. ``dies_at=n`` makes it die when it receives its n-th command.

Properties:
* equal commands and advances give equal events;
* the blocks of all jobs together never occupy more than ``sms`` SMs;
* blocks of online jobs start before those of offline jobs, earlier jobs' before later ones'.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from typing import Any

from gpud.compiler.abi.reserved_names import is_killable, killable_variant
from gpud.device.host import messages as m
from gpud.errors import GpudError
from gpud.wire.framing import FrameDecoder
from gpud.wire.message_table import Sender
from tests.fake_host.virtual_sms import Behaviour, FakeJob, FakeLaunch, VirtualSMs
from tests.support.receive import incoming

__all__ = ["Behaviour", "FakeHost", "FakeJob"]


class FakeHost(VirtualSMs):
    """A device host whose time the test drives; see the module's example.

    Args:
        sms: its capacity.
        kernels: behaviours of kernels, by their name in the PTX.
        behaviour: behaviour of all other kernels.
        memory_bytes: value of the field in `HostReady`.
        dies_at: number of the command, from 1, at whose receipt the host dies.
        auto: let time run by itself.
        arrays: value of the field in `HostReady`; requested copies are answered, not made.
        kind: value of the field in `HostReady`.

    Attributes:
        commands: all commands received, in order, over all connections.
        events: all events sent, likewise.
        modules: the PTX of the loaded modules by number.
        arenas: (base, size, descriptor or None) of each open arena by session.
        lanes: the descriptors of open lanes' rings by job; nobody reads or writes them.
        symbols: the bytes of module variables by (module, name); grown as tests write them.
        holds: classes of commands on copied arrays that are not answered at once, see `answer`.
    """

    def __init__(
        self,
        *,
        sms: int = 4,
        kernels: Mapping[str, Behaviour] | None = None,
        behaviour: Behaviour | None = None,
        memory_bytes: int = 1 << 30,
        dies_at: int | None = None,
        auto: bool = False,
        arrays: str = "shared",
        kind: str = "cpu",
    ) -> None:
        super().__init__(sms)
        self.kernels = dict(kernels or {})
        self.behaviour = behaviour or Behaviour()
        self.memory_bytes = memory_bytes
        self.dies_at = dies_at
        self.auto = auto
        self.arrays = arrays
        self.kind = kind
        self.holds: set[type] = set()
        self._held: list[Any] = []
        self.commands: list[Any] = []
        self.events: list[Any] = []
        self.modules: dict[int, str] = {}
        self.arenas: dict[int, tuple[int, int, int | None]] = {}
        self.lanes: dict[int, int] = {}
        self.symbols: dict[tuple[int, str], bytearray] = {}
        self._socket: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._decoder = FrameDecoder(1 << 27)
        self._descriptors: list[int] = []

    # -- the connection

    def connect(self) -> socket.socket:
        """Start, or start again, empty: the front's end of a new socket pair, non-blocking."""
        self.die()
        front, self._socket = socket.socketpair()
        front.setblocking(False)
        self._socket.setblocking(False)
        # Events are sent at once and never block: the buffer holds all that a test leaves unread.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        self._decoder = FrameDecoder(1 << 27)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._readable)
        ready = m.HostReady(f"fake, {self.sms} SMs", self.kind, self.sms, 90, self.memory_bytes)
        ready = ready._replace(partition_step=1, partition_most=self.sms)
        self._send(ready._replace(arrays=self.arrays))
        return front

    @property
    def alive(self) -> bool:
        """Whether it is connected."""
        return self._socket is not None

    def die(self) -> None:
        """End at once and forget everything, like a host that crashes. Its time goes on."""
        if self._socket is not None and self._loop is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self.clear()
        self.modules.clear()
        self.symbols.clear()
        descriptors = [fd for _, _, fd in self.arenas.values() if fd is not None]
        for descriptor in (*descriptors, *self.lanes.values(), *self._descriptors):
            os.close(descriptor)
        self.arenas.clear()
        self.lanes.clear()
        self._descriptors.clear()
        self._held.clear()

    def close(self) -> None:
        """End it for good; may be called twice."""
        self.die()

    def _readable(self) -> None:
        if self._socket is None:
            return
        bodies = incoming(self._socket, self._decoder, self._descriptors)
        if bodies is None:
            self.die()
            return
        for body in bodies:
            self.handle(m.HOST_PROTOCOL.decode(body, Sender.CLIENT))
            if not self.alive:
                return
        if self.auto:
            self.run()

    def _send(self, event: Any) -> None:
        self.events.append(event)
        if self._socket is not None:
            data = m.HOST_PROTOCOL.encode(event)
            try:
                sent = self._socket.send(data)
            except ConnectionError:
                return  # the front has closed its end; the reader sees it too
            assert sent == len(data), "the front does not read"

    # -- commands

    def handle(self, command: Any) -> None:
        """Execute one command; called for those that come over the socket of `connect`."""
        self.commands.append(command)
        if len(self.commands) == self.dies_at:
            self.die()
            return
        _HANDLERS[type(command)](self, command)

    def on_left(self, job: FakeJob) -> None:
        """Report to the front what a job holds."""
        self._send(m.SlicesHeld(job.number, job.epoch, job.held, job.exhausted))

    def on_ended(self, job: FakeJob) -> None:
        """Report to the front that a job has ended."""
        error = None if job.error is None else job.error.to_wire()
        output = b"".join(launch.behaviour.output for launch in job.launches)
        done, first = job.done_before + job.done, job.first_block_ns or 0
        self._send(
            m.RunEnded(
                job.number, error, job.complete, output, done, job.total, first, job.release_ns
            )
        )

    def _open_arena(self, command: m.OpenArena) -> None:
        descriptor = self._descriptors.pop(0) if self._descriptors else None
        base = command.base or 0x2000_0000_0000 + command.session * command.size
        self.arenas[command.session] = (base, command.size, descriptor)
        self._send(m.Replied(command.ticket, base))

    def _close_arena(self, command: m.CloseArena) -> None:
        _, _, descriptor = self.arenas.pop(command.session, (0, 0, None))
        if descriptor is not None:
            os.close(descriptor)

    def _answer(self, command: Any) -> None:
        self._send(m.Replied(command.ticket))

    def answer(self, error: GpudError | None = None) -> None:
        """Answer the commands held back, oldest first; with ``error``, refuse them."""
        held, self._held = self._held, []
        for command in held:
            if error is None:
                self._answer(command)
            else:
                self._send(m.Refused(command.ticket, error.to_wire()))

    def _copy(self, command: Any) -> None:
        self._held.append(command)
        if type(command) not in self.holds:
            self.answer()

    def _load(self, command: m.LoadModule) -> None:
        self.modules[command.module] = command.ptx
        self._send(m.Replied(command.ticket))

    def _unload(self, command: m.UnloadModule) -> None:
        self.modules.pop(command.module, None)  # its Load may not have come

    def _measure(self, command: m.MeasureKernel) -> None:
        behaviour = self._behaviour(command.entry)
        assert command.module in self.modules, f"no module {command.module}"
        if behaviour.refusal is not None:
            self._send(m.Refused(command.ticket, behaviour.refusal.to_wire()))
        else:
            self._send(m.Replied(command.ticket, behaviour.occupancy))

    def _behaviour(self, entry: str) -> Behaviour:
        """The behaviour of a kernel, and of its variant with kill polls."""
        return self.kernels.get(entry.removesuffix(killable_variant("")), self.behaviour)

    def _start_job(self, command: m.StartRun) -> None:
        assert command.job not in self.jobs, f"job {command.job} is there already"
        rows = m.HOST_PROTOCOL.decode_records(m.HostLaunch, command.launches, least=1)
        launches = list(self._launches(rows))
        self.start(FakeJob(command, launches, self.now_ns))

    def _launches(self, rows: Iterable[m.HostLaunch]) -> Iterator[FakeLaunch]:
        for row in rows:
            assert row.module in self.modules, f"no module {row.module}"
            behaviour = self._behaviour(row.entry)
            killable = is_killable(row.entry)
            yield FakeLaunch(row.entry, prod(row.grid), row.occupancy, behaviour, killable)

    def _resize_job(self, command: m.ResizeJob) -> None:
        job = self.jobs.get(command.job)
        if job is None:
            return  # it has ended meanwhile
        job.epoch = command.epoch
        self.resize(job, command.slices)

    def _end_job(self, command: m.EndJob) -> None:
        self._end_lane(command.job)
        job = self.jobs.get(command.job)
        if job is not None:
            self.end(job)

    def _kill_job(self, command: m.KillJob) -> None:
        self._end_lane(command.job)
        job = self.jobs.get(command.job)
        if job is not None:
            self.kill(job)

    def _open_lane(self, command: m.StartLane) -> None:
        self.lanes[command.job] = self._descriptors.pop(0)

    def _end_lane(self, number: int) -> None:
        descriptor = self.lanes.pop(number, None)
        if descriptor is not None:
            os.close(descriptor)
            self._send(m.RunEnded(number, None, False, b"", 0, 0, 0, self.now_ns))

    def _cancel_launch(self, command: m.CancelLaneLaunch) -> None:
        assert command.job in self.lanes, f"no lane {command.job}"

    def _read_progress(self, command: m.ReadProgress) -> None:
        there = [self.jobs[number] for number in command.jobs if number in self.jobs]
        rows = [
            [job.number, job.done_before + job.done, job.total, job.first_block_ns or 0, 0]
            for job in there
        ]
        self._send(m.Replied(command.ticket, rows))

    def _read_symbol(self, command: m.ReadVariable) -> None:
        held = self._symbol(command.module, command.name, command.offset + command.size)
        data = bytes(held[command.offset : command.offset + command.size])
        self._send(m.Replied(command.ticket, data))

    def _write_symbol(self, command: m.WriteVariable) -> None:
        held = self._symbol(command.module, command.name, command.offset + len(command.data))
        held[command.offset : command.offset + len(command.data)] = command.data
        self._send(m.Replied(command.ticket))

    def _symbol(self, module: int, name: str, size: int) -> bytearray:
        assert module in self.modules, f"no module {module}"
        held = self.symbols.setdefault((module, name), bytearray())
        held.extend(bytes(max(0, size - len(held))))
        return held


_HANDLERS: dict[type, Callable[[FakeHost, Any], None]] = {
    m.OpenArena: FakeHost._open_arena,
    m.CloseArena: FakeHost._close_arena,
    m.Ping: FakeHost._answer,
    m.Commit: FakeHost._copy,
    m.Release: FakeHost._copy,
    m.UploadRange: FakeHost._copy,
    m.DownloadRange: FakeHost._copy,
    m.LoadModule: FakeHost._load,
    m.UnloadModule: FakeHost._unload,
    m.MeasureKernel: FakeHost._measure,
    m.StartRun: FakeHost._start_job,
    m.ResizeJob: FakeHost._resize_job,
    m.EndJob: FakeHost._end_job,
    m.KillJob: FakeHost._kill_job,
    m.StartLane: FakeHost._open_lane,
    m.AddLaunchSite: FakeHost._answer,
    m.CancelLaneLaunch: FakeHost._cancel_launch,
    m.ReadProgress: FakeHost._read_progress,
    m.ReadVariable: FakeHost._read_symbol,
    m.WriteVariable: FakeHost._write_symbol,
}
