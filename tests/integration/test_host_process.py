"""The device host as a process: what ends it, what does not, and what it says."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys

import pytest

from gpud.compiler.pipeline import compile_program
from gpud.device.host import messages as m
from gpud.units import JobId
from tests.unit.cpu.device_helpers import rewritten
from tests.unit.host.front_peer import SOURCE, TIMEOUT_S, Peer, Session, row

pytestmark = pytest.mark.ci


def test_a_closed_socket_ends_a_host_whose_kernels_never_end() -> None:
    peer = Peer("cpu:1")
    session = Session(peer, 1)
    peer.measure(session.module, "gated")
    peer.start(1, 1, [session.gated()])
    session.until_started(1)
    peer.socket.close()
    assert peer.process.wait(2) == 0


def test_an_endless_kernel_is_killed_alone() -> None:
    peer = Peer("cpu:1")
    one, two = Session(peer, 1), Session(peer, 2)
    entry = rewritten(SOURCE).kernel("gated").entry_for((32, 1, 1), killable=True)
    for session, name in ((one, entry), (two, "gated")):
        peer.measure(session.module, name)
    peer.start(1, 1, [one.gated()._replace(entry=entry)])
    peer.start(2, 2, [two.gated()])
    one.until_started(1)
    two.until_started(1)
    peer.send(m.KillJob(JobId(1), 0))
    ended = peer.ended(1)
    assert (ended.error, ended.complete, ended.done) == (None, False, 0)
    peer.send(m.KillJob(JobId(1), 0))  # it has ended: ignored
    two.open()
    assert peer.ended(2).complete
    assert peer.close() == 0


def test_without_bounds_checks_a_wild_address_ends_the_host_and_only_the_host() -> None:
    peer = Peer("cpu:1")
    session = Session(peer, 1)
    ptx = compile_program(SOURCE, bounds_checks=False).ptx
    peer.ask(lambda ticket: m.LoadModule(ticket, 77, 1, ptx))
    peer.measure(77, "add")
    peer.start(1, 1, [row(77, "add", 1, 32, struct.pack("<QI", 8, 1))])
    with pytest.raises(ConnectionError):
        peer.ended(1)
    assert session.number == 1
    assert peer.close() == -signal.SIGSEGV


def test_commands_are_read_at_the_priority_of_the_front() -> None:
    peer = Peer("cpu:2")
    session, pid = Session(peer, 1), peer.process.pid
    peer.measure(session.module, "gated")
    peer.start(1, 1, [session.gated()], slices=2)
    session.until_started(2)
    assert os.sched_getscheduler(pid) == os.SCHED_OTHER
    assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0)
    session.open()
    assert peer.ended(1).complete
    assert peer.close() == 0


def test_signals_are_the_fronts_business() -> None:
    peer = Peer("cpu:1")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        peer.process.send_signal(number)
    peer.barrier()
    assert peer.close() == 0


@pytest.mark.parametrize(
    ("device", "says"),
    [("cpu:0", "1 to 1024 SMs"), ("gpu", "a device is"), ("cpu:1@12", "compute capability 12")],
)
def test_a_device_that_is_none(device: str, says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpud.device.host", "--device", device, "--fd", "0"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 2
    assert says in done.stderr
