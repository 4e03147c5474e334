"""Runs with variants of kernels: folded gates, returned claims, chunk counts."""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from typing import Any

import pytest

from gpud.compiler.abi import control_words as cw
from gpud.config import load
from gpud.device.cuda.device import CUDADevice
from gpud.device.cuda.driver.calls import Driver
from gpud.device.cuda.execution.run import CUDARun
from gpud.device.cuda.launch.batch import LAUNCH_PATHS
from gpud.device.cuda.launch.gate import GATE
from gpud.device.cuda.launch.release_path import RELEASE_PATHS
from gpud.device.cuda.launch.run_records import CUDARunRecords
from gpud.device.cuda.program.give_back import has_returned
from gpud.device.cuda.program.variants import NAMES
from gpud.device.host.__main__ import DeviceSettings, open_device
from gpud.device.spec import parse_device
from gpud.errors import InternalError, InvalidArgument
from gpud.server.settings import host_arguments
from tests.driver_model import SteppedDriver
from tests.support.resizable_run import ResizableRun
from tests.unit.cuda.model_runs import device_of, drive, launches, ran_once

FOLDED, RETURNED = ("folded_gates",), ("returned_claims",)


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_lost_or_repeated_whatever_is_resized_when(seed: int) -> None:
    choose = random.Random(seed)
    fake = SteppedDriver(seed, room=choose.choice([1, 3, 64]))
    what = "".join(choose.choice("pppps") for _ in range(choose.choice([1, 4, 20])))
    total = choose.choice([12, 40])
    variants = [FOLDED, RETURNED, (*FOLDED, *RETURNED)][seed % 3]
    path, release = choose.choice(LAUNCH_PATHS), choose.choice(list(RELEASE_PATHS))
    with device_of(fake, release, launches=path, variants=variants) as device:
        sequence = device.prepare(launches(device, what, total=total))
        for _ in range(4):  # from the third on its launches are prepared
            fake.ran.clear()
            job = ResizableRun(device, sequence)
            seen, wild = (0, 0), choose.random() < 0.7
            job.resize(3)
            for _ in range(150 * wild):
                if job.done:
                    break
                fake.run(choose.randrange(8))
                device.watcher.poll()
                if choose.random() < 0.2:
                    job.resize(choose.choice([0, 0, 1, 2, 7, 30]))
                elif choose.random() < 0.02:
                    device.launches.halt()
                claimed, done, _ = job.progress
                assert claimed >= seen[0]
                assert seen[1] <= done <= claimed
                seen = claimed, done
            job.resize(3)
            drive(fake, device, job, rounds=20_000)
            assert job.error is None
            assert job.complete
            ran_once(fake, [total] * len(what))
            fake.run()
    assert fake.waits == []


def _records(job: ResizableRun) -> CUDARunRecords:
    """The records of a run on the device."""
    assert isinstance(job._run, CUDARun)
    return job._run._tracker.on_device


def counted(fake: SteppedDriver) -> Counter[str]:
    """How often each kernel is started from now on."""
    started: Counter[str] = Counter()
    start = fake.start

    def starting(launch: Any, over: Any) -> None:
        started[launch.function.name] += 1
        start(launch, over)

    fake.start = starting  # type: ignore[method-assign]
    return started


@pytest.mark.parametrize("path", LAUNCH_PATHS)
def test_launches_whose_blocks_open_them_have_no_gate(path: str) -> None:
    fake = SteppedDriver(3)
    with device_of(fake, launches=path, variants=FOLDED) as device:
        sequence = device.prepare(launches(device, "p" * 20))
        started = counted(fake)
        for _ in range(3):
            job = ResizableRun(device, sequence)
            job.resize(3)
            drive(fake, device, job)
            assert job.complete
        ran_once(fake, [10] * 60)
        assert started == {"persistent_a": 60}
        assert device.batches is None or device.batches.counts[path] == 2


