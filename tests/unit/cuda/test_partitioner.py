"""Partitions, and SMs that are cleared, against a model of the driver."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from cuda.bindings.driver import CUresult

from gpud.compiler.toolchain.ptxas import assemble, find_ptxas
from gpud.device.cuda.device import CUDADevice
from gpud.device.cuda.placement import partitioner
from gpud.device.interface import LaunchSpec
from gpud.errors import InvalidArgument
from gpud.units import Partitions
from tests.driver_model import SteppedDriver
from tests.support.resizable_run import ResizableRun
from tests.unit.cuda.model_runs import PROGRAM, device_of, drive, launches

ROOM = 16
"""Four blocks on each of four SMs, twice the model's occupancy."""


def look_at(fake: SteppedDriver, device: CUDADevice, steps: int) -> None:
    """Let some time pass."""
    for _ in range(steps):
        fake.step()
        device.watcher.poll()


def online_launch(device: CUDADevice, total: int = 12) -> list[LaunchSpec]:
    kernel = device.load(PROGRAM).kernel("persistent_b")
    return [LaunchSpec(kernel, "persistent", (total, 1, 1), (32, 1, 1), bytes(8))] * 2


def ran_of(fake: SteppedDriver, name: str) -> Counter[int]:
    return Counter(claim for kernel, _, claim in fake.ran if kernel == name)


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")
@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_100"])
def test_the_probe_assembles(arch: str) -> None:
    assert assemble(partitioner.PTX, arch)[partitioner.PROBE].spill_bytes == 0


