"""Release paths in device memory: driver calls, and effects of late writes."""

from __future__ import annotations

import contextlib
import os

import pytest

from gpud.config import load
from gpud.device.cuda.device import CUDADevice
from gpud.device.cuda.driver.calls import Driver
from gpud.device.cuda.launch.release_path import RELEASE_PATHS
from gpud.device.host.__main__ import DeviceSettings, open_device
from gpud.device.spec import parse_device
from gpud.server.settings import host_arguments
from tests.driver_model import SteppedDriver
from tests.support.resizable_run import ResizableRun
from tests.unit.cuda.model_runs import device_of, drive, launches, ran_once

IN_DEVICE_MEMORY = [name for name, path in RELEASE_PATHS.items() if not path.at_once]


@pytest.mark.parametrize("release", RELEASE_PATHS)
def test_a_poll_copies_no_device_memory(release: str) -> None:
    fake = SteppedDriver(3)
    with device_of(fake, release) as device:
        job = ResizableRun(device, launches(device, "pppp", total=400))
        job.resize(4)
        fake.run(100)
        job.resize(2)
        fake.run(100)
        before = [name for name in fake.calls if name.startswith("cuMem")]
        device.watcher.poll()
        assert job.held < 4
        assert [name for name in fake.calls if name.startswith("cuMem")] == before
        drive(fake, device, job, rounds=20_000)
        ran_once(fake, [400] * 4)


@pytest.mark.parametrize("release", RELEASE_PATHS)
def test_the_configuration_selects_the_path(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = host_arguments(load(environ={"GPUD_RELEASE_PATH": release, "GPUD_CONFIG": os.devnull}))
    assert told[told.index("--release-path") + 1] == release
    monkeypatch.setattr("gpud.device.cuda.device.open_driver", lambda: Driver(SteppedDriver()))
    device = open_device(parse_device("cuda"), DeviceSettings(release_path=release))
    with contextlib.closing(device):
        assert isinstance(device, CUDADevice)
        assert device.launches.release.name == release


@pytest.mark.parametrize("release", IN_DEVICE_MEMORY)
def test_a_reused_record_shows_nothing_of_its_last_launch(release: str) -> None:
    fake = SteppedDriver(4)
    with device_of(fake, release) as device:
        sequence = device.prepare(launches(device, "p", total=6))
        for _ in range(3):  # each in the place of the one before, where no block is left
            job = ResizableRun(device, sequence)
            job.resize(3)
            device.watcher.poll()  # its record is on the way
            assert (job.held, job.exhausted, job.done) == (3, False, False)
            drive(fake, device, job)
            assert job.error is None


@pytest.mark.parametrize("release", IN_DEVICE_MEMORY)
def test_late_writes_are_harmless(release: str) -> None:
    fake = SteppedDriver(5)
    with device_of(fake, release) as device:
        stream = fake.streams.of(device.launches.release._stream)  # type: ignore[attr-defined]
        first, second = (ResizableRun(device, launches(device, what)) for what in ("pp", "p"))
        first.resize(4)
        while stream.queue:
            fake.step()
        first.resize(2)
        stream.busy = True  # so that blocks are told when all is over
        drive(fake, device, first)
        second.resize(2)
        fake.run(20)
        stream.busy = False
        drive(fake, device, second)
        assert second.error is None
        ran_once(fake, [10] * 3)