def test_a_launch_that_was_stopped_before_the_next_is_begun_again_behind_gates() -> None:
    fake = SteppedDriver(5)
    with device_of(fake, variants=FOLDED) as device:
        sequence = device.prepare(launches(device, "p" * 20, total=30))
        started = counted(fake)
        for _ in range(3):
            fake.ran.clear()
            started.clear()
            job = ResizableRun(device, sequence)
            job.resize(3)
            fake.run(40)
            job.stop()
            drive(fake, device, job)
            assert 0 < len(fake.ran) < 30, "all launches behind it found it not done"
            assert started == {"persistent_a": 16}
            job.resize(3)
            drive(fake, device, job)
            ran_once(fake, [30] * 20)
            assert started == {"persistent_a": 16 + 20, GATE: 15}, "the last four are fresh"
            fake.run()
        assert device.batches is not None
        assert device.batches.counts["graph"] == 2


def test_a_released_block_leaves_without_running_what_it_has_claimed_in_advance() -> None:
    fake = SteppedDriver(6)
    with device_of(fake, variants=RETURNED) as device:
        job = ResizableRun(device, launches(device, "p", total=100))
        job.resize(4)
        fake.run(60)
        job.stop()
        drive(fake, device, job)
        claimed, done, _ = job.progress
        assert done == len(fake.ran)
        assert claimed - done >= 3, "each block had claimed one in advance"
        job.resize(4)
        drive(fake, device, job)
        ran_once(fake, [100])


def test_claims_that_blocks_take_with_them_are_found_lost() -> None:
    fake = SteppedDriver(7)
    with device_of(fake, variants=RETURNED) as device:
        job = ResizableRun(device, launches(device, "p", total=40))
        job.resize(2)
        fake.run(8)
        address = _records(job).job(0)
        while fake.u32(address + cw.NEXT) < 40:
            assert fake.step()
        for one in fake.launches:  # blocks die with what they hold
            one.resident.clear()
        drive(fake, device, rounds=50)
        assert isinstance(job.error, InternalError)
        assert "claimed and lost" in str(job.error)


def test_a_run_is_not_exhausted_while_claims_wait_that_halted_blocks_returned() -> None:
    fake = SteppedDriver(9)
    with device_of(fake, variants=RETURNED) as device:
        job = ResizableRun(device, launches(device, "p", total=40))
        job.resize(3)
        fake.run(8)
        records = _records(job)
        while fake.u32(records.job(0) + cw.NEXT) < 40:
            assert fake.step()
        device.launches.halt()
        while not has_returned(records.returned_head(0)):
            assert fake.step()
        device.watcher.poll()
        assert not job.exhausted
        drive(fake, device, job)
        ran_once(fake, [40])


def test_the_task_blocks_claimed_in_advance_depend_on_the_variant() -> None:
    for variants, ahead in (((), 0), (RETURNED, 1)):
        fake = SteppedDriver(8)
        with device_of(fake, variants=variants) as device:
            sequence = device.prepare(launches(device, "p", total=100))
            assert [*sequence._words[0, cw.CHUNK // 4 : cw.AHEAD // 4 + 1]] == [1, ahead]
            few = device.prepare(launches(device, "p", total=3))
            assert few._words[0, cw.AHEAD // 4] == 0


def test_an_unknown_variant_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"no variant 'magic'.* there are folded_gates"):
        CUDADevice(driver=Driver(SteppedDriver()), variants=["magic"])


@pytest.mark.parametrize("names", [("none",), NAMES, NAMES[1:]])
def test_the_configuration_selects_variants(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"GPUD_KERNEL_VARIANTS": ",".join(names), "GPUD_CONFIG": os.devnull}
    told = host_arguments(load(environ=environ))
    assert told[told.index("--kernel-variants") + 1] == ",".join(names)
    monkeypatch.setattr("gpud.device.cuda.device.open_driver", lambda: Driver(SteppedDriver()))
    wanted = tuple(name for name in names if name != "none")
    device = open_device(parse_device("cuda"), DeviceSettings(kernel_variants=wanted))
    with contextlib.closing(device):
        assert isinstance(device, CUDADevice)
        assert device.variants == tuple(name in names for name in NAMES)
