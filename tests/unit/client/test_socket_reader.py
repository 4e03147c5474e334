"""The socket reader: which thread reads, what interrupts it, and the end of a session."""

from __future__ import annotations

import concurrent.futures
import signal
import socket
import threading
import time
from random import Random

import pytest

import gpud_client as gc
from gpud.wire import messages as wm
from gpud_client.connection.channel import Channel
from gpud_client.connection.protocol_state import ProtocolState
from tests.support.fake_daemon import TIMEOUT_S, FakeDaemon

ARGS = (2.0, None, None, 7)


def test_a_session_that_is_closed_is_not_lost_even_if_the_daemon_was_quicker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine, theirs = socket.socketpair()
    core = ProtocolState()
    entered, leave = threading.Event(), threading.Event()

    def busy() -> None:
        entered.set()
        leave.wait(TIMEOUT_S)

    monkeypatch.setattr(core, "settle", busy)
    channel = Channel(mine, core, "there")
    theirs.send(b"\0\0\0")  # a part of a message
    assert entered.wait(TIMEOUT_S)
    mine.send(b"something that is never read")
    theirs.close()  # to read now is an error, not an end
    channel.abandon()
    leave.set()
    channel.close()
    assert "the session is closed" in str(core.lost)


def test_a_thread_that_waits_again_and_again_reads_for_itself(
    daemon: FakeDaemon, saxpy: gc.Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.finish_at_once = True
    readers = readers_of(saxpy, monkeypatch)
    for _ in range(50):
        saxpy.submit(1, 32, ARGS).result(TIMEOUT_S)
    assert readers.count(threading.get_ident()) > 25


def test_what_nobody_waits_for_is_read_while_reading_is_lent(
    daemon: FakeDaemon, saxpy: gc.Kernel
) -> None:
    """At once, and not when the session's thread looks whether somebody has read."""
    late, reader = [], saxpy._channel._reader
    for number in range(1, 40, 2):
        reader.always = False
        daemon.finish_at_once = True
        saxpy.submit(1, 32, ARGS).result(TIMEOUT_S)
        daemon.finish_at_once = False
        job, called = saxpy.submit(1, 32, ARGS), threading.Event()
        job.add_done_callback(lambda _, called=called: called.set())  # type: ignore[misc]
        daemon.wait_for(wm.Submit, number + 1)
        began_s = time.monotonic()
        daemon.finish(number + 1)
        assert called.wait(TIMEOUT_S)
        late.append(time.monotonic() - began_s)
    assert min(late) < 0.03


def test_a_second_thread_that_waits_is_woken(daemon: FakeDaemon, saxpy: gc.Kernel) -> None:
    """Whatever the first one, which reads, waits for."""
    daemon.finish_at_once = True
    for _ in range(5):
        saxpy.submit(1, 32, ARGS).result(TIMEOUT_S)
    daemon.finish_at_once = False
    jobs = [saxpy.submit(1, 32, ARGS) for _ in range(3)]
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        waits = [threads.submit(job.result, TIMEOUT_S) for job in jobs]
        for number in (7, 6, 8):
            daemon.wait_for(wm.Submit, 8)
            daemon.finish(number)
            waits[number - 6].result(TIMEOUT_S)


def test_a_thread_that_reads_gives_up_in_time(daemon: FakeDaemon, saxpy: gc.Kernel) -> None:
    daemon.finish_at_once = True
    for _ in range(5):
        saxpy.submit(1, 32, ARGS).result(TIMEOUT_S)
    daemon.finish_at_once = False
    job = saxpy.submit(1, 32, ARGS)
    began_s = time.monotonic()
    assert not job._channel.wait(job, 0.05)
    assert 0.04 < time.monotonic() - began_s < 2
    daemon.finish(6)
    job.result(TIMEOUT_S)


def test_interrupts_of_a_thread_that_reads_lose_nothing(
    daemon: FakeDaemon, saxpy: gc.Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.finish_at_once = True
    readers = readers_of(saxpy, monkeypatch)
    random, wanted, interrupts = Random(1), 150, 0

    class Interrupt(BaseException):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        while interrupts < wanted:
            job = saxpy.submit(1, 32, ARGS)
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(5e-6, 4e-4))
                try:
                    job.result(TIMEOUT_S)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupt:
                interrupts += 1
            job.result(TIMEOUT_S)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert threading.get_ident() in readers


def readers_of(kernel: gc.Kernel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that have handled messages, from now on."""
    core, readers = kernel._session._core, []
    settle = core.settle

    def noted() -> None:
        readers.append(threading.get_ident())
        settle()

    monkeypatch.setattr(core, "settle", noted)
    return readers
