"""Runs on the CUDA device, against a model of the driver."""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import pytest

from gpud.compiler.abi import control_words as cw
from gpud.compiler.abi.fault_record import FaultKind
from gpud.device.cuda.device import CUDADevice
from gpud.device.cuda.driver.calls import Driver
from gpud.errors import DeviceLost, GpudError, IllegalAddress, InternalError, KernelTrap
from tests.driver_model import SteppedDriver
from tests.support.resizable_run import ResizableRun
from tests.unit.cuda.model_runs import device_of, drive, launches, ran_once


@pytest.mark.parametrize("what", ["p", "ppp", "s", "w", "e", "pspwpepp", "p" * 20])
def test_every_task_block_runs_once_and_stages_follow_each_other(what: str) -> None:
    fake = SteppedDriver(1)
    with device_of(fake) as device:
        job = ResizableRun(device, launches(device, what))
        assert job.progress == (0, 0, 10 * len(what))
        job.resize(3)
        drive(fake, device, job)
        assert job.error is None
        assert job.complete
        assert job.held == 0
        assert job.exhausted
        ran_once(fake, [10] * len(what))
    assert fake.waits == []


@pytest.mark.parametrize("seed", range(25))
def test_nothing_is_lost_or_repeated_whatever_is_resized_when(seed: int) -> None:
    choose = random.Random(seed)
    fake = SteppedDriver(seed, room=choose.choice([1, 3, 64]))
    what = "".join(choose.choice("pppsw") for _ in range(choose.choice([1, 4, 30])))
    with device_of(fake) as device:
        job = ResizableRun(device, launches(device, what, total=12))
        seen = (0, 0)
        job.resize(choose.randrange(1, 5))
        for _ in range(200):
            if job.done:
                break
            fake.run(choose.randrange(8))
            device.watcher.poll()
            if choose.random() < 0.3:
                job.resize(choose.choice([0, 0, 1, 2, 7, 30]))
            claimed, done, _ = job.progress
            assert claimed >= seen[0]
            assert done >= seen[1]
            assert done <= claimed
            seen = claimed, done
        job.resize(2)
        drive(fake, device, job, rounds=20_000)
        assert job.error is None
        assert job.complete
        ran_once(fake, [12] * len(what))
    assert fake.waits == []


def test_a_stopped_job_keeps_what_is_left_and_holds_nothing() -> None:
    fake = SteppedDriver(2)
    with device_of(fake) as device:
        left: list[int] = []
        job = ResizableRun(
            device, launches(device, "pp", total=50), on_left=lambda job: left.append(job.held)
        )
        job.resize(4)
        fake.run(30)
        job.stop()
        drive(fake, device, job)
        assert not job.done
        assert job.held == 0
        assert left
        claimed, done, _ = job.progress
        assert claimed == done == len(fake.ran) < 100
        job.resize(4)
        drive(fake, device, job)
        ran_once(fake, [50, 50])


def test_a_running_job_grows_and_reports_its_slices() -> None:
    fake = SteppedDriver(3)
    with device_of(fake) as device:
        job = ResizableRun(device, launches(device, "p", total=1000))
        job.resize(2)
        fake.run(20)
        assert (fake.resident, job.held) == (2, 2)
        job.resize(6)
        fake.run(40)
        assert (fake.resident, job.held) == (6, 6)
        job.resize(1)
        assert job.held == 6
        fake.run(200)
        device.watcher.poll()
        assert (fake.resident, job.held) == (1, 1)
        assert job.release_ns > 0
        assert not job.exhausted
        job.resize(3)
        drive(fake, device, job, rounds=20_000)
        ran_once(fake, [1000])


