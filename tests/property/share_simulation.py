"""A simulation of shares over virtual minutes, and a checker of what jobs are served.

One device, offline jobs that never end, online jobs that come at random. Where
`tests.property.scheduler_simulation` asks whether each decision is allowed, this asks what comes of
many: each job's service is the integral of what its blocks *hold*, by the device's own account.
Blocks that were told to leave do so after what is left of their task block; new ones begin after a
launch.

`Checker` knows the submissions, the commands and the device, and nothing of the scheduler's own
books. It checks the properties of `gpud.core.policies.reservations`, by name (`SHARE_CHECKS`).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heappop, heappush
from typing import Any

from gpud.core import commands as out
from gpud.core import events as ev
from gpud.core.events import LaunchShape
from gpud.core.scheduler import Scheduler, Settings
from gpud.units import JobId, SessionId

SHARE_CHECKS = ("shares", "bounded", "patient", "idle", "capped")
"""Names of the properties, as an `Unfair` carries them."""

MS = 1_000_000
SECOND = 1000 * MS
MINUTE = 60 * SECOND
_ENDLESS = 10**9
_LAUNCH = MS // 5
_SESSION = SessionId(1)


class Unfair(AssertionError):
    """A property does not hold."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


@dataclass
class SimulatedJob:
    """A job on the device: what its blocks hold, and what they have been served."""

    number: int
    weight: int
    quota: Fraction | None
    reservation: Fraction | None
    began_ns: int
    occupancy: int = 1
    user: int = 0
    wanted: int = 0
    held: int = 0
    epoch: int = 0
    served: Fraction = Fraction(0)  # slices x ns
    at_ns: int = 0
    seconds: list[Fraction] = field(default_factory=list)  # CapSM x s since its arrival
    gave_ns: deque[int] = field(default_factory=deque)
    shrinks: int = 0
    grows: int = 0
    disturbed_ns: int = -MINUTE
    could: Fraction = Fraction(0)  # CapSM x ns that online jobs left, up to its quota
    coulds: list[Fraction] = field(default_factory=list)  # CapSM x s, as `seconds`
    reports: int = 0  # that the device has still to send
    ended: bool = False

    def account(self, now_ns: int, left: Fraction) -> None:
        """Count what it has been served; online jobs have left so much to the offline ones."""
        self.served += self.held * (now_ns - self.at_ns)
        most = left if self.quota is None else min(left, self.quota)
        slices = int(most * self.occupancy)
        self.could += Fraction(slices * (now_ns - self.at_ns), self.occupancy)
        self.at_ns = now_ns

    @property
    def capsm_s(self) -> Fraction:
        return self.served / (self.occupancy * SECOND)