@pytest.mark.parametrize(
    ("sms", "unit", "most"), [(4, 1, 4), (10, 2, 10), (13, 4, 12), (132, 8, 128), (1, 1, 1)]
)
def test_the_sms_of_each_unit_are_found(sms: int, unit: int, most: int) -> None:
    fake = SteppedDriver(sms, room=4 * sms, sms=sms, unit=unit)
    with device_of(fake) as device:
        assert device.partitions == Partitions(unit, most)
        for number in range(most // unit):
            place = device.partitioner.take(unit)
            assert place.sms == unit
            assert place.numbers == set(fake.green.units[number * unit : (number + 1) * unit])
        device.partitioner.make()
        rest = device.partitioner.rest
        assert (0 if rest is None else rest.sms) == sms - most


@pytest.mark.parametrize("function", ["cuEventCreate", "cuEventRecord"])
def test_without_events_on_green_streams_there_are_no_partitions(function: str) -> None:
    fake = SteppedDriver()
    fake.fail(1, "INVALID_HANDLE", function)
    with device_of(fake) as device:
        assert device.partitions.step == 0
        assert f"{function} failed: CUDA_ERROR_INVALID_HANDLE" in device.partitions.why
        job = ResizableRun(device, launches(device, "p"))
        job.resize(2)
        drive(fake, device, job)


def test_an_event_that_does_not_follow_a_green_stream_is_noticed() -> None:
    fake = SteppedDriver()
    fake.__dict__["cuEventQuery"] = lambda _: (CUresult.CUDA_ERROR_NOT_READY,)
    with device_of(fake) as device:
        del fake.__dict__["cuEventQuery"]
        assert "do not follow streams of green contexts" in device.partitions.why


def test_a_partition_is_given_up_whatever_the_driver_says() -> None:
    fake = SteppedDriver(1)
    with device_of(fake) as device:
        first, second = device.partitioner.take(1), device.partitioner.take(1)
        device.partitioner.make(second)
        before = device.partitioner.rest
        fake.fail(1, "OUT_OF_MEMORY", "cuGreenCtxCreate")
        device._give_partition(first)
        device.watcher.run_deferred()
        assert fake.counted == 1
        assert device.partitioner.numbers == second.numbers
        assert device.partitioner.rest is before, (
            "it keeps others from the second, and from the first"
        )
        fake.fail(0, "")
        device.partitioner.give(second)
        device.partitioner.give(second)
        assert device.partitioner.rest is None
        assert device.partitioner.numbers == set()


def test_a_place_is_made_once() -> None:
    fake = SteppedDriver(1)
    with device_of(fake) as device:
        first = device.partitioner.take(2)
        device.partitioner.make(first)
        rest = device.partitioner.rest
        device.partitioner.give(first)
        made = fake.calls.count("cuGreenCtxCreate")
        assert device.partitioner.take(2) is first
        assert device.partitioner.rest is rest
        device.partitioner.make(first)
        assert fake.calls.count("cuGreenCtxCreate") == made
        device.partitioner.take(1)
        assert device.partitioner.rest is None, "what was the rest has SMs of the second"
        assert device.partitioner.numbers == set(fake.green.units[:3])


@pytest.mark.parametrize(
    ("fake", "why"),
    [
        (SteppedDriver(3, sms=4, unit=8), "no fewer than 8"),
        (SteppedDriver(3, sms=300), "256 can be named"),
        (SteppedDriver(3, version=12040), "CUDA 12.5, and the driver is for 12.4"),
        (SteppedDriver(3, reported_sms={0: 1}), "green contexts have cannot be determined: "),
        (SteppedDriver(3, reported_sms={0: 300}), "cannot be determined: of 2 the probe saw 2"),
    ],
)
def test_unsupported_partitions_are_explained(fake: SteppedDriver, why: str) -> None:
    with device_of(fake) as device:
        assert device.partitions.step == 0
        assert re.search(why, device.partitions.why)
        with pytest.raises(InvalidArgument, match="one job's alone"):
            ResizableRun(device, launches(device, "p"), exclusive=1)
        job = ResizableRun(device, launches(device, "p"))
        job.resize(1)
        drive(fake, device, job)


def test_an_impossible_size_is_refused_and_takes_nothing() -> None:
    fake = SteppedDriver(2, sms=8, unit=2)
    with device_of(fake) as device:
        what = launches(device, "p")
        with pytest.raises(InvalidArgument, match="multiples of 2 here, up to 8, not 3"):
            ResizableRun(device, what, exclusive=3)
        held = ResizableRun(device, what, exclusive=6)
        with pytest.raises(InvalidArgument, match="of 8 that can be, 2 are no other"):
            ResizableRun(device, what, exclusive=4)
        held.end()
        assert device.partitioner.numbers == set()


@pytest.mark.parametrize(
    ("function", "nth"),
    [("cuGreenCtxCreate", 1), ("cuGreenCtxCreate", 2)]
    + [("cuGreenCtxStreamCreate", nth) for nth in (1, 8, 9)],
)
def test_a_context_that_cannot_be_made_is_that_jobs_error(function: str, nth: int) -> None:
    fake = SteppedDriver(2)
    with device_of(fake) as device:
        fake.fail(nth, "OUT_OF_MEMORY", function)
        refused = ResizableRun(device, launches(device, "p"), exclusive=2)
        refused.resize(2)
        assert isinstance(refused.error, InvalidArgument)
        assert "OUT_OF_MEMORY" in str(refused.error)
        assert device.partitioner.numbers == set()
        again = ResizableRun(device, launches(device, "p"), exclusive=2)
        again.resize(2)
        drive(fake, device, again)
        assert again.complete


class Slow(SteppedDriver):
    """Calls a function while a context is made."""

    def __init__(self) -> None:
        super().__init__(3, room=ROOM)
        self.occupancy = 4
        self.happens: Callable[[], None] = lambda: None

    def before(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "cuGreenCtxCreate":
            self.happens()


def test_others_run_while_contexts_are_made() -> None:
    fake = Slow()
    with device_of(fake) as device:
        before = ResizableRun(device, launches(device, "p", total=700))
        before.resize(8)
        look_at(fake, device, 60)
        started: list[tuple[int, bool]] = []  # on how many SMs

        def happens() -> None:
            assert not device.lock._is_owned()  # type: ignore[attr-defined]
            here = len(fake.ran)
            other = ResizableRun(device, launches(device, "p", total=20))
            other.resize(8)
            drive(fake, device, other)
            ran = zip(fake.ran[here:], fake.where[here:], strict=True)
            where = {sm for (_, record, _), sm in ran if record != fake.ran[0][1]}
            assert where.isdisjoint(device.partitioner.numbers), "its SMs are left alone"
            started.append((len(where), other.complete))

        fake.happens = happens
        online = ResizableRun(device, online_launch(device), priority=1, exclusive=1)
        assert started == [(3, True), (3, True)], "as the partition was made, and the rest"
        assert online.held == 0
        fake.happens = lambda: None
        online.resize(4)
        for job in (online, before):
            drive(fake, device, job, rounds=20_000)
        assert ran_of(fake, "persistent_a")[0] == 3
        assert online.complete


@pytest.mark.parametrize("seed", range(5))
def test_others_leave_a_partition_and_come_back_after_it(seed: int) -> None:
    fake = SteppedDriver(seed, room=ROOM)
    fake.occupancy = 4
    with device_of(fake) as device:
        offline = ResizableRun(device, launches(device, "p", total=700))
        offline.resize(16)
        look_at(fake, device, 60)
        assert fake.on_sms("persistent_a").total() == 16
        online = ResizableRun(device, online_launch(device), priority=1, exclusive=2)
        offline.resize(8)
        online.resize(8)
        partition = device.partitioner.numbers
        there = sum(fake.on_sms("persistent_a")[sm] for sm in partition)
        before = len(fake.ran)
        for _ in range(3000):
            look_at(fake, device, 1)
            assert offline.held <= 16
            if online.done:
                break
        assert online.complete
        late = [
            (kernel, sm)
            for (kernel, _, _), sm in zip(fake.ran[before:], fake.where[before:], strict=True)
        ]
        assert {sm for kernel, sm in late if kernel == "persistent_b"} <= partition
        assert len([sm for kernel, sm in late if kernel == "persistent_a" and sm in partition]) <= (
            there
        ), "a block stayed there for more than the task block that it had"
        assert device.partitioner.numbers == set()
        look_at(fake, device, 100)
        assert fake.on_sms("persistent_a").total() == 8, "all of its share, on the other SMs"
        offline.resize(16)
        look_at(fake, device, 100)
        assert fake.on_sms("persistent_a").total() == 16
        drive(fake, device, offline, rounds=20_000)
        assert ran_of(fake, "persistent_a") == Counter(range(700))
        assert ran_of(fake, "persistent_b") == Counter(dict.fromkeys(range(12), 2))
    assert fake.waits == []


@pytest.mark.parametrize("seed", range(25))
def test_nothing_is_lost_whatever_is_cleared_and_taken_when(seed: int) -> None:
    choose = random.Random(seed)
    fake = SteppedDriver(seed, room=choose.choice([4, 8, 64]))
    fake.occupancy = 1
    what = "".join(choose.choice("pppsw") for _ in range(choose.choice([1, 4, 30])))
    with device_of(fake) as device:
        assert device.partitions.step
        offline = ResizableRun(device, launches(device, what, total=12))
        offline.resize(choose.randrange(1, 5))
        online: list[ResizableRun] = []
        seen = (0, 0)
        for _ in range(150):
            fake.run(choose.randrange(8))
            device.watcher.poll()
            online = [job for job in online if not job.done]
            taken = len(device.partitioner.numbers)
            match choose.choice("rrtcce"):
                case "r":
                    offline.resize(choose.randrange(5 - taken))
                case "t" if taken < 3:
                    job = ResizableRun(device, online_launch(device, 3), exclusive=1, priority=1)
                    job.resize(1)
                    online.append(job)
                case "c":
                    offline.clear(choose.sample(range(4), choose.randrange(4)))
                case "e" if online:
                    online[0].end()
            claimed, done, _ = offline.progress
            assert claimed >= seen[0]
            assert done >= seen[1]
            assert done <= claimed
            assert claimed == offline.total or not offline.exhausted
            seen = claimed, done
        offline.clear(())
        for job in online:
            drive(fake, device, job, rounds=20_000)
        offline.resize(2)
        drive(fake, device, offline, rounds=40_000)
        assert offline.error is None
        assert offline.complete
        claims = [claim for kernel, _, claim in fake.ran if kernel[-1] in "acd"]
        of_launches = [sorted(claims[at : at + 12]) for at in range(0, len(claims), 12)]
        assert of_launches == [list(range(12))] * len(what), "one launch after the other"
    assert fake.waits == []


def test_a_job_does_not_grow_while_sms_are_cleared_and_then_it_does() -> None:
    fake = SteppedDriver(7, room=ROOM)
    fake.occupancy = 4
    with device_of(fake) as device:
        job = ResizableRun(device, launches(device, "p", total=900))
        job.resize(16)
        look_at(fake, device, 60)
        with pytest.raises(ValueError, match="can be named"):
            job.clear([256])
        job.clear([0, 2])
        look_at(fake, device, 200)
        assert set(fake.on_sms()) == {1, 3}
        assert (job.slices, job.held) == (16, 8)
        job.resize(4)
        look_at(fake, device, 200)
        assert job.held <= 4
        job.clear(())
        job.resize(12)
        look_at(fake, device, 200)
        assert fake.on_sms().total() == job.held == 12
        assert not job.exhausted
        job.clear(range(4))
        look_at(fake, device, 200)
        assert job.held == 0
        assert not job.done
        job.clear(())
        drive(fake, device, job, rounds=40_000)
        assert ran_of(fake, "persistent_a") == Counter(range(900))


def test_blocks_of_other_forms_stay_to_their_end() -> None:
    fake = SteppedDriver(5, room=ROOM)
    fake.occupancy = 4
    with device_of(fake) as device:
        offline = ResizableRun(device, launches(device, "w", total=16))
        offline.resize(16)
        look_at(fake, device, 10)
        online = ResizableRun(device, online_launch(device), exclusive=1, priority=1)
        online.resize(4)
        drive(fake, device, online)
        drive(fake, device, offline)
        assert ran_of(fake, "whole_d") == Counter(range(16))
        fake.calls.clear()
        alone = ResizableRun(device, launches(device, "w", total=8), exclusive=2)
        wide = ResizableRun(device, launches(device, "w", total=12), exclusive=2)
        for job in (alone, wide):
            job.resize(8)
            drive(fake, device, job)
        assert fake.calls.count("cuLaunchCooperativeKernel") == 1, "12 are more than its SMs hold"
