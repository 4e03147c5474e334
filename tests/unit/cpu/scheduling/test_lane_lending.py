"""A lane that lends has no blocks, hears of its next launch, and gets its blocks back for it."""

from __future__ import annotations

import threading
from typing import Any

from gpud.device.host import messages as m
from gpud.device.host.lane_watch import LaneWatch
from gpud.device.host.lending import Lending
from gpud.device.host.running_job import RunningJob
from gpud.device.interface import LaunchSpec
from gpud.units import JobId
from gpud.wire import lane_ring as ring
from tests.unit.cpu.scheduling.lane_driver import LIMIT_S, UNIT, LaneDriver

LANE, JOB = 9, 7
HOLD_S = 0.001


def number(value: int) -> bytes:
    return value.to_bytes(4, "little")


def blocks(lane: LaneDriver) -> int:
    return sum(sm.blocks for sm in lane.device.scheduler.sms)


def test_a_lane_that_lends_has_no_block_and_hears_of_its_next_launch() -> None:
    with LaneDriver() as lane:
        lane.complete(lane.launch("put", lane.pointer() + number(1)))
        assert lane.lane.activity() == 1
        lane.lane.lend()
        assert blocks(lane) == 0
        waits = threading.Thread(target=lane.lane.wait_for_record)
        waits.start()
        lane.wait(lambda: lane.word(ring.LISTENING))
        launched = lane.launch("put", lane.pointer() + number(2))
        waits.join(LIMIT_S)
        assert not waits.is_alive()
        assert lane.words[0] == 1
        assert lane.lane.activity() is None
        lane.lane.take_up()
        lane.complete(launched)
        assert lane.words[0] == 2


def test_a_record_that_came_while_the_lane_gave_up_its_blocks_is_not_missed() -> None:
    with LaneDriver() as lane:
        lane.site("put")
        lane.lane.lend()
        launched = lane.launch("put", lane.pointer() + number(5))
        lane.lane.wait_for_record()  # returns at once
        lane.lane.take_up()
        lane.complete(launched)


def test_a_lane_resized_while_it_lends_has_the_new_share_afterwards() -> None:
    with LaneDriver(sms=2, slices=UNIT) as lane:
        lane.site("put")
        lane.lane.lend()
        lane.lane.resize(2 * UNIT)
        assert blocks(lane) == 0
        lane.site("add")  # a new launch site makes no blocks either
        assert blocks(lane) == 0
        lane.lane.take_up()
        lane.complete(lane.launch("put", lane.pointer() + number(5)))
        assert blocks(lane) == 2 * lane.device.occupancy(lane.module.kernel("put"), (1, 1, 1))


def test_a_lane_that_ends_while_it_lends_wakes_who_waits() -> None:
    with LaneDriver() as lane:
        lane.site("put")
        lane.lane.lend()
        waits = threading.Thread(target=lane.lane.wait_for_record)
        waits.start()
        lane.lane.end()
        lane.lane.interrupt()
        waits.join(LIMIT_S)
        assert lane.over.wait(LIMIT_S)
        assert not waits.is_alive()


class Lent:
    """A watched lane that has lent all of a device to an endless offline job."""

    def __init__(self, lane: LaneDriver) -> None:
        self.lane = lane
        self.sent: list[Any] = []
        self.jobs: dict[int, RunningJob] = {}
        device = lane.device
        kernel = lane.module.kernel("add")
        spec = LaunchSpec.of(kernel, "persistent", 2**31 - 1, 1, [lane.pointer(100)])
        self.slices = device.sms * device.occupancy(kernel, (1, 1, 1))
        command = m.StartRun(JOB, 1, b"", self.slices // device.sms, 0, 0, online=False)
        self.job = self.jobs[JOB] = RunningJob(command, self.hear, lambda running: None)
        sequence = device.prepare([spec], None)
        self.job.start(device.new_run(sequence, 0, self.job.on_left, self.job.on_over))
        self.lending = Lending(self.jobs, self.hear)
        self.problems: list[BaseException] = []
        self.epoch = self.wakes = 0
        self.watch = LaneWatch(LANE, lane.lane, self.lending, HOLD_S, self.problems.append)
        self.watch.start()

    def hear(self, event: Any) -> None:
        """Do what the front does: lend, plan, book."""
        if isinstance(event, m.LaneIdle):
            self.epoch += 1
            self.job.resize(self.slices, self.epoch)
            steps = ((JobId(JOB), self.slices),)
            self.lending.plan(m.TakeBackPlan(JobId(LANE), 0, event.epoch, steps))
        elif isinstance(event, m.LaneWoke):
            self.epoch += 1
            self.job.resize(0, self.epoch, booked=sum(slices for _, slices in event.taken))
            self.wakes += 1
        self.sent.append(event)


def test_a_watched_lane_lends_and_takes_back_again_and_again() -> None:
    with LaneDriver() as lane:
        lane.site("put")
        lent = Lent(lane)
        for turn in range(1, 30):
            lane.wait(lambda: lent.job.run.held == lent.slices)  # it has what the lane has lent
            lane.complete(lane.launch("put", lane.pointer() + number(turn)))
            assert lane.words[0] == turn
            lane.wait(lambda turn=turn: lent.wakes == turn)  # type: ignore[misc]
        assert not lent.problems
        lent.watch.stop()
        lent.job.end()
