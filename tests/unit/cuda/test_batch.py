"""Launches that are queued together: as a graph, by native code, and with calls that fail."""

from __future__ import annotations

from typing import Any

import pytest

from gpud.device.cuda.device import CUDADevice
from gpud.device.cuda.driver.calls import Driver
from gpud.device.cuda.driver.native_calls import CommandTable, native_calls
from gpud.errors import DeviceLost
from tests.driver_model import Misuse, SteppedDriver
from tests.support.resizable_run import ResizableRun
from tests.unit.cuda.model_runs import device_of, drive, launches, ran_once
from tests.unit.cuda.test_driver_model import World

LONG = 37
"""Launches: two whole batches and a part of one."""


def run(fake: SteppedDriver, device: CUDADevice, sequence: Any, slices: int = 3) -> ResizableRun:
    job = ResizableRun(device, sequence)
    job.resize(slices)
    drive(fake, device, job)
    assert job.error is None
    assert job.complete
    return job


def prepared(fake: SteppedDriver, device: CUDADevice, what: str, total: int = 6) -> Any:
    """A sequence whose batches are armed."""
    sequence = device.prepare(launches(device, what, total=total))
    for _ in range(2):
        run(fake, device, sequence)
    fake.run()
    return sequence


def counts(device: CUDADevice) -> dict[str, int]:
    assert device.batches is not None
    return dict(device.batches.counts)


@pytest.mark.parametrize("path", ["graph", "native"])
def test_a_long_sequence_is_a_few_calls(path: str) -> None:
    fake = SteppedDriver(3)
    with device_of(fake, graphs=path == "graph") as device:
        sequence = prepared(fake, device, "p" * LONG)
        before, ran = len(fake.calls), len(fake.ran)
        run(fake, device, sequence)
        made = fake.calls[before:]
        assert len(fake.ran) - ran == 6 * LONG
        assert counts(device)[path] == 3
        if path == "graph":
            assert made.count("cuGraphLaunch") == 3
            assert "cuLaunchKernel" not in made
        else:
            assert made.count("cuLaunchKernel") == 2 * LONG - 1, "each but the first has a gate"
        assert made.count("cuEventRecord") == 4, "behind each batch, and the records armed again"
        ran_once(fake, [6] * 3 * LONG)


def test_one_launch_needs_no_graph() -> None:
    fake = SteppedDriver(3)
    with device_of(fake) as device:
        sequence = prepared(fake, device, "p")
        run(fake, device, sequence)
        assert counts(device)["native"] == 1
        assert "cuGraphInstantiate" not in fake.calls


def test_what_runs_once_is_not_prepared() -> None:
    fake = SteppedDriver(3)
    with device_of(fake) as device:
        run(fake, device, device.prepare(launches(device, "ppp")))
        assert counts(device) == {"one by one: not prepared": 1}
        assert "cuStreamBeginCapture" not in fake.calls


def test_why_launches_are_queued_one_by_one_is_counted() -> None:
    fake = SteppedDriver(3, sms=4)
    with device_of(fake) as device:
        sequence = prepared(fake, device, "ppp")
        run(fake, device, sequence, slices=2)  # another number of slices
        job = ResizableRun(device, sequence)
        job._run.clear([1])
        job.resize(3)
        drive(fake, device, job)
        own = ResizableRun(device, sequence, exclusive=1)
        own.resize(1)
        drive(fake, device, own)
        assert counts(device) == {
            "one by one: not prepared": 3,
            "one by one: barred SMs": 1,
            "one by one: a partition": 1,
        }
        ran_once(fake, [6] * 15)


def test_without_addresses_of_functions_everything_is_called_by_name() -> None:
    fake = SteppedDriver(3)
    fake.entry_points.cuGetProcAddress = lambda *_: (0, 1)  # type: ignore[method-assign]
    with device_of(fake) as device:
        assert device.batches is None
        prepared(fake, device, "ppp")


