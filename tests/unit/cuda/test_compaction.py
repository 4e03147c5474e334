"""Compaction: an online kernel of large blocks finds room beside offline kernels on every SM."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpud.device.cuda.device import CUDADevice
from tests.driver_model import SteppedDriver
from tests.support.resizable_run import ResizableRun
from tests.unit.cuda.model_runs import PROGRAM, device_of, drive, launches, ran_once

ENDLESS = 10**8
SMS, M = 4, 8
OFFLINE, ONLINE = "persistent_a", "persistent_b"


class World:
    """A GPU of 4 SMs; 8 blocks of an offline kernel fit on one, or one of the online kernel."""

    def __init__(self, fake: SteppedDriver, device: CUDADevice) -> None:
        self.fake = fake
        self.device = device
        self.now = 0.0
        device.watcher.compaction.clock = lambda: self.now

    def offline(self, slices: int) -> ResizableRun:
        job = ResizableRun(self.device, launches(self.device, "p", total=ENDLESS))
        job.resize(slices)
        self.fake.run(300)
        return job

    def online(self, blocks: int, total: int = 40) -> ResizableRun:
        (spec,) = launches(self.device, "p", total=total)
        kernel = self.device.load(PROGRAM).kernel(ONLINE)
        job = ResizableRun(self.device, [spec._replace(kernel=kernel, occupancy=1)], priority=1)
        job.resize(blocks)
        return job

    def goes_on(self, steps: int) -> None:
        for _ in range(steps):
            self.fake.step()  # a GPU would do many such steps at once
            self.now += 5e-7
            self.device.watcher.poll()

    @property
    def barred(self) -> frozenset[int]:
        return self.device.watcher.compaction.barred


@contextmanager
def a_world(seed: int) -> Iterator[World]:
    fake = SteppedDriver(seed, room=SMS * M, sms=SMS)
    fake.occupancy = M
    fake.sizes[ONLINE] = M
    with device_of(fake) as device:
        yield World(fake, device)


@pytest.mark.parametrize("seed", range(4))
def test_one_block_fits_where_three_quarters_of_each_sm_were_taken(seed: int) -> None:
    with a_world(seed) as world:
        offline = world.offline(3 * M)
        assert set(world.fake.on_sms().values()) == {3 * M // SMS}
        online = world.online(1)
        world.goes_on(800)
        assert online.done, "it found no room"
        assert not world.barred
        world.goes_on(800)
        assert world.fake.on_sms(OFFLINE).total() == offline.held == 3 * M, "it has its share again"
        again = world.online(1)
        calls = len(world.fake.calls)
        drive(world.fake, world.device, again)
        assert not world.barred
        assert "cuStreamWriteValue32" not in world.fake.calls[calls:], "nobody had to move again"
        offline.end()
        drive(world.fake, world.device, offline)


@pytest.mark.parametrize("seed", range(3))
def test_released_blocks_that_have_not_begun_do_not_delay_compaction(seed: int) -> None:
    with a_world(seed) as world:
        offline = world.offline((SMS + 1) * M)
        assert world.fake.on_sms().total() == SMS * M, "as many as there is room for"
        offline.resize(SMS * M)  # blocks that have not begun leave first
        online = world.online(1)
        world.goes_on(1500)
        assert online.done, "it waited for those that waited for it"
        offline.end()
        drive(world.fake, world.device, offline)


@pytest.mark.parametrize("seed", range(4))
def test_two_jobs_that_share_each_sm_both_make_room(seed: int) -> None:
    with a_world(seed) as world:
        first, second = world.offline(2 * M), world.offline(2 * M)
        first.resize(M)  # half of what it has on each of two SMs, or all on one
        online = world.online(1)
        world.goes_on(1500)
        assert online.done
        for job in (first, second):
            job.end()
            drive(world.fake, world.device, job)


@pytest.mark.parametrize("seed", range(2))
def test_room_is_made_while_others_still_leave(seed: int) -> None:
    with a_world(seed) as world:
        first, second = world.offline(2 * M), world.offline(2 * M)
        world.device.watcher.poll()
        world.fake.stalled.add(OFFLINE)  # long task blocks
        first.resize(M)
        online = world.online(1)
        world.device.watcher.poll()
        assert world.barred, "it waits for blocks that leave, and then for others"
        told = world.barred
        world.goes_on(200)
        assert world.barred == told, "one SM is enough"
        world.fake.stalled.clear()
        world.goes_on(1500)
        assert online.done
        for job in (first, second):
            job.end()
            drive(world.fake, world.device, job)


def test_no_sm_is_barred_if_enough_blocks_leave_anyway() -> None:
    with a_world(2) as world:
        offline = world.offline(SMS * M)
        offline.resize(2 * M)
        world.goes_on(300)
        ending = ResizableRun(world.device, launches(world.device, "p", total=3 * M))
        ending.resize(2 * M)
        while not ending.exhausted:
            world.goes_on(1)
        world.fake.stalled.add(OFFLINE)
        online = world.online(1)
        world.goes_on(200)
        assert not world.fake.on_sms(ONLINE)
        assert not world.barred
        world.fake.stalled.clear()
        world.goes_on(300)
        assert ending.done
        assert online.done
        offline.end()
        drive(world.fake, world.device, offline)


def test_no_sm_is_barred_where_there_is_room() -> None:
    with a_world(3) as world:
        offline = world.offline(SMS * M)
        world.device.watcher.poll()
        offline.resize(2 * M)
        before = world.fake.calls.count("cuLaunchKernel")
        online = world.online(2)
        world.goes_on(1500)
        assert online.done
        assert world.fake.calls.count("cuLaunchKernel") == before + 1
        assert not world.barred
        offline.end()
        drive(world.fake, world.device, offline)


@pytest.mark.parametrize("seed", range(3))
def test_sub_grids_do_not_take_what_others_leave(seed: int) -> None:
    with a_world(seed) as world:
        offline = world.offline(2 * M)
        sliced = ResizableRun(world.device, launches(world.device, "s", total=4000))
        sliced.resize(M)
        world.goes_on(50)
        online = world.online(1)
        barred = 0
        for _ in range(2500):
            before = world.fake.on_sms("sliced")
            world.goes_on(1)
            barred = barred + 1 if world.barred else 0
            for sm in world.barred if barred > 20 else ():  # earlier launches have begun
                assert world.fake.on_sms("sliced")[sm] <= before[sm], "it took what was left free"
        assert online.done
        assert not sliced.done
        for job in (offline, sliced):
            job.end()
            drive(world.fake, world.device, job)


def test_bars_are_lifted_if_the_blocks_still_do_not_begin() -> None:
    with a_world(1) as world:
        whole = ResizableRun(world.device, launches(world.device, "w", total=SMS * M - 2))
        whole.resize(SMS * M - 2)
        world.fake.stalled.add("whole_d")
        offline = world.offline(2)
        online = world.online(1)
        world.goes_on(300)
        assert world.barred, "it was tried"
        world.now += 1
        world.goes_on(1500)
        assert not world.barred
        assert world.fake.on_sms(OFFLINE).total() == 2, "the offline job is kept from SMs for ever"
        world.fake.stalled.clear()
        world.goes_on(2000)
        assert whole.done
        assert online.done
        offline.end()
        drive(world.fake, world.device, offline)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_by_compaction(seed: int) -> None:
    choose = random.Random(seed)
    with a_world(seed) as world:
        (spec,) = launches(world.device, "p", total=600)
        offline = ResizableRun(world.device, [spec, spec])
        offline.resize(3 * M)
        online: list[ResizableRun] = []
        for _ in range(40):
            world.goes_on(choose.randrange(60))
            if all(job.done for job in online):
                online.append(world.online(1, total=choose.randrange(1, 9)))
            offline.resize(choose.choice((M, 2 * M, 3 * M)))
        offline.resize(3 * M)
        for job in (offline, *online):
            for _ in range(400):
                if not job.done:
                    world.goes_on(50)
            assert job.done
            assert job.error is None
        assert len(online) > 3
        world.fake.ran = [one for one in world.fake.ran if one[0] == OFFLINE]
        ran_once(world.fake, [600, 600])
