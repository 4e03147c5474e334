"""The GPU monitor: reads on a thread, and tolerates every failure of NVML."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from gpud.errors import MissingDependency
from gpud.server.hosts.gpu_monitor import GpuMonitor
from gpud.telemetry.nvml import GPUState

STATE = GPUState(40, 7, 1 << 30, 80 << 30, 1980, 2619, 55, 123.5, None, 0)
WAIT_S = 30


class FakeTelemetry:
    """What `NvmlReader` would be; every reading waits for `gate`."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.readings = 0
        self.xids: list[int] = []
        self.closed = False
        self.error: Exception | None = None

    def read(self) -> GPUState:
        self.readings += 1
        assert self.gate.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        return STATE

    def xid_events(self) -> list[int]:
        found, self.xids = self.xids, []
        return found

    def close(self) -> None:
        self.closed = True


def monitor(connect: Callable[[str], Any], xids: list[int] | None = None) -> GpuMonitor:
    heard = [] if xids is None else xids
    return GpuMonitor(asyncio.get_running_loop(), "GPU-1", heard.append, connect)


async def read(one: GpuMonitor) -> None:
    one.poll()
    async with asyncio.timeout(WAIT_S):
        while one._reading:  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0)


async def test_what_was_read_last_is_shown_and_xids_are_told_once() -> None:
    told: list[int] = []
    nvml = FakeTelemetry()
    one = monitor(lambda gpu: nvml, told)
    assert set(one.metrics().values()) == {None}
    nvml.xids = [79, 31]
    await read(one)
    found = one.metrics()
    assert (found["gpu_utilisation_percent"], found["gpu_power_w"]) == (40, 123.5)
    assert (found["gpu_ecc_corrected"], found["gpu_last_xid"]) == (None, 31)
    await read(one)
    assert told == [79, 31]


async def test_a_reading_that_hangs_holds_up_nobody_and_is_not_doubled() -> None:
    nvml = FakeTelemetry()
    nvml.gate.clear()
    one = monitor(lambda gpu: nvml)
    for _ in range(5):
        one.poll()
    assert one.metrics()["gpu_temperature_c"] is None
    nvml.gate.set()
    await read(one)
    assert one.metrics()["gpu_temperature_c"] == 55
    assert nvml.readings == 1
    nvml.gate.clear()
    one.poll()
    one.close()
    nvml.gate.set()
    async with asyncio.timeout(WAIT_S):
        while not nvml.closed:  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0)


@pytest.mark.parametrize("error", [MissingDependency("NVML", extra="daemon"), OSError("no")])
async def test_without_nvml_nothing_is_known_and_nobody_asks_again(error: Exception) -> None:
    asked = []

    def connect(gpu: str) -> Any:
        asked.append(gpu)
        raise error

    one = monitor(connect)
    for _ in range(3):
        await read(one)
    assert asked == ["GPU-1"]
    assert set(one.metrics().values()) == {None}


async def test_what_fails_later_leaves_no_old_figures() -> None:
    nvml = FakeTelemetry()
    one = monitor(lambda gpu: nvml)
    await read(one)
    nvml.error = ZeroDivisionError("a bug")
    await read(one)
    assert set(one.metrics().values()) == {None}
