"""Memory mappings change only while no kernel of the session runs, on a model of the driver."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from gpud.device.cuda.device import CUDADevice
from gpud.device.cuda.driver.calls import Driver, DriverError
from gpud.device.cuda.memory import quiescer
from gpud.device.cuda.memory.arena import CUDAArena
from gpud.device.interface import LaunchSpec
from gpud.errors import InvalidArgument, OutOfMemory
from tests.driver_model import SteppedDriver
from tests.support.resizable_run import ResizableRun
from tests.unit.cuda.model_runs import PROGRAM, device_of, drive

GRANULE = 1 << 16
SIZE = 16 * GRANULE
MINE, OTHERS = "persistent_a", "persistent_b"
_KERNELS = {"p": MINE, "s": "sliced_c", "w": "whole_d"}
_FORMS = {"p": "persistent", "s": "sliced", "w": "whole"}


class Strict(SteppedDriver):
    """Asserts that no kernel of the session at ``at`` is on an SM while its memory is unmapped."""

    at = 0

    def before(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "cuMemUnmap" and self.at <= arguments[0] < self.at + SIZE:
            for kernel in _KERNELS.values():
                assert not self.on_sms(kernel), f"{kernel} could be at {arguments[0]:#x}"


class World:
    """A session with an arena that has a hole, and kernels that access it."""

    def __init__(self, fake: Strict, device: CUDADevice, memfd: int) -> None:
        self.fake, self.device, self.memfd = fake, device, memfd
        self.arena = device.map_arena(memfd, SIZE)
        fake.at = self.arena.address
        self.arena.commit(6 * GRANULE, GRANULE)  # the sink backs the hole in front
        module = device.load(PROGRAM, (self.arena.address, SIZE))
        other = device.load(PROGRAM, (1 << 60, SIZE))
        self.kernels = {name: module.kernel(name) for name in _KERNELS.values()}
        self.kernels[OTHERS] = other.kernel(OTHERS)
        device.quiescer.clock = lambda: 0.0  # however slow the machine is
        self.slept = 0
        device.quiescer.sleep = self.sleep

    def sleep(self, seconds: float) -> None:
        """Step time, instead of the device's sleep."""
        self.slept += 1
        self.passes(seconds)

    def passes(self, _: float) -> None:
        """Step time a little."""
        self.fake.run(3)
        self.device.watcher.poll()

    def job(
        self, what: str = "p", total: int = 200, name: str = "", priority: int = 0
    ) -> ResizableRun:
        made = [
            LaunchSpec(
                self.kernels[name or _KERNELS[letter]], _FORMS[letter],  # type: ignore[arg-type]
                (total, 1, 1), (32, 1, 1), bytes(8),
            )
            for letter in what
        ]  # fmt: skip
        return ResizableRun(self.device, made, priority=priority)

    def started(self, *jobs: ResizableRun, slices: int = 2) -> None:
        for job in jobs:
            job.resize(slices)
        for _ in range(20):
            self.passes(0)

    def ran(self, name: str) -> Counter[int]:
        return Counter(claim for kernel, _, claim in self.fake.ran if kernel == name)

    def another(self) -> CUDAArena:
        """A run of another session."""
        return self.device.map_arena(self.memfd, SIZE)


@pytest.fixture
def world() -> Iterator[World]:
    memfd = os.memfd_create("arena")
    os.ftruncate(memfd, SIZE)
    fake = Strict(5)
    with device_of(fake) as device:
        made = World(fake, device, memfd)
        yield made
        fake.fail(0, "")
        made.arena.close()
    os.close(memfd)


def test_an_array_replaces_the_sink_while_its_session_is_quiesced(world: World) -> None:
    mine, other = world.job("pp"), world.job(name=OTHERS)
    world.started(mine, other)
    before = len(world.fake.ran)
    assert world.fake.on_sms(MINE)
    assert world.fake.on_sms(OTHERS)
    world.arena.commit(2 * GRANULE, GRANULE)
    assert {name for name, _, _ in world.fake.ran[before:]} >= {OTHERS}, "others went on"
    assert (mine.slices, mine.held) == (2, 2), "it has begun again, with what it was given"
    drive(world.fake, world.device, mine)
    drive(world.fake, world.device, other)
    assert world.ran(MINE) == Counter(dict.fromkeys(range(200), 2))
    assert world.ran(OTHERS) == Counter(range(200))


def test_spare_memory_is_reclaimed_from_a_quiesced_session(
    world: World,
) -> None:
    mine = world.job()
    world.started(mine)
    world.arena.release(6 * GRANULE, GRANULE)
    other = world.another()
    before = world.fake.alive["piece"]
    world.fake.fail(1, "OUT_OF_MEMORY", "cuMemCreate")
    other.commit(GRANULE, GRANULE)
    assert world.fake.alive["piece"] == before, "one was given back, and one made"
    drive(world.fake, world.device, mine)
    assert world.ran(MINE) == Counter(range(200))
    other.close()


def test_spare_memory_of_a_session_that_runs_nothing_is_taken_first(world: World) -> None:
    resting = world.another()
    resting.commit(2 * GRANULE, GRANULE)
    mine = world.job()
    world.started(mine)
    for arena, at in ((world.arena, 6), (resting, 2)):
        arena.release(at * GRANULE, GRANULE)
    world.fake.fail(1, "OUT_OF_MEMORY", "cuMemCreate")
    resting.commit(4 * GRANULE, GRANULE)
    assert (world.arena.has_spare, resting.has_spare) == (True, False)
    assert not world.slept, "no time was needed"
    resting.close()
    drive(world.fake, world.device, mine)


