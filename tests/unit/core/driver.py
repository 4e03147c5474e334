"""A test driver for the scheduler: devices and jobs by small numbers, shares as text."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from gpud.core import commands as out
from gpud.core import events as ev
from gpud.core.events import LaunchShape
from gpud.core.job import JobRecord
from gpud.core.scheduler import Scheduler, Settings
from gpud.core.wait_reasons import waiting_reason
from gpud.units import JobId, Partitions, SessionId

MANY = 10**6


class Driver:
    """A scheduler with open session 1 and ready devices 0, 1, ..., of ``sms`` SMs each."""

    def __init__(self, *sms: int, **settings: Any) -> None:
        self.scheduler = Scheduler(Settings(debug=True, **settings))
        self.now_ns = 0
        self.numbers: dict[int, int] = {}
        for device, count in enumerate(sms):
            self.send(ev.DeviceReady(0, device, count, f"cpu:{count}", Partitions(1, count)))
        self.open(1)

    def send(self, event: ev.Event) -> list[out.Command]:
        return self.scheduler.handle(event)

    def open(self, session: int, user: int = 0) -> None:
        self.send(ev.SessionOpened(self.now_ns, SessionId(session), user))

    def user(self, number: int, **terms: Any) -> list[out.Command]:
        return self.send(ev.UserChanged(self.now_ns, number, f"u{number}", **terms))

    def close(self, session: int = 1) -> list[out.Command]:
        return self.send(ev.SessionClosed(self.now_ns, SessionId(session)))

    def submit(
        self,
        number: int,
        m: int = 1,
        *,
        blocks: int = MANY,
        session: int = 1,
        device: int = 0,
        launches: tuple[LaunchShape, ...] | None = None,
        whole: bool = False,
        reservation: str | None = None,
        quota: str | None = None,
        stream: int | None = None,
        **more: Any,
    ) -> list[out.Command]:
        """Submits job ``number``, by default in a stream of its own."""
        return self.send(
            ev.JobSubmitted(
                self.now_ns,
                JobId(number),
                SessionId(session),
                device,
                launches or (LaunchShape(m, blocks, not whole),),
                None if reservation is None else Fraction(reservation),
                None if quota is None else Fraction(quota),
                number if stream is None else stream,
                **more,
            )
        )

    def online(self, number: int, share: str, m: int = 1, **more: Any) -> list[out.Command]:
        return self.submit(number, m, reservation=share, **more)

    def offline(
        self, number: int, share: str | None = None, m: int = 1, **more: Any
    ) -> list[out.Command]:
        return self.submit(number, m, quota=share, **more)

    def lane(self, number: int, reservation: str | None = None, **more: Any) -> list[out.Command]:
        """Opens a lane; its slices are of 1/32 SM."""
        return self.send(
            ev.JobSubmitted(
                self.now_ns,
                JobId(number),
                SessionId(more.pop("session", 1)),
                more.pop("device", 0),
                (),
                None if reservation is None else Fraction(reservation),
                Fraction(more.pop("quota")) if "quota" in more else None,
                lane=True,
                **more,
            )
        )

    def idle(self, number: int, epoch: int = 1) -> list[out.Command]:
        """The device reports that a lane is idle."""
        return self.send(ev.LaneIdle(self.now_ns, JobId(number), epoch))

    def woke(self, number: int, *taken: tuple[int, int], epoch: int = 1) -> list[out.Command]:
        """The device reports that a lane has woken, and what it has taken back."""
        steps = tuple((JobId(job), slices) for job, slices in taken)
        return self.send(ev.LaneWoke(self.now_ns, JobId(number), epoch, steps))

    def close_lane(self, number: int) -> list[out.Command]:
        return self.send(ev.LaneCloseRequested(self.now_ns, JobId(number)))

    def left(self, number: int, held: int, *, exhausted: bool = False) -> list[out.Command]:
        """The device reports that it has executed all commands and ``held`` slices are occupied."""
        epoch = self.job(number).epoch
        return self.send(ev.BlocksLeft(self.now_ns, JobId(number), epoch, held, exhausted))

    def done(self, number: int) -> list[out.Command]:
        return self.ended(number, complete=True)

    def ended(
        self, number: int, *, failed: bool = False, complete: bool = False
    ) -> list[out.Command]:
        return self.send(ev.JobEnded(self.now_ns, JobId(number), failed, complete))

    def cancel(self, number: int, *, by_owner: bool = False) -> list[out.Command]:
        return self.send(ev.CancelRequested(self.now_ns, JobId(number), by_owner))

    def resize(
        self, number: int, *, quota: str | None = None, reservation: str | None = None
    ) -> list[out.Command]:
        return self.send(
            ev.ResizeRequested(
                self.now_ns,
                7,
                JobId(number),
                None if reservation is None else Fraction(reservation),
                None if quota is None else Fraction(quota),
            )
        )

    def up(self, device: int, sms: int) -> list[out.Command]:
        """A host is ready, and is prepared at once for all jobs."""
        found = self.bare(device, sms)
        return found + [c for job in prepares(found) for c in self.prepared(job)]

    def bare(self, device: int, sms: int) -> list[out.Command]:
        """A host is ready."""
        return self.send(ev.DeviceReady(self.now_ns, device, sms, f"cpu:{sms}"))

    def prepared(self, number: int, *, failed: bool = False) -> list[out.Command]:
        return self.send(ev.JobPrepared(self.now_ns, JobId(number), failed))

    def fail(
        self,
        device: int = 0,
        reason: str = "crashed",
        *,
        final: bool = False,
        culprit: int | None = None,
        unstarted: tuple[int, ...] = (),
    ) -> list[out.Command]:
        one = None if culprit is None else JobId(culprit)
        others = tuple(map(JobId, unstarted))
        return self.send(ev.DeviceFailed(self.now_ns, device, reason, final, one, others))

    def pause(self, device: int = 0, *, now: bool = False, by: str = "u1") -> list[out.Command]:
        return self.send(ev.PauseRequested(self.now_ns, device, by, "12:00", now))

    def resume(self, device: int = 0) -> list[out.Command]:
        return self.send(ev.ResumeRequested(self.now_ns, device))

    def change_times(self, **changes: Any) -> list[out.Command]:
        rules = replace(self.scheduler.settings, **changes)
        times = rules.hold_ns, rules.rebalance_hold_ns, rules.rebalance_limit, rules.grace_ns
        return self.send(ev.TimesChanged(self.now_ns, *times))

    def send_drain(self, until_ns: int) -> list[out.Command]:
        return self.send(ev.DrainRequested(self.now_ns, until_ns))

    def at(self, now_ns: int) -> list[out.Command]:
        """Advances the time and fires the timer."""
        self.now_ns = now_ns
        return self.send(ev.TimerFired(now_ns))

    def job(self, number: int) -> JobRecord:
        return self.scheduler.jobs[JobId(number)]

    def state(self, number: int) -> str | None:
        job = self.scheduler.jobs.get(JobId(number))
        return None if job is None else str(job.state)

    def reason(self, number: int) -> str | None:
        job = self.job(number)
        return waiting_reason(job, self.scheduler.devices[job.device])

    def allocation(self, number: int) -> str:
        return str(self.job(number).allocation)


def slices(commands: list[out.Command]) -> list[tuple[int, int]]:
    """Returns (job, slices) of all starts and resizes, in order."""
    return [(c.job, c.slices) for c in commands if isinstance(c, out.StartJob | out.ResizeJob)]


def prepares(commands: list[out.Command]) -> list[int]:
    """Returns the jobs for which devices are commanded to be prepared, in order."""
    return [c.job for c in commands if isinstance(c, out.PrepareJob)]


def finished(commands: list[out.Command]) -> list[tuple[int, str]]:
    """Returns (job, state) of all finished jobs, in order."""
    return [(c.job, c.state) for c in commands if isinstance(c, out.FinishJob)]


def error(commands: list[out.Command]) -> Any:
    """Returns the error of the one command that has one."""
    [found] = [c.error for c in commands if isinstance(c, out.FinishJob | out.Refuse) and c.error]
    return found


def names(commands: list[out.Command]) -> list[str]:
    """Returns the names of the commands, without timers."""
    return [type(c).__name__ for c in commands if not isinstance(c, out.SetTimer)]
