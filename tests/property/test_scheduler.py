"""The scheduler's properties over random histories, and faults that each of them catches.

Three uses of one simulation (`tests.property.scheduler_simulation`): Hypothesis chooses the
events, and shrinks failures; long histories come from seeds; and histories of schedulers with a
planted fault, in which the property that the fault breaks must be the one that is reported.

``GPUD_SCHEDULER_SEEDS`` sets how many short histories of each kind come from seeds, 8 by default.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpud.core import commands as out
from gpud.core import events as ev
from gpud.core.device import DeviceRecord
from gpud.core.events import LaunchShape
from gpud.core.job import JobRecord
from gpud.core.job_table import JobTable
from gpud.core.lanes import Lanes
from gpud.core.lifecycles import JobInput
from gpud.core.policies.fifo import Fifo
from gpud.core.policies.reservations import Reservations
from gpud.core.replay import replay, write_header
from gpud.core.scheduler import Scheduler, Settings
from gpud.core.timers import Timer
from gpud.core.wait_reasons import waiting_reason
from gpud.units import JobId
from tests.property.scheduler_fuzz import (
    OCCUPANCIES,
    SHARES,
    history,
    lane_history,
    random_settings,
    share_history,
)
from tests.property.scheduler_simulation import CHECKS, Broken, World

ROOT = Path(__file__).parents[2]
MANY = 10**6
SHORT = Settings(grace_ns=200, rebalance_hold_ns=50, rebalance_limit=10_000_000)
"""Settings for histories that take microseconds: a turn has 100 ns."""
SEEDS = int(os.environ.get("GPUD_SCHEDULER_SEEDS", "8"))

LAUNCHES = st.lists(
    st.builds(
        LaunchShape,
        st.sampled_from(OCCUPANCIES),
        st.sampled_from((1, 3, 10, 50, 400)),
        st.sampled_from((True, True, True, True, False)),
    ),
    min_size=1,
    max_size=4,
).map(tuple)
SHARE = st.sampled_from(SHARES)


class Histories(RuleBasedStateMachine):
    """Hypothesis chooses the actions of clients, operators, the clock and the devices."""

    world: World

    @initialize(
        sms=st.lists(st.sampled_from((1, 2, 4, 8)), min_size=1, max_size=3),
        floor=st.sampled_from((0, 0, Fraction(1, 2), "25%")),
        hold_ns=st.sampled_from((0, 50)),
    )
    def begin(self, sms: list[int], floor: Any, hold_ns: int) -> None:
        self.world = World(Scheduler(replace(SHORT, offline_floor=floor, hold_ns=hold_ns)))
        for device, number in enumerate(sms):
            self.world.device_up(device, number)
        self.world.open()

    def pick(self, data: st.DataObject, options: Any) -> Any:
        return data.draw(st.sampled_from(list(options)))

    def pick_work(self, data: st.DataObject) -> tuple[int, JobId] | None:
        found = [(device, job) for device, works in self.world.work.items() for job in works]
        return self.pick(data, found) if found else None

    @rule()
    def open(self) -> None:
        self.world.open()

    @precondition(lambda self: len(self.world.open_sessions) > 1)
    @rule(data=st.data())
    def client_exits(self, data: st.DataObject) -> None:
        self.world.close(self.pick(data, self.world.open_sessions))

    @precondition(lambda self: self.world.open_sessions)
    @rule(
        data=st.data(),
        launches=LAUNCHES,
        share=SHARE,
        kind=st.sampled_from(("reservation", "quota", "neither")),
        stream=st.integers(0, 3),
        deadline_ns=st.none() | st.integers(0, 500),
        timeout_ns=st.sampled_from((None, None, 300)),
        weight=st.sampled_from((1, 1, 3, 1000)),
        killable=st.booleans(),
        exclusive=st.booleans(),
        prepared=st.sampled_from((True, True, True, False)),
        sticky=st.booleans(),
    )
    def submit(
        self,
        data: st.DataObject,
        launches: Any,
        share: Fraction,
        kind: str,
        exclusive: bool,
        **more: Any,
    ) -> None:
        if kind != "neither":
            more[kind] = share
        more["exclusive"] = exclusive and kind == "reservation"
        known = list(self.world.live)
        if known:
            more["after"] = tuple(data.draw(st.lists(st.sampled_from(known), max_size=2)))
        session = self.pick(data, self.world.open_sessions)
        self.world.submit(session, self.pick(data, self.world.sms), launches, **more)

    @precondition(lambda self: self.world.open_sessions)
    @rule(
        data=st.data(),
        share=SHARE,
        kind=st.sampled_from(("reservation", "reservation", "quota", "neither")),
        exclusive=st.sampled_from((False, False, False, True)),
        weight=st.sampled_from((1, 1, 3)),
        prepared=st.sampled_from((True, True, False)),
    )
    def open_lane(
        self, data: st.DataObject, share: Fraction, kind: str, exclusive: bool, **more: Any
    ) -> None:
        if kind != "neither":
            more[kind] = share
        more["exclusive"] = exclusive and kind == "reservation"
        session = self.pick(data, self.world.open_sessions)
        self.world.open_lane(session, self.pick(data, self.world.sms), **more)

    def pick_lane(self, data: st.DataObject) -> tuple[int, JobId] | None:
        found = [
            (device, job)
            for device, works in self.world.work.items()
            for job, work in works.items()
            if work.lane
        ]
        return self.pick(data, found) if found else None

    @rule(data=st.data())
    def a_launch_comes_in_a_lane(self, data: st.DataObject) -> None:
        if (found := self.pick_lane(data)) is not None:
            self.world.lane_launches(*found)

    @rule(data=st.data(), heard=st.booleans())
    def a_lane_becomes_idle(self, data: st.DataObject, heard: bool) -> None:
        if (found := self.pick_lane(data)) is not None:
            self.world.run(*found, 1)
            self.world.lane_rests(*found)
            while heard and self.world.deliver(found[0]):
                pass

    @rule(data=st.data(), times=st.integers(1, 3))
    def a_lane_hears_of_plans(self, data: st.DataObject, times: int) -> None:
        for _ in range(times):
            if (found := self.pick_lane(data)) is not None:
                self.world.carry_out(*found)

    @rule(data=st.data())
    def a_lane_is_closed(self, data: st.DataObject) -> None:
        if (found := self.pick_lane(data)) is not None:
            self.world.close_lane(found[1])

    @precondition(lambda self: self.world.live)
    @rule(data=st.data(), share=SHARE, other=st.sampled_from((False, False, False, True)))
    def resize(self, data: st.DataObject, share: Fraction, other: bool) -> None:
        job = self.pick(data, self.world.live)
        if (self.world.reservation[job] is None) is other:
            self.world.resize(job, reservation=share)
        else:
            self.world.resize(job, quota=share)

    @precondition(lambda self: self.world.live)
    @rule(data=st.data(), by_owner=st.booleans())
    def cancel(self, data: st.DataObject, by_owner: bool) -> None:
        self.world.cancel(self.pick(data, self.world.live), by_owner=by_owner)

    @precondition(lambda self: self.world.failed)
    @rule(data=st.data())
    def see(self, data: st.DataObject) -> None:
        self.world.see(*self.pick(data, self.world.failed))

    @precondition(lambda self: self.world.preparing)
    @rule(data=st.data(), failed=st.sampled_from((False, False, False, True)))
    def what_a_job_needs_arrives(self, data: st.DataObject, failed: bool) -> None:
        self.world.prepare(self.pick(data, self.world.preparing), failed=failed)

    @rule(ns=st.sampled_from((1, 10, 100, 300)))
    def time_passes(self, ns: int) -> None:
        self.world.pass_time(ns)

    @rule(data=st.data())
    def devices_speak(self, data: st.DataObject) -> None:
        self.world.deliver(self.pick(data, self.world.sms))

    @rule(data=st.data(), times=st.integers(1, 3))
    def commands_are_carried_out(self, data: st.DataObject, times: int) -> None:
        for _ in range(times):
            if (found := self.pick_work(data)) is not None:
                self.world.carry_out(*found)

    @rule(data=st.data(), slices=st.integers(1, 5))
    def blocks_leave(self, data: st.DataObject, slices: int) -> None:
        if (found := self.pick_work(data)) is not None:
            self.world.leave(*found, slices)

    @rule(data=st.data(), blocks=st.sampled_from((1, 5, 50, 500)))
    def blocks_run(self, data: st.DataObject, blocks: int) -> None:
        if (found := self.pick_work(data)) is not None:
            self.world.run(*found, blocks)

    @rule(data=st.data(), stuck=st.sampled_from((False, True)), deaf=st.booleans())
    def job_goes_wrong(self, data: st.DataObject, stuck: bool, deaf: bool) -> None:
        if (found := self.pick_work(data)) is not None:
            if stuck:
                work = self.world.work[found[0]][found[1]]
                work.stuck, work.deaf = True, deaf
            else:
                self.world.fail(*found)

    @rule(
        data=st.data(),
        sms=st.sampled_from((1, 2, 4, 8)),
        most=st.integers(0, 3),
        final=st.sampled_from((False, False, False, True)),
    )
    def host_dies_or_comes_up(self, data: st.DataObject, sms: int, most: int, final: bool) -> None:
        device = self.pick(data, self.world.sms)
        state = str(self.world.scheduler.devices[device].state)
        if self.world.sms[device] is not None or state == "replacing":
            self.world.host_dies(device, final=final, most=most)
        else:
            self.world.device_up(device, sms)

    @rule()
    def rest(self) -> None:
        self.world.come_to_rest()

    @rule(data=st.data(), how=st.sampled_from(("pause", "now", "resume", "resume")))
    def pause_or_resume(self, data: st.DataObject, how: str) -> None:
        device = self.pick(data, self.world.sms)
        if how == "resume":
            self.world.resume(device)
        else:
            self.world.pause(device, now=how == "now")

    @rule(sure=st.integers(0, 9), after_ns=st.sampled_from((0, 100)))
    def drain(self, sure: int, after_ns: int) -> None:
        if sure == 9:
            self.world.drain(after_ns)

    @invariant()
    def readable(self) -> None:
        """What the server reads at any time does not fail."""
        if hasattr(self, "world"):
            for job in self.world.scheduler.jobs.values():
                device = self.world.scheduler.devices[job.device]
                assert (waiting_reason(job, device) is None) is (
                    str(job.state) in ("running", "ending")
                )

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=60,
    stateful_step_count=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.parametrize("seed", range(6))
def test_long_histories_keep_every_property(seed: int) -> None:
    world = history(seed, 1500)
    assert len(world.ended) > 200
    assert {"done", "failed", "cancelled"} <= set(world.ended.values())


@pytest.mark.parametrize("seed", range(3))
def test_lanes_that_wake_all_the_time_keep_every_property(seed: int) -> None:
    world = lane_history(seed, 2500)
    booked = [c.booked for c in world.all_commands if isinstance(c, out.ResizeJob) and c.booked]
    assert len(booked) > 20


@pytest.mark.parametrize("kind", ["short", "random", "changes", "lanes", "shares"])
def test_many_histories_keep_every_property(kind: str) -> None:
    for seed in range(SEEDS if kind != "shares" else 50 * SEEDS):
        try:
            if kind == "shares":
                share_history(seed, SHORT)
            elif kind == "lanes":
                lane_history(seed, 500)
            else:
                changes = 0.02 if kind == "changes" else 0
                history(seed, 500, SHORT if kind == "short" else None, changes=changes)
        except Broken as broken:
            broken.add_note(f"in the history of seed {seed}")
            raise


@pytest.mark.parametrize("policy", ["arrival", "fifo", "equal"])
@pytest.mark.parametrize("seed", range(2))
def test_the_baselines_keep_capacity_quota_and_once(policy: str, seed: int) -> None:
    world = history(seed, 1000, replace(SHORT, policy=policy))
    assert len(world.ended) > 100


def test_a_drain_in_the_middle_of_a_history_ends_everything() -> None:
    world = World(Scheduler(SHORT))
    history(3, 400, world=world)
    world.open()
    for _ in range(20):
        world.submit(world.open_sessions[-1], 0, (LaunchShape(2, 100),), quota=Fraction(1))
    world.drain(100)
    world.submit(world.open_sessions[-1], 0, (LaunchShape(2, 100),))
    assert world.drained == 0
    world.finish()
    assert world.drained == 1


# -- equal logs ------------------------------------------------------------------------------------

_REPLAY = """
import hashlib, sys
from gpud.core.replay import replay, write_line
from gpud.core.events import TimerFired
lines = sys.stdin.read().splitlines()
print(hashlib.sha256(write_line(TimerFired(0), replay(lines)).encode()).hexdigest())
"""


def test_equal_logs_give_equal_commands_in_another_process_with_another_hash_seed() -> None:
    from gpud.core.replay import write_line

    world = history(11, 800)
    here = hashlib.sha256(
        write_line(ev.TimerFired(0), world.all_commands).encode()
    ).hexdigest()  # fmt: skip
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", _REPLAY],
            input="\n".join(world.log),
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == here


# -- planted faults --------------------------------------------------------------------------------


class TakesWhatIsNotThere(Reservations):
    """An online job starts though too little is released for it."""

    def make_room(self, device: DeviceRecord, amount: int) -> bool:
        return super().make_room(device, max(1, amount // 2))


class RoundsQuotasUp(Reservations):
    """A quota holds the slice that it does not quite hold."""

    def size(self, job: JobRecord, device: DeviceRecord) -> Any:
        error = super().size(job, device)
        if job.quota is not None:
            job.quota_slices = job.most = job.quota_slices + 1
        return error


class ForgetsWhatIsHeld(Reservations):
    """Offline jobs take what is not allocated, though blocks still hold it."""

    def distribute(self, device: DeviceRecord) -> bool:
        while device.waiting and not device.waiting[0][2].whole:
            job = device.waiting[0][2]
            slices = min(job.most, device.free // job.slice)
            if slices < 1:
                break
            device.start(job, slices)
        return super().distribute(device)


class GrowsTooEarly(Reservations):
    """A job grows though its blocks that were told to leave have not."""

    def distribute(self, device: DeviceRecord) -> bool:
        for entry in list(device.shrinkable):
            job = entry[2]
            slices = min(job.most - job.slices, device.physically_free // job.slice)
            if slices > 0 and not job.exhausted and job.id not in device.resized:
                device.resize(job, job.slices + slices)
        return super().distribute(device)


class TakesFromOnline(Reservations):
    """An online job gives way to another one."""

    def make_room(self, device: DeviceRecord, amount: int) -> bool:
        if super().make_room(device, amount):
            return True
        for job in list(device.jobs.values()):
            fixed = job.whole or job.exclusive or job in device.starting
            if job.online and job.live and job.slices > 1 and not fixed:
                device.resize(job, job.slices - 1)
                return False
        return False


class Oversleeps(Reservations):
    """Room is shared out only when a job is waiting online."""

    def rebalance(self, device: DeviceRecord) -> None:
        if device.waiting_online or not device.allocated:
            super().rebalance(device)


class NeverGrows(Reservations):
    """Jobs start, and keep what they started with."""

    def distribute(self, device: DeviceRecord) -> bool:
        while device.waiting:
            job = device.waiting[0][2]
            slices = max(job.least, min(job.most, device.physically_free // job.slice))
            if slices * job.slice > device.physically_free or (job.whole and device.waiting_online):
                break
            device.start(job, slices)
        return False


class GivesNothing(Reservations):
    """Offline jobs do not give up capacity for each other."""

    def rebalance(self, device: DeviceRecord) -> None:
        rebalancing, device.rebalancing = device.rebalancing, False
        super().rebalance(device)
        if rebalancing and device.shrinkable:
            device.rebalance_at_ns = device.now_ns + device.rebalance_hold_ns


class GivesAtOnce(Reservations):
    """Offline jobs give up capacity for each other whenever something happens."""

    def rebalance(self, device: DeviceRecord) -> None:
        for job in device.jobs.values():
            job.changed_ns = job.kept_until_ns = 0
        device.rebalancing = True
        super().rebalance(device)


class SetsTooManyApart(Reservations):
    """As many SMs as there are can be jobs' own, whatever the device said."""

    def rebalance(self, device: DeviceRecord) -> None:
        device.partitions = device.partitions._replace(most=device.sms or 0)
        super().rebalance(device)


