"""A session that goes on with the next daemon: what is submitted again, what is lost, and why."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import gpud_client as gc
from gpud.wire import messages as wm
from tests.support.fake_daemon import TIMEOUT_S, FakeDaemon
from tests.support.waiting import until


@pytest.fixture
def gpu(daemon: FakeDaemon) -> Iterator[gc.Session]:
    with gc.connect(daemon.path, reconnect=TIMEOUT_S) as session:
        yield session


def test_what_had_not_begun_is_submitted_again(daemon: FakeDaemon, gpu: gc.Session) -> None:
    daemon.modules = 6  # the next daemon gives modules other numbers
    saxpy = gpu.kernel("a source", "saxpy")
    x = gpu.array(np.arange(3, dtype=np.float32))
    view = x.numpy()
    begun = saxpy.submit(1, 32, (1.0, None, None, 7))
    stream, args = gpu.stream(), (1.0, x, None, 7)
    first, second = (saxpy.submit(1, 32, args, quota=1, stream=stream) for _ in range(2))
    third = saxpy.submit(
        1, 32, args, after=[begun, second], weight=3, timeout=5, stream=gpu.stream()
    )
    daemon.wait_for(wm.Submit, 4)
    daemon.send(wm.Began(1))
    until(lambda: begun._begun)
    view[1] = 5
    daemon.drop()
    with pytest.raises(gc.ConnectionLost, match=r"job 1\.1 \(saxpy\) had begun .* submit it again"):
        begun.result(TIMEOUT_S)
    daemon.wait_for(wm.Submit, 7)
    assert [message.last_job for message in daemon.of(wm.Resume)] == [0, 4]
    old, new = daemon.of(wm.Submit)[1:4], daemon.of(wm.Submit)[4:]
    assert [message.number for message in new] == [5, 6, 7]
    for before, after in zip(old, new, strict=True):
        (was,) = wm.CLIENT_PROTOCOL.decode_records(wm.LaunchRecord, before.launches)
        (now,) = wm.CLIENT_PROTOCOL.decode_records(wm.LaunchRecord, after.launches)
        assert (was.module, now.module) == (7, 8)
        assert now._replace(module=7) == was
        assert after.quota == before.quota
    assert old[2].after == ((1, 1), (1, 3))
    assert new[2].after == ((2, 6),), "what is lost is not waited for"
    assert (new[2].weight, new[2].timeout_ns) == (3, 5 * 10**9)
    assert [message.at for message in daemon.of(wm.Allocate)] == [None, x.ptr]
    for number in (5, 6, 7):
        daemon.finish(number)
    for job in (first, second, third):
        job.result(TIMEOUT_S)
    assert first.id == "2.5"
    assert x.get().tolist() == view.tolist() == [0, 5, 2]
    view[2] = 9
    assert x.get()[2] == 9


def test_what_is_behind_a_lost_job_is_lost_with_it(daemon: FakeDaemon, gpu: gc.Session) -> None:
    saxpy = gpu.kernel("a source", "saxpy")
    begun, behind = (saxpy.submit(1, 32, (1.0, None, None, 7)) for _ in range(2))
    daemon.wait_for(wm.Submit, 2)
    daemon.send(wm.Began(1))
    until(lambda: begun._begun)
    daemon.drop()
    until(behind.done)
    assert daemon.wait_for(wm.StreamFailure) == wm.StreamFailure(0, 1, False), "to the next one"
    late = saxpy.submit(1, 32, (1.0, None, None, 7))
    daemon.wait_for(wm.Submit, 3)
    error = gc.PredecessorFailed("it was not run", job="1.1").to_wire()
    daemon.send(wm.Finished(late._ref[1], "failed", error, b"", {}, (0, 0)))
    for job in (late, behind):
        with pytest.raises(gc.PredecessorFailed) as raised:
            job.result(TIMEOUT_S)
        assert isinstance(raised.value.__cause__, gc.ConnectionLost)
    gpu.query("status")
    assert daemon.of(wm.StreamFailure)[-1] == wm.StreamFailure(0, 1), "it was seen"


def test_a_job_that_is_refused_as_the_daemon_ends_is_kept(
    daemon: FakeDaemon, gpu: gc.Session
) -> None:
    saxpy = gpu.kernel("a source", "saxpy")
    error = gc.Draining("the daemon is shutting down").to_wire()
    daemon.answer[wm.Submit] = lambda message: daemon.send(
        wm.Finished(message.number, "failed", error, b"", {}, (0, 0))
    )
    job = saxpy.submit(1, 32, (1.0, None, None, 7))
    gpu.query("status")
    assert not job.done()
    del daemon.answer[wm.Submit]
    daemon.finish_at_once = True
    daemon.drop()
    job.result(TIMEOUT_S)


def test_the_memory_of_a_gpu_is_lost(daemon: FakeDaemon, caplog: pytest.LogCaptureFixture) -> None:
    daemon.devices[0]["arrays"] = "copied"
    daemon.answer[wm.Download] = lambda message: daemon.send(wm.Answer(message.request))
    with gc.connect(daemon.path, reconnect=TIMEOUT_S) as gpu:
        saxpy = gpu.kernel("a source", "saxpy")
        x, y = gpu.zeros(3), gpu.zeros(3)
        waiting = saxpy.submit(1, 32, (1.0, x, None, 7))
        daemon.wait_for(wm.Submit)
        daemon.drop()
        with pytest.raises(gc.ConnectionLost, match="had not begun, but the values of its arrays"):
            waiting.result(TIMEOUT_S)
        for array in (x, y):
            with pytest.raises(gc.DeviceLost, match=r"write new ones with set\(\)"):
                array.get()
        x.set(np.ones(3))
        assert x.get().tolist() == [1, 1, 1]
        daemon.finish_at_once = True
        saxpy.submit(1, 32, (1.0, y, None, 7)).result(TIMEOUT_S)
        y.get()
    assert "the values of 2 arrays on a GPU" in caplog.text


def test_an_array_that_a_kept_job_uses_is_not_freed_before(
    daemon: FakeDaemon, gpu: gc.Session
) -> None:
    saxpy = gpu.kernel("a source", "saxpy")
    job = saxpy.submit(1, 32, (1.0, gpu.zeros(3), None, 7))
    gpu.query("status")
    assert not daemon.of(wm.Free)
    daemon.finish(1)
    job.result(TIMEOUT_S)
    gpu.query("status")
    assert len(daemon.of(wm.Free)) == 1


def test_a_request_under_way_can_be_repeated(daemon: FakeDaemon, gpu: gc.Session) -> None:
    daemon.answer[wm.Query] = lambda message: daemon.drop()
    with pytest.raises(gc.ConnectionLost, match="ask again: the session goes on"):
        gpu.query("status")
    del daemon.answer[wm.Query]
    assert gpu.query("status")["topic"] == "status"


def test_the_next_daemon_ends_too(daemon: FakeDaemon, gpu: gc.Session) -> None:
    x = gpu.array([1.0, 2.0])
    left = [3]

    def allocate(message: wm.Allocate) -> None:
        left[0] -= 1
        if left[0]:
            daemon.drop()
        else:
            daemon.on_allocate(message)

    daemon.answer[wm.Allocate] = allocate
    daemon.drop()
    until(lambda: left[0] <= 0)
    assert gpu.query("status")["topic"] == "status"
    assert x.get().tolist() == [1.0, 2.0]
    assert daemon.sessions == 4


def test_memory_that_another_session_has_now(daemon: FakeDaemon, gpu: gc.Session) -> None:
    x = gpu.zeros(3)
    refusal = gc.InvalidArgument("the addresses are another session's")
    daemon.answer[wm.Allocate] = lambda message: daemon.fail(message, refusal)
    daemon.drop()
    until(lambda: gpu.closed)
    with pytest.raises(gc.ConnectionLost, match=r"of 24 bytes .* cannot be made again: the addr"):
        gpu.query("status")
    with pytest.raises(gc.ConnectionLost, match="connect again"):
        x.get()
