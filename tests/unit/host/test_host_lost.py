"""A device that is lost ends its host, from whatever call it says so, and says why."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from gpud.device.host import messages as m
from gpud.device.host.host import Host
from gpud.device.host.link import Link
from gpud.device.host.running import RunningJob
from gpud.errors import DeviceLost, GpudError, InvalidArgument
from gpud.wire.codec import FrameDecoder
from gpud.wire.table import Sender

LOST = DeviceLost("the context is gone", device="cuda:0")


class BrokenDevice:
    """A device of which every call fails."""

    name, kind, sms, capability, memory_bytes = "broken", "cpu", 2, 90, 1 << 20

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.address = 0x5000
        self.maps = False

    def load(self, *_: Any) -> Any:
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
        self.host = Host(self.device, self.link, self.on_lost)
        self.decoder = FrameDecoder(1 << 20)

    def on_lost(self, reason: str) -> None:
        self.lost.append(reason)
        self.front.shutdown(socket.SHUT_RDWR)

    def do(self, *commands: Any, descriptor: int | None = None) -> list[Any]:
        """Carry out commands; the events that come until each has its answer, or the host ends."""
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

    def close(self) -> None:
        self.front.close()
        self.link.close()


def test_on_the_compiling_thread() -> None:
    case = Case(LOST)
    assert case.do(m.Load(1, 5, 9, "ptx")) == []
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
def test_what_is_not_lost_is_refused(error: Exception) -> None:
    case = Case(error)
    events = case.do(m.Load(1, 5, 9, "ptx"))
    assert isinstance(events[-1], m.Refused)
    assert not case.lost
    case.close()


class BrokenJob:
    """A job whose state cannot be read."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self.complete, self.output, self.progress = False, b"", (0, 0, 1)
        self.first_block_ns = self.release_ns = 0
        self.error: GpudError | None = None

    def resize(self, slices: int) -> None:
        """Do nothing."""

    @property
    def held(self) -> int:
        raise self._error


def running(job: BrokenJob) -> tuple[RunningJob, list[BaseException], list[Any]]:
    lost: list[BaseException] = []
    sent: list[Any] = []
    command = m.StartJob(7, 1, b"", 1, 2, 0, online=False)
    one = RunningJob(command, sent.append, lambda _: None, lost.append)
    one.start(job)
    return one, lost, sent


@pytest.mark.parametrize("error", [LOST, ZeroDivisionError("oh")])
def test_on_a_thread_of_the_device(error: Exception) -> None:
    one, lost, sent = running(BrokenJob(error))
    one.on_left(None)
    assert (lost, sent) == ([error], [])


def test_a_job_that_says_so_is_not_blamed() -> None:
    job = BrokenJob(LOST)
    job.error = LOST
    one, lost, sent = running(job)
    one.on_done(None)
    assert (lost, sent) == ([LOST], []), "no JobEnded: the front says what became of all"


def test_the_process_ends_with_the_reason_as_its_last_words() -> None:
    code = "from gpud.device.host.host import end_process; end_process('the context is gone')"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (3, "the context is gone\n")