class Moody(Reservations):
    """What is decided depends on how often it was decided before, in this process."""

    moods = count()

    def size(self, job: JobRecord, device: DeviceRecord) -> Any:
        error = super().size(job, device)
        if not job.online and not job.whole and next(self.moods) % 3 == 0:
            job.most = 1
        return error


class Faulty(Scheduler):
    """Breaks one rule of `Scheduler.handle`'s answers."""

    def __init__(self, fault: str) -> None:
        super().__init__(SHORT)
        self.fault = fault
        self.count = 0

    def handle(self, event: ev.Event) -> list[out.Command]:
        commands = super().handle(event)
        kinds: dict[str, type] = {"twice": out.StartJob, "lost": out.EndJob, "mute": out.FinishJob}
        if self.fault == "early" and isinstance(event, ev.BlocksLeft) and event.exhausted:
            if event.job in self.jobs:
                return [*commands, out.FinishJob(event.job, "done", None)]
        kind = kinds.get(self.fault, type(None))
        if self.fault == "twice":
            return commands + [c for c in commands if isinstance(c, kind)]
        self.count += sum(isinstance(c, kind) for c in commands)
        if self.count >= 5:
            return [c for c in commands if not isinstance(c, kind)]
        return commands


class ForgetsStreams(JobTable):
    """A job does not wait for the one before it in its stream, unless it is sticky."""

    def _check_dependencies(self, job: JobRecord) -> None:
        if not job.submission.sticky:
            job.stream_prev = None
        super()._check_dependencies(job)


