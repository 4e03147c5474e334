"""A lane that lends uses no room, hears of its next launch, and gets its blocks back for it."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from gpud.device.cpu.occupancy import SM_CAPACITY
from gpud.device.cpu.scheduling.lane_run import LaneRun
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


def nothing() -> None:
    """Take no notice."""


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
        self.epoch = self.lends = self.wakes = 0
        self.watch = LaneWatch(
            LANE, lane.lane, self.lending, HOLD_S, self.problems.append, lambda: True
        )
        self.watch.start()

    def hear(self, event: Any) -> None:
        """Do what the front does: lend, plan, book."""
        if isinstance(event, m.LaneLent):
            self.epoch += 1
            self.job.resize(self.slices, self.epoch)
            steps = ((JobId(JOB), self.slices),)
            self.lending.plan(m.TakeBackPlan(JobId(LANE), 0, event.epoch, steps))
            self.lends += 1
        elif isinstance(event, m.LaneTookBack):
            self.epoch += 1
            self.job.resize(0, self.epoch, booked=sum(slices for _, slices in event.taken))
            self.wakes += 1
        self.sent.append(event)


def test_a_watched_lane_lends_and_takes_back_again_and_again() -> None:
    with LaneDriver() as lane:
        lane.site("put")
        lent = Lent(lane)
        for turn in range(1, 30):
            # It has what the lane has lent, and not what it is about to give back.
            lane.wait(
                lambda turn=turn: lent.lends == turn and lent.job.run.held == lent.slices  # type: ignore[misc]
            )
            lane.complete(lane.launch("put", lane.pointer() + number(turn)))
            assert lane.words[0] == turn
            lane.wait(lambda turn=turn: lent.wakes == turn)  # type: ignore[misc]
        assert not lent.problems
        lent.watch.stop()
        lent.job.end()


class Planned:
    """A lane that has lent all of a device to a job, with the plan to take it back."""

    def __init__(self, lane: LaneDriver, kernel: str = "add", blocks: int = 2**31 - 1) -> None:
        self.lane = lane
        device = lane.device
        entry = lane.module.kernel(kernel)
        spec = LaunchSpec.of(entry, "persistent", blocks, 1, [lane.pointer(100)])
        self.slices = device.sms * device.occupancy(entry, (1, 1, 1))
        lane.site("put")
        lane.lane.lend()
        self.over = threading.Event()
        self.run = device.new_run(device.prepare([spec], None), 0, nothing, self.over.set)
        self.run.resize(self.slices)
        lane.lane.plan([(JOB, self.run, self.slices)])
        self.waits = threading.Thread(target=lane.lane.wait_for_record)
        self.waits.start()
        lane.wait(lambda: lane.word(ring.LISTENING))

    def heard(self) -> None:
        """Wait until the plan was carried out."""
        self.waits.join(LIMIT_S)
        assert not self.waits.is_alive()

    def used(self) -> list[int]:
        return [sm.used for sm in self.lane.device.scheduler.sms]


def test_a_launch_in_a_lane_that_lends_runs_before_python_takes_anything_back() -> None:
    with LaneDriver() as lane:
        planned = Planned(lane)
        lane.complete(lane.launch("put", lane.pointer() + number(3)))
        assert lane.words[0] == 3
        planned.heard()
        assert lane.lane.taken_back() == ((JOB, planned.slices),)
        lane.wait(lambda: not planned.run.held)
        lane.complete(lane.launch("put", lane.pointer() + number(4)))  # it goes on meanwhile
        lane.lane.take_up()
        lane.complete(lane.launch("put", lane.pointer() + number(5), (64, 1, 1)))
        assert (lane.words[:64] == 5).all()
        assert max(planned.used()) <= SM_CAPACITY
        planned.run.end()
        assert planned.over.wait(LIMIT_S)


def test_a_size_that_was_decided_before_the_wake_was_known_gives_nothing_back() -> None:
    with LaneDriver() as lane:
        planned = Planned(lane)
        lane.complete(lane.launch("put", lane.pointer() + number(3)))
        planned.heard()
        planned.run.resize(planned.slices)
        lane.wait(lambda: not planned.run.held)
        lane.lane.take_up()
        assert planned.run.held == 0
        planned.run.forget_taken(planned.slices)
        planned.run.resize(1)
        assert planned.run.held == 1
        planned.run.end()


def test_a_lanes_block_does_not_begin_beside_one_that_is_still_to_leave() -> None:
    with LaneDriver(sms=1) as lane:
        lane.words[100] = 0
        planned = Planned(lane, "spin", 1)
        lane.wait(lambda: planned.run.progress[0])
        launched = lane.launch("put", lane.pointer() + number(3))
        planned.heard()
        lane.lane.take_up()  # that makes no more room
        time.sleep(0.02)
        assert lane.word(ring.COMPLETED) == launched  # none more
        lane.words[100] = 1
        lane.complete(launched)


def test_a_plan_that_names_a_lane_is_left_to_python() -> None:
    with LaneDriver() as lane, lane.another(0) as other:
        lane.site("put")
        lane.lane.lend()
        lane.lane.plan([(JOB, other.lane, 1)])
        launched = lane.launch("put", lane.pointer() + number(3))
        lane.lane.wait_for_record()
        assert lane.lane.taken_back() is None
        lane.lane.take_up()
        lane.complete(launched)


def test_what_a_plan_takes_follows_the_jobs_that_come_and_go() -> None:
    with LaneDriver() as lane:
        planned = Planned(lane)
        planned.run.end()
        assert planned.over.wait(LIMIT_S)
        device = lane.device
        spec = LaunchSpec.of(
            lane.module.kernel("add"), "persistent", 2**31 - 1, 1, [lane.pointer(9)]
        )
        run = device.new_run(device.prepare([spec], None), 1, nothing, nothing)
        run.resize(planned.slices)  # the plan for it has not come yet
        launched = lane.launch("put", lane.pointer() + number(3))
        planned.heard()
        assert run.held == planned.slices
        assert lane.word(ring.COMPLETED) == launched  # there is no room for it
        lane.lane.take_up()
        run.resize(planned.slices // 2)
        lane.complete(launched)
        run.end()


def test_an_sm_beside_a_polling_block_listens_to_its_lanes() -> None:
    with LaneDriver(sms=1, slices=UNIT // 2) as lane:
        lane.words[100] = 0
        lane.site("put")
        spec = LaunchSpec.of(lane.module.kernel("spin"), "persistent", 1, 1, [lane.pointer(100)])
        over = threading.Event()
        run = lane.device.new_run(lane.device.prepare([spec], None), 0, nothing, over.set)
        run.resize(1)
        lane.wait(lambda: run.progress[0])
        lane.wait(lambda: lane.word(ring.LISTENING))
        lane.complete(lane.launch("put", lane.pointer() + number(3)))
        lane.words[100] = 1
        assert over.wait(LIMIT_S)


def test_a_run_that_begins_while_the_lane_is_taken_up_has_its_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with LaneDriver() as lane:
        lane.site("put")
        lane.lane.lend()
        resize, late = LaneRun.resize, [True]

        def resize_late(run: LaneRun, slices: int) -> None:
            if late.pop() if late else False:
                lane.lane.take_up()  # on another thread, just now
            resize(run, slices)

        monkeypatch.setattr(LaneRun, "resize", resize_late)
        assert lane.lane._run is not None
        lane.lane._run.retire()
        lane.wait(lambda: not late)
        lane.complete(lane.launch("put", lane.pointer() + number(3)))