@pytest.mark.parametrize("path", ["graph", "native"])
@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_or_repeated_whatever_is_resized_when(seed: int, path: str) -> None:
    fake = SteppedDriver(seed, room=12)
    totals = []
    with device_of(fake, graphs=path == "graph") as device:
        sequence = prepared(fake, device, "p" * 19 + "s" + "p" * 3, total=5)
        totals += [5] * 23 * 2
        for _ in range(3):
            job = ResizableRun(device, sequence)
            job.resize(3)
            for _ in range(1500):
                if job.done:
                    break
                if fake.random.random() < 0.05:
                    job.resize(fake.random.choice((0, 1, 3, 3, 6)))
                fake.step()
                device.watcher.poll()
            job.resize(3)
            drive(fake, device, job)
            assert job.complete
            totals += [5] * 23
        assert counts(device)[path] >= 3
        ran_once(fake, totals)


def test_a_batch_is_released_and_its_rest_is_queued_anew() -> None:
    fake = SteppedDriver(4)
    with device_of(fake) as device:
        sequence = prepared(fake, device, "pppp", total=40)
        job = ResizableRun(device, sequence)
        job.resize(3)
        assert counts(device)["graph"] == 1
        while job.progress[1] < 50:
            fake.step()
            device.watcher.poll()
        job.resize(0)
        drive(fake, device, job)
        assert job.held == 0
        assert not job.done
        job.resize(3)
        drive(fake, device, job)
        ran_once(fake, [40] * 12)


def test_a_batch_does_not_begin_behind_a_launch_with_a_helper() -> None:
    """Its gate would stay closed, as nobody knows when the helper's writes are visible."""
    fake = SteppedDriver(4, room=8)
    with device_of(fake) as device:
        sequence = prepared(fake, device, "p" * 20, total=30)
        job = ResizableRun(device, sequence)
        job.resize(3)
        run: Any = job._run
        while run._tracker.on_device.current < 15:
            fake.step()
            device.watcher.poll()
        job.resize(6)
        job.resize(3)  # as prepared
        drive(fake, device, job)
        assert counts(device)["one by one: the run begins again"] == 1
        ran_once(fake, [30] * 60)


@pytest.mark.parametrize("path", ["graph", "native"])
@pytest.mark.parametrize(
    "function",
    ["cuGraphLaunch", "cuLaunchKernel", "cuMemcpyDtoHAsync", "cuEventRecord", "cuLaunchHostFunc"],
)
@pytest.mark.parametrize("nth", [1, 2, 4])
def test_whichever_native_call_fails_what_is_queued_is_known(
    function: str, nth: int, path: str
) -> None:
    fake = SteppedDriver(5)
    device = CUDADevice(driver=Driver(fake), graphs=path == "graph", watch=False)
    sequence = prepared(fake, device, "pppp", total=4)
    before = len(fake.ran)
    fake.fail(nth, "UNKNOWN_TO_US", function)
    job = ResizableRun(device, sequence)
    try:
        job.resize(3)
        drive(fake, device, job)
    except DeviceLost:
        assert function in ("cuEventRecord", "cuLaunchHostFunc")
        return
    fake.fail(0, "")
    done = len(fake.ran) - before
    if job.error is None:
        assert job.complete
        assert done == 16
    else:
        assert function in ("cuLaunchKernel", "cuEventRecord", "cuLaunchHostFunc")
        assert done <= 16
    if function == "cuGraphLaunch" and nth == 1 and path == "graph":
        assert counts(device)["native: the driver launches no graph"] == 1
    ran_before = len(fake.ran)
    run(fake, device, sequence)
    assert len(fake.ran) - ran_before == 16
    device.close()
    assert not +fake.alive, fake.alive


@pytest.mark.parametrize("function", ["cuStreamBeginCapture", "cuStreamEndCapture",
                                      "cuGraphInstantiate"])  # fmt: skip