class ForgetsFailures(JobTable):
    """What is behind a job that has failed runs."""

    def _note_failure(self, job: JobRecord, session: Any, error: Any) -> bool:
        return False


class ForgetsFollowers(JobTable):
    """Who follows a job that has ended is not told."""

    def ended(self, job: JobRecord, by: JobInput, error: Any = None) -> None:
        job.followers.clear()
        super().ended(job, by, error)


class BelievesTheDead(Scheduler):
    """What one host had, the next one is thought to have."""

    def handle(self, event: ev.Event) -> list[out.Command]:
        if isinstance(event, ev.DeviceReady) and event.device in self.devices:
            self.devices[event.device].host_generation = 0
        return super().handle(event)


class AsksNobody(JobTable):
    """What a job needs is asked for only when its device comes up."""

    def _check_dependencies(self, job: JobRecord) -> None:
        asked = len(self.out)
        super()._check_dependencies(job)
        self.out[asked:] = [c for c in self.out[asked:] if not isinstance(c, out.PrepareJob)]


class StartsAgain(Scheduler):
    """A job that ran on a host that was lost is started on the next one."""

    def handle(self, event: ev.Event) -> list[out.Command]:
        if isinstance(event, ev.DeviceFailed):
            begun = [job.id for job in self.devices[event.device].jobs.values() if job.live]
            event = event._replace(unstarted=tuple(begun))
        return super().handle(event)


