"""A simulation for the scheduler: devices that answer late and out of order, and a checker.

The devices are modelled from the contract of `gpud.core.commands` and `gpud.core.events` alone.
Each job has an inbox of its own, so that commands of different jobs overtake each other; blocks
that were told to leave do so one after another; what a job needs is on its device when it is
submitted or comes later; hosts die, some before they have been told of all jobs, and the next ones
have nothing of what these had; jobs fail, some never leave, and of those that can be killed some do
not obey.

After every event the world checks, from what the *devices* know, each property that the scheduler
promises (`CHECKS`), and that the scheduler's books are never more hopeful than the devices.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from gpud.core import commands as out
from gpud.core import events as ev
from gpud.core.events import LaunchShape
from gpud.core.replay import replay, write_header, write_line
from gpud.core.scheduler import Scheduler, Settings
from gpud.errors import Draining, GpudError, PredecessorFailed
from gpud.units import JobId, Partitions, SessionId, job_id

CHECKS = (
    "capacity",
    "quota",
    "paused",
    "reservation",
    "partitions",
    "prepared",
    "once",
    "awake",
    "equal_logs",
    "order",
    "behind",
    "books",
    "fair",
    "patient",
    "promised",
    "planned",
    "few",
    "settled",
)
"""Names of the properties, as a `Broken` carries them. "order" is that of streams and ``after``."""


class Broken(AssertionError):
    """A property does not hold."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


Told = out.StartJob | out.ResizeJob | out.TakeBackPlan | out.EndJob | out.KillJob
Said = ev.BlocksLeft | ev.JobEnded | ev.LaneIdle | ev.LaneWoke
Steps = tuple[tuple[JobId, int], ...]