def test_urgent_runs_have_the_streams_of_the_highest_priority() -> None:
    fake = SteppedDriver(4)
    with device_of(fake) as device:
        sequence = device.prepare(launches(device, "p"))
        device.launches.streams._streams.clear()  # the prepared ones
        before = len(fake.streams.all)
        assert before > 1
        for priority in (0, 1):
            job = ResizableRun(device, sequence, priority=priority)
            job.resize(1)
            drive(fake, device, job)
        made = fake.streams.all[before:]
        assert [stream.priority for stream in made] == [0, -5]


def test_launches_of_several_occupancies_have_their_share_of_blocks() -> None:
    fake = SteppedDriver(5)
    with device_of(fake) as device:
        specs = launches(device, "pp", total=100)
        sequence = device.prepare(
            [specs[0]._replace(occupancy=4), specs[1]._replace(occupancy=6)], 2
        )
        assert sequence.occupancy == 2
        assert (sequence.blocks(0, 3), sequence.blocks(1, 3)) == (6, 9)
        assert (sequence.slices_of(0, 5), sequence.slices_of(1, 7)) == (3, 3)
        assert sequence.later_slices(0, 50) == 34
        with pytest.raises(ValueError, match="M of a job"):
            device.prepare(specs, 3)


@pytest.mark.parametrize("form", ["p", "s"])
def test_a_fault_ends_the_run_and_is_reported(form: str) -> None:
    fake = SteppedDriver(6)
    kernel = {"p": "persistent_a", "s": "sliced_c"}[form]
    fake.faults[kernel, 4] = FaultKind.ADDRESS
    with device_of(fake) as device:
        job = ResizableRun(device, launches(device, form + "e"))
        job.resize(2)
        drive(fake, device, job)
        assert isinstance(job.error, IllegalAddress)
        assert job.error.address == 0xDEAD00
        assert job.error.task_block == (4, 0, 0)
        assert job.error.launch == 0
        assert not job.complete
        assert "plain_e" not in {name for name, _, _ in fake.ran}


def test_a_trap_says_so() -> None:
    fake = SteppedDriver(7)
    fake.faults["persistent_a", 0] = FaultKind.TRAP
    with device_of(fake) as device:
        job = ResizableRun(device, launches(device, "p"))
        job.resize(1)
        drive(fake, device, job)
        assert isinstance(job.error, KernelTrap)


def test_ended_jobs_run_nothing_more() -> None:
    fake = SteppedDriver(8)
    with device_of(fake) as device:
        ended: list[ResizableRun] = []
        never = ResizableRun(device, launches(device, "p"), on_done=ended.append)
        never.end()
        assert ended == [never]
        assert never.progress == (0, 0, 10)
        job = ResizableRun(device, launches(device, "pp", total=100), on_done=ended.append)
        job.resize(3)
        fake.run(40)
        job.end()
        assert not job.done
        drive(fake, device, job)
        assert ended == [never, job]
        assert not job.complete
        assert job.error is None
        count = len(fake.ran)
        job.resize(5)
        drive(fake, device)
        assert len(fake.ran) == count


def test_a_job_that_grows_again_and_again_has_few_streams() -> None:
    fake = SteppedDriver(14)
    with device_of(fake) as device:
        job = ResizableRun(device, launches(device, "p", total=1500))
        before = fake.alive["stream"]
        for slices in range(1, 26):
            job.resize(slices)
            fake.run(60)
            device.watcher.poll()
        assert fake.resident == job.held == 25
        assert fake.alive["stream"] - before <= 9  # a released helper's, and those of the others
        job.resize(3)
        fake.run(200)
        device.watcher.poll()
        assert fake.resident == 3
        job.resize(20)
        drive(fake, device, job, rounds=40_000)
        ran_once(fake, [1500])


@pytest.mark.parametrize("seed", [2, 5, 19, 32])
def test_a_helper_waits_for_the_job_records_of_its_run(seed: int) -> None:
    fake = SteppedDriver(seed)
    with device_of(fake) as device:
        sequence = launches(device, "pp", total=12)
        before = ResizableRun(device, sequence)
        before.resize(1)
        fake.run(7)
        before.resize(0)
        drive(fake, device)
        before.end()  # its records are left with task blocks to claim
        assert before.progress[0] < 12
        fake.ran.clear()
        job = ResizableRun(device, sequence)
        job.resize(1)
        job.resize(4)
        drive(fake, device, job)
        ran_once(fake, [12, 12])


