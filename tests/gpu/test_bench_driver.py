"""The benchmarks' driver wrapper and sides, over the model that runs kernels on the CPU device."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.gpu import colocation_process, rewrite_cost
from bench.gpu.colocation import measured_sizes
from bench.gpu.instrumentation import driver
from bench.gpu.instrumentation.bare_launch import Arrays, Persistent, loaded
from bench.gpu.instrumentation.clock_sync import GpuClock
from bench.gpu.instrumentation.driver import DriverError, Gpu
from bench.gpu.record import keep
from bench.gpu.workloads.colocation_work import Offline, Online, Sized
from bench.gpu.workloads.programs import PROGRAMS, OneProgram
from gpud.compiler.abi.control_words import ONE_AT_A_TIME, Claims
from gpud.device.cpu.device import CPUDevice
from gpud.device.cuda.device import CUDADevice
from gpud.device.cuda.driver.calls import Driver
from tests.conformance.suite import find, mismatches
from tests.driver_model import CPUDriver
from tests.gpu.native_device import run_native

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def device() -> Iterator[CPUDevice]:
    with CPUDevice(2) as one:
        yield one


@pytest.fixture
def fake(device: CPUDevice, monkeypatch: pytest.MonkeyPatch) -> CPUDriver:
    made = CPUDriver(device)
    monkeypatch.setattr(driver, "bindings", lambda: made)
    monkeypatch.setattr(driver, "missing", lambda: "")
    return made


@pytest.fixture
def gpu(fake: CPUDriver) -> Gpu:
    return Gpu()


@pytest.fixture
def cuda(fake: CPUDriver) -> Iterator[CUDADevice]:
    with CUDADevice(0, driver=Driver(fake)) as one:
        yield one


def tiny(name: str) -> OneProgram:
    program = next(one for one in PROGRAMS if one.name == name)
    return replace(program, make=lambda _: program.make(True))


def test_a_gpu_is_described(gpu: Gpu, tmp_path: Path) -> None:
    found = gpu.describe()
    assert found["gpu"] == "Fake GPU"
    assert (found["sms"], found["compute_capability"], found["cuda"]) == (2, 9.0, "13.0")
    assert keep("x", gpu, {}, tmp_path).exists()
    assert (gpu.lowest_priority, gpu.highest_priority) == (0, -5)


def test_memory_is_copied_and_given_back(gpu: Gpu, fake: CPUDriver) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    buffer = gpu.buffer(values)
    assert np.array_equal(buffer.get(), values)
    words = gpu.host_words(4)
    assert words.words.tolist() == [0, 0, 0, 0]
    del buffer, words
    gc.collect()
    assert not fake.alive["device"] + fake.alive["host"]


def test_costs_are_measured_on_all_sides(gpu: Gpu, cuda: CUDADevice, fake: CPUDriver) -> None:
    row = rewrite_cost.measure(gpu, cuda, tiny("softmax"), 2, ONE_AT_A_TIME)
    assert row.native_us.median > 0
    assert list(row.sides) == list(rewrite_cost.SIDES[:-1])
    assert all(side.median > 0 for side in row.sides.values())
    assert fake.modules.launched.total() > 5 * 2 * rewrite_cost.LEAST_BATCH
    assert "-" in rewrite_cost.line(row).split()


def test_claims_of_one_are_a_side_of_their_own(gpu: Gpu, cuda: CUDADevice) -> None:
    row = rewrite_cost.measure(gpu, cuda, tiny("copy"), 1, Claims(4, 2))
    assert list(row.sides) == list(rewrite_cost.SIDES)
    assert row.plain()["claims"] == [4, 2]
    assert "-" not in rewrite_cost.line(row).split()


def test_other_bytes_are_noticed(
    gpu: Gpu, cuda: CUDADevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = Persistent.launch

    def twice(self: Persistent, number: int, stream: object) -> None:
        launch(self, number, stream)
        self.function.gpu.synchronise()
        self.words.reset()

    monkeypatch.setattr(Persistent, "launch", twice)
    with pytest.raises(rewrite_cost.DifferentBytesError, match="ran 0 of"):
        rewrite_cost.measure(gpu, cuda, tiny("copy"), 1)


@pytest.mark.parametrize("own", [False, True])
def test_a_batch_of_persistent_launches_runs_every_task_block(
    gpu: Gpu, cuda: CUDADevice, own: bool
) -> None:
    program = tiny("triad")
    arrays = Arrays(gpu, program.make(True))
    kernel, stream = loaded(cuda, program, bounds_checks=True), gpu.stream()
    form = Persistent(gpu, kernel, program, arrays, 3, own=own)
    for _ in range(2):
        form.prepare()
        for number in range(3):
            form.launch(number, stream)
        gpu.synchronise(stream)
        assert form.words.done() == [arrays.launch.grid[0]] * 3


@pytest.mark.parametrize("name", ["saxpy", "no_parameters", "generations"])
def test_cases_run_natively(gpu: Gpu, name: str) -> None:
    case = find(name)
    found = run_native(gpu, case)
    assert mismatches(case, case.arguments(0), found) == []


def test_the_clocks_are_compared(gpu: Gpu) -> None:
    clock = GpuClock(gpu)
    samples = clock.samples(20)
    assert len(samples) == 20
    assert all(one.before <= one.after for one in samples)
    expected = time.time_ns() - time.perf_counter_ns()
    assert abs(clock().ns - expected) < 10e9


def test_sizes_are_measured(gpu: Gpu) -> None:
    sizes = measured_sizes(gpu, [Online("x", (300.0, 300.0))], [Offline("y", 1.0, 2)])
    first, second = sizes.online["x"]
    assert first == second
    assert sizes.request_s["x"] == pytest.approx(6e-4)
    assert sizes.offline["y"].blocks == 2 * 2 * 8


def test_both_native_sides_serve(gpu: Gpu) -> None:
    task: dict[str, Any] = {
        "online": [Sized(4, 50).plain()] * 2, "offline": Sized(8, 200).plain(), "batch": 2,
    }  # fmt: skip
    online, offline = colocation_process.sides(task)
    assert online is not None
    assert offline is not None
    offline.warm_up()
    online.warm_up()
    began = time.monotonic()
    latencies = online.serve([0.0, 0.001, 0.02], began)
    assert len(latencies) == 3
    assert min(latencies) > 0
    done = offline.run(time.monotonic(), time.monotonic() + 0.05)
    assert done
    assert {kernels for _, kernels in done} == {2}


def test_a_refused_program_says_why(
    gpu: Gpu, fake: CPUDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.fail(1, "INVALID_PTX", "cuModuleLoadData")
    with pytest.raises(DriverError, match="INVALID_PTX"):
        gpu.load(".version 8.0\n.target sm_75\n.address_size 64\n")
