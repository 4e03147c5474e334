"""The messages of submissions, and the checks before anything is sent."""

from __future__ import annotations

import inspect
from fractions import Fraction
from typing import Any

import msgpack
import numpy as np
import pytest

import gpud_client as gc
from gpud.wire import messages as wm
from tests.support.fake_daemon import SAXPY, FakeDaemon, kernel

ARGS = (2.0, None, None, 7)


def sent(daemon: FakeDaemon, saxpy: gc.Kernel, **more: Any) -> wm.Submit:
    job = saxpy.submit(64, 256, ARGS, **more)
    found: wm.Submit = daemon.wait_for(wm.Submit, job._ref[1])
    return found


def test_the_submission(daemon: FakeDaemon, saxpy: gc.Kernel) -> None:
    job = saxpy.submit((4, 5), (16, 2, 2), ARGS, shared=1024)
    message = daemon.wait_for(wm.Submit)
    assert message[:2] == (1, 0)
    [[module, index, grid, block, shared, parameters]] = msgpack.unpackb(message.launches)
    assert (module, index, grid, block, shared) == (1, 0, [4, 5, 1], [16, 2, 2], 1024)
    assert parameters == saxpy._packer.pack(ARGS)[0]
    assert message[3:] == (None, None, 0, (), None, None, 1, False, None, True)
    assert job.id == "1.1"
    assert wm.CLIENT_PROTOCOL.check(message) == message


def test_jobs_are_numbered(daemon: FakeDaemon, saxpy: gc.Kernel) -> None:
    jobs = [saxpy.submit(1, 32, ARGS) for _ in range(5)]
    daemon.wait_for(wm.Submit, 5)
    assert [message.number for message in daemon.of(wm.Submit)] == [1, 2, 3, 4, 5]
    assert [job.id for job in jobs] == ["1.1", "1.2", "1.3", "1.4", "1.5"]


def test_shapes_are_measured_once(daemon: FakeDaemon, saxpy: gc.Kernel) -> None:
    for _ in range(3):
        saxpy.submit(1, 32, ARGS)
        saxpy.submit(1, 64, ARGS)
        saxpy.submit(1, 64, ARGS, shared=16)
    assert saxpy.occupancy(64) == 2
    assert saxpy.occupancy((64, 1), 16) == 2
    daemon.wait_for(wm.Submit, 9)
    shapes = [(message.block, message.shared) for message in daemon.of(wm.Measure)]
    assert shapes == [((32, 1, 1), 0), ((64, 1, 1), 0), ((64, 1, 1), 16)]


@pytest.mark.parametrize(
    ("share", "pair"),
    [(2, (2, 1)), (0.5, (1, 2)), (Fraction(7, 2), (7, 2)), ("25%", (1, 1)), ("3/4", (3, 4))],
)
def test_shares_are_exact(daemon: FakeDaemon, saxpy: gc.Kernel, share: gc.Share, pair: Any) -> None:
    assert sent(daemon, saxpy, quota=share).quota == pair
    assert sent(daemon, saxpy, quota=share).reservation is None
    assert sent(daemon, saxpy, reservation=share).reservation == pair