def test_kill_sets_the_kill_words() -> None:
    fake = SteppedDriver(9)
    with device_of(fake) as device:
        job = ResizableRun(device, launches(device, "pp", total=100))
        job.resize(2)
        fake.run(30)
        job.kill()
        assert "cuStreamWriteValue32" in fake.calls
        drive(fake, device, job)
        assert not job.complete
        assert len(fake.ran) < 100


def test_runs_of_one_sequence_at_once_do_not_disturb_each_other() -> None:
    fake = SteppedDriver(10)
    with device_of(fake) as device:
        sequence = device.prepare(launches(device, "pp"))
        jobs = [ResizableRun(device, sequence) for _ in range(3)]
        for job in jobs:
            job.resize(2)
        for job in jobs:
            drive(fake, device, job)
        assert all(job.complete for job in jobs)
        assert len(fake.ran) == 60


def test_a_lost_context_fails_every_run() -> None:
    fake = SteppedDriver(11)
    device = CUDADevice(driver=Driver(fake), watch=False)
    ended: list[ResizableRun] = []
    jobs = [ResizableRun(device, launches(device, "p"), on_done=ended.append) for _ in range(2)]
    for job in jobs:
        job.resize(1)
    fake.lose("ILLEGAL_ADDRESS")
    device.watcher.poll()
    assert all(isinstance(job.error, DeviceLost) for job in jobs)
    assert ended == jobs
    with pytest.raises(DeviceLost, match="ILLEGAL_ADDRESS"):
        ResizableRun(device, jobs[0].sequence).resize(1)


def test_vanished_blocks_are_an_internal_error() -> None:
    fake = SteppedDriver(12)
    with device_of(fake) as device:
        job = ResizableRun(device, launches(device, "p"))
        job.resize(2)
        fake.run(12)
        for launch in fake.launches:
            launch.resident.clear()
        drive(fake, device, job)
        assert isinstance(job.error, InternalError) or job.complete


def resizing(fake: SteppedDriver, job_device: tuple[ResizableRun, object]) -> None:
    """A run with a growth, a release and a stop."""
    job, device = job_device
    for slices in (2, 5, 1, 0, 3):
        job.resize(slices)
        fake.run(25)
        device.watcher.poll()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("status", "stride"), [("OUT_OF_MEMORY", 1), ("LAUNCH_FAILED", 3)])
def test_whichever_call_fails_the_run_ends_and_nothing_is_left(status: str, stride: int) -> None:
    failed = lost = 0
    for nth in range(1, 400, stride):
        fake = SteppedDriver(nth)
        try:
            with device_of(fake) as device:
                job = ResizableRun(device, launches(device, "pspp"))
                before = len(fake.calls)
                fake.fail(nth, status)
                resizing(fake, (job, device))
                drive(fake, device, job)
                over = fake.counted < nth
                if job.error is not None:
                    failed += 1
                    assert status != "LAUNCH_FAILED" or isinstance(job.error, DeviceLost)
                assert job.complete or job.error is not None
                assert len(fake.calls) > before
        except DeviceLost:
            lost += 1
            over = False
        if over:
            break
    else:
        pytest.fail("there is no end to it")
    assert failed + lost > 5


def test_a_launch_that_cannot_begin_holds_nothing() -> None:
    fake = SteppedDriver(13)
    with device_of(fake) as device:
        job = ResizableRun(device, launches(device, "p"))
        fake.fail(1, "INVALID_VALUE", "cuLaunchKernel")
        job.resize(1)
        assert job.done
        with pytest.raises(GpudError, match="cuLaunchKernel failed"):
            job.result(0)
        assert not device.watcher.busy


