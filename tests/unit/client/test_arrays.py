"""Arrays: copies in both directions, the jobs that they wait for, and when memory is freed."""

from __future__ import annotations

import concurrent.futures
import gc as garbage
from typing import Any

import numpy as np
import pytest

import gpud_client as gc
from gpud.wire import messages as wm
from tests.support.fake_daemon import BASE, TIMEOUT_S, FakeDaemon
from tests.support.waiting import until


def test_what_an_array_is(gpu: gc.Session, daemon: FakeDaemon) -> None:
    x = gpu.zeros((3, 4), np.float32)
    assert (x.shape, x.ndim, x.size, x.nbytes) == ((3, 4), 2, 12, 48)
    assert x.dtype == np.float32
    assert x.ptr == BASE
    assert x.device is gpu.device
    assert len(x) == 3
    assert "(3, 4) float32 on device 0" in repr(x)
    assert not x.get().any()
    assert gpu.empty(5).dtype == np.float64
    assert gpu.zeros(()).shape == ()
    assert gpu.zeros([2, 3], "i2").nbytes == 12
    assert [message.size for message in daemon.of(wm.Allocate)] == [48, 40, 8, 12]


@pytest.mark.parametrize(
    "values",
    [
        np.arange(24, dtype=np.int32).reshape(2, 3, 4),
        np.arange(24, dtype=np.float64).reshape(4, 6).T,
        np.arange(24, dtype=np.int16)[::3],
        np.array([1, 2, 3], ">f4"),
        np.array([(1, 2.0), (3, 4.0)], [("a", "i4"), ("b", "f8")]),
        np.array([1 + 2j], np.complex64),
        np.array([True, False]),
        np.array(5, np.uint8),
        np.zeros((0, 3), np.float32),
        np.array(["2026-01-01"], "M8[s]"),
        [[1, 2], [3, 4]],
        2.5,
    ],
    ids=lambda values: str(getattr(values, "dtype", "list")),
)
def test_values_go_in_and_come_out(gpu: gc.Session, values: Any) -> None:
    x = gpu.array(values)
    expected = np.asarray(values)
    got = x.get()
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype.newbyteorder("=")
    assert got.tolist() == expected.tolist()
    x.set(np.zeros_like(got))
    assert x.get().tolist() == np.zeros_like(got).tolist()
    x.set(expected)
    assert np.asarray(x).tolist() == expected.tolist()