class Murders(Scheduler):
    """A job that could be killed alone costs the device its host."""

    def _expire(self, due: Any) -> None:
        job = self.jobs.get(due[2])
        if due[1] is Timer.GRACE and job is not None:
            self._device_table.replace(self.devices[job.device], job)
        else:
            super()._expire(due)


class TooHopeful(Scheduler):
    """A release counts as done when it is commanded."""

    def handle(self, event: ev.Event) -> list[out.Command]:
        commands = super().handle(event)
        for command in commands:
            if isinstance(command, out.ResizeJob):
                job = self.jobs[command.job]
                job.grants.clear()
                job.grants.append((job.epoch, job.slices))
                job.reported = job.held = job.slices
                self.devices[command.device].update(job)
        return commands


class SellsWhatIsPromised(Reservations):
    """What a lane has lent is reserved for another online job."""

    def make_room(self, device: DeviceRecord, amount: int) -> bool:
        promised, device.promised = device.promised, 0
        try:
            return super().make_room(device, amount)
        finally:
            device.promised = promised


class LendsToTheWhole(Reservations):
    """A job that cannot be resized is started in what a lane has lent."""

    def _start_whole(self, device: DeviceRecord) -> None:
        promised, device.promised = device.promised, 0
        super()._start_whole(device)
        device.promised = promised


