"""A lost device ends its host with the reason, whichever call raises `DeviceLost`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from typing import Any, cast

import msgpack
import pytest

from gpud.device.host import messages as m
from gpud.device.host.__main__ import end_after_errors_of_threads
from gpud.device.host.host import Host
from gpud.device.host.link import Link
from gpud.device.host.running_job import RunningJob
from gpud.errors import DeviceLost, GpudError, InvalidArgument
from gpud.units import Partitions
from gpud.wire.framing import FrameDecoder, frame
from gpud.wire.message_table import Sender

LOST = DeviceLost("the context is gone", device="cuda:0")


class BrokenDevice:
    """A device of which every call fails."""

    name, kind, sms, capability, memory_bytes = "broken", "cpu", 2, 90, 1 << 20
    arrays, uuid = "shared", ""
    partitions = Partitions()

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.address = 0x5000
        self.maps = False

    def load(self, *_: Any, **named: Any) -> Any:
        raise self.error

    def map_arena(self, *_: Any) -> BrokenDevice:
        if not self.maps:
            raise self.error
        return self

    def close(self) -> None:
        raise self.error


class Case:
    """A host in this process."""

    def __init__(self, error: BaseException) -> None:
        self.front, theirs = socket.socketpair()
        self.front.settimeout(30)
        self.link = Link(theirs)
        self.lost: list[str] = []
        self.device = BrokenDevice(error)
        self.host = Host(cast("Any", self.device), self.link, self.on_lost)
        self.decoder = FrameDecoder(1 << 20)

    def on_lost(self, reason: str) -> None:
        self.lost.append(reason)
        self.front.shutdown(socket.SHUT_RDWR)

    def do(self, *commands: Any, descriptor: int | None = None) -> list[Any]:
        """Execute commands; the events until each has its answer, or the host ends."""
        data = b"".join(map(m.HOST_PROTOCOL.encode, commands))
        if descriptor is None:
            self.front.sendall(data)
        else:
            socket.send_fds(self.front, [data], [descriptor])
        received = self.link.receive()
        for _ in commands:
            self.host.carry_out(next(received))
        asked = sum(hasattr(command, "ticket") for command in commands)
        events: list[Any] = []
        while sum(isinstance(event, m.Replied | m.Refused) for event in events) < asked:
            data = self.front.recv(1 << 16)
            if not data:
                break
            self.decoder.feed(data)
            events += [m.HOST_PROTOCOL.decode(b, Sender.DAEMON) for b in self.decoder.frames()]
        return events

    def receive(self, data: bytes, descriptor: int | None = None) -> None:
        """Have the host execute the command in a frame."""
        socket.send_fds(self.front, [data], [] if descriptor is None else [descriptor])
        self.host.carry_out(next(self.link.receive()))

    def answers(self, data: bytes) -> list[Any]:
        """The events that the host sends for a frame at once."""
        self.receive(data)
        self.decoder.feed(self.front.recv(1 << 16))
        return [m.HOST_PROTOCOL.decode(body, Sender.DAEMON) for body in self.decoder.frames()]

    def close(self) -> None:
        self.front.close()
        self.link.close()


def test_on_the_compiling_thread() -> None:
    case = Case(LOST)
    assert case.do(m.LoadModule(1, 5, 9, "ptx")) == []
    assert case.lost == ["the context is gone"]
    case.close()


def test_on_the_mapping_thread() -> None:
    case = Case(LOST)
    descriptor = os.memfd_create("arena")
    os.ftruncate(descriptor, 4096)
    assert case.do(m.OpenArena(2, 9, 0, 4096), descriptor=descriptor) == []
    assert case.lost == ["the context is gone"]
    os.close(descriptor)
    case.close()


@pytest.mark.parametrize("error", [LOST, OSError("munmap"), InvalidArgument("no")])
def test_memory_that_cannot_be_unmapped_ends_the_host(error: Exception) -> None:
    case = Case(error)
    case.device.maps = True
    descriptor = os.memfd_create("arena")
    os.ftruncate(descriptor, 4096)
    assert case.do(m.OpenArena(2, 9, 0, 4096), descriptor=descriptor)
    os.close(descriptor)
    case.host.carry_out(m.CloseArena(9))
    assert case.front.recv(1 << 16) == b""
    assert f"the memory of session 9 cannot be unmapped: {error}" in case.lost[0]
    case.close()


@pytest.mark.parametrize("error", [ZeroDivisionError("oh"), MemoryError()])
def test_an_error_that_is_not_device_lost_refuses_the_command(error: Exception) -> None:
    case = Case(error)
    events = case.do(m.LoadModule(1, 5, 9, "ptx"))
    assert isinstance(events[-1], m.Refused)
    assert not case.lost
    case.close()


# -- commands that cannot be read ------------------------------------------------------------------

COMMANDS = [kind for kind, code in m.HOST_PROTOCOL.codes.items() if code < 64]
TICKETED = [kind for kind in COMMANDS if kind._fields[0] == "ticket"]
OF_A_JOB = [kind for kind in COMMANDS if kind._fields[0] == "job"]
NAMELESS = [kind for kind in COMMANDS if kind not in (*TICKETED, *OF_A_JOB)]


def cut(kind: Any, *fields: Any) -> bytes:
    """A frame with a command that has only these fields."""
    return frame(msgpack.packb((m.HOST_PROTOCOL.codes[kind], *fields)))


@pytest.mark.parametrize("kind", TICKETED)
def test_a_command_that_cannot_be_read_is_refused(kind: Any) -> None:
    case = Case(LOST)
    (refused,) = case.answers(cut(kind, 77, *"too many"))
    assert (type(refused), refused.ticket) == (m.Refused, 77)
    assert f"{kind.__name__} cannot be read" in refused.error["message"]
    assert not case.lost
    case.close()


def test_a_start_that_cannot_be_read_is_the_end_of_its_job() -> None:
    case = Case(LOST)
    (ended,) = case.answers(cut(m.StartRun, 7, "a session"))
    assert (type(ended), ended.job, ended.complete) == (m.RunEnded, 7, False)
    assert "StartRun cannot be read" in ended.error["message"]
    case.close()


@pytest.mark.parametrize("kind", OF_A_JOB)
def test_a_job_of_which_a_command_cannot_be_read_ends(kind: Any) -> None:
    case = Case(LOST)
    job, _, _ = running(BrokenRun(LOST))
    case.host._jobs[7] = job
    case.receive(cut(kind, 7, "?", "?", "?", "?", "?", "?", "?"))
    assert job.run.ended
    assert f"{kind.__name__} cannot be read" in str(job._error)
    del case.host._jobs[7]
    if kind is not m.StartRun:  # the job has ended meanwhile, and that was reported
        case.receive(cut(kind, 7, "?"))
    assert not case.lost
    case.close()


@pytest.mark.parametrize(
    "data",
    [
        *(cut(kind) for kind in (*TICKETED, *OF_A_JOB)),
        *(cut(kind, "?", "?") for kind in COMMANDS),
        *(cut(kind, 5, 5, 5) for kind in NAMELESS),
        cut(m.RunEnded, 5),
        frame(b"\x92\x3f\x05"),
        frame(b"\x90"),
        frame(b"\x05"),
        frame(b"\xc1"),
        b"\xff\xff\xff\xff",
    ],
)
def test_a_command_that_cannot_be_answered_ends_the_host(data: bytes) -> None:
    case = Case(LOST)
    case.front.sendall(data)
    case.host.run()
    assert case.lost[0].startswith("the front sent a ")
    case.close()


def test_the_descriptor_of_an_unreadable_command_is_not_the_next_arenas() -> None:
    case = Case(LOST)
    case.device.maps = True
    first, second = os.pipe()
    case.receive(cut(m.OpenArena, 1), descriptor=first)
    assert case.link.take_descriptor() is None
    assert case.do(m.OpenArena(2, 9, 0, 4096), descriptor=second)
    os.close(first)
    os.close(second)
    case.close()


class BrokenRun:
    """A run whose state cannot be read."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self.complete, self.output, self.progress = False, b"", (0, 0, 1)
        self.first_block_ns = self.release_ns = 0
        self.error: GpudError | None = None
        self.ended = False

    def end(self) -> None:
        """Note it."""
        self.ended = True

    def resize(self, slices: int) -> None:
        """Do nothing."""

    @property
    def held(self) -> int:
        raise self._error