def partitions_of(sms: int) -> Partitions:
    """A device of 4 SMs and more sets them apart by twos, and keeps one."""
    return Partitions(1, sms) if sms < 4 else Partitions(2, (sms - 1) // 2 * 2)


@dataclass
class Work:
    """A job on its device. Slices stand for the persistent blocks in them."""

    submission: ev.JobSubmitted
    occupancy: int
    inbox: deque[Told] = field(default_factory=deque)
    epoch: int = 0
    wanted: int = 0  # slices, as the last command that was carried out says
    active: int = 0  # slices with blocks that run
    leaving: int = 0  # slices with blocks that were told to leave
    launch: int = 0
    claimed: int = 0  # task blocks of the present launch
    ran: int = 0  # task blocks of all launches
    own: int = 0  # SMs that nobody else has until it is over
    ending: bool = False
    stuck: bool = False  # blocks never leave
    deaf: bool = False  # even if they are killed
    killed: bool = False
    over: bool = False  # it has ended, and the scheduler may not know yet
    commanded: int = 0  # slices, as the scheduler last said
    commanded_epoch: int = 0
    told_to_end: bool = False
    changed_ns: int = 0  # when the scheduler last changed its size
    gave_ns: int = 0  # when it was started or resumed, or last gave for other offline jobs
    shrank_ns: int = 0  # when it last gave something, for whomever
    reported: tuple[int, bool] | None = None  # (held, exhausted) as the scheduler was last told
    unbooked: int = 0  # slices that lanes have taken from it, and no resize has accounted for
    # Of a lane.
    idle: bool = False
    period: int = 0  # how often it has become idle
    plan: Steps = ()  # what its device does when it wakes
    lends: bool = False  # the scheduler was told that it is idle, and not that it has woken
    heard: int = 0  # the period of which the scheduler was last told
    planned: tuple[int, Steps] | None = None  # the last plan that the scheduler made

    @property
    def lane(self) -> bool:
        return self.submission.lane

    @property
    def total(self) -> int:
        return sum(shape.task_blocks for shape in self.submission.launches)

    @property
    def whole(self) -> bool:
        return not all(shape.resizable for shape in self.submission.launches)

    @property
    def held(self) -> int:
        return self.active + self.leaving

    @property
    def unclaimed(self) -> int:
        if self.lane:
            return 0
        return self.submission.launches[self.launch].task_blocks - self.claimed

    @property
    def last_launch(self) -> bool:
        return self.lane or self.launch == len(self.submission.launches) - 1

    @property
    def exhausted(self) -> bool:
        return self.last_launch and self.unclaimed == 0 and not self.lane

    @property
    def useful(self) -> int:
        """Slices that the present launch can still use."""
        shape = self.submission.launches[self.launch]
        return -(-self.unclaimed * self.occupancy // shape.occupancy)

    def bound(self) -> int:
        """The most slices that it holds or can come to hold by what it has been told."""
        if self.over:
            return 0
        if self.exhausted or self.ending:
            return self.held
        wanted, growth, unbooked = self.wanted, 0, self.unbooked
        for command in self.inbox:
            if isinstance(command, out.EndJob | out.KillJob):
                break
            if isinstance(command, out.TakeBackPlan):
                continue
            if isinstance(command, out.ResizeJob):
                unbooked -= command.booked
            will = max(0, command.slices - unbooked)
            growth += max(0, will - wanted)
            wanted = will
        if self.lane:
            return self.leaving + self.wanted + growth
        # What is held of a launch that cannot use all of it says nothing of the next one's.
        return (self.held if self.last_launch else max(self.held, self.wanted)) + growth

    def allocated(self) -> int:
        """Slices that the scheduler has given it, as far as it can know."""
        if self.told_to_end or self.lends:
            return 0
        if self.own:
            return self.own * self.occupancy
        if self.reported is not None and self.reported[1]:
            return min(self.commanded, self.reported[0])
        return self.commanded


class World:
    """Sends events to a scheduler, simulates the devices, and checks properties.

    ``lanes`` is the part of lanes among random jobs.
    """

    def __init__(self, scheduler: Scheduler | None = None, lanes: float = 0.15) -> None:
        self.scheduler = scheduler or Scheduler(Settings())
        self.lanes = lanes
        self.now_ns = 0
        self.sms: dict[int, int | None] = {}  # None: its host is down
        self.work: dict[int, dict[JobId, Work]] = {}  # started, by device
        self.outbox: dict[int, deque[Said]] = {}
        self.untold: dict[int, tuple[JobId, ...]] = {}  # of hosts that are being replaced
        self.lacking: dict[JobId, None] = {}  # jobs that need what their device has not
        self.preparing: dict[JobId, int] = {}  # of those, what devices were told to get, and which
        self.live: dict[JobId, ev.JobSubmitted] = {}
        self.quota: dict[JobId, Fraction | None] = {}
        self.reservation: dict[JobId, Fraction | None] = {}
        self.quota_held: dict[JobId, int] = {}  # what a lowered quota found there
        self.ended: dict[JobId, str] = {}
        self.sessions: dict[SessionId, int] = {}  # jobs numbered so far
        self.closing: list[SessionId] = []
        self.failed: dict[tuple[SessionId, int], JobId] = {}  # what nobody has seen, by stream
        self.forgiven: dict[JobId, None] = {}
        self.started: dict[JobId, None] = {}
        self.paused: dict[int, bool] = {}  # by device: whether what ran made room, too
        self.timer_ns: int | None = None
        self.closed: dict[JobId, None] = {}  # lanes whose owners have closed them
        self.drained = 0
        self.draining = False
        self.tickets: dict[int, ev.ResizeRequested] = {}
        self.ticket = 0
        self.log = [write_header(self.settings)]
        self.all_commands: list[out.Command] = []
        self.events = 0

    # -- what clients and operators do

    def device_up(self, device: int, sms: int) -> None:
        self.sms[device] = sms
        self.work.setdefault(device, {})
        self.outbox.setdefault(device, deque())
        self.send(ev.DeviceReady(self.now_ns, device, sms, partitions=partitions_of(sms)))

    def open(self) -> SessionId:
        session = SessionId(len(self.sessions) + 1)
        self.sessions[session] = 0
        self.send(ev.SessionOpened(self.now_ns, session))
        return session

    def close(self, session: SessionId) -> None:
        if session not in self.closing:
            self.closing.append(session)
            self.send(ev.SessionClosed(self.now_ns, session))

    @property
    def open_sessions(self) -> list[SessionId]:
        return [session for session in self.sessions if session not in self.closing]

    def submit(
        self, session: SessionId, device: int, launches: tuple[LaunchShape, ...], **more: object
    ) -> JobId:
        self.sessions[session] += 1
        job = job_id(session, self.sessions[session])
        more["prepared"] = bool(more.get("prepared", True)) and self.sms[device] is not None
        event = ev.JobSubmitted(self.now_ns, job, session, device, launches, **more)  # type: ignore[arg-type]
        self.live[job] = event
        if not event.prepared:
            self.lacking[job] = None
        self.quota[job], self.reservation[job] = event.quota, event.reservation
        self.send(event)
        return job

    def resize(
        self, job: JobId, *, quota: Fraction | None = None, reservation: Fraction | None = None
    ) -> None:
        self.ticket += 1
        event = ev.ResizeRequested(self.now_ns, self.ticket, job, reservation, quota)
        self.tickets[self.ticket] = event
        self.send(event)
        if self.ticket in self.tickets:
            raise Broken("once", f"the resize {event} was not answered")

    def open_lane(self, session: SessionId, device: int, **more: object) -> JobId:
        return self.submit(session, device, (), lane=True, **more)

    def close_lane(self, job: JobId) -> None:
        self.closed[job] = None
        self.send(ev.LaneCloseRequested(self.now_ns, job))

    def cancel(self, job: JobId, *, by_owner: bool = False) -> None:
        if by_owner:
            self.forgiven[job] = None
        self.send(ev.CancelRequested(self.now_ns, job, by_owner))

    def see(self, session: SessionId, stream: int) -> None:
        """A client sees what has failed in a stream."""
        job = self.failed.pop((session, stream))
        self.send(ev.FailureSeen(self.now_ns, session, stream, job))

    def pause(self, device: int, *, now: bool) -> None:
        self.paused[device] = now
        self.send(ev.PauseRequested(self.now_ns, device, "u0", "12:00", now))

    def resume(self, device: int) -> None:
        self.paused.pop(device, None)
        self.send(ev.ResumeRequested(self.now_ns, device))

    @property
    def settings(self) -> Settings:
        return self.scheduler.settings

    def change_times(self, hold_ns: int, rebalance_hold_ns: int) -> None:
        limit, grace_ns = self.settings.rebalance_limit, self.settings.grace_ns
        self.send(ev.TimesChanged(self.now_ns, hold_ns, rebalance_hold_ns, limit, grace_ns))

    def drain(self, after_ns: int) -> None:
        if not self.draining:
            self.draining = True
            self.send(ev.DrainRequested(self.now_ns, self.now_ns + after_ns))

    def pass_time(self, ns: int) -> None:
        """Advances time; the timer fires if it is due."""
        self.now_ns += ns
        if self.timer_ns is not None and self.timer_ns <= self.now_ns:
            self.timer_ns = None
            self.send(ev.TimerFired(self.now_ns))

    # -- what devices do

    def host_dies(self, device: int, *, final: bool = False, most: int = 0) -> None:
        """Of the jobs that it has not begun, it was not told of the ``most`` latest."""
        unstarted = self.untold.pop(device, ()) + self._unbegun(device)
        unstarted = unstarted[max(0, len(unstarted) - most) :]
        self._host_ends(device)
        for job in unstarted:
            if not final and job in self.live:
                del self.started[job]
        event = ev.DeviceFailed(self.now_ns, device, "crashed", final, unstarted=unstarted)
        self.send(event)
        left = [job for job, found in self.live.items() if found.device == device]
        if final and left:
            raise Broken("awake", f"jobs {left} wait for a device that is given up")

    def _unbegun(self, device: int) -> tuple[JobId, ...]:
        """Jobs of which a device has not carried out the first command."""
        works = self.work[device].items()
        return tuple(
            job for job, work in works
            if work.inbox and isinstance(work.inbox[0], out.StartJob) and not work.told_to_end
        )  # fmt: skip

    def _host_ends(self, device: int) -> None:
        self.work[device].clear()
        self.lacking |= {job: None for job, event in self.live.items() if event.device == device}
        self.preparing = {job: at for job, at in self.preparing.items() if at != device}
        self.outbox[device].clear()
        self.sms[device] = None

    def prepare(self, job: JobId, *, failed: bool = False) -> None:
        """A device gets what a job needs, or reports that it cannot."""
        del self.preparing[job]
        if not failed:
            del self.lacking[job]
        self.send(ev.JobPrepared(self.now_ns, job, failed))

    def deliver(self, device: int) -> bool:
        """Delivers the first event of a device to the scheduler; returns whether there was one."""
        if not self.outbox[device]:
            return False
        event = self.outbox[device].popleft()._replace(now_ns=self.now_ns)
        work = self.work[device][event.job]
        if isinstance(event, ev.JobEnded):
            del self.work[device][event.job]
            if event.complete and work.ran != work.total:
                raise Broken("once", f"{event.job} ran {work.ran} of {work.total} task blocks")
        elif isinstance(event, ev.LaneIdle):
            lends = self.scheduler.policy.lends and not work.submission.exclusive
            work.lends = lends and not work.told_to_end
            work.heard, work.planned = event.epoch, None
        elif isinstance(event, ev.LaneWoke):
            work.lends = False
        else:
            work.reported = (event.held, event.exhausted)
        self.send(event)
        return True

    def carry_out(self, device: int, job: JobId) -> None:
        """A device executes a job's next command."""
        work = self.work[device][job]
        if not work.inbox:
            return
        command = work.inbox.popleft()
        if isinstance(command, out.KillJob):
            work.stuck = work.stuck and work.deaf
            if not work.stuck:
                work.leaving = work.active = 0
                self._check_ended(device, job)
            return
        if work.over or (work.ending and not isinstance(command, out.EndJob)):
            return
        if isinstance(command, out.TakeBackPlan):
            if work.idle and command.epoch == work.period:
                work.plan = command.steps
            return
        if isinstance(command, out.EndJob):
            work.ending = True
            work.leaving, work.active = work.held, 0
            self._check_ended(device, job)
        else:
            work.epoch = command.epoch
            if isinstance(command, out.ResizeJob):
                work.unbooked -= command.booked
                if work.unbooked < 0:
                    raise Broken("settled", f"{command} books what was not taken")
            self._set_size(work, max(0, command.slices - work.unbooked))
            self._report(device, job)

    def _set_size(self, work: Work, slices: int) -> None:
        grows = max(0, slices - work.wanted)
        most = max(work.held, work.wanted) + grows
        work.wanted = slices
        if work.wanted < work.active:
            work.leaving += work.active - work.wanted
            work.active = work.wanted
        elif not work.lane:
            # See `ResizeJob`: of the size before only what those that leave do not hold.
            work.active += min(work.wanted - work.active, work.useful, most - work.held)

    def lane_launches(self, device: int, job: JobId) -> None:
        """A launch comes in a lane: its device takes its share back, if it was idle, and runs it.

        Nobody asks the scheduler, which hears of it later.
        """
        lane = self.work[device][job]
        if (
            not lane.lane
            or lane.ending
            or lane.over
            or isinstance(_first(lane.inbox), out.StartJob)
        ):
            return
        if lane.idle:
            taken = []
            for one, slices in lane.plan:
                work = self.work[device].get(one)
                if work is None or work.over or work.ending:
                    continue
                gives = min(slices, work.wanted)
                if gives:
                    work.unbooked += gives
                    self._set_size(work, work.wanted - gives)
                    taken.append((one, gives))
                    self._report(device, one)
            self.outbox[device].append(ev.LaneWoke(0, job, lane.period, tuple(taken)))
            lane.idle, lane.plan = False, ()
        lane.active = lane.wanted

    def lane_rests(self, device: int, job: JobId) -> None:
        """A lane has had nothing to run for the hold time."""
        lane = self.work[device][job]
        unbegun = isinstance(_first(lane.inbox), out.StartJob)
        if not lane.lane or lane.idle or lane.held or lane.ending or lane.over or unbegun:
            return
        lane.idle, lane.plan = True, ()
        lane.period += 1
        self.outbox[device].append(ev.LaneIdle(0, job, lane.period))

    def leave(self, device: int, job: JobId, slices: int) -> None:
        """Blocks that were told to leave leave."""
        work = self.work[device][job]
        if not work.stuck and work.leaving:
            work.leaving -= min(slices, work.leaving)
            self._report(device, job)
            self._go_on(device, job)

    def run(self, device: int, job: JobId, blocks: int) -> None:
        """Blocks of a job run up to so many task blocks, or find none and leave."""
        work = self.work[device][job]
        if not work.active:
            return
        if work.lane:
            if not work.stuck:
                work.active = 0
        elif work.unclaimed:
            done = min(blocks, work.unclaimed)
            work.claimed += done
            work.ran += done
            if work.exhausted:
                self._report(device, job)
        elif not work.stuck:
            work.active -= min(blocks, work.active)
            self._report(device, job)
            self._go_on(device, job)

    def fail(self, device: int, job: JobId) -> None:
        """A job fails by its own fault."""
        work = self.work[device][job]
        if work.held and not work.over:
            self._over(device, job, failed=True)

    def _go_on(self, device: int, job: JobId) -> None:
        """After blocks have left: the next launch starts when the one before has ended."""
        work = self.work[device][job]
        if not work.held and not work.unclaimed and not work.last_launch and not work.ending:
            work.launch += 1
            work.claimed = 0
            work.active = min(work.wanted, work.useful)
            self._report(device, job)
        self._check_ended(device, job)

    def _report(self, device: int, job: JobId) -> None:
        work = self.work[device][job]
        held = work.leaving + work.wanted if work.lane and not work.ending else work.held
        self.outbox[device].append(
            ev.BlocksLeft(0, job, work.epoch, held, exhausted=work.exhausted)
        )

    def _check_ended(self, device: int, job: JobId) -> None:
        work = self.work[device][job]
        if not work.held and not work.over and (work.ending or work.exhausted):
            self._over(device, job, failed=False)

    def _over(self, device: int, job: JobId, *, failed: bool) -> None:
        work = self.work[device][job]
        work.over = True
        work.active = work.leaving = 0
        complete = work.exhausted and not failed
        self.outbox[device].append(ev.JobEnded(0, job, failed=failed, complete=complete))

    # -- the scheduler's answers

    def send(self, event: ev.Event) -> None:
        self.events += 1
        had = self._kept() if isinstance(event, ev.TimerFired | ev.TimesChanged) else {}
        commands = self.scheduler.handle(event)
        for job, (slices, until_ns) in (self._kept() if had else {}).items():
            before, before_ns = had.get(job, (0, 0))
            if 0 < before <= slices and until_ns != before_ns:
                raise Broken("patient", f"job {job} keeps its {slices} slices, and gave nothing")
        self.log.append(write_line(event, commands))
        self.all_commands += commands
        self._check_patient(event, commands)
        ending = self._ending(event)
        grew: dict[int, None] = {}
        changed: dict[tuple[int, JobId], None] = {}
        for command in commands:
            if isinstance(command, out.StartJob | out.ResizeJob):
                key = (command.device, command.job)
                if key in changed:
                    raise Broken("once", f"{command} is the second change in one event")
                changed[key] = None
            self._take(command, ending, grew)
        self.check(grew)

    def _kept(self) -> dict[JobId, tuple[int, int]]:
        """What each running job has, and until when it keeps that from others."""
        return {job.id: (job.slices, job.kept_until_ns) for job in self.scheduler.jobs.values()}

    def _check_patient(self, event: ev.Event, commands: list[out.Command]) -> None:
        """Offline jobs give for each other only when a timer fires, and each only so often."""
        changes = [c for c in commands if isinstance(c, out.StartJob | out.ResizeJob)]
        online = any(self.reservation[command.job] is not None for command in changes)
        for command in changes:
            if isinstance(command, out.StartJob):
                continue
            work = self.work[command.device][command.job]
            if work.lends:
                continue  # it does not have what it gives
            if command.slices == work.commanded and not command.booked:
                continue  # its quota alone has changed
            gives = command.slices < work.commanded and self.reservation[command.job] is None
            alone = self.scheduler.policy.name != "equal" and not online
            asked = isinstance(event, ev.ResizeRequested | ev.PauseRequested | ev.LaneWoke)
            if gives:
                work.shrank_ns = self.now_ns
            if gives and alone and not asked:
                held = self.now_ns - work.changed_ns >= self.settings.rebalance_hold_ns
                if not held or self.now_ns - work.gave_ns < self.settings.turn_ns:
                    raise Broken(
                        "patient",
                        f"{command} at {self.now_ns}; changed {work.changed_ns}, {work.gave_ns}",
                    )
                work.gave_ns = self.now_ns
            elif not work.commanded:
                work.gave_ns = self.now_ns
            work.changed_ns = self.now_ns

    def _ending(self, event: ev.Event) -> tuple[JobId, bool] | None:
        return (event.job, event.complete) if isinstance(event, ev.JobEnded) else None

    def _take(
        self, command: out.Command, ending: tuple[JobId, bool] | None, grew: dict[int, None]
    ) -> None:
        match command:
            case out.PrepareJob():
                if command.job in self.preparing or command.job not in self.lacking:
                    raise Broken("prepared", f"{command}, and its device does so, or has")
                if self.sms[command.device] is None:
                    raise Broken("prepared", f"{command} has no device")
                self.preparing[command.job] = command.device
            case out.StartJob():
                if command.job in self.lacking:
                    raise Broken("prepared", f"{command}, and its device lacks what it needs")
                if command.device in self.paused:
                    raise Broken("paused", f"{command}, and its device is paused")
                if command.job in self.started:
                    raise Broken("once", f"{command} starts a job for the second time")
                if self.sms[command.device] is None or command.job not in self.live:
                    raise Broken("once", f"{command} has no device or no job")
                self._check_order(command.job)
                self.started[command.job] = None
                work = Work(self.live[command.job], command.occupancy)
                work.inbox.append(command)
                work.commanded = command.slices
                work.changed_ns = work.gave_ns = self.now_ns
                work.own = command.exclusive
                if (work.own > 0) is not work.submission.exclusive:
                    raise Broken("partitions", f"{command} sets {work.own} SMs apart")
                self.work[command.device][command.job] = work
                if not command.online:
                    grew[command.device] = None
            case out.ResizeJob():
                work = self.work[command.device][command.job]
                if work.whole:
                    raise Broken("once", f"{command} resizes a job in form whole")
                if work.told_to_end:
                    raise Broken("once", f"{command} resizes a job that was told to end")
                work.commanded_epoch += 1
                if command.epoch != work.commanded_epoch:
                    raise Broken("once", f"{command} is not of epoch {work.commanded_epoch}")
                grows = command.slices > work.commanded and not work.lends
                if grows and self.reservation[command.job] is None:
                    grew[command.device] = None
                    if self.paused.get(command.device):
                        raise Broken("paused", f"{command} gives on a device that is paused")
                work.commanded = command.slices
                work.inbox.append(command)
            case out.TakeBackPlan():
                work = self.work[command.device][command.job]
                if not work.lends:
                    raise Broken("planned", f"{command} is for a lane that lends nothing")
                work.planned = command.epoch, command.steps
                work.inbox.append(command)
            case out.EndJob():
                work = self.work[command.device][command.job]
                if work.told_to_end:
                    raise Broken("once", f"{command} is the second")
                work.told_to_end, work.lends = True, False
                work.inbox.append(command)
            case out.KillJob():
                work = self.work[command.device][command.job]
                if work.killed or not work.told_to_end or not work.submission.killable:
                    raise Broken("once", f"{command} is the second, or was not asked for")
                work.killed = True
                work.inbox.append(command)
            case out.FinishJob():
                self._finish(command, ending)
            case out.ReplaceDevice():
                culprit = self.work[command.device].get(command.culprit or JobId(0))
                if culprit is None or culprit.submission.killable is not culprit.killed:
                    raise Broken("once", f"{command}, which could have been killed alone")
                self.untold[command.device] = self._unbegun(command.device)
                self._host_ends(command.device)
            case out.SetTimer():
                self.timer_ns = command.at_ns
            case out.Confirm():
                asked = self.tickets.pop(command.ticket)
                self._resized(asked)
            case out.Refuse():
                del self.tickets[command.ticket]
            case out.Drained():
                self.drained += 1
                if self.live or self.drained > 1:
                    raise Broken("once", "the scheduler says drained, and it is not or was before")
            case out.CloseSession():
                if any(self.live[job].session == command.session for job in self.live):
                    raise Broken("once", f"{command} with jobs left")

    def _resized(self, asked: ev.ResizeRequested) -> None:
        if asked.reservation is not None:
            self.reservation[asked.job] = asked.reservation
            return
        self.quota[asked.job] = asked.quota
        work = self.work.get(self.live[asked.job].device, {}).get(asked.job)
        if work is not None:
            self.quota_held[asked.job] = work.bound()

    def _finish(self, command: out.FinishJob, ending: tuple[JobId, bool] | None) -> None:
        event = self.live.pop(command.job, None)
        if event is None:
            raise Broken("once", f"{command} finishes a job that is not there")
        if event.lane:
            if (command.state == "done") > (command.job in self.closed):
                raise Broken("once", f"{command}, and nobody has closed the lane")
        elif command.state == "done" and ending != (command.job, True):
            raise Broken("once", f"{command}, but its device did not say that it is complete")
        self._note_failure(event, command)
        if (command.state == "done") is (command.error is not None) and command.error is not None:
            raise Broken("once", f"{command} is done with an error")
        if self.sms[event.device] is not None and command.job in self.work[event.device]:
            raise Broken("once", f"{command}, and blocks of it are left")
        self.ended[command.job] = command.state
        self.lacking.pop(command.job, None)
        self.preparing.pop(command.job, None)

    def _note_failure(self, event: ev.JobSubmitted, command: out.FinishJob) -> None:
        stream = event.session, event.stream
        if isinstance(command.error, PredecessorFailed):
            failed = self.failed.get(stream)
            if failed is None or not event.sticky:
                raise Broken("behind", f"{command}, and nothing before it has failed")
        good = command.state == "done" or isinstance(command.error, Draining)
        if event.sticky and not (good or event.session in self.closing):
            if command.job not in self.forgiven:
                self.failed.setdefault(stream, command.job)

    def _check_order(self, job: JobId) -> None:
        event = self.live[job]
        failed = self.failed.get((event.session, event.stream))
        if event.sticky and failed is not None and failed < job:
            raise Broken("behind", f"job {job} is started, and {failed} before it has failed")
        before = self.followed(job)
        if before:
            raise Broken("order", f"job {job} is started before {before} have ended")

    def followed(self, job: JobId) -> list[JobId]:
        """Jobs that must end before this one starts."""
        event = self.live[job]
        return [
            other
            for other, found in self.live.items()
            if ((found.session, found.stream) == (event.session, event.stream) and other < job
            and not (found.lane or event.lane))
            or (other in event.after and other != job
            and list(self.live).index(other) < list(self.live).index(job))
        ]  # fmt: skip

    # -- checks after every event

    def check(self, grew: dict[int, None]) -> None:
        if list(self.live) != list(self.scheduler.jobs):
            raise Broken("once", "the scheduler has other jobs than those that have not finished")
        try:
            self.scheduler.validate()
        except GpudError as error:
            name = str(error).partition(":")[0]
            raise Broken(name if name in CHECKS else "books", str(error)) from error
        for device, works in self.work.items():
            sms = self.sms[device]
            if sms is None:
                continue
            physical = allocated = Fraction(0)
            step, most, _ = partitions_of(sms)
            own = [work.own for work in works.values()]
            if sum(own) > most or any(one % step for one in own):
                raise Broken("partitions", f"{own} SMs of {sms} are set apart")
            for job, work in works.items():
                bound = work.bound()
                if not work.lends:
                    physical += max(Fraction(work.own), Fraction(bound, work.occupancy))
                allocated += Fraction(work.allocated(), work.occupancy)
                self._check_job(job, work, bound)
            if allocated > sms:
                raise Broken("capacity", f"{allocated} of {sms} SMs are given on device {device}")
            self._check_promises(device, sms)
            if device in grew and physical > sms and self.scheduler.policy.name != "equal":
                raise Broken(
                    "quota",
                    f"an offline job of device {device} was given room that blocks still hold: "
                    f"{physical} of {sms} SMs",
                )

    def _check_promises(self, device: int, sms: int) -> None:
        """Check the plans of lanes that lend: what if all of them woke now?"""
        works = self.work[device]
        lanes = {job: work for job, work in works.items() if work.lends}
        left = {job: Fraction(work.allocated(), work.occupancy) for job, work in works.items()}
        free = sms - sum(left.values())
        for job, lane in lanes.items():
            if lane.planned is None or lane.planned[0] != lane.heard:
                raise Broken("planned", f"lane {job} lends, and its plan is {lane.planned}")
            steps = lane.planned[1]
            needs = Fraction(lane.commanded, lane.occupancy) - (free if len(lanes) == 1 else 0)
            alone, disturbed = Fraction(0), 0
            for one, work in works.items():
                if self.reservation[one] is None and not (work.whole or work.told_to_end):
                    tail = work.reported is not None and work.reported[1]
                    alone = max(alone, Fraction(0) if tail else left[one])
                    needs -= left[one] if tail and one in dict(steps) else 0
            for one, slices in steps:
                gives = works.get(one)
                if gives is None or gives.whole or gives.told_to_end or self.reservation[one]:
                    raise Broken("planned", f"lane {job} is to take from {one}, which cannot give")
                if gives.reported is not None and gives.reported[1]:
                    left[one] = Fraction(0)
                    continue
                left[one] -= Fraction(slices, gives.occupancy)
                disturbed += 1
                if left[one] < 0:
                    raise Broken("planned", f"lane {job} is to take more than {one} has")
            if len(lanes) == 1 and disturbed > 1 and alone >= needs:
                raise Broken("few", f"lane {job} needs {needs} from one, and takes by {steps}")
        share = sum(Fraction(lane.commanded, lane.occupancy) for lane in lanes.values())
        if sum(left.values()) + share > sms:
            raise Broken("promised", f"lanes would have {share}, others {sum(left.values())}")

    def _check_job(self, job: JobId, work: Work, bound: int) -> None:
        record = self.scheduler.jobs.get(job)
        if record is None:
            raise Broken("once", f"job {job} is on a device and forgotten")
        if self.paused.get(record.device) and self.scheduler.policy.resizes:
            ends = work.told_to_end or (work.reported is not None and work.reported[1])
            fixed = work.whole or self.reservation[job] is not None
            if work.commanded and not ends and not fixed:
                raise Broken("paused", f"job {job} has {work.commanded} slices")
        reservation, quota = self.reservation[job], self.quota[job]
        if work.lane and not (work.lends or work.told_to_end) and record.lending:
            raise Broken("settled", f"lane {job} has woken, and still has nothing")
        if max(bound, 0) * record.slice > record.charge and not work.lends:
            raise Broken("books", f"job {job} holds or will hold {bound} slices: {record.charge}")
        if reservation is not None:
            has = Fraction(work.commanded, work.occupancy)
            tail = work.told_to_end or work.exhausted
            if has < reservation and not tail and self.scheduler.policy.keeps_reservations:
                raise Broken("reservation", f"job {job} has {has} of {reservation} SMs")
        if quota is None:
            return
        allowed = max(math.floor(quota * work.occupancy), self.quota_held.get(job, 0))
        if bound > allowed:
            raise Broken("quota", f"job {job} holds {bound} slices of {allowed}")
        # What a lowered quota found there may leave in its time, and not come back.
        if job in self.quota_held:
            self.quota_held[job] = min(self.quota_held[job], bound)

    # -- at rest

    def come_to_rest(self) -> None:
        """Lets devices answer everything, and what ends end, without giving anybody more work.

        Then time passes, until offline jobs share what there is as they should.
        """
        self._answer_everything()
        until_ns = self.now_ns + 4 * (self.settings.rebalance_hold_ns + self.settings.turn_ns)
        while self.timer_ns is not None and self.timer_ns <= until_ns:
            due = [
                device.index
                for device in self.scheduler.devices.values()
                if device.rebalance_at_ns == self.timer_ns
            ]
            said = len(self.all_commands)
            self.pass_time(max(0, self.timer_ns - self.now_ns))
            if not [c for c in self.all_commands[said:] if not isinstance(c, out.SetTimer)]:
                self._check_fair(due)
            self._answer_everything()

    def _answer_everything(self) -> None:
        for _ in range(100_000):
            if not self._stir():
                break
        else:
            raise Broken("awake", "devices and scheduler talk for ever")
        self.check_awake()

    def _check_fair(self, devices: list[int]) -> None:
        """Checks that the scheduler, which has just decided that nobody gives, is right.

        Of each two jobs with slices of one size: not that the one could give the other a slice, and
        would still be above it.
        """
        settled_ns = self.now_ns - self.settings.rebalance_hold_ns
        for device in devices:
            jobs = [
                self.scheduler.jobs[job] for job in self.live if self.live[job].device == device
            ]
            jobs = [
                job
                for job in jobs
                if not (job.online or job.whole or job.exhausted or job.state == "ending")
                and not job.lending
            ]
            works = self.work[device]
            if any(work.stuck for work in works.values()):
                continue  # capacity is on its way to somebody, and never comes
            givers = [
                job
                for job in jobs
                if job.id in works
                and works[job.id].commanded
                and works[job.id].changed_ns <= settled_ns
                # In an event that changes online jobs, too, it may have given for offline ones.
                and max(works[job.id].gave_ns, works[job.id].shrank_ns)
                <= self.now_ns - self.settings.turn_ns
            ]
            takers = [job for job in givers if job.growth_room > 0]
            takers += [job for job in jobs if job.live and not job.slices]
            waiting = self.scheduler.devices[device].waiting.jobs()
            takers += [] if not waiting or waiting[0].whole else waiting[:1]
            takers = [job for job in takers if job.changed_ns <= settled_ns]
            for giver in givers:
                for taker in takers:
                    if giver.slice != taker.slice or giver is taker:
                        continue
                    left = Fraction(giver.lead + (giver.slices - 1) * giver.slice, giver.weight)
                    gets = Fraction(taker.lead + (taker.slices + 1) * taker.slice, taker.weight)
                    if left > gets:
                        raise Broken(
                            "fair",
                            f"{giver.name} has {giver.slices} slices and a lead of {giver.lead}, "
                            f"{taker.name} has {taker.slices} and {taker.lead}",
                        )

    def _stir(self) -> bool:
        if self.timer_ns is not None and any(d.holds for d in self.scheduler.devices.values()):
            self.pass_time(max(0, self.timer_ns - self.now_ns))
            return True
        for job in self.preparing:
            self.prepare(job)
            return True
        for device, works in self.work.items():
            if self.deliver(device):
                return True
            for job, work in list(works.items()):
                if work.inbox:
                    self.carry_out(device, job)
                    return True
                if work.held and not work.stuck and not work.over:
                    if work.leaving:
                        self.leave(device, job, work.leaving)
                        return True
                    if work.unclaimed == 0:
                        self.run(device, job, work.active)
                        return True
        return False

    def check_awake(self) -> None:
        """Checks that no job waits that could run."""
        for job in self.live:
            blocked = str(self.scheduler.jobs[job].state) == "blocked"
            if blocked is not bool(self.followed(job)):
                raise Broken(
                    "awake", f"job {job} is blocked {blocked}, follows {self.followed(job)}"
                )
            if str(self.scheduler.jobs[job].state) == "preparing":
                if self.sms[self.live[job].device] is not None:
                    raise Broken("awake", f"job {job} is to be prepared, and no device was told")
        for device, sms in self.sms.items():
            stuck = any(work.stuck for work in self.work[device].values())
            if (
                sms is not None
                and not stuck
                and not self.paused.get(device)
                and self.scheduler.policy.keeps_reservations
                and self.scheduler.policy.separates_online
            ):
                for text in self._idle(device, sms):
                    raise Broken("awake", text)

    def _idle(self, device: int, sms: int) -> Iterator[str]:
        works = self.work[device]
        jobs = [self.scheduler.jobs[job] for job in self.live if self.live[job].device == device]
        waiting = [job for job in jobs if str(job.state) == "waiting"]
        free = sms - sum(
            Fraction(w.wanted, w.occupancy) for w in works.values() if not (w.ending or w.lends)
        )
        promised = sum(
            Fraction(work.wanted, work.occupancy)
            for job, work in works.items() if work.lends and self.reservation[job] is not None
        )  # fmt: skip
        online = [job for job in waiting if self.reservation[job.id] is not None]
        offline = [job for job in waiting if self.reservation[job.id] is None]
        online.sort(key=lambda job: (job.deadline_ns is None, job.deadline_ns, job.order))
        offline.sort(key=lambda job: job.order)
        running = [(job, works[job.id]) for job in jobs if job.id in works]
        victims = [
            (job, work) for job, work in running
            if self.reservation[job.id] is None
            and not (work.whole or work.ending or work.lends)
        ]  # fmt: skip
        if device in self.paused:
            online, offline = [], []
        if online:
            first = online[0]
            amount = Fraction(
                math.ceil((self.reservation[first.id] or 0) * first.occupancy), first.occupancy
            )
            step, most, _ = partitions_of(sms)
            if first.exclusive:
                amount = Fraction(math.ceil(amount / step) * step)
                if sum(work.own for work in works.values()) + amount > most:
                    return
            can_give = sum(Fraction(w.wanted, w.occupancy) for _, w in victims)
            floor = self.settings.floor(sms)
            # The floor is kept for jobs that cannot give, too, and for lanes that lend.
            works_offline = any(
                self.reservation[job.id] is None and not work.ending for job, work in running
            )
            if floor and (works_offline or offline):
                taken = sum(
                    Fraction(w.wanted, w.occupancy)
                    for job, w in running if self.reservation[job.id] is not None and not w.ending
                )  # fmt: skip
                coarsest = max((Fraction(1, w.occupancy) for _, w in victims), default=0)
                could = taken + amount + coarsest <= sms - floor
                could = could and amount <= free + can_give - promised
            else:
                could = amount <= free + can_give - promised
            if could:
                yield f"{first.name} is online and needs {amount}; free {free}, {can_give} can go"
        if offline:
            first = offline[0]
            room = free
            if first.whole:  # it never gives back what lanes have lent
                given = sum(Fraction(work.wanted, work.occupancy) for _, work in victims)
                room = min(free, free + given - promised)
            if not (first.whole and online) and Fraction(first.least, first.occupancy) <= room:
                yield f"{first.name} waits with {free} SMs free"
        for job, work in victims:
            room = min(job.most, job.quota_slices) - work.wanted
            if room > 0 and Fraction(1, work.occupancy) <= free and not work.exhausted:
                yield f"{job.name} has {work.wanted} slices, could grow by {room}, {free} SMs free"

    # -- the end

    def finish(self) -> None:
        """Ends everything: whatever is left must be able to end."""
        for device in list(self.paused):
            self.resume(device)
        for _ in range(100_000):
            self.revive()
            self.come_to_rest()
            if not self.live:
                break
            moved = False
            for device, works in self.work.items():
                for job, work in list(works.items()):
                    if work.lane and not work.told_to_end and self.now_ns % 2:
                        self.close_lane(job)
                        moved = True
                    elif (work.stuck or work.lane) and not work.told_to_end:
                        self.cancel(job)
                        moved = True
                    elif work.active:
                        self.run(device, job, 10**6)
                        moved = moved or not work.stuck
                moved = self.deliver(device) or moved
            if not moved and not self.revive():
                if self.timer_ns is None:
                    raise Broken("awake", f"{len(self.live)} jobs are left, and nothing happens")
                self.pass_time(max(1, self.timer_ns - self.now_ns))
        else:
            raise Broken("awake", "the jobs never end")
        self.check_equal_logs()

    def revive(self) -> bool:
        """Every device that is down comes up; whether there was one."""
        down = [device for device, sms in self.sms.items() if sms is None]
        for device in down:
            if self.scheduler.devices[device].state == "replacing":
                self.host_dies(device)
            self.device_up(device, 4)
        return bool(down)

    def check_equal_logs(self) -> None:
        """A replay gives the same commands."""
        again = replay(self.log)
        if [repr(c) for c in again] != [repr(c) for c in self.all_commands]:
            raise Broken("equal_logs", "a replay gives other commands")


def _first(inbox: deque[Told]) -> Told | None:
    return inbox[0] if inbox else None