class KeepsItsPlans(Lanes):
    """A plan is made when a lane becomes idle, and not when something changes after it."""

    def plan(self, device: DeviceRecord) -> list[out.TakeBackPlan]:
        known = {job.id for job in device.lending.values() if job.plan is not None}
        return [plan for plan in super().plan(device) if plan.job not in known]


class TakesFromMany(Lanes):
    """A plan takes a slice from each job in turn."""

    def _all_steps(self, device: DeviceRecord) -> Any:
        planned = super()._all_steps(device)
        if len(planned) != 1:
            return planned
        lane, steps = planned[0]
        jobs = [entry[2] for entry in device.shrinkable if not entry[2].exhausted]
        if len(steps) != 1 or len(jobs) < 2 or steps[0][1] < 2:
            return planned
        first = next((job for job in jobs if job.id == steps[0][0]), None)
        other = next((job for job in jobs if job is not first and job.slices), None)
        if first is None or other is None:
            return planned
        return [(lane, (*((job, slices - 1) for job, slices in steps), (other.id, other.slices)))]


class IgnoresLateWakes(Lanes):
    """A wake by a plan that was replaced is not booked."""

    def woke(self, event: ev.LaneWoke) -> None:
        lane = self._jobs.get(event.job)
        if lane is None or lane.plan is None or lane.plan == event.taken:
            super().woke(event)