def test_a_driver_that_makes_no_graph_is_called_by_native_code(function: str) -> None:
    fake = SteppedDriver(5)
    with device_of(fake) as device:
        fake.fail(1, "NOT_SUPPORTED", function)
        sequence = prepared(fake, device, "ppp")
        run(fake, device, sequence)
        assert counts(device)["native"] == 1
        if function == "cuStreamEndCapture":  # the model's stream would be captured for ever
            for stream in fake.streams.all:
                stream.captured = None


def test_a_context_that_is_lost_in_a_batch_is_a_lost_device() -> None:
    fake = SteppedDriver(5)
    device = CUDADevice(driver=Driver(fake), watch=False)
    sequence = prepared(fake, device, "ppp")
    fake.fail(1, "ILLEGAL_ADDRESS", "cuGraphLaunch")
    with pytest.raises(DeviceLost, match="cuGraphLaunch reports CUDA_ERROR_ILLEGAL_ADDRESS"):
        ResizableRun(device, sequence).resize(3)


def test_claims_that_change_make_batches_anew_after_some_runs() -> None:
    fake = SteppedDriver(5)
    with device_of(fake) as device:
        sequence = prepared(fake, device, "ppp")
        made = fake.calls.count("cuGraphInstantiate")
        sequence.tunings += 1
        for _ in range(15):
            run(fake, device, sequence)
        assert fake.calls.count("cuGraphInstantiate") == made
        for _ in range(2):
            run(fake, device, sequence)
        assert fake.calls.count("cuGraphInstantiate") == made + 1


def test_calls_are_made_in_order_and_none_after_one_that_fails() -> None:
    world = World()
    calls = native_calls(Driver(world.driver))
    assert calls is not None
    table = CommandTable()
    second = world.made("cuEventCreate", 2)
    for event in (world.event, second, world.event):
        table.record(event)
    world.driver.calls.clear()
    assert calls.make(table, world.stream) == (3, None)
    assert world.driver.calls == ["cuEventRecord"] * 3
    assert calls.make(table, world.stream, 1, 2) == (2, None)
    world.driver.fail(2, "NOT_PERMITTED", "cuEventRecord")
    made = calls.make(table, world.stream)
    assert (made.done, str(made.error)) == (1, "cuEventRecord failed: CUDA_ERROR_NOT_PERMITTED")
    world.driver.lose("LAUNCH_FAILED")
    assert isinstance(calls.make(table, world.stream).error, DeviceLost)


def test_a_misuse_by_native_code_is_raised_by_the_next_call() -> None:
    world = World()
    calls = native_calls(Driver(world.driver))
    assert calls is not None
    table = CommandTable()
    table.record(world.stream)
    assert isinstance(calls.make(table, world.stream).error, DeviceLost)
    with pytest.raises(Misuse, match="no event"):
        world.made("cuEventQuery", world.event)


def test_graphs_of_the_model_are_as_the_manual_has_them() -> None:
    world = World()
    fake = world.driver
    mode = fake.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL

    def graph() -> Any:
        world.made("cuStreamBeginCapture", world.stream, mode)
        assert world.launch() == "SUCCESS"
        made = world.made("cuStreamEndCapture", world.stream)
        executable = world.made("cuGraphInstantiate", made, 0)
        world.made("cuGraphDestroy", made)
        return executable

    executable = graph()
    other = world.made("cuStreamCreateWithPriority", 1, 0)
    for stream in (world.stream, other):
        world.made("cuGraphLaunch", executable, stream)
    for _ in range(3):
        fake.step()
        assert len(fake.launches) <= 1, "a graph's launches follow each other"
    fake.run()
    assert len(fake.ran) == 2
    world.made("cuStreamBeginCapture", world.stream, mode)
    with pytest.raises(Misuse, match="captured"):
        world.made("cuEventRecord", world.event, world.stream)
    world.made("cuStreamEndCapture", world.stream)
    world.made("cuModuleUnload", world.module)
    with pytest.raises(Misuse, match="unloaded"):
        world.made("cuGraphLaunch", executable, world.stream)
    world.made("cuGraphExecDestroy", executable)
    with pytest.raises(Misuse):
        world.made("cuGraphLaunch", executable, world.stream)
