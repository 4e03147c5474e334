"""The scheduler: decides the allocation of every job on every device, event by event.

Problem: online jobs must get their reservations at once, offline jobs must stay within their
quotas and lose no work, on devices that answer late, fail, and are replaced; and every decision
must be reproducible from a log.

Approach: one function, `Scheduler.handle`: an event in, commands out, no clock and no I/O. This
module handles submissions and timeouts. Job dependencies, and the bookkeeping when a job ends, are
in `gpud.core.job_table`, device failures in `gpud.core.device_table`. A policy
(`gpud.core.policies`) divides a device's capacity among its jobs, using the device's
`gpud.core.device.DeviceRecord`, whenever something on it has changed.

Terms: those of `gpud.core.device` and `gpud.core.capacity`.

Properties (each holds after every event; `tests.property.scheduler_simulation` checks them by these
names, gives_up is shown in `tests.unit.core.test_preparing`):
    capacity: the sum of allocations is at most S on every device;
    quota: no offline job is allocated, or physically holds, more than its quota;
    reservation: no started online job has less than its reservation, until every task block of it
        is claimed;
    paused: as in `gpud.core.pause`;
    partitions: the SMs dedicated to exclusive jobs are within what the device supports, in number
        and granularity; no other job gets them until the exclusive job has ended;
    once: a job that is finished as done has run every task block, and no job is started again once
        its device may have begun it;
    prepared: a job is started only on a host that has all it needs; a job that is still being
        prepared takes no capacity from others;
    promised, planned, few, settled: see `gpud.core.lanes`;
    behind: no sticky job starts after one before it in its stream has failed, until the client has
        seen that; jobs of other streams, and those that are not sticky, are not touched;
    gives_up: a job whose device is lost `Settings.max_preparations` times in a row while being
        prepared for it fails;
    awake: no lost wake-up: a job that can run does run, as soon as the device has answered;
    equal_logs: equal events give equal commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from gpud.core import commands as out
from gpud.core import events as ev
from gpud.core.admission import check_caps, check_resize, check_submission
from gpud.core.device import DeviceRecord
from gpud.core.device_table import DeviceTable
from gpud.core.job import Because, JobRecord
from gpud.core.job_table import JobTable
from gpud.core.lanes import Lanes
from gpud.core.lifecycles import DeviceState, JobInput, JobState, SessionState
from gpud.core.policies import POLICIES
from gpud.core.policy import Policy
from gpud.core.settings import Settings
from gpud.core.timers import Due, Timer, Timers
from gpud.core.users import UserRecord
from gpud.core.validate import validate
from gpud.core.weighing import weigh_users
from gpud.errors import (
    Draining,
    GpudError,
    InternalError,
    InvalidArgument,
    JobCancelled,
    JobTimeout,
    UnknownName,
)
from gpud.units import JobId, job_name

__all__ = ["Scheduler", "Settings"]

# Members by global names: looking one up in its class takes ten times as long.
_ENDING, _OPEN, _COMPLETE = JobState.ENDING, SessionState.OPEN, JobInput.COMPLETE
_READY, _STARTING = DeviceState.READY, DeviceState.STARTING


class Scheduler:
    """The state machine of all devices, sessions and jobs.

    Handles events one at a time, in the order in which they happened. Not thread-safe.

    Attributes:
        jobs: those that have not ended, by id. Read-only.
        devices: device records by device index. Read-only.
        sessions: those that are not closed, by id. Read-only.
        job_table: begins and ends jobs and sessions.
        draining: whether submissions are refused because the daemon is shutting down.

    Raises:
        InvalidArgument: the settings name no policy.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        if self.settings.policy not in POLICIES:
            raise InvalidArgument(
                f"there is no policy {self.settings.policy!r}; there are "
                f"{', '.join(sorted(POLICIES))}"
            )
        self.policy: Policy = POLICIES[self.settings.policy]()
        self.devices: dict[int, DeviceRecord] = {}
        self._timers = Timers()
        self.job_table = JobTable(self.devices, self._timers, self.settings.grace_ns)
        self.jobs = self.job_table.jobs
        self.sessions = self.job_table.sessions
        self._device_table = DeviceTable(self.devices, self.job_table, self.policy, self.settings)
        self._lanes = Lanes(self.devices, self.jobs, self.policy)
        self._out = self.job_table.out
        self.draining = False
        self.now_ns = 0
        self._drained = False
        self._armed_ns: int | None = None
        self._handlers: Mapping[type, Callable[..., None]] = {
            ev.DeviceReady: self._device_table.ready,
            ev.DeviceFailed: self._device_table.failed,
            ev.UserChanged: self._user_changed,
            ev.TimesChanged: self._times_changed,
            ev.SessionOpened: lambda event: self.job_table.open_session(event.session, event.user),
            ev.SessionClosed: lambda event: self.job_table.close_session(event.session),
            ev.JobSubmitted: self._job_submitted,
            ev.JobRefused: self.job_table.refused,
            ev.FailureSeen: self.job_table.failure_seen,
            ev.JobPrepared: self._job_prepared,
            ev.ResizeRequested: self._resize_requested,
            ev.CancelRequested: self._cancel_requested,
            ev.LaneCloseRequested: self._lane_close_requested,
            ev.LaneIdle: self._lane_idle,
            ev.LaneWoke: self._lanes.woke,
            ev.BlocksLeft: self._blocks_left,
            ev.JobEnded: self._job_ended,
            ev.TimerFired: self._timer_fired,
            ev.PauseRequested: self._device_table.pause,
            ev.ResumeRequested: self._device_table.resume,
            ev.DrainRequested: self._drain_requested,
        }

    def handle(self, event: ev.Event) -> list[out.Command]:
        """Apply one event and return the resulting commands, to be executed in order.

        Commands that end or shrink jobs come before those that start or grow jobs.

        Raises:
            InternalError: a bug in gpud: a lifecycle or an invariant was broken. The scheduler's
                state is then unspecified.
        """
        # Time never goes back, whatever the server's clock does.
        self.now_ns = max(self.now_ns, event.now_ns)
        self._out = self.job_table.next_event(self.now_ns)
        self._handlers[type(event)](event)
        if self._timers.due:
            self._run_timers()
        for device in self.devices.values():
            if device.dirty:
                self._rebalance(device)
        if self.draining and not self._drained and not self.jobs:
            self._drained = True
            self._out.append(out.Drained())
        if self._timers.due:
            self._set_timer()
        if self.settings.debug:
            self.validate()
        return self._out

    @property
    def finished(self) -> dict[JobId, JobRecord]:
        """The jobs that the last event finished. Read-only, valid until the next event."""
        return self.job_table.finished

    def validate(self) -> None:
        """Check every invariant; see `gpud.core.validate`.

        Raises:
            InternalError: one does not hold. The message says which, and for which object.
        """
        keeps = self.policy.keeps_reservations
        validate(self.devices, self.sessions, self.jobs, keeps_reservations=keeps)

    # -- submission

    def _job_submitted(self, event: ev.JobSubmitted) -> None:
        if event.job in self.jobs:
            raise InternalError(f"job {job_name(event.job)} was submitted twice", stage="scheduler")
        job = JobRecord(event)
        session = self.sessions.get(event.session)
        if session is None or session.state is not _OPEN:
            self.job_table.refuse(job, JobCancelled("the job's session has ended"))
            return
        refusal: GpudError | None
        if self.draining:
            refusal = Draining(
                "the daemon is shutting down and accepts no jobs; submit it again later"
            )
        else:
            refusal = check_submission(job, session.user, self.devices, self.policy)
        if event.sticky and session.failed and not self.draining:
            refusal = session.failure(job) or refusal
        if refusal is not None:
            self.job_table.refuse(job, refusal)
            return
        device = self.devices[event.device]
        if event.prepared and device.state is not _STARTING:
            job.prepared_generation = device.host_generation
        self.job_table.add(job, session, event.after)

    def _user_changed(self, event: ev.UserChanged) -> None:
        self.job_table.change_user(
            UserRecord(event.user, event.name, event.weight, event.reserve, event.hold)
        )

    def _times_changed(self, event: ev.TimesChanged) -> None:
        times = event._asdict()
        del times["now_ns"]
        self.settings = replace(self.settings, **times)
        self.job_table.grace_ns = self.settings.grace_ns
        self._device_table.settings = self.settings
        for device in self.devices.values():
            device.now_ns = self.now_ns
            device.set_times(self.settings)

    def _job_prepared(self, event: ev.JobPrepared) -> None:
        job = self.jobs.get(event.job)
        if job is None or job.state is not JobState.PREPARING:
            return
        if event.failed:
            self.job_table.ended(job, JobInput.FAIL)
            return
        device = self.devices[job.device]
        assert device.state is not DeviceState.STARTING, "a lost host reported a preparation"
        job.prepared_generation, job.preparations = device.host_generation, 0
        self.job_table.ready(job, device)

    # -- resize and cancel

    def _resize_requested(self, event: ev.ResizeRequested) -> None:
        error = self._resize(self.jobs.get(event.job), event)
        answer = out.Confirm(event.ticket) if error is None else out.Refuse(event.ticket, error)
        self._out.append(answer)

    def _resize(self, job: JobRecord | None, event: ev.ResizeRequested) -> GpudError | None:
        if job is None:
            return UnknownName(f"there is no job {job_name(event.job)}, or it has ended")
        error = check_resize(job, event)
        if error is not None:
            return error
        device = self.devices[job.device]
        device.now_ns = self.now_ns
        before = job.reservation, job.quota, job.least, job.most, job.quota_slices
        job.reservation, job.quota = event.reservation, event.quota
        if device.sms is not None:
            error = self.policy.size(job, device)
            if error is None:
                error = check_caps(job, self.sessions[job.session].user, device)
            if error is None and job.started:
                with device.changing(Because.OWNER):
                    error = self.policy.resize(device, job)
                if job.live:
                    device.resized[job.id] = job  # the quota alone may have changed
            device.users.changed = True
        if error is not None:
            job.reservation, job.quota, job.least, job.most, job.quota_slices = before
        device.dirty = True
        return error

    def _cancel_requested(self, event: ev.CancelRequested) -> None:
        job = self.jobs.get(event.job)
        if job is not None:
            job.forgiven = job.forgiven or event.by_owner
            self.job_table.end(job, JobCancelled(f"{job.what} was cancelled"))

    def _lane_close_requested(self, event: ev.LaneCloseRequested) -> None:
        lane = self.jobs.get(event.job)
        if lane is not None and lane.lane:
            self.job_table.close_lane(lane)

    # -- reports of devices

    def _blocks_left(self, event: ev.BlocksLeft) -> None:
        job = self.jobs.get(event.job)
        if job is None or not job.started:
            return
        if job.blocks_left(event.epoch, event.held, exhausted=event.exhausted):
            device = self.devices[job.device]
            device.now_ns = self.now_ns
            device.users.changed = device.users.changed or event.exhausted
            device.update(job)

    def _job_ended(self, event: ev.JobEnded) -> None:
        job = self.jobs.get(event.job)
        if job is None or not job.started:
            return
        if job.cause is not None:
            self.job_table.finish(job, job.cause)
        elif event.failed:
            self.job_table.ended(job, JobInput.FAIL)
        elif job.state is _ENDING:  # a lane that was closed
            self.job_table.ended(job, JobInput.CLOSE)
        elif not event.complete:
            error = InternalError(
                f"the device ended job {job.name} before all its task blocks had run",
                stage="device",
            )
            self.job_table.finish(job, error)
        else:
            self.job_table.ended(job, _COMPLETE)

    # -- decisions

    def _rebalance(self, device: DeviceRecord) -> None:
        """Lets the policy reallocate a device, and issues the commands for what has changed."""
        device.now_ns = self.now_ns
        device.dirty = False
        if device.state is not _READY:
            device.resized.clear()
            return
        if not (device.jobs or device.holds or device.rebalancing):
            return  # whose job was the last: there is nothing to decide
        planned_ns = device.rebalance_at_ns
        if device.users.changed or device.rebalancing:
            weigh_users(device)
        if device.pause is None or not device.pause.now:
            self.policy.rebalance(device)
        plans = self._lanes.plan(device) if device.lending else ()
        device.dirty = False  # set by the policy's own changes
        if device.rebalance_at_ns is not None and device.rebalance_at_ns != planned_ns:
            self._timers.add(device.rebalance_at_ns, Timer.REBALANCE, device.index)
        if device.holds and device.holds[0][0] != device.hold_timer_ns:
            device.hold_timer_ns = device.holds[0][0]
            self._timers.add(device.hold_timer_ns, Timer.HOLD, device.index)
        for job in device.starting:
            timeout_ns = job.submission.timeout_ns
            if timeout_ns is not None:
                self._timers.add(self.now_ns + timeout_ns, Timer.TIMEOUT, job.id)
        if device.resized or device.starting:
            self._out += device.take_commands()
        self._out += plans

    # -- time

    def _timer_fired(self, event: ev.TimerFired) -> None:
        self._armed_ns = None

    def _run_timers(self) -> None:
        while (due := self._timers.pop(self.now_ns)) is not None:
            if self._is_relevant(due):
                self._expire(due)

    def _expire(self, due: Due) -> None:
        _, what, subject = due
        if what is Timer.HOLD:
            self.devices[subject].expire_holds(self.now_ns)
        elif what is Timer.REBALANCE:
            device = self.devices[subject]
            device.rebalance_at_ns = None
            device.rebalancing = device.dirty = True
        elif what is Timer.DRAIN:
            begun = JobCancelled("the daemon shut down before the job had ended")
            waiting = _drained_before()
            for job in reversed(list(self.jobs.values())):
                if job.id in self.jobs:
                    self.job_table.end(job, begun if job.started else waiting)
        elif what is Timer.TIMEOUT:
            job = self.jobs[JobId(subject)]
            assert job.submission.timeout_ns is not None
            self.job_table.end(job, JobTimeout(job.submission.timeout_ns))
        else:
            job = self.jobs[JobId(subject)]
            if job.submission.killable and not job.killed:
                job.killed = True
                self._out.append(out.KillJob(job.id, job.device))
                self._timers.add(self.now_ns + self.settings.grace_ns, Timer.GRACE, job.id)
            else:
                self._device_table.replace(self.devices[job.device], job)

    def _is_relevant(self, due: Due) -> bool:
        """Whether a timer still applies to a job or device, or has been overtaken by events."""
        at_ns, what, subject = due
        if what is Timer.DRAIN:
            return bool(self.jobs)
        if what is Timer.HOLD:
            return bool(self.devices[subject].holds)
        if what is Timer.REBALANCE:
            return self.devices[subject].rebalance_at_ns == at_ns
        job = self.jobs.get(JobId(subject))
        if job is None:
            return False
        if what is Timer.TIMEOUT:
            # Only the timeout of its present start: a job may have started on a host that was lost.
            return job.live and at_ns == (job.started_ns or 0) + (job.submission.timeout_ns or 0)
        return job.state is _ENDING and self.devices[job.device].state is _READY

    # -- drain

    def _drain_requested(self, event: ev.DrainRequested) -> None:
        self.draining = True
        self._timers.add(event.until_ns, Timer.DRAIN, 0)
        for job in reversed(list(self.jobs.values())):
            device = self.devices.get(job.device)
            if job.id not in self.jobs or device is None:
                continue
            if not job.started and (job.lane or device.pause):
                self.job_table.end(job, _drained_before())
            elif job.idle_epoch and job.live:
                self.job_table.end(job, _drained_idle())

    def _lane_idle(self, event: ev.LaneIdle) -> None:
        lane = self.jobs.get(event.job)
        if self.draining and lane is not None and lane.lane and lane.live:
            self.job_table.end(lane, _drained_idle())
        else:
            self._lanes.idle(event)

    def _set_timer(self) -> None:
        """Commands the server's timer to be set if a timer is due before the one it is set to."""
        first_ns = self._timers.first_ns(self._is_relevant)
        if first_ns is not None and (self._armed_ns is None or first_ns < self._armed_ns):
            self._armed_ns = first_ns
            self._out.append(out.SetTimer(first_ns))
        self._timers.prune(2 * len(self.jobs) + len(self.devices), self._is_relevant)


def _drained_idle() -> JobCancelled:
    return JobCancelled("the daemon shut down, and nothing ran in the lane: open another")


def _drained_before() -> Draining:
    return Draining("the daemon shut down before the job had begun; submit it again")