class ForgetsTheRest(Lanes):
    """What a late plan did not take is not taken."""

    def woke(self, event: ev.LaneWoke) -> None:
        policy, self.policy = self.policy, Fifo()
        super().woke(event)
        self.policy = policy


class NeverBooks(Scheduler):
    """What was taken is never said to be booked, and so taken from all that comes after."""

    def handle(self, event: ev.Event) -> list[out.Command]:
        commands = super().handle(event)
        return [c._replace(booked=0) if isinstance(c, out.ResizeJob) else c for c in commands]


class NeverLends(Lanes):
    """An idle lane keeps its share."""

    def idle(self, event: ev.LaneIdle) -> None:
        pass


def with_lanes(lanes: type[Lanes]) -> Callable[[], Scheduler]:
    def make() -> Scheduler:
        scheduler = Scheduler(SHORT)
        scheduler._lanes.__class__ = lanes
        scheduler._handlers = dict(scheduler._handlers)
        scheduler._handlers[ev.LaneIdle] = scheduler._lanes.idle
        scheduler._handlers[ev.LaneWoke] = scheduler._lanes.woke
        return scheduler

    return make


def under(policy: type[Reservations]) -> Callable[[], Scheduler]:
    def make() -> Scheduler:
        scheduler = Scheduler(SHORT)
        scheduler.policy = scheduler._lanes.policy = policy()
        return scheduler

    return make


def with_job_table(job_table: type[JobTable]) -> Callable[[], Scheduler]:
    def make() -> Scheduler:
        scheduler = Scheduler(SHORT)
        scheduler.job_table.__class__ = job_table
        return scheduler

    return make


class GivesWhileItIsPaused(Scheduler):
    """What jobs of a paused device were made to give up they get again at the next event."""

    def _rebalance(self, device: DeviceRecord) -> None:
        pause = device.pause
        if pause is not None:
            device.pause = pause._replace(now=False)
        super()._rebalance(device)
        device.pause = pause


def never_paused() -> Scheduler:
    """Return a scheduler whose devices take no notice of a pause."""
    scheduler = Scheduler(SHORT)
    scheduler._handlers = {**scheduler._handlers, ev.PauseRequested: lambda event: None}
    return scheduler


FAULTS: list[tuple[Callable[[], Scheduler], set[str]]] = [
    (under(TakesWhatIsNotThere), {"capacity"}),
    (under(RoundsQuotasUp), {"quota"}),
    (under(ForgetsWhatIsHeld), {"quota"}),
    (under(TakesFromOnline), {"reservation"}),
    (under(SetsTooManyApart), {"partitions"}),
    (lambda: GivesWhileItIsPaused(SHORT), {"paused"}),
    (never_paused, {"paused"}),
    (under(Oversleeps), {"awake"}),
    (under(NeverGrows), {"awake"}),
    (under(Moody), {"equal_logs"}),
    (under(GivesNothing), {"fair"}),
    (under(GivesAtOnce), {"patient"}),
    (lambda: Faulty("twice"), {"once"}),
    (lambda: Faulty("early"), {"once"}),
    (lambda: Faulty("mute"), {"once"}),
    (lambda: Faulty("lost"), {"awake", "capacity", "once"}),
    (lambda: StartsAgain(SHORT), {"once"}),
    (lambda: Murders(SHORT), {"once"}),
    (lambda: BelievesTheDead(SHORT), {"prepared"}),
    (with_job_table(AsksNobody), {"awake"}),
    (with_job_table(ForgetsStreams), {"order", "awake"}),
    (with_job_table(ForgetsFailures), {"behind"}),
    (with_job_table(ForgetsFollowers), {"awake"}),
    (lambda: TooHopeful(SHORT), {"books"}),
    (with_lanes(TakesFromMany), {"few"}),
    (with_lanes(NeverLends), {"planned"}),
]


@pytest.mark.ci
@pytest.mark.parametrize(("make", "expected"), FAULTS)
def test_a_planted_fault_is_caught(make: Callable[[], Scheduler], expected: set[str]) -> None:
    found: set[str] = set()
    # Elsewhere a fault may show first in what lanes lend.
    lanes = 0.15 if expected & {"planned", "few"} else 0.0
    for seed in range(16):
        try:
            history(seed, 3000, world=World(make(), lanes))
        except Broken as broken:
            # A replay is by a scheduler without the fault: in a history that ends before the fault
            # has broken anything else, that shows.
            found |= {broken.name} & (expected | (set(CHECKS) - {"equal_logs"}))
        if seed >= 3 and found >= expected:
            break
    assert found == expected


