"""Many threads on one connection: who wakes when, and what never blocks."""

from __future__ import annotations

import concurrent.futures
import copy
import gc as garbage
import os
import pickle
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import gpud_client as gc
from gpud.wire import messages as wm
from tests.support.fake_daemon import TIMEOUT_S, FakeDaemon
from tests.support.waiting import until

ARGS = (2.0, None, None, 7)


def test_submitting_and_waiting_in_many_threads(daemon: FakeDaemon, saxpy: gc.Kernel) -> None:
    daemon.finish_at_once = True

    def work(_: int) -> list[str]:
        found = []
        for _ in range(25):
            job = saxpy.submit(1, 32, ARGS)
            job.result(TIMEOUT_S)
            found.append(job.id)
        return found

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        ids = [one for part in threads.map(work, range(8)) for one in part]
    assert len(set(ids)) == 200
    numbers = [message.number for message in daemon.of(wm.Submit)]
    assert numbers == list(range(1, 201))


def test_answers_come_in_any_order(daemon: FakeDaemon, saxpy: gc.Kernel) -> None:
    jobs = [saxpy.submit(1, 32, ARGS) for _ in range(8)]
    daemon.wait_for(wm.Submit, 8)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        waits = [threads.submit(job.result, TIMEOUT_S) for job in jobs]
        for number in (5, 1, 8, 2, 7, 3, 6, 4):
            daemon.finish(number)
            waits[number - 1].result(TIMEOUT_S)


def test_it_is_read_when_nobody_waits(daemon: FakeDaemon, saxpy: gc.Kernel) -> None:
    for number in range(1, 6):
        job = saxpy.submit(1, 32, ARGS)
        daemon.wait_for(wm.Submit, number)
        daemon.finish(number)
        if number % 2:
            until(job.done)
        else:
            job.result(TIMEOUT_S)


def test_nothing_wakes_while_nothing_arrives(daemon: FakeDaemon, saxpy: gc.Kernel) -> None:
    threads = [one for one in threading.enumerate() if one.name.startswith("gpud_client")]
    assert threads

    def switches() -> list[str]:
        tasks = [Path(f"/proc/self/task/{one.native_id}/status") for one in threads]
        return [
            line
            for one in tasks
            for line in one.read_text().splitlines()
            if line[:9] == "voluntary"
        ]

    job = saxpy.submit(1, 32, ARGS)  # one that does not end
    daemon.wait_for(wm.Submit)

    def quiet() -> bool:
        before = switches()
        threading.Event().wait(0.2)
        return switches() == before

    until(quiet)
    assert not job.done()


