"""The host's answers to commands, failing ones included, on a scripted device."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest

from gpud.device.host import messages as m
from gpud.device.host import session_memory
from gpud.device.host.host import Host
from gpud.device.host.link import Link
from gpud.errors import (
    InternalError,
    InvalidArgument,
    LaunchConfigError,
    OutOfMemory,
    UnknownName,
    from_wire,
)
from gpud.wire.framing import FrameDecoder
from gpud.wire.message_table import Sender

TIMEOUT_S = 10.0


class FakeDevice:
    """A device with modules whose kernels cannot run."""

    name, kind, sms, capability, memory_bytes = "fake", "cpu", 2, 90, 1 << 20

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.symbols = {"word": np.zeros(4, np.uint8)}
        self.arenas: list[str] = []
        self.loaded: list[tuple[int, int] | None] = []

    def load(self, _: str, arena: tuple[int, int] | None = None, **named: Any) -> FakeDevice:
        self.loaded.append(arena)
        return self

    def kernel(self, name: str) -> str:
        return name

    def symbol(self, name: str) -> Any:
        if name not in self.symbols:
            raise KeyError(f"no variable {name!r}")
        return self.symbols[name]

    def occupancy(self, _kernel: str, block: tuple[int, ...], _shared: int) -> int:
        if self.error is not None:
            raise self.error
        return block[0]

    def prepare(self, launches: Any, _occupancy: int) -> Any:
        raise AssertionError(f"not asked for in these tests: {launches}")

    def map_arena(self, descriptor: int, size: int, base: int) -> FakeDevice:
        self.arenas.append(f"open {size}@{base}, {os.fstat(descriptor).st_size} bytes")
        if self.hold is not None:
            self.hold.wait(TIMEOUT_S)
        return self

    def commit(self, offset: int, size: int, *, from_file: bool, most: int | None) -> None:
        if offset == 400 or self.arenas.count("close") < self.full_until:
            raise OutOfMemory(size, 0)
        pieces = "" if most is None else f" in {most}"
        self.arenas.append(f"commit {offset}+{size}{pieces}")

    def shrink(self, offset: int, size: int, kept: int) -> None:
        self.arenas.append(f"shrink {offset}+{size} to {kept}")

    def release(self, offset: int, size: int) -> None:
        self.arenas.append(f"release {offset}+{size}")

    def upload(self, offset: int, size: int) -> None:
        """Copy a part."""
        self.arenas.append(f"upload {offset}+{size}")

    def download(self, offset: int, size: int, *, moves: bool = False) -> None:
        """Copy a part."""
        self.arenas.append(f"download {offset}+{size}{', moves' if moves else ''}")

    hold: threading.Event | None = None
    full_until = 0
    address = 0x5000
    arrays = "shared"
    uuid = ""

    def close(self) -> None:
        self.arenas.append("close")


class Case:
    """A host and the front's end of its link."""

    def __init__(self) -> None:
        self.front, theirs = socket.socketpair()
        self.front.settimeout(TIMEOUT_S)
        self.link = Link(theirs)
        self.device = FakeDevice()
        self.host = Host(cast("Any", self.device), self.link)
        self.decoder = FrameDecoder(1 << 20)

    def do(self, command: Any) -> Any:
        """Execute a command; the next event."""
        self.host.carry_out(command)
        return self.next()

    def next(self) -> Any:
        while True:
            for body in self.decoder.frames():
                return m.HOST_PROTOCOL.decode(body, Sender.DAEMON)
            self.decoder.feed(self.front.recv(1 << 16))


@pytest.fixture
def case() -> Iterator[Case]:
    one = Case()
    assert one.do(m.LoadModule(1, 5, 9, "ptx")) == m.Replied(1)
    yield one
    one.front.close()
    one.link.close()


def start(job: int, *rows: m.HostLaunch) -> m.StartRun:
    packed = m.HOST_PROTOCOL.encode_records(rows)
    return m.StartRun(job, 9, packed, 1, 1, 0, online=False)