def hear_everything(world: World) -> None:
    while world.deliver(0):
        pass


def test_a_job_that_grows_before_its_blocks_have_left_is_caught() -> None:
    world = World(under(GrowsTooEarly)())
    world.device_up(0, 4)
    session = world.open()
    shape = (LaunchShape(1, MANY),)
    offline = world.submit(session, 0, shape, quota=Fraction(2), stream=1)
    online = world.submit(session, 0, shape, reservation=Fraction(3), stream=2)
    for job in (offline, online):
        world.carry_out(0, job)  # they start; the release of one slice is still to come
    world.cancel(online)
    world.carry_out(0, online)
    world.leave(0, online, 3)
    with pytest.raises(Broken, match=f"quota: job {offline} holds 3 slices of 2"):
        hear_everything(world)


def test_a_device_fills_a_job_up_only_beside_what_leaves() -> None:
    world = World(Scheduler(SHORT))
    world.device_up(0, 6)
    session = world.open()
    large, small = (
        world.submit(session, 0, (LaunchShape(1, MANY),), reservation=Fraction(sms), stream=sms)
        for sms in (4, 1)
    )
    offline = world.submit(session, 0, (LaunchShape(1, 5),), quota=Fraction(4), stream=9)
    for job in (large, small, offline):
        world.carry_out(0, job)
    world.run(0, offline, 3)
    world.submit(session, 0, (LaunchShape(1, MANY),), reservation=Fraction(1), stream=10)
    world.carry_out(0, offline)
    work = world.work[0][offline]
    assert (work.active, work.leaving, work.unclaimed) == (0, 1, 2)
    # Of three slices that it is given back, the two task blocks that are left can use two.
    for online, gets, active in ((large, 3, 2), (small, 4, 3)):
        world.cancel(online)
        world.carry_out(0, online)
        world.leave(0, online, 4)
        hear_everything(world)
        assert work.commanded == gets
        world.carry_out(0, offline)
        hear_everything(world)
        assert (work.active, work.leaving) == (active, 1), "its quota is 4"
    world.finish()


@pytest.mark.parametrize(
    ("sms", "jobs", "passes_ns"),
    [
        # As (M, weight, quota). The second has a slice too much, and not two.
        (2, ((4, 5, None), (4, 1, Fraction(1)), (4, 1, Fraction(1, 2))), 0),
        (1, ((32, 1, Fraction(1, 2)), (32, 1, None), (32, 1, None)), 200),
        # A slice lifts the lowest, of weight 1, above the others, and those of weight 2 not.
        (2, ((4, 1, Fraction(1, 2)), (4, 1, Fraction(1, 2)), (4, 2, None), (4, 2, Fraction(1))), 0),
        # Slices of two sizes.
        (1, ((32, 1, Fraction(1)), (7, 1, Fraction(1)), (32, 1, Fraction(1))), 400),
    ],
)
def test_short_histories_that_were_not_fair(
    sms: int, jobs: tuple[tuple[int, int, Fraction | None], ...], passes_ns: int
) -> None:
    world = World(Scheduler(SHORT))
    world.device_up(0, sms)
    session = world.open()
    for stream, (occupancy, weight, quota) in enumerate(jobs):
        shape = (LaunchShape(occupancy, MANY),)
        world.submit(session, 0, shape, quota=quota, weight=weight, stream=stream)
    if passes_ns:
        hear_everything(world)
        world.pass_time(passes_ns)
    world.come_to_rest()
    world.finish()


def lane_and_offline(world: World) -> tuple[JobId, JobId]:
    """A lane of 2 SMs that is idle, and an offline job that has these too, on 4 SMs."""
    world.device_up(0, 4)
    session = world.open()
    offline = world.submit(session, 0, (LaunchShape(1, MANY),), stream=1)
    lane = world.open_lane(session, 0, reservation=Fraction(2))
    world.come_to_rest()
    world.lane_rests(0, lane)
    hear_everything(world)
    assert world.work[0][offline].commanded == 4
    return lane, offline


