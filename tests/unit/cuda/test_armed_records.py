"""Records that are initialised at the end of one run for the next."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from gpud.compiler.abi import control_words as cw
from gpud.device.cuda.device import CUDADevice
from tests.driver_model import SteppedDriver
from tests.support.resizable_run import ResizableRun
from tests.unit.cuda.model_runs import device_of, drive, launches, ran_once


def began(device: CUDADevice, sequence: Any) -> ResizableRun:
    job = ResizableRun(device, sequence)
    job.resize(3)
    return job


def block_of(job: ResizableRun) -> int:
    run: Any = job._run
    address: int = run._tracker.on_device.job(0)
    return address


def test_the_next_run_begins_without_a_copy() -> None:
    fake = SteppedDriver(1)
    with device_of(fake) as device:
        sequence = device.prepare(launches(device, "pp", total=20))
        places = set()
        for _ in range(3):
            job = began(device, sequence)
            places.add(block_of(job))
            drive(fake, device, job)
            fake.run()  # the copy for the next
        assert len(places) == 1
        before = len(fake.calls)
        job = began(device, sequence)
        beginning = fake.calls[before:]
        assert "cuMemcpyHtoDAsync" not in beginning
        assert "cuStreamWaitEvent" not in beginning
        assert beginning.count("cuGraphLaunch") == 1, "two launches and a gate"
        drive(fake, device, job)
        ran_once(fake, [20] * 8)
        assert "cuMemcpyDtoH" not in fake.calls[before:], "nobody waits for the job record"


def test_a_run_waits_for_a_copy_that_is_under_way() -> None:
    fake = SteppedDriver(1)
    with device_of(fake) as device:
        sequence = device.prepare(launches(device, "p", total=20))
        for _ in range(10):
            job = began(device, sequence)
            drive(fake, device, job)  # ends before the copy for the next
        ran_once(fake, [20] * 10)


def test_runs_at_once_have_records_of_their_own() -> None:
    fake = SteppedDriver(5)
    with device_of(fake) as device:
        sequence = device.prepare(launches(device, "pp", total=20))
        for _ in range(3):
            jobs = [began(device, sequence) for _ in range(7)]
            assert len(set(map(block_of, jobs))) == 7
            for job in jobs:
                drive(fake, device, job)
                assert job.progress == (40, 40, 40)
        kept = device._run_context.resources.armed._kept[sequence]
        assert len(kept) == 4


def test_memory_of_a_sequence_that_is_gone_is_reused_after_its_copy() -> None:
    fake = SteppedDriver(1)
    with device_of(fake) as device:
        sequence = device.prepare(launches(device, "p", total=20))
        job = began(device, sequence)
        place, image = block_of(job), sequence.image
        drive(fake, device, job)
        ready = device._run_context.resources.armed._kept[sequence][0].ready
        assert not device.driver.is_over(ready)
        gone = weakref.ref(sequence)
        del job, sequence
        gc.collect()
        assert gone() is None
        other = device.prepare(launches(device, "p", total=30))
        second = began(device, other)
        assert block_of(second) != place, "the copy is under way"
        assert other.image != image
        drive(fake, device, second)
        fake.run()
        third = device.prepare(launches(device, "p", total=40))
        jobs = [began(device, third) for _ in range(2)]
        assert place in map(block_of, jobs)
        for job in jobs:
            drive(fake, device, job)
        counts = [claim for _, _, claim in fake.ran]
        assert sorted(counts) == sorted([*range(20), *range(30), *range(40), *range(40)])


@pytest.mark.parametrize("function", ["cuMemcpyHtoDAsync", "cuEventRecord", "cuStreamWaitEvent"])
def test_records_that_cannot_be_armed_are_returned(function: str) -> None:
    fake = SteppedDriver(1)
    with device_of(fake) as device:
        sequence = device.prepare(launches(device, "p", total=20))
        job = began(device, sequence)
        while fake.launches or not job.progress[1]:
            assert fake.step()
        fake.fail(1, "UNKNOWN_TO_US", function)
        drive(fake, device, job)
        fake.fail(0, "")
        assert job.error is None
        drive(fake, device, began(device, sequence))
        ran_once(fake, [20] * 2)


@pytest.mark.parametrize("seed", range(6))
def test_the_copied_job_record_is_the_last_one(seed: int) -> None:
    """Whatever is resized, and whoever helps, nothing is lost or run again."""
    fake = SteppedDriver(seed)
    with device_of(fake) as device:
        sequence = device.prepare(launches(device, "pspp" + "p" * 18, total=12))
        for _ in range(2):
            count = len(fake.ran)
            job = ResizableRun(device, sequence)
            for _ in range(3000):
                if job.done:
                    break
                if fake.random.random() < 0.08:
                    job.resize(fake.random.choice((0, 1, 2, 5, 8)))
                fake.step()
                device.watcher.poll()
            job.resize(4)
            drive(fake, device, job)
            assert job.error is None
            assert job.complete
            claims = [claim for _, _, claim in fake.ran[count:]]
            assert sorted(claims) == sorted([*range(12)] * 22)


def test_the_page_has_the_words_of_the_device() -> None:
    fake = SteppedDriver(2)
    with device_of(fake) as device:
        job = began(device, device.prepare(launches(device, "pp", total=20)))
        run: Any = job._run
        records = run._tracker.on_device
        while fake.launches or not job.progress[1]:
            assert fake.step()
        fake.run()
        assert records._copied
        for number in range(2):
            assert records.final_record(number) == records.record(number)
            assert records.final_record(number)[cw.DONE] == 20
        drive(fake, device, job)