class ShareWorld:
    """A scheduler, one device of ``sms`` SMs, and a clock.

    Args:
        sms: S.
        block_ns: duration of an offline task block.
        seed: of all that is random.
        users: the weights of users 1, 2, ..., and what each may hold, in SMs, if not all.
        scheduler: what is tested; by default one with the default settings.
    """

    def __init__(
        self,
        sms: int,
        block_ns: int = 2 * MS,
        seed: int = 0,
        scheduler: Scheduler | None = None,
        users: Sequence[tuple[int, int | None]] = (),
    ) -> None:
        self.sms = sms
        self.block_ns = block_ns
        self.draw = random.Random(seed)
        self.scheduler = scheduler or Scheduler(Settings())
        self.checker = Checker(self)
        self.now_ns = 0
        self.jobs: dict[JobId, SimulatedJob] = {}
        self.changes: list[tuple[int, JobId, Fraction]] = []  # (time, job, CapSM held)
        self.user_weights = {0: 1}
        self.holds: dict[int, int] = {}
        self._left = Fraction(sms)  # what online jobs leave
        self._due: list[tuple[int, int, Any]] = []
        self._count = 0
        self.reports = 0  # that the device has still to send
        self._timer_ns: int | None = None
        self._send(ev.DeviceReady(0, 0, sms))
        self._send(ev.SessionOpened(0, _SESSION))
        for user, (weight, hold) in enumerate(users, 1):
            self.user_weights[user] = weight
            if hold is not None:
                self.holds[user] = hold
            held = None if hold is None else str(hold)
            self._send(ev.UserChanged(0, user, f"u{user}", weight, None, held))
            self._send(ev.SessionOpened(0, SessionId(1 + user), user))
        self._at(SECOND, self._second)

    # -- what users do

    def offline(self, *, m: int = 1, weight: int = 1, quota: object = None, user: int = 0) -> JobId:
        """Submit a job that never ends."""
        share = None if quota is None else Fraction(str(quota))
        return self._submit(m, weight, share, None, user=user)

    def online(self, reservation: object, run_ns: int, *, m: int = 1) -> JobId:
        """Submit a job that runs for ``run_ns``."""
        return self._submit(m, 1, None, Fraction(str(reservation)), run_ns)

    def bursts(self, reservation: object, run_ns: int, every_ns: int, *, m: int = 1) -> None:
        """Let online jobs arrive at random, one in ``every_ns`` on the average, for ever."""

        def arrive() -> None:
            self.online(reservation, run_ns, m=m)
            again()

        def again() -> None:
            self._at(self.now_ns + round(self.draw.expovariate(1) * every_ns) + 1, arrive)

        again()

    def end(self, job: JobId) -> None:
        """Let a job end by itself."""
        record = self.jobs[job]
        self._account(record)
        if record.reservation is not None:
            self._online_changes(-record.held, record)
        record.wanted = record.held = 0
        record.ended = True
        self._note(job)
        self._send(ev.JobEnded(self.now_ns, job, failed=False, complete=True))

    def resize(self, job: JobId, quota: object) -> None:
        """Change a job's quota."""
        share = Fraction(str(quota))
        self.jobs[job].quota = share
        self._send(ev.ResizeRequested(self.now_ns, 1, job, None, share))

    def run(self, until_ns: int) -> None:
        """Let time pass."""
        while True:
            due = [at for at in (self._timer_ns, self._due[0][0] if self._due else None) if at]
            if not due or min(due) > until_ns:
                break
            self.now_ns = min(due)
            if self._timer_ns == self.now_ns:
                self._timer_ns = None
                self._send(ev.TimerFired(self.now_ns))
            else:
                heappop(self._due)[2]()
        self.now_ns = until_ns

    def share(self, job: JobId) -> Fraction:
        """Return what a job's blocks hold now, in CapSM."""
        record = self.jobs[job]
        return Fraction(record.held, record.occupancy)

    # -- the device

    def _submit(
        self,
        m: int,
        weight: int,
        quota: Fraction | None,
        reservation: Fraction | None,
        run_ns: int = 0,
        user: int = 0,
    ) -> JobId:
        number = len(self.jobs) + 1
        job = JobId(number)
        record = SimulatedJob(number, weight, quota, reservation, self.now_ns, m, user)
        record.at_ns = self.now_ns
        self.jobs[job] = record
        self._run_ns = run_ns
        self._send(
            ev.JobSubmitted(
                self.now_ns, job, SessionId(1 + user), 0, (LaunchShape(m, _ENDLESS),),
                reservation, quota, number, weight=weight,
            )
        )  # fmt: skip
        if reservation is not None:
            record.grows = run_ns  # until it starts, how long it will run
        return job

    def _send(self, event: ev.Event) -> None:
        commands = self.scheduler.handle(event)
        self.checker.see(event, commands)
        for command in commands:
            if isinstance(command, out.StartJob):
                record = self.jobs[command.job]
                record.occupancy = command.occupancy
                self._change(command.job, command.slices, 0)
                if record.reservation is not None:
                    ends_ns = self.now_ns + (record.grows or self._run_ns)
                    self._at(ends_ns, lambda job=command.job: self.end(job))
            elif isinstance(command, out.ResizeJob):
                self._change(command.job, command.slices, command.epoch)
            elif isinstance(command, out.SetTimer):
                self._timer_ns = command.at_ns
        self.checker.idle()

    def _change(self, job: JobId, slices: int, epoch: int) -> None:
        record = self.jobs[job]
        record.epoch = epoch
        before, record.wanted = record.wanted, slices
        if slices > before:
            record.grows += record.reservation is None
            self._account(record)
            if record.reservation is not None:
                self._online_changes(slices - before, record)
            record.held += slices - before
            self._note(job)
            self._report(record, self.now_ns + _LAUNCH, lambda: self._leave(job, 0))
        else:
            record.shrinks += 1
            going = before - slices
            while going:
                # What ends in one report, as a host sends them: a third or so.
                some = -(-going // 3)
                going -= some
                left_ns = self.now_ns + self.draw.randint(0, self.block_ns)
                self._report(record, left_ns, lambda some=some: self._leave(job, some))  # type: ignore[misc]

    def _report(self, record: SimulatedJob, at_ns: int, act: Callable[[], None]) -> None:
        record.reports += 1
        self.reports += 1
        self._at(at_ns, act)

    def _leave(self, job: JobId, slices: int) -> None:
        record = self.jobs[job]
        record.reports -= 1
        self.reports -= 1
        if record.ended:
            return
        self._account(record)
        record.held -= slices
        self._note(job)
        self._send(ev.BlocksLeft(self.now_ns, job, record.epoch, record.held, exhausted=False))

    def _account(self, record: SimulatedJob) -> None:
        """Count what a job has been served, before what it holds changes."""
        if record.reservation is None:
            record.account(self.now_ns, self._left)

    def _online_changes(self, slices: int, record: SimulatedJob) -> None:
        for other in self.jobs.values():
            if not other.ended:
                self._account(other)
        self._left -= Fraction(slices, record.occupancy)

    def _note(self, job: JobId) -> None:
        self.changes.append((self.now_ns, job, self.share(job)))

    def _at(self, at_ns: int, act: Any) -> None:
        self._count += 1
        heappush(self._due, (at_ns, self._count, act))

    def _second(self) -> None:
        for record in self.jobs.values():
            if record.reservation is None and not record.ended:
                record.account(self.now_ns, self._left)
                record.seconds.append(record.capsm_s)
                record.coulds.append(record.could / SECOND)
        self._at(self.now_ns + SECOND, self._second)


class Checker:
    """Checks what the scheduler says at every event, and the service of any minute."""

    def __init__(self, world: ShareWorld) -> None:
        self.world = world

    def see(self, event: ev.Event, commands: list[out.Command]) -> None:
        """Check that offline jobs give for each other patiently, and not too often."""
        world = self.world
        jobs = world.jobs
        changed = [c for c in commands if isinstance(c, out.StartJob | out.ResizeJob)]
        online = any(jobs[command.job].reservation is not None for command in changed)
        asked = isinstance(event, ev.ResizeRequested)
        for command in changed:
            record = jobs[command.job]
            if record.reservation is not None:
                continue
            if command.slices < record.wanted and not online and not asked:
                self._gave(record)
            record.disturbed_ns = world.now_ns

    def _gave(self, record: SimulatedJob) -> None:
        now_ns, settings = self.world.now_ns, self.world.scheduler.settings
        if now_ns - record.disturbed_ns < settings.rebalance_hold_ns:
            raise Unfair(
                "patient",
                f"job {record.number} gives {now_ns - record.disturbed_ns} ns after a change",
            )
        record.gave_ns.append(now_ns)
        while record.gave_ns[0] <= now_ns - SECOND:
            record.gave_ns.popleft()
        if len(record.gave_ns) > settings.rebalance_limit:
            raise Unfair(
                "bounded", f"job {record.number} gave {len(record.gave_ns)} times in a second"
            )

    def idle(self) -> None:
        """Check that nothing is left that somebody could use, once all blocks have left."""
        if self.world.reports:
            return
        jobs = [record for record in self.world.jobs.values() if not record.ended]
        if any(record.held != record.wanted for record in jobs):
            return
        free = self.world.sms - sum(Fraction(one.wanted, one.occupancy) for one in jobs)
        rooms = self._rooms(jobs)
        for one in jobs:
            slice_ = Fraction(1, one.occupancy)
            if one.reservation is None and slice_ <= min(free, rooms.get(one.user, free)):
                every = Fraction(self.world.sms)
                most = every if one.quota is None else min(Fraction(one.quota), every)
                if Fraction(one.wanted + 1, one.occupancy) <= most:
                    raise Unfair("idle", f"{free} SMs are free, and job {one.number} could grow")

    def _rooms(self, jobs: list[SimulatedJob]) -> dict[int, Fraction]:
        """Return what each user with a cap may have more; check that nobody has too much."""
        rooms = {}
        for user, hold in self.world.holds.items():
            held = [Fraction(one.held, one.occupancy) for one in jobs if one.user == user]
            has = sum(held, Fraction(0))
            if has > hold:
                raise Unfair("capped", f"user {user} has {has} SMs, and may hold {hold}")
            rooms[user] = hold - has
        return rooms

    def windows(self, seconds: int = 60, percent: int = 5) -> Fraction:
        """Check the service of every minute in which the same offline jobs were there.

        Returns the largest deviation, relative to what a job should have been served.
        """
        jobs = [one for one in self.world.jobs.values() if one.reservation is None]
        now_s = self.world.now_ns // SECOND
        worst = Fraction(0)
        for start in range(now_s - seconds + 1):
            there = [one for one in jobs if one.began_ns <= start * SECOND and not one.ended]
            if any(start * SECOND < one.began_ns < (start + seconds) * SECOND for one in jobs):
                continue
            served = [_between(one.seconds, one, start, seconds) for one in there]
            most = [_between(one.coulds, one, start, seconds) for one in there]
            dues = self._dues(there, served, most, seconds)
            for one, has, due in zip(there, served, dues, strict=True):
                off = abs(has - due) / due
                worst = max(worst, off)
                if off * 100 > percent:
                    raise Unfair(
                        "shares",
                        f"from {start} s on job {one.number} of weight {one.weight} was served "
                        f"{float(has):.2f} CapSM s in {seconds} s, and is due {float(due):.2f}",
                    )
        return worst

    def _dues(
        self,
        there: list[SimulatedJob],
        served: list[Fraction],
        most: list[Fraction],
        seconds: int,
    ) -> list[Fraction]:
        """Return what jobs were due, of what they were served together: by user, then by job."""
        world = self.world
        users = sorted({one.user for one in there})
        rows = {user: [at for at, one in enumerate(there) if one.user == user] for user in users}
        demands = []
        for user in users:
            demand = sum((most[at] for at in rows[user]), Fraction(0))
            demands.append(min(demand, Fraction(world.holds.get(user, world.sms) * seconds)))
        total = [sum((served[at] for at in rows[user]), Fraction(0)) for user in users]
        dues = [Fraction(0)] * len(there)
        parts = due_of([world.user_weights[user] for user in users], total, demands)
        for user, part in zip(users, parts, strict=True):
            own = rows[user]
            fraction = [part / len(own)] * len(own)
            for at, due in zip(
                own,
                due_of([there[at].weight for at in own], fraction, [most[at] for at in own]),
                strict=True,
            ):
                dues[at] = due
        return dues


def _between(sums: list[Fraction], job: SimulatedJob, start: int, seconds: int) -> Fraction:
    """Return what was added to sums of each second since a job's arrival."""
    first = start - job.began_ns // SECOND - 1
    return sums[first + seconds] - (sums[first] if first >= 0 else 0)


def due_of(weights: list[int], served: list[Fraction], most: list[Fraction]) -> list[Fraction]:
    """Return the weighted max-min share of each job in what they were served together."""
    left, open_ = sum(served, Fraction(0)), list(range(len(weights)))
    due = [Fraction(0)] * len(weights)
    while open_:
        weight = sum(weights[index] for index in open_)
        full = [index for index in open_ if left * weights[index] >= most[index] * weight]
        for index in full or open_:
            due[index] = most[index] if full else left * weights[index] / weight
        left -= sum((due[index] for index in full), Fraction(0))
        open_ = [index for index in open_ if full and index not in full]
    return due