def test_an_error_arrives_with_its_fields(case: Case) -> None:
    case.device.error = LaunchConfigError("shared", 7, "too much", limit=5)
    refused = case.do(m.MeasureKernel(2, 5, "k", (32, 1, 1), 7))
    error = from_wire(refused.error)
    assert isinstance(error, LaunchConfigError)
    assert (refused.ticket, error.parameter, error.value, error.limit) == (2, "shared", 7, 5)


def test_a_bug_is_logged_and_refuses_the_command_alone(case: Case) -> None:
    case.device.error = ZeroDivisionError("oh")
    log = case.do(m.MeasureKernel(2, 5, "k", (32, 1, 1), 7))
    assert isinstance(log, m.Log)
    assert "ZeroDivisionError" in log.text
    assert "\n" not in log.text
    assert isinstance(from_wire(case.next().error), InternalError)
    case.device.error = None
    assert case.do(m.MeasureKernel(3, 5, "k", (32, 1, 1), 7)) == m.Replied(3, 32)


def test_an_error_that_cannot_be_sent_is_sent_without_its_fields(case: Case) -> None:
    case.device.error = LaunchConfigError("shared", 7, "too much")
    case.device.error.value = np.int64(7)  # type: ignore[assignment]
    refused = case.do(m.MeasureKernel(2, 5, "k", (32, 1, 1), 7))
    assert from_wire(refused.error).code == "launch-config"
    case.device.error = None
    assert case.do(m.MeasureKernel(3, 5, "k", (32, 1, 1), 7)) == m.Replied(3, 32)


def test_a_module_is_loaded_once_and_may_be_forgotten(case: Case) -> None:
    assert isinstance(from_wire(case.do(m.LoadModule(2, 5, 9, "ptx")).error), InvalidArgument)
    case.host.carry_out(m.UnloadModule(5))
    case.host.carry_out(m.UnloadModule(5))
    assert isinstance(
        from_wire(case.do(m.MeasureKernel(3, 5, "k", (1, 1, 1), 0)).error), UnknownName
    )
    assert case.do(m.LoadModule(4, 5, 9, "ptx")) == m.Replied(4)


def test_arenas_open_and_close_in_order_and_their_modules_go(case: Case) -> None:
    descriptor = os.memfd_create("arena")
    os.ftruncate(descriptor, 4096)
    commands = m.OpenArena(2, 9, 0, 4096), m.CloseArena(9)
    socket.send_fds(case.front, [m.HOST_PROTOCOL.encode(one) for one in commands], [descriptor])
    os.close(descriptor)
    received = case.link.receive()
    assert case.do(next(received)) == m.Replied(2, case.device.address)
    case.host.carry_out(next(received))
    refused = case.do(m.OpenArena(3, 10, 0, 4096))  # behind the close, on the same thread
    assert isinstance(from_wire(refused.error), InvalidArgument)
    assert case.device.arenas == ["open 4096@0, 4096 bytes", "close"]
    assert isinstance(
        from_wire(case.do(m.MeasureKernel(3, 5, "k", (1, 1, 1), 0)).error), UnknownName
    )


