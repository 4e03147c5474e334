"""Jobs: as futures, their state, and their end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc as garbage
import logging
import threading
from contextlib import suppress
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

import gpud_client as gc
from gpud.errors import IllegalAddress, JobCancelled
from gpud.wire import messages as wm
from gpud_client.launch import unretrieved
from tests.support.fake_daemon import TIMEOUT_S, FakeDaemon
from tests.support.waiting import until

ARGS = (2.0, None, None, 7)


@pytest.fixture
def job(daemon: FakeDaemon, saxpy: gc.Kernel) -> gc.Job:
    found = saxpy.submit(1, 32, ARGS)
    daemon.wait_for(wm.Submit)
    return found


def test_done(daemon: FakeDaemon, job: gc.Job) -> None:
    assert not job.done()
    assert not job.cancelled()
    daemon.finish(1, output=b"hello \xff\n")
    job.result(TIMEOUT_S)
    assert job.exception() is None
    assert job.done()
    assert not job.cancelled()
    assert not job.running()
    assert not job.cancel()
    assert job.state == "done"
    assert job.progress == (64, 64)
    assert job.allocation == 0
    assert job.output == "hello \ufffd\n"
    assert job.stats == {
        "queued_s": 0.1, "first_block_s": None, "run_s": 0.2, "release_s": None, "resizes": 1,
        "capsm_seconds": 0.5, "queued_as": None,
    }  # fmt: skip
    assert "done" in repr(job)
    assert daemon.of(wm.Describe) == []


def test_while_it_runs(daemon: FakeDaemon, job: gc.Job) -> None:
    assert job.running()
    assert job.state == "running"
    assert job.progress == (3, 64)
    assert job.allocation == Fraction(7, 2)
    assert job.stats["run_s"] == 1.5
    assert job.stats["first_block_s"] is None
    assert job.output == ""
    daemon.states[1]["state"] = "waiting"
    assert not job.running()


def test_failed(daemon: FakeDaemon, job: gc.Job) -> None:
    daemon.finish(1, "failed", IllegalAddress(64, kernel="saxpy", line=12), progress=(5, 64))
    for _ in range(2):
        with pytest.raises(gc.IllegalAddress, match="0x40") as caught:
            job.result(TIMEOUT_S)
        assert caught.value.line == 12
    assert isinstance(job.exception(), gc.JobError)
    assert job.state == "failed"
    assert job.progress == (5, 64)
    assert not job.cancel()


def test_cancelled(daemon: FakeDaemon, job: gc.Job) -> None:
    assert job.cancel()
    with pytest.raises(gc.JobCancelled):
        job.result(TIMEOUT_S)
    with pytest.raises(concurrent.futures.CancelledError):
        job.exception()
    assert job.cancelled()
    assert job.done()
    assert job.cancel()
    assert job.state == "cancelled"


def test_cancelled_by_somebody_else(daemon: FakeDaemon, job: gc.Job) -> None:
    daemon.finish(1, "cancelled", JobCancelled("gpuctl did it"))
    with pytest.raises(gc.JobCancelled, match="gpuctl"):
        job.result(TIMEOUT_S)


def test_resize(daemon: FakeDaemon, job: gc.Job) -> None:
    job.resize(quota="50%")
    job.resize(reservation=1)
    assert [message[1:] for message in daemon.of(wm.Resize)] == [
        ((1, 1), None, (2, 1)),
        ((1, 1), (1, 1), None),
    ]
    with pytest.raises(ValueError, match="one of them"):
        job.resize()
    with pytest.raises(ValueError, match="one of them"):
        job.resize(quota=1, reservation=1)
    with pytest.raises(gc.AdmissionError):
        job.resize(reservation=5)
    error = gc.InvalidArgument("the job is offline")
    daemon.answer[wm.Resize] = lambda message: daemon.fail(message, error)
    with pytest.raises(gc.InvalidArgument, match="offline"):
        job.resize(reservation=1)


@pytest.mark.parametrize("timeout", [0, 0.05, -1])
def test_a_timeout_says_how_far_it_is_and_leaves_it(
    daemon: FakeDaemon, job: gc.Job, timeout: float
) -> None:
    for call in (job.result, job.exception):
        with pytest.raises(TimeoutError, match=r"1\.1 \(saxpy\).*running, 3 of 64.*7/2.*goes on"):
            call(timeout)
    assert not job.done()
    assert daemon.of(wm.Cancel) == []
    daemon.finish(1)
    job.result(TIMEOUT_S)


def test_it_passes_for_a_future(daemon: FakeDaemon, saxpy: gc.Kernel) -> None:
    jobs = [saxpy.submit(1, 32, ARGS) for _ in range(6)]
    daemon.wait_for(wm.Submit, 6)
    for number, state in ((3, "done"), (1, "cancelled"), (5, "done")):
        daemon.finish(number, state)
    first = concurrent.futures.wait(jobs, TIMEOUT_S, concurrent.futures.FIRST_COMPLETED)
    assert first.done <= {jobs[0], jobs[2], jobs[4]}
    assert first.done
    daemon.finish(2, "failed", IllegalAddress(0))
    daemon.finish(6)
    some = concurrent.futures.wait(jobs, TIMEOUT_S, concurrent.futures.FIRST_EXCEPTION)
    assert jobs[1] in some.done
    daemon.finish(4)
    assert concurrent.futures.wait(jobs, TIMEOUT_S).not_done == set()
    assert set(concurrent.futures.as_completed(jobs, TIMEOUT_S)) == set(jobs)
    assert isinstance(jobs[1].exception(), gc.IllegalAddress)


def test_whoever_is_told_of_its_end_finds_it_done(daemon: FakeDaemon, saxpy: gc.Kernel) -> None:
    class Waiter(list[tuple[bool, bool]]):
        """As `concurrent.futures.wait` has one."""

        def add(self, future: gc.Job) -> None:
            self.append((future.done(), future.cancelled()))

        add_result = add_exception = add_cancelled = add

    jobs = [saxpy.submit(1, 32, ARGS) for _ in range(3)]
    waiter: Any = Waiter()
    for job in jobs:
        with job._condition:
            job._waiters.append(waiter)
    daemon.wait_for(wm.Submit, 3)
    for number, state in enumerate(("done", "failed", "cancelled"), 1):
        daemon.finish(number, state)
    concurrent.futures.wait(jobs, TIMEOUT_S)
    assert waiter == [(True, False), (True, False), (True, True)]


def test_it_is_awaited_as_an_asyncio_future(daemon: FakeDaemon, saxpy: gc.Kernel) -> None:
    async def main() -> None:
        jobs = [saxpy.submit(1, 32, ARGS) for _ in range(3)]
        futures = [asyncio.wrap_future(job) for job in jobs]
        await asyncio.to_thread(daemon.wait_for, wm.Submit, 3)
        daemon.finish(1)
        daemon.finish(2, "failed", IllegalAddress(0))
        await asyncio.wait_for(futures[0], TIMEOUT_S)
        with pytest.raises(gc.IllegalAddress):
            await asyncio.wait_for(futures[1], TIMEOUT_S)
        futures[2].cancel()
        with pytest.raises(asyncio.CancelledError):
            await futures[2]
        await asyncio.to_thread(daemon.wait_for, wm.Cancel)
        with pytest.raises(gc.JobCancelled):
            await asyncio.to_thread(jobs[2].result, TIMEOUT_S)

    asyncio.run(main())


def test_callbacks(
    daemon: FakeDaemon, job: gc.Job, saxpy: gc.Kernel, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[Any] = []
    ran = threading.Event()

    def broken(found: Any) -> None:
        raise ZeroDivisionError("in a callback")

    def last(found: Any) -> None:
        # Whatever the library can do, a callback can do.
        assert found.state == "done"
        again = saxpy.submit(1, 32, ARGS)
        daemon.wait_for(wm.Submit, 2)
        daemon.finish(2)
        again.result(TIMEOUT_S)
        calls.append(again)
        ran.set()

    job.add_done_callback(calls.append)
    job.add_done_callback(broken)
    job.add_done_callback(last)
    daemon.finish(1)
    assert ran.wait(TIMEOUT_S), "nobody read"
    assert calls[0] is job
    assert calls[1].done()
    job.add_done_callback(calls.append)
    assert calls[2] is job
    with caplog.at_level(logging.ERROR, "concurrent.futures"):
        job.add_done_callback(broken)
    assert "ZeroDivisionError" in caplog.text


def test_a_callback_runs_before_the_waiter_goes_on(daemon: FakeDaemon, job: gc.Job) -> None:
    calls: list[Any] = []
    job.add_done_callback(calls.append)
    daemon.finish(1)
    job.result(TIMEOUT_S)
    until(lambda: calls == [job])


def test_a_failure_that_nobody_asked_for_is_logged(
    daemon: FakeDaemon, saxpy: gc.Kernel, caplog: pytest.LogCaptureFixture
) -> None:
    asked, forgotten = saxpy.submit(1, 32, ARGS), saxpy.submit(1, 32, ARGS)
    daemon.wait_for(wm.Submit, 2)
    daemon.finish(1, "failed", IllegalAddress(0xAA))
    daemon.finish(2, "failed", IllegalAddress(0xBB))
    concurrent.futures.wait([forgotten], TIMEOUT_S)
    assert isinstance(asked.exception(TIMEOUT_S), gc.IllegalAddress)
    with caplog.at_level(logging.ERROR, "gpud_client"):
        del asked, forgotten
        garbage.collect()
        until(lambda: "0xbb" in caplog.text)
    assert "0xaa" not in caplog.text


def test_many_failures_that_nobody_asked_for_are_summarised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 1e6
    monkeypatch.setattr(
        "gpud_client.launch.unretrieved.time", SimpleNamespace(monotonic=lambda: now_s)
    )
    monkeypatch.setattr("gpud_client.launch.unretrieved._Failures.began_s", 0.0)
    monkeypatch.setattr("gpud_client.launch.unretrieved._Failures.numbers", None)
    for number in range(1, 20_001):
        unretrieved.log_failed(f"1.{number}", "saxpy", IllegalAddress(0xAA))
    first = [record.getMessage().split()[1] for record in caplog.records]
    assert first == [f"1.{number}" for number in (*range(1, 11), 100, 1000, 10_000)]
    assert "number 1,000; the next to be logged is 10,000" in caplog.text
    now_s += 61.0
    unretrieved.log_failed("1.20001", "saxpy", IllegalAddress(0xAA))
    assert caplog.records[-1].getMessage().startswith("job 1.20001 (saxpy) failed")


def test_the_refusal_of_a_submission_is_the_jobs(daemon: FakeDaemon, saxpy: gc.Kernel) -> None:
    error = gc.Draining("the daemon is ending")
    refused = wm.Finished(1, "failed", error.to_wire(), b"", {}, (0, 0))
    daemon.answer[wm.Submit] = lambda message: daemon.send(refused)
    job = saxpy.submit(5, 32, ARGS)
    with pytest.raises(gc.Draining):
        job.result(TIMEOUT_S)
    assert job.progress == (0, 5)
    assert job.stats["run_s"] is None


def test_a_submission_that_the_daemon_could_not_read(daemon: FakeDaemon, saxpy: gc.Kernel) -> None:
    from gpud.errors import ProtocolError

    error = ProtocolError("field weight is wrong", job=1)
    daemon.answer[wm.Submit] = lambda message: daemon.send(wm.Failed(0, error.to_wire()))
    with pytest.raises(ProtocolError, match="weight"):
        saxpy.submit(1, 32, ARGS).result(TIMEOUT_S)


def test_lost(daemon: FakeDaemon, saxpy: gc.Kernel, gpu: gc.Session) -> None:
    jobs = [saxpy.submit(1, 32, ARGS) for _ in range(3)]
    daemon.wait_for(wm.Submit, 3)
    daemon.finish(1)
    jobs[0].result(TIMEOUT_S)
    daemon.drop()
    for job in jobs[1:]:
        with pytest.raises(gc.ConnectionLost, match=daemon.path):
            job.result(TIMEOUT_S)
        assert job.state == "failed"
        assert not job.cancel()
    assert jobs[0].exception() is None
    assert gpu.closed
    for use in (
        lambda: saxpy.submit(1, 32, ARGS),
        lambda: gpu.zeros(4),
        lambda: gpu.query("status"),
        lambda: gpu.kernel("", "saxpy"),
        lambda: saxpy.occupancy(512),
    ):
        with pytest.raises(gc.ConnectionLost, match="lost"):
            use()


def test_lost_while_waiting_in_many_threads(daemon: FakeDaemon, saxpy: gc.Kernel) -> None:
    jobs = [saxpy.submit(1, 32, ARGS) for _ in range(8)]
    daemon.wait_for(wm.Submit, 8)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        waits = [threads.submit(job.exception, TIMEOUT_S) for job in jobs]
        daemon.drop()
        assert all(isinstance(wait.result(TIMEOUT_S), gc.ConnectionLost) for wait in waits)


def test_goodbye(daemon: FakeDaemon, job: gc.Job, gpu: gc.Session) -> None:
    daemon.send(wm.Goodbye(gc.Draining("it is late").to_wire()))
    with pytest.raises(gc.ConnectionLost, match="it is late") as caught:
        job.result(TIMEOUT_S)
    assert isinstance(caught.value.__cause__, gc.Draining)


def test_closing_cancels(
    daemon: FakeDaemon, job: gc.Job, gpu: gc.Session, saxpy: gc.Kernel
) -> None:
    gpu.close()
    assert job.cancelled()
    with pytest.raises(gc.JobCancelled, match="closed"):
        job.result()
    assert job.state == "cancelled"
    with pytest.raises(gc.ConnectionLost, match="closed"):
        saxpy.submit(1, 32, ARGS)
    gpu.close()
    daemon.wait_for(type(None))


def test_closing_ends_the_waits_of_other_threads(
    daemon: FakeDaemon, job: gc.Job, gpu: gc.Session
) -> None:
    until(lambda: not job._channel._reader.lent)  # or the thread that waits reads for itself
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        wait = threads.submit(job.result)
        until(lambda: job._waiting)
        gpu.close()
        with pytest.raises(gc.JobCancelled):
            wait.result(TIMEOUT_S)


def test_leaving_a_session_says_which_jobs_nobody_waited_for(
    daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    with gc.connect(daemon.path) as gpu:
        saxpy = gpu.kernel("a source", "saxpy")
        jobs = [saxpy.submit(1, 32, ARGS) for _ in range(6)]
        daemon.wait_for(wm.Submit, 6)
        daemon.finish(1)
        jobs[0].result(TIMEOUT_S)
        jobs[1].cancel()
    assert caplog.text.count("1.3 (saxpy), 1.4 (saxpy), 1.5 (saxpy) and 1 more; wait") == 1
    caplog.clear()
    with suppress(KeyError), gc.connect(daemon.path) as gpu:
        gpu.kernel("a source", "saxpy").submit(1, 32, ARGS)
        raise KeyError("what is wrong is said already")
    assert caplog.text == ""