@pytest.mark.parametrize(("what", "priority"), [("p", 1), ("w", 0)])
def test_memory_that_kernels_keep_is_refused_and_they_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch, what: str, priority: int
) -> None:
    monkeypatch.setattr(quiescer, "TIMEOUT_S", 0)
    online = world.job(what, priority=priority)
    world.started(online)
    world.arena.release(6 * GRANULE, GRANULE)
    other = world.another()
    before = world.fake.alive["piece"]
    world.fake.fail(1, "OUT_OF_MEMORY", "cuMemCreate")
    with pytest.raises(OutOfMemory, match="as long as kernels run") as caught:
        other.commit(GRANULE, GRANULE)
    assert caught.value.limit == "kernels"
    assert world.fake.alive["piece"] == before
    world.fake.fail(0, "")
    drive(world.fake, world.device, online)
    assert world.ran(_KERNELS[what]) == Counter(range(200))
    world.fake.fail(1, "OUT_OF_MEMORY", "cuMemCreate")
    other.commit(GRANULE, GRANULE)  # now that they are over
    other.close()


def test_an_array_is_refused_whose_place_a_kernel_does_not_leave(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quiescer, "TIMEOUT_S", 0)
    whole = world.job("w")
    world.started(whole)
    before = world.fake.alive["piece"]
    with pytest.raises(OutOfMemory, match="as long as kernels run"):
        world.arena.commit(2 * GRANULE, GRANULE)
    assert world.fake.alive["piece"] == before
    world.arena.commit(8 * GRANULE, GRANULE)  # nothing has to be unmapped for that
    drive(world.fake, world.device, whole)
    world.arena.commit(2 * GRANULE, GRANULE)


def test_repeated_requests_do_not_keep_others_waiting(world: World) -> None:
    now, slept = [5.0], list[float]()

    def sleeps(seconds: float) -> None:
        now[0] += seconds
        slept.append(seconds)

    world.device.quiescer.sleep, world.device.quiescer.clock = sleeps, lambda: now[0]
    whole = world.job("w")
    world.started(whole)
    for waits in (True, False, False):
        slept.clear()
        with pytest.raises(OutOfMemory):
            world.arena.commit(2 * GRANULE, GRANULE)
        assert bool(slept) == waits
    now[0] += 60
    with pytest.raises(OutOfMemory):
        world.arena.commit(2 * GRANULE, GRANULE)
    assert 0.5 <= sum(slept) < 1
    world.device.quiescer.sleep = world.passes
    drive(world.fake, world.device, whole)
    world.arena.commit(2 * GRANULE, GRANULE)  # at once, for nothing runs


def test_a_job_of_a_quiesced_session_begins_afterwards(world: World) -> None:
    late, ended, first = world.job(), world.job(), world.job("s")
    world.started(first)
    seen: list[int] = []

    def passes(_: float) -> None:
        if not seen:
            late.resize(2)
            ended.resize(2)
            ended.end()
        seen.append(world.fake.on_sms(MINE).total())
        world.passes(0)

    world.device.quiescer.sleep = passes
    world.arena.commit(2 * GRANULE, GRANULE)
    assert set(seen) == {0}
    assert ended.done
    for _ in range(5):
        world.passes(0)
    assert world.fake.on_sms(MINE).total() == late.held == 2
    for job in (first, late):
        drive(world.fake, world.device, job)
    assert world.ran(MINE) == world.ran("sliced_c") == Counter(range(200))


@pytest.mark.parametrize("nth", [1, 2])
def test_a_call_that_fails_meanwhile_lets_the_session_go_on(world: World, nth: int) -> None:
    mine = world.job()
    world.started(mine)
    world.fake.fail(nth, "OUT_OF_MEMORY", "cuMemMap")  # in front of the part that is there, behind
    with pytest.raises(DriverError, match="OUT_OF_MEMORY"):
        world.arena.commit(GRANULE, SIZE - GRANULE)
    assert world.arena.has_spare == (nth == 2), "it is not taken away while kernels are there"
    world.fake.fail(0, "")
    assert world.fake.memory.reaches(world.arena.address, world.arena.backed)
    drive(world.fake, world.device, mine)
    assert world.ran(MINE) == Counter(range(200))


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_whatever_is_swapped_when(world: World, seed: int) -> None:
    choose = random.Random(seed)
    jobs = [world.job(what, total=30) for what in ("p", "sp", "ppp", "wp")]
    parts: list[int] = []
    for _ in range(60):
        world.passes(0)
        match choose.choice("rrac"):
            case "r":
                choose.choice(jobs).resize(choose.randrange(4))
            case "a" if len(parts) < 5:
                part = choose.choice([n for n in range(1, 15) if n not in (*parts, 6)])
                world.arena.commit(part * GRANULE, GRANULE)
                parts.append(part)
            case "c" if parts:
                world.arena.release(parts.pop() * GRANULE, GRANULE)
                world.arena.reclaim(2, quiescer.all_runs)
    for job in jobs:
        job.resize(2)
        drive(world.fake, world.device, job, rounds=20_000)
    assert all(job.complete for job in jobs)
    assert world.ran(MINE) == Counter(dict.fromkeys(range(30), 6))


def test_a_closed_arena_does_not_widen_programs(world: World) -> None:
    arena = world.another()
    module = world.device.load(PROGRAM, (arena.address, SIZE))
    arena.close()
    arena.attach(module)
    assert module.checked_arena == (arena.address, GRANULE), (
        "with no bytes its bounds checks would pass all"
    )


def test_a_gpu_on_which_no_memory_can_be_mapped_is_refused() -> None:
    fake = SteppedDriver()
    fake.contexts.attributes["VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED"] = 0
    with pytest.raises(InvalidArgument, match="no virtual memory management for Model GPU"):
        CUDADevice(driver=Driver(fake), watch=False)
    assert not +fake.alive