def test_a_fault_in_the_reading_thread_leaves_nobody_waiting(
    daemon: FakeDaemon, saxpy: gc.Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [saxpy.submit(1, 32, ARGS) for _ in range(2)]
    daemon.wait_for(wm.Submit, 2)

    def broken(message: wm.Finished) -> None:
        raise ZeroDivisionError("in the library")

    monkeypatch.setattr(jobs[0], "_settle", broken)
    daemon.finish(1)
    for job in jobs:
        with pytest.raises(gc.ConnectionLost, match="in the library"):
            job.result(TIMEOUT_S)
    daemon.wait_for(type(None))


def test_what_is_dropped_while_the_daemon_does_not_read_is_freed_later(
    daemon: FakeDaemon, gpu: gc.Session, saxpy: gc.Kernel
) -> None:
    """More messages of finalizers than the socket has room for; dropping does not wait."""
    count = 30_000
    kick = gpu._channel.kick
    daemon.may_read.clear()
    gpu.query("status")  # the daemon stops after this one
    for address in range(count):
        gpu._core.free(0, address)
        kick()
    assert gpu._channel._unsent
    daemon.may_read.set()
    gpu.query("status")
    freed = [message.array for message in daemon.of(wm.Free)]
    assert freed == list(range(count))


def test_no_lock_in_callbacks(daemon: FakeDaemon, saxpy: gc.Kernel) -> None:
    """A callback that blocks keeps nobody else from reading."""
    jobs = [saxpy.submit(1, 32, ARGS) for _ in range(2)]
    daemon.wait_for(wm.Submit, 2)
    entered, leave = threading.Event(), threading.Event()

    def block(job: Any) -> None:
        entered.set()
        assert leave.wait(TIMEOUT_S)

    jobs[0].add_done_callback(block)
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        wait = threads.submit(jobs[0].result, TIMEOUT_S)
        daemon.finish(1)
        assert entered.wait(TIMEOUT_S)
        daemon.finish(2)
        jobs[1].result(TIMEOUT_S)
        leave.set()
        wait.result(TIMEOUT_S)


def test_no_deadlock_with_a_daemon_that_does_not_read(daemon: FakeDaemon, gpu: gc.Session) -> None:
    """The daemon stops reading until it is read from, as with every peer that reads slowly."""
    saxpy = gpu.kernel("", "saxpy")
    saxpy.occupancy(32)
    daemon.may_read.clear()
    padding = b"x" * 60_000
    sending = threading.Event()

    def flood() -> None:
        # More than the socket holds: this ends only if somebody reads here.
        for _ in range(100):
            daemon.send(wm.Happened({"padding": padding}))
        sending.set()
        daemon.may_read.set()

    daemon.finish_at_once = True
    thread = threading.Thread(target=flood)
    thread.start()
    launches = [saxpy.call(1, 32, ARGS)] * 1000
    jobs = [gpu.sequence(launches) for _ in range(40)]
    for job in jobs:
        job.result(TIMEOUT_S)
    thread.join(TIMEOUT_S)
    assert sending.is_set()
    assert [message.number for message in daemon.of(wm.Submit)] == list(range(1, 41))


def test_an_interrupt_while_waiting_loses_nothing(daemon: FakeDaemon, saxpy: gc.Kernel) -> None:
    """It sleeps; one that reads is interrupted in test_socket_reader.py."""
    saxpy._channel.call_back(always=True)
    until(lambda: not saxpy._channel._reader.lent)
    job = saxpy.submit(1, 32, ARGS)

    def interrupt() -> None:
        until(lambda: job._waiting)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        job.result(TIMEOUT_S)
    thread.join()
    daemon.wait_for(wm.Submit)
    daemon.finish(1)
    job.result(TIMEOUT_S)
    assert not job._waiting
    daemon.finish_at_once = True
    saxpy.submit(1, 32, ARGS).result(TIMEOUT_S)


class InterruptedSocket:
    """A socket whose first call raises KeyboardInterrupt before anything has happened."""

    def __init__(self, sock: Any) -> None:
        self._sock, self._interrupted = sock, False

    def _call(self, name: str, *args: Any) -> Any:
        if not self._interrupted:
            self._interrupted = True
            raise KeyboardInterrupt
        return getattr(self._sock, name)(*args)

    def send(self, *args: Any) -> Any:
        return self._call("send", *args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def test_an_interrupt_while_sending_loses_nothing(
    daemon: FakeDaemon, gpu: gc.Session, saxpy: gc.Kernel
) -> None:
    daemon.finish_at_once = True
    channel: Any = gpu._channel
    saxpy.submit(1, 32, ARGS).result(TIMEOUT_S)
    channel._sock = InterruptedSocket(channel._sock)
    with pytest.raises(KeyboardInterrupt):
        saxpy.submit(1, 32, ARGS)
    saxpy.submit(1, 32, ARGS).result(TIMEOUT_S)
    assert [message.number for message in daemon.of(wm.Submit)] == [1, 2, 3]


# Python 3.12 warns of every fork of a process with threads; that is what is tested.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_told_so(daemon: FakeDaemon, saxpy: gc.Kernel, gpu: gc.Session) -> None:
    job = saxpy.submit(1, 32, ARGS)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        words = []
        for use in (lambda: saxpy.submit(1, 32, ARGS), job.result, lambda: gpu.zeros(4)):
            try:
                use()
            except gc.ConnectionLost as error:
                words.append("forked" if "was forked" in str(error) else str(error))
        gpu.close()
        os.write(writing, " ".join(words).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "forked forked forked"
    os.waitpid(child, 0)
    daemon.wait_for(wm.Submit)
    daemon.finish(1)
    job.result(TIMEOUT_S)


def test_nothing_of_a_session_can_be_pickled_or_copied(gpu: gc.Session, saxpy: gc.Kernel) -> None:
    launch, job = saxpy.call(1, 32, ARGS), saxpy.submit(1, 32, ARGS)
    made = (gpu, saxpy, saxpy.module, gpu.zeros(4), gpu.stream(), launch, job)
    for one in made:
        for copy_of in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match=r"connect in the other process.*array.get\(\)"):
                copy_of(one)


@pytest.mark.parametrize("busy", [False, True])
def test_a_session_that_nobody_holds_is_closed(daemon: FakeDaemon, busy: bool) -> None:
    gpu = gc.connect(daemon.path)
    if busy:
        daemon.finish_at_once = True
        gpu.kernel("", "saxpy").submit(1, 32, ARGS).result(TIMEOUT_S)
    assert daemon.of(type(None)) == []
    del gpu
    garbage.collect()
    daemon.wait_for(type(None))


def test_a_job_keeps_its_session(daemon: FakeDaemon) -> None:
    job = gc.connect(daemon.path).kernel("", "saxpy").submit(1, 32, ARGS)
    daemon.wait_for(wm.Submit)
    garbage.collect()
    daemon.finish(1)
    job.result(TIMEOUT_S)
    del job
    garbage.collect()
    daemon.wait_for(type(None))


def test_nothing_is_left_open(daemon: FakeDaemon) -> None:
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    for _ in range(3):
        with gc.connect(daemon.path) as gpu:
            gpu.zeros(4)
            gpu.kernel("", "saxpy").submit(1, 32, ARGS)
        daemon.wait_for(type(None))
        os.close(daemon.arena.pop(0))
    until(lambda: len(list(descriptors.iterdir())) <= before)
    assert not [one for one in threading.enumerate() if one.name.startswith("gpud_client")]


def test_closing_in_a_callback(daemon: FakeDaemon, gpu: gc.Session, saxpy: gc.Kernel) -> None:
    job = saxpy.submit(1, 32, ARGS)
    daemon.wait_for(wm.Submit)
    job.add_done_callback(lambda _: gpu.close())
    daemon.finish(1)
    until(lambda: gpu.closed)
    daemon.wait_for(type(None))