def test_the_floor_is_kept_for_an_offline_lane_that_lends() -> None:
    world = World(Scheduler(replace(SHORT, offline_floor=Fraction(1, 2))))
    world.device_up(0, 2)
    session = world.open()
    lane = world.open_lane(session, 0, quota=Fraction(1, 2))
    shape = (LaunchShape(1, MANY),)
    for stream in (1, 2):
        world.submit(session, 0, shape, reservation=Fraction(1), stream=stream)
    world.come_to_rest()
    world.lane_rests(0, lane)
    world.come_to_rest()
    assert world.work[0][lane].lends
    assert [str(job.state) for job in world.scheduler.jobs.values()].count("waiting") == 1
    world.lane_launches(0, lane)
    assert world.work[0][lane].active == 16, "half an SM, at once"
    world.come_to_rest()
    world.finish()


def wakes_by_plan(world: World) -> None:
    """A lane takes back its share by the plan, and lends it a second time."""
    lane, offline = lane_and_offline(world)
    world.come_to_rest()
    for _ in range(2):
        assert world.work[0][offline].wanted == 4
        world.lane_launches(0, lane)
        assert world.work[0][offline].wanted == 2
        world.come_to_rest()
        world.lane_rests(0, lane)
        world.come_to_rest()


def wakes_before_the_plan_has_come(world: World) -> None:
    """A lane wakes when the offline job has its share already, and the plan is on its way."""
    lane, offline = lane_and_offline(world)
    for _ in range(2):
        world.carry_out(0, offline)
    world.lane_launches(0, lane)
    world.come_to_rest()
    assert (world.work[0][lane].wanted, world.work[0][offline].wanted) == (64, 2)


def wakes_by_an_old_plan(world: World) -> None:
    """While the report of a wake is on its way, less is left to the job that it has taken from."""
    lane, offline = lane_and_offline(world)
    world.come_to_rest()
    world.lane_launches(0, lane)
    world.resize(offline, quota=Fraction(3))
    works = world.work[0]
    assert works[lane].planned == (1, ((offline, 1),))
    assert [works[job].commanded for job in (lane, offline)] == [64, 3]
    world.come_to_rest()
    assert [works[job].wanted for job in (lane, offline)] == [64, 2]


def a_job_in_form_whole_comes(world: World) -> None:
    """A job that cannot be resized comes when a lane has lent what it needs."""
    world.device_up(0, 4)
    session = world.open()
    lane = world.open_lane(session, 0, reservation=Fraction(2))
    world.come_to_rest()
    world.lane_rests(0, lane)
    hear_everything(world)
    whole = world.submit(session, 0, (LaunchShape(1, 3, False),))
    assert str(world.scheduler.jobs[whole].state) == "waiting"


def an_online_job_comes(world: World) -> None:
    """An online job comes that would have to have what a lane has lent."""
    lane_and_offline(world)
    online = world.submit(
        world.open_sessions[0], 0, (LaunchShape(1, MANY),), reservation=Fraction(3), stream=2
    )
    assert str(world.scheduler.jobs[online].state) == "waiting"


def a_giver_ends(world: World) -> None:
    """A job ends from which a lane was to take its share."""
    lane, offline = lane_and_offline(world)
    world.cancel(offline)
    assert world.work[0][lane].planned == (1, ())


LANE_FAULTS: list[tuple[Callable[[World], None], Callable[[], Scheduler], str]] = [
    (wakes_by_plan, lambda: NeverBooks(SHORT), "awake"),
    (wakes_before_the_plan_has_come, with_lanes(ForgetsTheRest), "capacity"),
    (wakes_by_an_old_plan, with_lanes(IgnoresLateWakes), "settled"),
    (an_online_job_comes, under(SellsWhatIsPromised), "promised"),
    (a_giver_ends, with_lanes(KeepsItsPlans), "planned"),
    (a_job_in_form_whole_comes, under(LendsToTheWhole), "promised"),
]


@pytest.mark.parametrize(("happen", "make", "expected"), LANE_FAULTS)
def test_a_planted_fault_of_lanes_is_caught(
    happen: Callable[[World], None], make: Callable[[], Scheduler], expected: str
) -> None:
    world = World(Scheduler(SHORT))
    happen(world)
    world.finish()
    with pytest.raises(Broken) as caught:
        happen(World(make()))
    assert caught.value.name == expected


def test_every_property_has_a_planted_fault() -> None:
    alone = {expected for _, _, expected in LANE_FAULTS}
    assert set.union(alone, *(expected for _, expected in FAULTS)) == set(CHECKS)


def test_random_settings_are_all_valid() -> None:
    import random

    for seed in range(20):
        assert random_settings(random.Random(seed)).grace_ns == 200
    assert replay([write_header(Settings())]) == []
