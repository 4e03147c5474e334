"""The tests and measurements for a GPU, in short on the CUDA device over the model of the driver.

The model runs kernels on the CPU device, which checks accesses in its own way: no bounds checks and
no faults here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bench.gpu import release_latency, resize
from bench.gpu.instrumentation import driver
from bench.gpu.instrumentation.driver import Gpu
from gpud.compiler.abi.control_words import Claims
from gpud.device.cpu.device import CPUDevice
from gpud.units import Partitions
from tests.conformance.runner import LoadedCase
from tests.conformance.stress import stress
from tests.conformance.suite import differences_between, find
from tests.driver_model import CPUDriver
from tests.gpu.device_arrays import OnDevice
from tests.gpu.native_device import run_native
from tests.gpu.test_bench_timestamps import cpu_clock
from tests.gpu.test_conformance import check, results
from tests.gpu.test_partitions import alone_on_its_sms

pytestmark = pytest.mark.ci

CASES = ("saxpy", "lookback_scan", "generations")


@pytest.fixture(scope="module")
def fake() -> Iterator[CPUDriver]:
    with CPUDevice(2) as cpu:
        yield CPUDriver(cpu)


@pytest.fixture
def gpu(fake: CPUDriver, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    monkeypatch.setattr(driver, "bindings", lambda: fake)
    monkeypatch.setattr(driver, "missing", lambda: "")
    return Gpu()


@pytest.fixture
def cuda(fake: CPUDriver) -> Iterator[Any]:
    device = pytest.importorskip("gpud.device.cuda.device", reason="there is no CUDA device yet")
    calls = pytest.importorskip("gpud.device.cuda.driver.calls")
    with device.CUDADevice(0, driver=calls.Driver(fake)) as one:
        yield one


def test_cases_are_as_their_plain_launches(gpu: Gpu, cuda: Any, fake: CPUDriver) -> None:
    device: Any = OnDevice(cuda, size=1 << 20)
    before = len(fake.calls)
    results(device, find("print_all"), "unmodified")
    assert "cuCtxSynchronize" in fake.calls[before:], "else what is printed is kept back"
    for name in CASES:
        case = find(name)
        native = run_native(gpu, case)
        for form in ("unmodified", "persistent", "sliced"):
            if form in case.forms:
                run, found = results(device, case, form)
                check(case, run, found)
                if case.deterministic:
                    assert differences_between(native, found) == [], (name, form)


def test_a_grid_meets_in_a_cooperative_launch(fake: CPUDriver, cuda: Any) -> None:
    device: Any = OnDevice(cuda, size=1 << 20)
    case = find("grid_workspace")
    before = fake.calls.count("cuLaunchCooperativeKernel")
    run, found = results(device, case, "whole")
    check(case, run, found)
    assert fake.calls.count("cuLaunchCooperativeKernel") == before + 1


def test_resizes_lose_nothing(gpu: Gpu, cuda: Any) -> None:
    device: Any = OnDevice(cuda, size=1 << 20)
    loaded = [
        LoadedCase(device, find(name), "persistent", claims=claims)
        for name, claims in zip(CASES[:2], (Claims(3, 2), Claims(1, 1)), strict=True)
    ]
    report = stress(device, loaded, 60, seed=3)
    assert report.problems == []


def test_release_and_steps_are_measured(gpu: Gpu, cuda: Any) -> None:
    for threads in (1024, 256):
        row = release_latency.measure(
            cuda, "x", 200.0, "persistent", cpu_clock, 1, scale=0.3, threads=threads
        )
        assert len(row.first) == 1
        assert len(row.whole_sms) == len(row.gone)
    found = resize.measure(cuda, cpu_clock, 0.02, 500.0, 0.01)
    assert found["lost"] == 0


def test_a_partition_is_one_jobs_alone(gpu: Gpu, cuda: Any) -> None:
    assert cuda.partitions == Partitions(1, 2)
    alone_on_its_sms(cuda, 1)
