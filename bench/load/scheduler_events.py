"""A load for the scheduler: many sessions, one device that answers at once, all kinds of jobs."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction

from gpud.core import commands as out
from gpud.core import events as ev
from gpud.core.events import LaunchShape
from gpud.units import JobId, SessionId, job_id

__all__ = ["LoadGenerator"]

Handle = Callable[[ev.Event], list[out.Command]]

SESSIONS = 64
DAY_NS = 86_400_000_000_000


class LoadGenerator:
    """Keeps about ``jobs`` jobs alive: submits when there are fewer, else sends another event.

    A fifth of the jobs is online, the rest offline with and without a quota; a third are chains of
    four launches; M is 1 to 16. Half of the other events end jobs, the rest are releases,
    cancellations and resizes.

    Args:
        handle: takes an event, returns its commands.
        jobs: number of jobs to keep alive.
        sms: SMs of the one device.
        seed: determines all choices.
    """

    def __init__(self, handle: Handle, jobs: int, sms: int = 16, seed: int = 1) -> None:
        self.handle = handle
        self.jobs = jobs
        self.now_ns = 0
        self.draw = random.Random(seed)
        self.numbers = [0] * SESSIONS
        self.alive: dict[JobId, bool] = {}  # online?
        self.running: dict[JobId, tuple[int, int]] = {}  # slices, epoch
        self.ending: list[JobId] = []
        self.releases: list[JobId] = []
        self.send(ev.DeviceReady(0, 0, sms))
        for session in range(SESSIONS):
            self.send(ev.SessionOpened(0, SessionId(session)))

    def fill(self) -> None:
        """Submit jobs until ``jobs`` are alive."""
        while len(self.alive) < self.jobs:
            self.submit()

    def step(self) -> None:
        """One step of the load: one to three events."""
        self.now_ns += 1000
        choice = self.draw.random()
        if len(self.alive) < self.jobs:
            self.submit()
        elif self.ending:
            self.send(ev.JobEnded(self.now_ns, self.ending.pop(), failed=False, complete=False))
        elif self.releases and choice < 0.7:
            job = self.releases.pop(0)
            if job in self.running:
                slices, epoch = self.running[job]
                self.send(ev.BlocksLeft(self.now_ns, job, epoch, slices, exhausted=False))
        elif choice < 0.85:
            self.end(self.draw.choice(list(self.running)))
        elif choice < 0.92:
            job = self.draw.choice(list(self.alive))
            if job not in self.ending:
                self.send(ev.CancelRequested(self.now_ns, job))
        else:
            job = self.draw.choice(list(self.alive))
            share = Fraction(self.draw.choice((1, 2, 3)))
            reservation, quota = (share, None) if self.alive[job] else (None, share)
            self.send(ev.ResizeRequested(self.now_ns, 1, job, reservation, quota))

    def submit(self) -> None:
        """Submit a job of a random kind, in its own stream."""
        draw = self.draw
        session = draw.randrange(SESSIONS)
        self.numbers[session] += 1
        number = self.numbers[session]
        job = job_id(session, number)
        shape = LaunchShape(draw.choice((1, 2, 4, 8, 16)), 1000)
        kind = draw.random()
        reservation = Fraction(draw.choice((1, 2, 4))) if kind < 0.2 else None
        quota = Fraction(draw.choice((2, 4, 8))) if 0.2 <= kind < 0.6 else None
        self.alive[job] = reservation is not None
        self.send(
            ev.JobSubmitted(
                self.now_ns, job, SessionId(session), 0, (shape,) * draw.choice((1, 1, 4)),
                reservation, quota, number, timeout_ns=draw.choice((None, DAY_NS)),
            )
        )  # fmt: skip

    def end(self, job: JobId) -> None:
        """Report that a job's last blocks leave, in two steps."""
        slices, epoch = self.running[job]
        self.send(ev.BlocksLeft(self.now_ns, job, epoch, slices // 2, exhausted=True))
        self.send(ev.JobEnded(self.now_ns, job, failed=False, complete=True))

    def send(self, event: ev.Event) -> None:
        """Send an event, and apply the resulting commands."""
        for command in self.handle(event):
            if isinstance(command, out.StartJob):
                self.running[command.job] = (command.slices, 0)
            elif isinstance(command, out.ResizeJob):
                self.running[command.job] = (command.slices, command.epoch)
                self.releases.append(command.job)
            elif isinstance(command, out.EndJob):
                self.ending.append(command.job)
            elif isinstance(command, out.FinishJob):
                self.running.pop(command.job, None)
                del self.alive[command.job]
