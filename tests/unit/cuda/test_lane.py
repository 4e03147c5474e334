"""A lane on the CUDA device, stepped over the model of the driver, with nobody on its ring."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpud.device.cuda.device import CUDADevice
from gpud.device.cuda.lanes.lane import CUDALane
from gpud.device.cuda.launch.sequence import WINDOW
from gpud.device.interface import LaunchSpec
from gpud.device.lane_reports import EndedLaunch
from gpud.errors import AdmissionError, InvalidArgument, ProtocolError
from gpud.wire import lane_ring as ring
from tests.driver_model import SteppedDriver
from tests.unit.cuda.model_runs import PROGRAM, device_of
from tests.unit.cuda.ring_writer import RingWriter

TOTAL = 6
SLICES = 8 * ring.SLICES  # more than the model has SMs for


class Told:
    """What a lane has told."""

    def __init__(self) -> None:
        self.ended: dict[int, EndedLaunch] = {}
        self.left = self.over = 0

    def launch_ended(self, launch: EndedLaunch) -> None:
        assert launch.number not in self.ended
        self.ended[launch.number] = launch

    def on_left(self) -> None:
        self.left += 1

    def on_over(self) -> None:
        self.over += 1


class Lane:
    """A lane with two sites, and its client."""

    def __init__(self, fake: SteppedDriver, device: CUDADevice, occupancy: int = ring.SLICES):
        descriptor = os.memfd_create("ring")
        os.ftruncate(descriptor, -(-ring.RING_BYTES // 4096) * 4096)
        self.fake, self.device, self.told = fake, device, Told()
        self.lane: CUDALane = device.open_lane(descriptor, occupancy, 1, self.told)
        self.writer = RingWriter(descriptor)
        os.close(descriptor)
        module = device.load(PROGRAM)
        for name, form in (("persistent_a", "persistent"), ("persistent_b", "persistent"),
                           ("sliced_c", "sliced")):  # fmt: skip
            self.lane.add_site(self.spec(module.kernel(name), form), lambda _: None)
        self.module = module

    @staticmethod
    def spec(kernel: Any, form: Any) -> LaunchSpec:
        return LaunchSpec(kernel, form, (1, 1, 1), (32, 1, 1), b"")

    def write(self, site: int = 0, total: int = TOTAL, **more: int) -> int:
        return self.writer.write(site, bytes(8), (total, 1, 1), **more)

    def drive(self, rounds: int = 20_000) -> None:
        """Step until all launches have completed."""
        self.lane.act()
        for _ in range(rounds):
            if self.writer.completed == self.writer.launches:
                return
            self.fake.step()
            self.device.watcher.poll()
        raise AssertionError((self.writer.completed, self.writer.launches))

    def states(self) -> list[str]:
        """How each launch has ended."""
        found = []
        for number in range(self.writer.launches):
            completed, status, *_ = self.writer.completion(number)
            assert completed == number
            message = self.told.ended.get(number)
            assert (status == ring.SEE_MESSAGE) == (message is not None)
            found.append("done" if message is None else message.state)
        return found


@contextmanager
def opened(fake: SteppedDriver, **options: Any) -> Iterator[Lane]:
    with device_of(fake, **options) as device:
        lane = Lane(fake, device)
        yield lane
        lane.lane.end()
        for _ in range(20_000):
            if lane.told.over:
                break
            fake.step()
            device.watcher.poll()
        assert lane.told.over == 1
        assert lane.writer.word(ring.ENDED)


def claims(fake: SteppedDriver) -> list[int]:
    return [claim for _, _, claim in fake.ran]


@pytest.mark.parametrize("graphs", [True, False])
def test_each_launch_runs_once_in_order_whatever_waits_with_it(graphs: bool) -> None:
    fake = SteppedDriver(1)
    with opened(fake, graphs=graphs) as lane:
        lane.lane.resize(SLICES)
        sites = [0] * 40 + [0, 1, 2, 2, 0, 1] * 5
        for some in (1, 5, 40, 24):
            for site in sites[:some]:
                lane.write(site)
            lane.drive()
        assert lane.states() == ["done"] * lane.writer.launches
        found = claims(fake)
        for first in range(0, len(found), TOTAL):
            assert sorted(found[first : first + TOTAL]) == list(range(TOTAL))
        assert len(found) == TOTAL * lane.writer.launches
        assert lane.lane.ways["native"], "sequences that run again are queued by native code"
        assert not lane.lane.ways["graph"], "a graph would have the parameters of another launch"


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_lost_or_repeated_whatever_happens_to_the_lane(seed: int) -> None:
    choose = random.Random(seed)
    fake = SteppedDriver(seed, room=choose.choice([1, 3, 64]))
    cancelled: set[int] = set()
    totals: list[int] = []
    with opened(fake) as lane:
        lane.lane.resize(SLICES)
        lent = False
        for _ in range(150):
            for _ in range(choose.choice([0, 0, 1, 3, 20])):
                if lane.writer.launches - lane.writer.completed < 60:
                    totals.append(choose.randrange(1, 9))
                    lane.write(choose.choice([0, 0, 0, 1, 2]), totals[-1])
            lane.lane.act()
            fake.run(choose.randrange(30))
            lane.device.watcher.poll()
            happens = choose.random()
            if happens < 0.2:
                lane.lane.resize(choose.choice([0, 1, 16, 40, SLICES]))
            elif happens < 0.3 and lane.writer.launches > lane.writer.completed:
                number = choose.randrange(lane.writer.completed, lane.writer.launches)
                cancelled.add(number)
                lane.lane.cancel(number)
            elif happens < 0.4 and not lent and lane.lane.activity() is not None:
                lane.lane.lend()
                lent = True
            elif lent and happens > 0.7:
                lane.lane.take_up()
                lent = False
            assert lane.lane.held >= lane.lane.slices
        if lent:
            lane.lane.take_up()
        lane.lane.resize(SLICES)
        lane.drive()
        states = lane.states()
        assert {number for number, state in enumerate(states) if state != "done"} <= cancelled
        ran = {number: told.progress[0] for number, told in lane.told.ended.items()}
        assert len(fake.ran) == sum(ran.get(number, total) for number, total in enumerate(totals))
        assert lane.lane.error is None


def test_a_share_without_room_for_a_block_waits_and_is_refused_at_first() -> None:
    fake = SteppedDriver(1)  # two blocks fit on an SM
    with opened(fake) as lane:
        lane.lane.resize(15)
        spec = lane.spec(lane.module.kernel("persistent_a"), "persistent")
        with pytest.raises(AdmissionError, match="open a lane with 1/2 SM or more"):
            lane.lane.add_site(spec, lambda _: None)
        whole = lane.spec(lane.module.kernel("whole_d"), "whole")
        with pytest.raises(InvalidArgument, match="form whole"):
            lane.lane.add_site(whole, lambda _: None)
        lane.write()
        lane.lane.act()
        fake.run()
        assert not fake.ran
        lane.lane.resize(16)
        lane.drive()
        assert len(fake.ran) == TOTAL


def test_blocks_leave_when_the_share_falls_and_the_front_is_told() -> None:
    fake = SteppedDriver(1)
    with opened(fake) as lane:
        lane.lane.resize(4 * ring.SLICES)
        lane.write(total=1000)
        lane.lane.act()
        fake.run(60)
        lane.device.watcher.poll()
        assert fake.resident == 8
        lane.lane.resize(ring.SLICES)
        assert lane.lane.held == 4 * ring.SLICES
        before = lane.told.left
        for _ in range(200):
            fake.step()
            lane.device.watcher.poll()
        assert (fake.resident, lane.lane.held) == (2, ring.SLICES)
        assert lane.told.left > before
        assert 0 < lane.lane.progress[1] < lane.lane.progress[2] == 1000
        lane.lane.resize(3 * ring.SLICES)
        for _ in range(50):
            fake.step()
            lane.device.watcher.poll()
        assert fake.resident == 6
        lane.drive()
        assert sorted(claims(fake)) == list(range(1000))


def test_a_launch_that_is_cancelled_takes_no_other_with_it() -> None:
    fake = SteppedDriver(3)
    with opened(fake) as lane:
        lane.lane.resize(SLICES)
        for _ in range(WINDOW):
            lane.write(total=50)
        lane.lane.act()
        fake.run(40)
        lane.device.watcher.poll()
        for number in (0, 5, 6):
            lane.lane.cancel(number)
        lane.drive()
        states = lane.states()
        assert [n for n, state in enumerate(states) if state == "cancelled"] == [0, 5, 6]
        ended = lane.told.ended
        assert (ended[0].progress[1], ended[5].progress) == (50, (0, 50))


def test_a_launch_that_is_cancelled_in_time_does_not_begin() -> None:
    fake = SteppedDriver(3)
    with opened(fake) as lane:
        lane.lane.resize(SLICES)
        for _ in range(WINDOW):
            lane.write(total=50)
        lane.lane.act()
        fake.run(40)
        lane.device.watcher.poll()
        for number in (5, 6):
            lane.lane.cancel(number)
        fake.run()  # nobody looks meanwhile
        lane.drive()
        assert {number: one.progress for number, one in lane.told.ended.items()} == {
            5: (0, 50),
            6: (0, 50),
        }
        assert len(fake.ran) == 50 * (WINDOW - 2)


def test_what_follows_a_failure_does_not_begin_until_it_was_seen() -> None:
    fake = SteppedDriver(1)
    with opened(fake) as lane:
        lane.lane.resize(SLICES)
        failed = lane.write(1, limit_ms=1, seen=0)
        behind = [lane.write(seen=0), lane.write(goes_on=1, seen=0), lane.write(seen=0)]
        lane.write(seen=1)
        lane.write()
        lane.lane.act()
        lane.lane._overdue = failed
        lane.drive()
        assert lane.states() == ["failed", "failed", "cancelled", "failed", "done", "done"]
        ended = [lane.told.ended[number].behind for number in (failed, *behind)]
        assert ended == [None, failed, None, failed]


def test_what_goes_on_does_not_begin_behind_a_failure() -> None:
    fake = SteppedDriver(1)
    with opened(fake) as lane:
        lane.lane.resize(SLICES)
        lane.write()
        number = lane.write(1)
        rest = [lane.write(goes_on=1) for _ in range(3)]
        last = lane.write()
        lane.lane.cancel(number)
        lane.drive()
        states = lane.states()
        assert states[number] == "cancelled"
        assert [states[n] for n in (*rest, last)] == ["cancelled"] * 3 + ["done"]


@pytest.mark.parametrize(
    ("at", "value", "told"),
    [
        (0, 7, "launch 1 was to come, not 7"),
        (4, 9, "there is no launch site 9; it has 3"),
        (8, 0, "the grid of launch 1 has 0 in a dimension"),
        (8, 1 << 31, "the grid of launch 1 has 2147483648 in a dimension"),
        (20, 12, "said to have 12 bytes"),
    ],
)
def test_nonsense_ends_the_lane_behind_what_was_right(at: int, value: int, told: str) -> None:
    fake = SteppedDriver(1)
    with opened(fake) as lane:
        lane.lane.resize(SLICES)
        lane.write()
        lane.write()
        place = ring.SLOTS_AT + ring.SLOT_BYTES + at
        lane.writer.map[place : place + 4] = value.to_bytes(4, "little")
        lane.lane.act()
        for _ in range(5000):
            fake.step()
            lane.device.watcher.poll()
        assert lane.writer.completed == 1
        assert isinstance(lane.lane.error, ProtocolError)
        assert told in str(lane.lane.error)


def test_a_head_that_jumps_ends_the_lane() -> None:
    fake = SteppedDriver(1)
    with opened(fake) as lane:
        lane.lane.resize(SLICES)
        lane.writer.say(ring.HEAD, ring.SLOTS + 1)
        lane.lane.act()
        assert "1025 slots are said to be written, and there are 1024" in str(lane.lane.error)