def test_a_thread_for_memory_that_is_stuck_answers_no_ping(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def map_arena(*_: Any) -> FakeDevice:
        assert go_on.wait(TIMEOUT_S)
        return case.device

    assert case.do(m.Ping(2)) == m.Replied(2)
    monkeypatch.setattr(case.device, "map_arena", map_arena)
    descriptor = os.memfd_create("arena")
    socket.send_fds(case.front, [m.HOST_PROTOCOL.encode(m.OpenArena(3, 9, 0, 4096))], [descriptor])
    os.close(descriptor)
    case.host.carry_out(next(case.link.receive()))
    case.host.carry_out(m.Ping(4))
    assert case.do(m.ReadProgress(5, ())) == m.Replied(5, [])
    go_on.set()
    assert case.next() == m.Replied(3, case.device.address)
    assert case.next() == m.Replied(4)


def test_what_was_committed_of_a_part_that_fails_is_released(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_memory, "_PIECE_BYTES", 100)
    descriptor = os.memfd_create("arena")
    os.ftruncate(descriptor, 4096)
    socket.send_fds(case.front, [m.HOST_PROTOCOL.encode(m.OpenArena(2, 9, 0, 4096))], [descriptor])
    os.close(descriptor)
    assert case.do(next(case.link.receive())) == m.Replied(2, case.device.address)
    case.device.arenas.clear()
    assert case.do(m.Commit(3, 9, 150, 200, from_file=False)) == m.Replied(3)
    pieces = ["commit 150+50", "commit 200+100", "commit 300+50"]
    assert case.device.arenas == pieces
    case.device.arenas.clear()
    refused = case.do(m.Commit(4, 9, 150, 300, from_file=False))
    assert isinstance(from_wire(refused.error), OutOfMemory)
    released = [piece.replace("commit", "release") for piece in (*pieces[:2], "release 300+100")]
    assert case.device.arenas == [*pieces[:2], "commit 300+100", *released]
    for kept, what in (
        (1, ["shrink 150+50 to 1", "release 200+100", "release 300+50"]),
        (50, ["release 200+100", "release 300+50"]),
        (120, ["shrink 200+100 to 70", "release 300+50"]),
        (200, []),
    ):
        case.device.arenas.clear()
        assert case.do(m.Shrink(5, 9, 150, 200, kept)) == m.Replied(5)
        assert case.device.arenas == what
    case.device.arenas.clear()
    assert case.do(m.DownloadRange(5, 9, 150, 100)) == m.Replied(5)
    assert case.do(m.DownloadRange(5, 9, 150, 100, moves=True)) == m.Replied(5)
    copies = ["download 150+50", "download 200+50"]
    assert case.device.arenas == [*copies, *(f"{copy}, moves" for copy in copies)]
    case.device.arenas.clear()
    shrinks = m.Commit(6, 9, 150, 200, from_file=False, shrinks=True)
    assert case.do(shrinks) == m.Replied(6)
    assert case.device.arenas == [f"{piece} in 3" for piece in pieces]


def test_memory_of_sessions_that_end_is_waited_for(case: Case) -> None:
    commands = case.link.receive()
    for session in (9, 10, 11):
        descriptor = os.memfd_create("arena")
        os.ftruncate(descriptor, 4096)
        opening = m.OpenArena(session, session, 0, 4096)
        socket.send_fds(case.front, [m.HOST_PROTOCOL.encode(opening)], [descriptor])
        os.close(descriptor)
        assert case.do(next(commands)).ticket == session
    case.device.full_until = 2  # arenas are closed
    case.device.arenas.clear()
    case.device.hold = threading.Event()
    descriptor = os.memfd_create("arena")
    os.ftruncate(descriptor, 4096)
    socket.send_fds(case.front, [m.HOST_PROTOCOL.encode(m.OpenArena(5, 8, 0, 4096))], [descriptor])
    os.close(descriptor)
    case.host.carry_out(next(commands))  # the thread is busy while all of these come
    case.host.carry_out(m.Ping(6))
    case.host.carry_out(m.CloseArena(10))
    case.host.carry_out(m.CloseArena(11))
    case.host.carry_out(m.Commit(7, 9, 0, 100, from_file=False))
    case.device.hold.set()
    answers = [case.next() for _ in range(3)]
    assert [answer.ticket for answer in answers] == [5, 6, 7]
    assert all(isinstance(answer, m.Replied) for answer in answers)
    assert case.device.arenas[-1] == "commit 0+100"
    case.device.hold, case.device.full_until = None, 9
    refused = case.do(m.Commit(8, 9, 200, 100, from_file=False))
    assert isinstance(from_wire(refused.error), OutOfMemory), "nothing is being closed"


def test_a_device_without_a_zone_lends_none_and_keeps_no_descriptor(case: Case) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        encoded = m.HOST_PROTOCOL.encode(m.LendZone(2, 4096))
        socket.send_fds(case.front, [encoded], [theirs.fileno()])
        theirs.close()
        refused = case.do(next(case.link.receive()))
        assert isinstance(from_wire(refused.error), InvalidArgument)
        assert "no memory that programs can map" in refused.error["message"]
        ours.settimeout(TIMEOUT_S)
        assert ours.recv(1) == b"", "the host has closed its end"
    assert isinstance(from_wire(case.do(m.LendZone(3, 4096)).error), InvalidArgument)
    assert isinstance(from_wire(case.do(m.ClearZone(4, free=False)).error), InvalidArgument)


def test_memory_of_a_session_that_ends_meanwhile_is_not_exported(case: Case) -> None:
    assert isinstance(from_wire(case.do(m.ExportMemory(2, 9, 0, 4096)).error), InvalidArgument)
    hold = threading.Event()
    case.device.hold = hold
    ends = [socket.socketpair() for _ in range(2)]
    descriptor = os.memfd_create("arena")
    os.ftruncate(descriptor, 4096)
    socket.send_fds(case.front, [m.HOST_PROTOCOL.encode(m.OpenArena(3, 9, 0, 4096))], [descriptor])
    os.close(descriptor)
    commands = case.link.receive()
    case.host.carry_out(next(commands))
    for ticket, (_, theirs) in enumerate(ends, 4):
        encoded = m.HOST_PROTOCOL.encode(m.ExportMemory(ticket, 9, 0, 4096))
        socket.send_fds(case.front, [encoded], [theirs.fileno()])
        theirs.close()
        case.host.carry_out(next(commands))
    case.host.carry_out(m.CloseArena(9))
    for ticket in (4, 5):
        refused = case.next()
        assert refused.ticket == ticket
        assert "was closed meanwhile" in refused.error["message"]
    hold.set()
    for ours, _ in ends:
        ours.settimeout(TIMEOUT_S)
        assert ours.recv(1) == b"", "the host has closed its end"
        ours.close()


def test_a_session_without_arena_may_be_closed(case: Case) -> None:
    case.host.carry_out(m.CloseArena(77))
    assert case.do(m.ReadProgress(2, ())) == m.Replied(2, [])


def test_a_module_is_loaded_with_its_sessions_arena(case: Case) -> None:
    descriptor = os.memfd_create("arena")
    os.ftruncate(descriptor, 4096)
    command = m.OpenArena(2, 9, 0, 4096)
    socket.send_fds(case.front, [m.HOST_PROTOCOL.encode(command)], [descriptor])
    os.close(descriptor)
    assert case.do(next(case.link.receive())) == m.Replied(2, case.device.address)
    case.device.loaded.clear()
    for module in (6, 7):
        assert case.do(m.LoadModule(3, module, 9, "ptx")) == m.Replied(3)
    ranges = case.device.loaded
    assert ranges == [(case.device.address, 4096)] * 2
    assert ranges[0] is ranges[1]  # sessions are told apart by it, even if an address is reused


def test_a_module_of_a_session_without_arena_can_access_nothing(case: Case) -> None:
    assert case.do(m.LoadModule(3, 6, 77, "ptx")) == m.Replied(3)
    found = case.device.loaded[-1]
    assert found is not None
    base, size = found
    assert base + size == 2**64
    assert base > 2**63  # no memory of a process lies there


@pytest.mark.parametrize("name", ["gpud_arena", "gpud_heap"])
def test_clients_cannot_read_or_move_the_bounds_checks(case: Case, name: str) -> None:
    case.device.symbols[name] = np.zeros(16, np.uint8)
    for command in (m.ReadVariable(3, 5, name, 0, 16), m.WriteVariable(3, 5, name, 0, bytes(16))):
        assert isinstance(from_wire(case.do(command).error), UnknownName)


def test_what_the_c_library_prints_is_in_the_log_at_once() -> None:
    code = (
        "import ctypes, os\n"
        "from gpud.device.host.__main__ import _prepare_process\n"
        "_prepare_process()\n"
        "ctypes.CDLL(None).printf(b'from a kernel\\n')\n"
        "os._exit(0)\n"
    )
    given = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    path = os.pathsep.join(one for one in sys.path if one)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**given, "PYTHONPATH": path},
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"from a kernel\n"