def test_a_poll_copies_no_device_memory() -> None:
    fake = SteppedDriver(3)
    with device_of(fake) as device:
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


@pytest.mark.parametrize("what", ["p", "s", "w", "e", "sp"])
def test_the_first_task_block_is_seen_when_it_begins(what: str) -> None:
    fake = SteppedDriver(2)
    with device_of(fake) as device:
        job = ResizableRun(device, launches(device, what))
        job.resize(1)
        device.watcher.poll()
        assert job.first_block_ns == 0
        while not job.first_block_ns:
            assert fake.step()
            device.watcher.poll()
        assert job.done == (what == "e")  # a plain launch reports only its end
        begun = job.first_block_ns
        drive(fake, device, job)
        assert job.first_block_ns == begun


def test_blocks_released_before_a_claim_are_not_the_first_block() -> None:
    fake = SteppedDriver(2)
    with device_of(fake) as device:
        job = ResizableRun(device, launches(device, "p"))
        job.resize(1)
        job.end()
        drive(fake, device, job)
        assert job.progress[0] == 0
        assert job.first_block_ns == 0


def test_late_writes_do_not_reach_another_run() -> None:
    fake = SteppedDriver(2)
    with device_of(fake) as device:
        control = fake.streams.of(device.control_stream)
        sequence = device.prepare(launches(device, "p", total=40))
        first, second = (ResizableRun(device, sequence) for _ in range(2))
        first.resize(2)
        fake.run(20)
        control.busy = True
        run: Any = first._run
        at = run._tracker.on_device.job(0)
        first.kill()
        drive(fake, device, first)
        second.resize(2)
        run = second._run
        assert run._tracker.on_device.job(0) == at
        fake.run(20)
        control.busy = False
        while not second.progress[1]:
            assert fake.step()
        while control.queue:
            fake.step()
        assert not fake.u32(at + cw.KILL), "it is killed in place of the other"
        drive(fake, device, second)


def test_a_stage_shrinks_before_its_gate_has_opened_it() -> None:
    fake = SteppedDriver(2)
    with device_of(fake) as device:
        job = ResizableRun(device, launches(device, "sp", total=8))
        job.resize(8)
        while "gpud_gate" not in {launch.name for launch in fake.launches}:
            fake.step()
            device.watcher.poll()
        job.resize(2)
        (launch,) = device.launches._active
        assert (launch.number, launch.limit) == (1, 2)
        drive(fake, device, job)
        ran_once(fake, [8, 8])


@pytest.mark.parametrize("ended", [False, True])
def test_a_finished_job_has_no_reference_cycle(*, ended: bool) -> None:
    fake = SteppedDriver(2)
    with device_of(fake) as device:
        gc.disable()  # reference cycles would stay
        try:
            job = ResizableRun(device, launches(device, "ppsw"))
            job.resize(2)
            fake.run(20)
            if ended:
                job.end()
            drive(fake, device, job)
            seen = weakref.ref(job._run)
            del job
            assert seen() is None
        finally:
            gc.enable()


@pytest.mark.parametrize("pace", [1e3, 1e6])
def test_the_end_of_a_long_stage_wakes_the_watcher(pace: float) -> None:
    fake = SteppedDriver(2)
    with device_of(fake) as device:
        short = launches(device, "p" * 40)
        first = short[0]._replace(kernel=short[0].kernel.module.kernel("persistent_b"))
        for spec, its in ((first, pace), (short[0], 1e3)):
            spec.kernel.block_ns[spec.block] = its
        job = ResizableRun(device, [first, *short[1:]])
        job.resize(2)
        device.watcher.semaphore.wait(0)
        while len(fake.ran) < 20:
            fake.step()
        assert device.watcher.semaphore.wait(0) == (pace > 1e3)
        drive(fake, device, job)
        ran_once(fake, [10] * 40)
