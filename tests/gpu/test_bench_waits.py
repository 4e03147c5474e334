"""Detecting which calls wait for a kernel, over the model of the driver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.gpu import waits
from bench.gpu.instrumentation import driver
from bench.gpu.instrumentation.busy_kernel import BusyKernel
from bench.gpu.instrumentation.driver import DriverError, Gpu, check
from gpud.device.cpu.device import CPUDevice
from tests.driver_model import CPUDriver

PATIENT_S = 60.0


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    with CPUDevice(3) as device:
        made = CPUDriver(device)
        # As on compute capability 7.5.
        made.contexts.attributes["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"] = 64 << 10
        monkeypatch.setattr(driver, "bindings", lambda: made)
        monkeypatch.setattr(driver, "missing", lambda: "")
        yield Gpu()


def test_a_call_that_returns_while_the_kernel_runs_does_not_wait(gpu: Gpu) -> None:
    busy = BusyKernel(gpu, PATIENT_S)
    found = busy.run_beside(lambda: check(gpu.cu.cuMemAlloc(64)))
    assert not found["waits"]
    assert found["us"] > 0
    cases = waits.launches(busy)
    for name in ("a launch", "a launch, a third stream behind", "much shared memory"):
        assert not busy.run_beside(**{**cases[name], "blocks": 1})["waits"], name
    assert waits.streams_at_once(busy, 2) == 2


def test_a_call_that_returns_when_the_kernel_is_over_waits(gpu: Gpu) -> None:
    found = waits.calls(BusyKernel(gpu, 0.05))
    assert found["cuMemFree"]["waits"]
    assert found["cuMemFreeHost"]["waits"]
    assert {"cuMemHostAlloc", "cuModuleUnload", "cuStreamDestroy", "cuGreenCtxDestroy"} <= {*found}
    assert not [name for name, one in found.items() if "error" in one]


def test_a_call_that_fails_says_so(gpu: Gpu) -> None:
    def fail() -> None:
        raise DriverError("no")

    assert BusyKernel(gpu, PATIENT_S).run_beside(fail)["error"] == "no"


def test_a_read_of_a_word_takes_time(gpu: Gpu) -> None:
    found = waits.looks(BusyKernel(gpu, PATIENT_S), 20)
    assert len(found) == 4
    found |= waits.leaves(BusyKernel(gpu, PATIENT_S))
    assert all(took > 0 for took in found.values())