def running(run: BrokenRun) -> tuple[RunningJob, list[BaseException], list[Any]]:
    lost: list[BaseException] = []
    sent: list[Any] = []
    command = m.StartRun(7, 1, b"", 1, 2, 0, online=False)
    one = RunningJob(command, sent.append, lambda _: None, lost.append)
    one.start(run)
    return one, lost, sent


@pytest.mark.parametrize("error", [LOST, ZeroDivisionError("oh")])
def test_on_a_thread_of_the_device(error: Exception) -> None:
    one, lost, sent = running(BrokenRun(error))
    one.on_left()
    assert (lost, sent) == ([error], [])


def test_a_job_whose_device_is_lost_is_not_blamed() -> None:
    run = BrokenRun(LOST)
    run.error = LOST
    one, lost, sent = running(run)
    one.on_over()
    assert (lost, sent) == ([LOST], []), "no RunEnded: the front reports the end of all jobs"


def test_the_process_ends_with_the_reason_as_its_last_line() -> None:
    code = "from gpud.device.host.host import end_process; end_process('the context is gone')"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (3, "the context is gone\n")


def test_an_error_in_any_thread_ends_the_host_and_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # and back after it
    case = Case(RuntimeError("unused"))
    end_after_errors_of_threads(case.host)
    thread = threading.Thread(target=int, args=("none",))
    thread.start()
    thread.join()
    assert len(case.lost) == 1
    assert "ValueError: invalid literal for int()" in case.lost[0]