def test_a_type_can_be_asked_for(gpu: gc.Session) -> None:
    assert gpu.array([1, 2], np.float32).get().tolist() == [1.0, 2.0]
    assert gpu.array(np.arange(3.0), dtype="i4").dtype == np.int32


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda gpu: gpu.array([object()]), TypeError),
        (lambda gpu: gpu.array(np.array([None])), TypeError),
        (lambda gpu: gpu.zeros(4, object), TypeError),
        (lambda gpu: gpu.zeros(4, ">f4"), ValueError),
        (lambda gpu: gpu.zeros(4, "S"), TypeError),
        (lambda gpu: gpu.zeros(4, "nonsense"), TypeError),
        (lambda gpu: gpu.zeros(-1), ValueError),
        (lambda gpu: gpu.zeros((2, -1)), ValueError),
        (lambda gpu: gpu.zeros(1.5), TypeError),
        (lambda gpu: gpu.zeros("4"), TypeError),
        (lambda gpu: gpu.zeros(None), TypeError),
        (lambda gpu: gpu.zeros((1 << 40, 1 << 40)), gc.OutOfMemory),
        (lambda gpu: gpu.zeros(4, device=7), ValueError),
    ],
)
def test_arrays_that_cannot_be(
    gpu: gc.Session, daemon: FakeDaemon, make: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        make(gpu)
    assert daemon.of(wm.Allocate) == []


def test_out_of_memory(gpu: gc.Session, daemon: FakeDaemon) -> None:
    daemon.answer[wm.Allocate] = lambda message: daemon.fail(
        message, gc.OutOfMemory(message.size, 10)
    )
    with pytest.raises(gc.OutOfMemory) as caught:
        gpu.zeros(100, np.uint8)
    assert caught.value.requested_bytes == 100


def test_memory_that_jobs_keep_is_waited_for(
    gpu: gc.Session, daemon: FakeDaemon, saxpy: gc.Kernel, caplog: pytest.LogCaptureFixture
) -> None:
    saxpy.submit(1, 32, (2.0, gpu.zeros(8), None, 7))
    saxpy.submit(1, 32, (2.0, None, None, 7))

    refused = 0

    def full(message: wm.Allocate) -> None:
        nonlocal refused
        refused += 1
        daemon.fail(message, gc.OutOfMemory(message.size, 10, limit="jobs"))
        if refused == 2:
            daemon.finish(1)  # the second job does not end
            del daemon.answer[wm.Allocate]

    daemon.answer[wm.Allocate] = full
    assert gpu.zeros(8).shape == (8,)
    assert refused == 2
    assert caplog.text.count("64 bytes are not there before job 1.1 (saxpy) has ended") == 1
    daemon.finish(2)


def test_get_into(gpu: gc.Session) -> None:
    x = gpu.array([1, 2, 3])
    out = np.zeros(3, np.int64)
    assert x.get(out) is out
    assert out.tolist() == [1, 2, 3]
    wrongs: list[tuple[Any, type[Exception]]] = [
        (np.zeros(4, np.int64), ValueError),
        (np.zeros(3, np.int32), ValueError),
        ([0, 0, 0], TypeError),
    ]
    for wrong, error in wrongs:
        with pytest.raises(error):
            x.get(wrong)


def test_set_is_strict(gpu: gc.Session) -> None:
    x = gpu.array([1.0, 2.0])
    x.set([3, 4])
    x.set(np.array([5.0, 6.0], ">f8"))
    assert x.get().tolist() == [5.0, 6.0]
    for wrong, error in (
        (np.array([1, 2]), TypeError),
        (np.array([1, 2], np.float32), TypeError),
        ([1.0], ValueError),
        (1.0, ValueError),
        ([[1.0, 2.0]], ValueError),
        (["a", "b"], ValueError),
    ):
        with pytest.raises(error):
            x.set(wrong)
    assert x.get().tolist() == [5.0, 6.0]


def test_as_a_numpy_array(gpu: gc.Session) -> None:
    x = gpu.array([1, 2, 3])
    copied = np.array(x)
    copied[0] = 9
    assert x.get().tolist() == [1, 2, 3]
    assert np.array(x, np.float32).dtype == np.float32
    live = np.array(x, copy=False)
    live[0] = 7
    assert x.get()[0] == 7
    with pytest.raises(ValueError, match="copy"):
        np.array(x, np.float32, copy=False)
    with pytest.raises(TypeError, match="no length"):
        len(gpu.zeros(()))


@pytest.mark.parametrize("view_of", [np.asarray, np.from_dlpack])
def test_others_view_it_without_a_copy(gpu: gc.Session, daemon: FakeDaemon, view_of: Any) -> None:
    x = gpu.array(np.arange(6, dtype=np.float32).reshape(2, 3))
    view = view_of(x)
    x.set(np.ones((2, 3), np.float32))
    assert view.tolist() == [[1, 1, 1], [1, 1, 1]]
    assert (view.shape, view.dtype) == ((2, 3), np.float32)
    # The memory stays for as long as it is looked at.
    x.free()
    garbage.collect()
    gpu.query("status")
    assert not daemon.of(wm.Free)
    with pytest.raises(ValueError, match="freed"):
        view_of(x)
    del x, view
    garbage.collect()
    gpu.query("status")
    assert len(daemon.of(wm.Free)) == 1


def test_memory_of_another_process_is_not_viewed(daemon: FakeDaemon) -> None:
    daemon.devices[0]["arrays"] = "copied"
    daemon.answer[wm.Download] = lambda message: daemon.send(wm.Answer(message.request))
    with gc.connect(daemon.path) as gpu:
        x = gpu.array([1.0, 2.0])
        copied = np.asarray(x)  # by `__array__`
        copied[0] = 5
        assert x.get().tolist() == [1.0, 2.0]
        assert not hasattr(x, "__array_interface__")
        with pytest.raises(BufferError, match="cannot be exported"):
            np.from_dlpack(x)
        assert not hasattr(x, "__cuda_array_interface__")
        with pytest.raises(
            AttributeError, match=r"cannot be mapped into this process.*with get\(\) and set\(\)"
        ):
            x.__cuda_array_interface__  # noqa: B018


def test_an_array_of_the_host_is_in_no_gpu(gpu: gc.Session) -> None:
    x = gpu.zeros(2, np.int32)
    assert not hasattr(x, "__cuda_array_interface__")
    with pytest.raises(AttributeError, match="has no GPU memory: use numpy"):
        x.__cuda_array_interface__  # noqa: B018


def test_a_view_is_the_memory_itself(gpu: gc.Session) -> None:
    x = gpu.zeros((2, 2), np.int32)
    view = x.numpy()
    view[1, 1] = 5
    assert x.get().tolist() == [[0, 0], [0, 5]]
    x.set(np.array([[1, 2], [3, 4]], np.int32))
    assert view.tolist() == [[1, 2], [3, 4]]
    assert view.flags.writeable
    assert view.flags.c_contiguous


def test_arrays_do_not_overlap(gpu: gc.Session) -> None:
    arrays = [gpu.array(np.full(100, number)) for number in range(5)]
    assert [int(x.get().sum()) for x in arrays] == [0, 100, 200, 300, 400]


# -- what is waited for --------------------------------------------------------------------------


@pytest.fixture
def waiter() -> Any:
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        yield threads


def test_get_and_set_wait_for_the_jobs_that_use_the_array(
    gpu: gc.Session, daemon: FakeDaemon, saxpy: gc.Kernel, waiter: Any
) -> None:
    x, y, z = (gpu.zeros(4, np.float32) for _ in range(3))
    saxpy.submit(1, 32, (1.0, x, y, 4))
    saxpy.submit(1, 32, (1.0, x, None, 4))
    daemon.wait_for(wm.Submit, 2)
    z.get()  # used by none
    waits = [
        waiter.submit(x.get),
        waiter.submit(y.set, [1, 2, 3, 4]),
        waiter.submit(y.numpy),
    ]
    daemon.finish(1)
    waits[1].result(TIMEOUT_S)
    waits[2].result(TIMEOUT_S)
    assert not waits[0].done()
    daemon.finish(2)
    waits[0].result(TIMEOUT_S)


def test_get_waits_for_a_stream(
    gpu: gc.Session, daemon: FakeDaemon, saxpy: gc.Kernel, waiter: Any
) -> None:
    x, line = gpu.zeros(4, np.float32), gpu.stream()
    saxpy.submit(1, 32, (1.0, None, None, 4), stream=line)
    daemon.wait_for(wm.Submit)
    x.get()
    wait = waiter.submit(x.get, None, line)
    with pytest.raises(TimeoutError):
        wait.result(0.05)
    daemon.finish(1)
    wait.result(TIMEOUT_S)


def test_an_array_whose_address_is_known_waits_for_every_job(
    gpu: gc.Session, daemon: FakeDaemon, saxpy: gc.Kernel, waiter: Any
) -> None:
    x = gpu.zeros(4, np.float32)
    saxpy.submit(1, 32, (1.0, None, None, 4))
    daemon.wait_for(wm.Submit)
    x.get()
    assert x.ptr
    wait = waiter.submit(x.get)
    with pytest.raises(TimeoutError):
        wait.result(0.05)
    daemon.finish(1)
    wait.result(TIMEOUT_S)


def test_get_raises_a_failure_once_and_the_daemon_is_told(
    gpu: gc.Session, daemon: FakeDaemon, saxpy: gc.Kernel
) -> None:
    x = gpu.zeros(4, np.float32)
    job = saxpy.submit(1, 32, (1.0, x, None, 4))
    daemon.wait_for(wm.Submit)
    daemon.finish(1, "failed", gc.IllegalAddress(0))
    with pytest.raises(gc.IllegalAddress):
        x.get()
    x.get()
    with pytest.raises(gc.IllegalAddress):
        job.result()
    saxpy.submit(1, 32, (1.0, x, None, 4))
    assert daemon.wait_for(wm.StreamFailure) == wm.StreamFailure(0, 1)
    daemon.wait_for(wm.Submit, 2)
    kinds = [type(one) for one in daemon.received]
    assert kinds[-2:] == [wm.StreamFailure, wm.Submit], "before what is to run"


def test_many_jobs_are_not_remembered_but_the_latest(
    gpu: gc.Session, daemon: FakeDaemon, saxpy: gc.Kernel
) -> None:
    x = gpu.zeros(4, np.float32)
    for number in range(1, 301):
        job = saxpy.submit(1, 32, (1.0, x, None, 4))
        assert x._followed(None) == [job]
        daemon.wait_for(wm.Submit, number)
        daemon.finish(number)
        job.result(TIMEOUT_S)
    assert len(x._users.numbers) < 100


def test_lost(gpu: gc.Session, daemon: FakeDaemon) -> None:
    x = gpu.array([1, 2, 3])
    view = x.numpy()
    daemon.drop()
    until(lambda: not _works(gpu))
    with pytest.raises(gc.ConnectionLost, match="values are gone"):
        x.get()
    assert view.tolist() == [1, 2, 3]


def _works(gpu: gc.Session) -> bool:
    try:
        gpu.query("status")
    except gc.ConnectionLost:
        return False
    return True


# -- when memory is given back -------------------------------------------------------------------


def test_free(gpu: gc.Session, daemon: FakeDaemon) -> None:
    x = gpu.zeros(4)
    address = x.ptr
    x.free()
    x.free()
    for use in (x.get, lambda: x.set([0] * 4), x.numpy, lambda: x.ptr):
        with pytest.raises(ValueError, match="freed"):
            use()
    assert "freed" in repr(x)
    gpu.query("status")
    assert daemon.of(wm.Free) == [wm.Free(0, address)]


def test_dropping_an_array_frees_it(gpu: gc.Session, daemon: FakeDaemon, saxpy: gc.Kernel) -> None:
    daemon.finish_at_once = True
    saxpy.submit(1, 32, (1.0, None, None, 4)).result(TIMEOUT_S)  # there is a background thread
    x = gpu.zeros(4)
    del x
    assert daemon.wait_for(wm.Free).array == BASE


def test_a_view_keeps_the_memory(gpu: gc.Session, daemon: FakeDaemon) -> None:
    x = gpu.array([1, 2, 3, 4])
    part = x.numpy().reshape(2, 2)[1].view(np.uint64)
    x.free()
    del x
    garbage.collect()
    gpu.query("status")
    assert daemon.of(wm.Free) == []
    assert part.tolist() == [3, 4]
    del part
    gpu.query("status")
    assert len(daemon.of(wm.Free)) == 1


def test_a_launch_keeps_its_arrays(gpu: gc.Session, daemon: FakeDaemon, saxpy: gc.Kernel) -> None:
    launch = saxpy.call(1, 32, (1.0, gpu.zeros(4), None, 4))
    gpu.sequence([launch])
    gpu.query("status")
    assert daemon.of(wm.Free) == []
    del launch
    gpu.query("status")
    assert len(daemon.of(wm.Free)) == 1
    kinds = [type(message) for message in daemon.received]
    assert kinds.index(wm.Submit) < kinds.index(wm.Free)


def test_a_kept_sequence_does_not_leak(
    gpu: gc.Session, daemon: FakeDaemon, saxpy: gc.Kernel
) -> None:
    garbage.disable()
    try:
        launches = [saxpy.call(1, 32, (1.0, gpu.zeros(4), None, 4)) for _ in range(3)]
        gpu.sequence(launches)
        gpu.sequence(launches + launches)
        del launches
        gpu.query("status")
        assert len(daemon.of(wm.Free)) == 3
    finally:
        garbage.enable()


def test_values_outlive_the_session(daemon: FakeDaemon) -> None:
    with gc.connect(daemon.path) as gpu:
        x = gpu.array([1, 2, 3])
        view = x.numpy()
    assert view.tolist() == [1, 2, 3]
    with pytest.raises(gc.ConnectionLost, match="closed"):
        x.get()
    del view, x
    garbage.collect()


def test_an_array_that_nobody_waits_for_any_more_is_freed(
    gpu: gc.Session, daemon: FakeDaemon
) -> None:
    gpu.zeros(4)  # the arena is there
    held: list[wm.Allocate] = []
    daemon.answer[wm.Allocate] = held.append
    operation = gpu._new(4, np.float64, None)
    request: Any = next(operation)
    with gpu._channel._sending:
        gpu._channel._unsent += gpu._core.open_request(request)
        gpu._channel._push()
    request.abandon()
    daemon.wait_for(wm.Allocate, 2)
    daemon.send(wm.Allocated(held[0].request, BASE + 4096))
    gpu.query("status")
    gpu.query("status")
    assert wm.Free(0, BASE + 4096) in daemon.of(wm.Free)
