"""Detecting which calls wait for a kernel, over the model of the driver."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import (
    load_beside,
    machine,
    random_resizes,
    record,
    region_moves,
    resize,
    shares,
    waits,
)
from bench.gpu.instrumentation import driver
from bench.gpu.instrumentation.busy_kernel import BusyKernel
from bench.gpu.instrumentation.calls_beside import calls
from bench.gpu.instrumentation.driver import DriverError, Gpu, check
from gpud.device.cpu.device import CPUDevice
from gpud.device.cuda.driver.calls import Driver
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
    found = calls(BusyKernel(gpu, 0.05))
    assert found["cuMemFree"]["waits"]
    assert found["cuMemFreeHost"]["waits"]
    assert not found["cuStreamBeginCapture to cuGraphInstantiate"]["waits"]
    assert {"cuMemHostAlloc", "cuMemHostUnregister", "cuStreamDestroy", "cuGreenCtxDestroy"} <= {
        *found
    }
    assert not [name for name, one in found.items() if "error" in one]


def test_a_call_that_fails_says_so(gpu: Gpu) -> None:
    def fail() -> None:
        raise DriverError("no")

    assert BusyKernel(gpu, PATIENT_S).run_beside(fail)["error"] == "no"


def test_a_busy_kernel_can_be_everywhere(gpu: Gpu) -> None:
    busy = BusyKernel(gpu, PATIENT_S)
    begun = []
    for busy.everywhere in (False, True):
        assert not busy.run_beside(lambda: begun.append(busy.begun()))["waits"]
    assert begun == [1, busy.capacity(1024)]


def test_stores_of_the_host_are_seen(gpu: Gpu) -> None:
    found = waits.sight(BusyKernel(gpu, PATIENT_S), 5)
    assert found["count"] == 5
    assert found["p50"] > 0


def test_loads_beside_a_kernel(gpu: Gpu) -> None:
    busy = BusyKernel(gpu, PATIENT_S)
    for load in load_beside.LOADS:
        for full in load_beside.FULL:
            found = load_beside.beside(busy, load, full)
            assert not found["waits"]
            assert found["other_call_us"] > 0


def test_the_machine_is_described_and_warmed_up(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(record, "missing", lambda: "")
    monkeypatch.setenv("GPUD_WARM_UP_S", "0.01")
    assert machine.main() == 0
    (path,) = tmp_path.iterdir()
    found = json.loads(path.read_text())
    assert found["warm_up_s"] >= 0.01
    assert found["nvrtc_is_newer"] is False
    gpu.cu.contexts.version = 11000
    assert machine.main() == 1
    assert "refuses: install NVRTC of that version" in capsys.readouterr().err


class Measures(Exception):
    """A benchmark begins to measure."""


@pytest.mark.parametrize("bench", [resize, shares, random_resizes])
def test_clocks_are_up_before_anything_is_measured(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, bench: Any
) -> None:
    def measure(*_: object, **__: object) -> None:
        raise Measures(gpu.cu.modules.launched["warm"])

    monkeypatch.setattr(record, "missing", lambda: "")
    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["bench"])
    monkeypatch.setattr("gpud.device.cuda.device.open_driver", lambda: Driver(gpu.cu))
    monkeypatch.setenv("GPUD_WARM_UP_S", "0.01")
    with pytest.raises(Measures) as found:
        bench.main()
    assert found.value.args[0] >= 1


def test_a_read_of_a_word_takes_time(gpu: Gpu) -> None:
    found = waits.looks(BusyKernel(gpu, PATIENT_S), 20)
    assert len(found) == 4
    found |= waits.leaves(BusyKernel(gpu, PATIENT_S))
    assert all(took > 0 for took in found.values())


def test_moves_are_measured_beside_a_copy_and_leave_nothing(gpu: Gpu) -> None:
    before = dict(gpu.cu.alive)
    found = region_moves.measured(gpu, 5 << 20, 2)
    assert found["bytes"] == 5 << 20
    assert min(found.values()) > 0
    assert found["leave_of_copy"] == pytest.approx(found["leave_gb_s"] / found["copy_out_gb_s"])
    assert {name: n for name, n in gpu.cu.alive.items() if n} == before