@pytest.mark.parametrize(
    ("more", "error", "words"),
    [
        ({"quota": 1, "reservation": 1}, ValueError, "not both"),
        ({"reservation": 5}, gc.AdmissionError, "4 SMs"),
        ({"reservation": "101%"}, gc.AdmissionError, "ask for less"),
        ({"reservation": "50"}, gc.AdmissionError, "or write .50%. for"),
        ({"quota": "50"}, gc.AdmissionError, "a quota of 50 is more .*, or write .50%. for"),
        ({"quota": "150%"}, gc.AdmissionError, "more than the 4 SMs"),
        ({"quota": 0.4}, gc.AdmissionError, "1/2 or more"),
        ({"quota": 0}, ValueError, "greater than 0"),
        ({"quota": -1}, ValueError, "greater than 0"),
        ({"quota": float("nan")}, ValueError, "finite"),
        ({"quota": "lots"}, ValueError, "number of SMs"),
        ({"quota": True}, TypeError, "share"),
        ({"quota": [1]}, TypeError, "share"),
        ({"reservation": Fraction(1, 3**60)}, ValueError, "too fine"),
        ({"timeout": 0}, ValueError, "timeout"),
        ({"timeout": -1}, ValueError, "timeout"),
        ({"timeout": float("inf")}, ValueError, "timeout"),
        ({"timeout": "1"}, TypeError, "timeout"),
        ({"deadline": 0.0}, ValueError, "deadline"),
        ({"deadline": 1e30}, ValueError, "deadline"),
        ({"weight": 0}, ValueError, "weight"),
        ({"weight": 1001}, ValueError, "weight"),
        ({"weight": 1.5}, ValueError, "weight"),
        ({"stream": 1}, TypeError, "gpu.stream"),
        ({"after": [5]}, TypeError, "jobs"),
        ({"after": 5}, TypeError, "list of jobs"),
        ({"device": 1}, ValueError, "no device 1"),
        ({"device": -1}, ValueError, "no device"),
        ({"device": "cpu"}, TypeError, "device"),
        ({"shared": -1}, gc.LaunchConfigError, "shared"),
        ({"shared": 1.5}, TypeError, "shared"),
    ],
)
def test_refused_before_anything_is_sent(
    daemon: FakeDaemon, saxpy: gc.Kernel, more: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        saxpy.submit(64, 256, ARGS, **more)
    sent(daemon, saxpy)
    assert len(daemon.of(wm.Submit)) == 1


@pytest.mark.parametrize(
    ("grid", "block", "error"),
    [
        (0, 32, ValueError),
        (-1, 32, ValueError),
        (1, (32, 0), ValueError),
        ((1, 2, 3, 4), 32, ValueError),
        ((), 32, ValueError),
        (1.5, 32, TypeError),
        ("1", 32, TypeError),
        (True, 32, TypeError),
        (np.array([2, 3]), 32, TypeError),
        (1, None, TypeError),
        (2**31, 32, ValueError),
        ((2**20, 2**12), 32, ValueError),
        ((1, 65536), 32, ValueError),
        ((1, 1, 65536), 32, ValueError),
    ],
)
def test_grids_and_blocks(
    saxpy: gc.Kernel, daemon: FakeDaemon, grid: Any, block: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"^(grid|block)"):
        saxpy.submit(grid, block, ARGS)
    assert daemon.of(wm.Measure) == []
    grid, block = np.int64(3), [4, 4]  # more than is promised
    launch = saxpy.call(grid, block, ARGS)
    assert (launch.grid, launch.block) == ((3, 1, 1), (4, 4, 1))
    assert saxpy.call((2, 65535), 32, ARGS).grid == (2, 65535, 1)


def test_a_block_that_does_not_fit(daemon: FakeDaemon, saxpy: gc.Kernel) -> None:
    error = gc.LaunchConfigError("block", (2048, 1, 1), "too many threads", limit=1024)
    daemon.answer[wm.Measure] = lambda message: daemon.fail(message, error)
    with pytest.raises(gc.LaunchConfigError, match="too many threads") as caught:
        saxpy.submit(1, 2048, ARGS)
    assert caught.value.limit == 1024


def test_a_kernel_that_runs_whole_needs_its_share(daemon: FakeDaemon, saxpy: gc.Kernel) -> None:
    daemon.form = "whole"
    shares: list[dict[str, Any]] = [{"quota": 1}, {"reservation": "3/2"}]
    for more in shares:
        with pytest.raises(gc.AdmissionError, match=r"form whole.* 5/2 SMs"):
            saxpy.submit(5, 32, ARGS, **more)
        with pytest.raises(gc.AdmissionError, match="form whole"):
            saxpy._session.sequence([saxpy.call(n, 32, ARGS) for n in (1, 5)], **more)
    assert daemon.of(wm.Submit) == []
    saxpy.submit(5, 32, ARGS, quota="5/2")
    saxpy.submit(5, 32, ARGS, reservation=2.5)
    saxpy.submit(2, 32, ARGS, quota=1)
    saxpy.submit(1000, 32, ARGS)  # more than fits: in waves, on the whole device
    daemon.wait_for(wm.Submit, 4)


def test_online_jobs_have_less_where_a_floor_is_kept() -> None:
    daemon = FakeDaemon(online_sms="7/2")
    try:
        with gc.connect(daemon.path) as gpu:
            saxpy = gpu.kernel("", "saxpy")
            assert sent(daemon, saxpy, reservation="7/2").reservation == (7, 2)
            with pytest.raises(gc.AdmissionError, match="7/2 SMs"):
                saxpy.submit(1, 32, ARGS, reservation=4)
            daemon.occupancy = 3
            with pytest.raises(gc.AdmissionError, match="11 blocks"):
                saxpy.submit(1, 64, ARGS, reservation="7/2")
    finally:
        daemon.close()


def test_order(daemon: FakeDaemon, gpu: gc.Session, saxpy: gc.Kernel) -> None:
    one, two = gpu.stream(), gpu.stream()
    first = saxpy.submit(1, 32, ARGS, stream=one)
    second = saxpy.submit(1, 32, ARGS, stream=two)
    message = sent(daemon, saxpy, after=[first, second], deadline=1.5, timeout=2, weight=7)
    assert message.after == ((1, 1), (1, 2))
    assert message[7:] == (1_500_000_000, 2_000_000_000, 7, False, None, True)
    streams = [message.stream for message in daemon.of(wm.Submit)]
    assert streams == [1, 2, 0]
    daemon.finish(1)
    first.result(timeout=20)
    assert sent(daemon, saxpy, after=(first, second)).after == ((1, 2),)


def test_what_is_of_another_session_is_refused(
    daemon: FakeDaemon, gpu: gc.Session, saxpy: gc.Kernel
) -> None:
    other = FakeDaemon()
    try:
        with gc.connect(other.path) as elsewhere:
            theirs = elsewhere.zeros(4)
            with pytest.raises(ValueError, match="another session"):
                saxpy.submit(1, 32, (1.0, theirs, None, 4))
            with pytest.raises(ValueError, match="another session"):
                saxpy.submit(1, 32, ARGS, stream=elsewhere.stream())
            job = elsewhere.kernel("", "saxpy").submit(1, 32, ARGS)
            with pytest.raises(ValueError, match="another daemon"):
                saxpy.submit(1, 32, ARGS, after=[job])
            with pytest.raises(ValueError, match="another session"):
                gpu.sequence([elsewhere.kernel("", "saxpy").call(1, 32, ARGS)])
    finally:
        other.close()
    assert daemon.of(wm.Submit) == []


def test_sequences(daemon: FakeDaemon, gpu: gc.Session) -> None:
    daemon.kernels = [kernel("saxpy", SAXPY), kernel("empty", [])]
    module = gpu.module("", ["saxpy", "empty"])
    x = gpu.zeros(4, np.float32)
    launches = [
        module.kernel("saxpy").call(3, 32, (1.0, x, x, 4)),
        module.kernel("empty").call((2, 2), 64),
        module.kernel("saxpy").call(1, 32, (2.0, x, x, 4)),
    ]
    job = gpu.sequence(launches, reservation=1)
    message = daemon.wait_for(wm.Submit)
    records = wm.CLIENT_PROTOCOL.decode_records(wm.LaunchRecord, message.launches)
    assert [record.kernel for record in records] == [0, 1, 0]
    assert records[1] == wm.LaunchRecord(1, 1, (2, 2, 1), (64, 1, 1), 0, b"")
    assert "3 kernels" in repr(job)
    gpu.sequence(iter(launches), after=iter([job]))
    again = daemon.wait_for(wm.Submit, 2)
    assert (again.launches, again.after) == (message.launches, (job._ref,))
    assert len(daemon.of(wm.Measure)) == 2
    gpu.sequence(launches[::-1])
    assert daemon.wait_for(wm.Submit, 3).launches != message.launches
    x.free()
    for sequence in (launches, launches[:1], launches[::-1]):
        with pytest.raises(ValueError, match="freed"):
            gpu.sequence(sequence)


def test_long_sequences(daemon: FakeDaemon, gpu: gc.Session, saxpy: gc.Kernel) -> None:
    gpu.sequence([saxpy.call(1, 32, ARGS)] * 100)
    message = daemon.wait_for(wm.Submit)
    assert len(wm.CLIENT_PROTOCOL.decode_records(wm.LaunchRecord, message.launches)) == 100


@pytest.mark.parametrize(
    ("launches", "error", "words"),
    [([], ValueError, "one launch"), ([5], TypeError, "kernel.call"), (5, TypeError, "list")],
)
def test_what_is_no_sequence(
    gpu: gc.Session, launches: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        gpu.sequence(launches)


def test_jobs_run_where_their_arrays_are() -> None:
    daemon = FakeDaemon(devices=2)
    try:
        with gc.connect(daemon.path) as gpu:
            saxpy = gpu.kernel("", "saxpy")
            here, there = gpu.zeros(4, np.float32), gpu.zeros(4, np.float32, device=1)
            assert saxpy.submit(1, 32, (1.0, here, None, 4)).device is gpu.devices[0]
            assert saxpy.submit(1, 32, (1.0, there, None, 4)).device is gpu.devices[1]
            assert saxpy.submit(1, 32, ARGS, device=gpu.devices[1]).device is gpu.devices[1]
            daemon.wait_for(wm.Submit, 3)
            assert [message.device for message in daemon.of(wm.Submit)] == [0, 1, 1]
            assert [message.device for message in daemon.of(wm.Compile)] == [0, 1]
            with pytest.raises(ValueError, match="one device"):
                saxpy.submit(1, 32, (1.0, here, there, 4))
            with pytest.raises(ValueError, match="device 1"):
                saxpy.submit(1, 32, (1.0, there, None, 4), device=0)
            launch = saxpy.call(1, 32, ARGS)
            assert gpu.sequence([launch], device=1).device is gpu.devices[1]
            assert gpu.sequence([launch]).device is gpu.devices[0]
    finally:
        daemon.close()


def test_what_can_be_killed_is_made_ready_before_the_first_job_with_a_timeout(
    daemon: FakeDaemon,
) -> None:
    for one in daemon.kernels:
        one["killable"] = one["name"] == "saxpy"
    with gc.connect(daemon.path) as gpu:
        module = gpu.module("text", names=("saxpy",))
        saxpy = module.kernel("saxpy")
        saxpy.submit(1, 32, ARGS)
        saxpy.submit(1, 32, ARGS, timeout=1, reservation=1)
        for _ in range(2):
            saxpy.submit(1, 32, ARGS, timeout=1)
            gpu.sequence([saxpy.call(1, 32, ARGS), saxpy.call(1, 64, ARGS)], timeout=1)
        daemon.wait_for(wm.Submit, 6)
    asked = [(message.block[0], message.killable) for message in daemon.of(wm.Measure)]
    assert asked == [(32, False), (32, True), (64, False), (64, True)]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("reservations", "no option 'reservations'; did you mean reservation"),
        ("qota", "did you mean quota"),
        ("shared_mem", "did you mean shared"),
        ("xyz", "there are reservation, quota, .* exclusive"),
    ],
)
def test_an_unknown_option_is_refused_by_name(
    daemon: FakeDaemon, saxpy: gc.Kernel, option: str, words: str
) -> None:
    wrong: dict[str, Any] = {option: 1}
    with pytest.raises(TypeError, match=words):
        saxpy.submit(1, 32, ARGS, **wrong)
    wrong = {"shared": 16}
    with pytest.raises(TypeError, match="no option 'shared'; give it to each launch"):
        saxpy._session.sequence([saxpy.call(1, 32, ARGS)], **wrong)
    assert daemon.of(wm.Submit) == []


def test_help_lists_the_options_of_a_submission() -> None:
    names = list(gc.SubmitOptions.__annotations__)
    assert names[:2] == ["reservation", "quota"]
    for method in (gc.Kernel.submit, gc.Session.sequence):
        parameters = inspect.signature(method).parameters
        assert [name for name in parameters if name in names] == names
        assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in names)
        assert parameters["weight"].default == 1
        text = inspect.getdoc(method) or ""
        assert [name for name in names if f"\n    {name}: " not in text] == []
        assert "**" not in text
