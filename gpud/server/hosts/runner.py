"""Feeds events to the scheduler and carries out its commands.

Problem: the scheduler is pure. Time must be passed to it, its commands sent to the device hosts,
and clients answered; and it does not keep errors, output and owners of jobs.

Approach: one entry point, `Runner.feed`. Each event is handled completely, commands included,
before the next one; events that occur meanwhile are queued.

Properties:
    fail_stop: after a bug in the scheduler no further event is handled, and `on_bug` is called;
    one_at_a_time: the scheduler sees events one after the other, in the order of their times;
    owner_notified_once: a job's owner is notified once that the job has ended, if still connected;
    logged: with an event log, every event and its commands are written, in the order of handling.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import time
from collections import deque
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from gpud.core import commands as co
from gpud.core import events as ev
from gpud.core.capacity import SCALE
from gpud.core.scheduler import Scheduler
from gpud.core.settings import Settings
from gpud.device.host import messages as hm
from gpud.errors import DeviceLost, GpudError, from_wire
from gpud.server.hosts.devices import Devices
from gpud.server.ipc import memfd
from gpud.server.shared import SharedState
from gpud.server.state import strikes
from gpud.server.state.access import user_name
from gpud.server.state.device_status import DeviceStatus
from gpud.server.state.event_log import EventLog
from gpud.server.state.modules import Module
from gpud.server.state.quota import User
from gpud.server.state.submitted_job import SubmittedJob
from gpud.server.state.symbolizer import symbolized, symbolized_in
from gpud.units import JobId, Partitions, job_name
from gpud.wire.lane_ring import RING_BYTES

__all__ = ["Runner"]

_LOG = logging.getLogger(__name__)

OnResized = Callable[[GpudError | None], None]


class Runner:
    """Feeds the scheduler events and carries out its commands.

    Args:
        scheduler: the scheduler.
        loop: the event loop.
        state: the jobs, sessions, modules, arenas and records.
        devices: by index.
        event_log: gets every event with the commands it caused; None: there is no log.
        on_bug: called when the scheduler has failed.

    Attributes:
        broken: whether the scheduler has failed; no event is handled any more.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        loop: asyncio.AbstractEventLoop,
        state: SharedState,
        devices: Devices,
        *,
        event_log: EventLog | None = None,
        on_bug: Callable[[], None],
    ) -> None:
        self.scheduler = scheduler
        self.drained = asyncio.Event()
        self._loop = loop
        self._jobs = state.jobs
        self._sessions = state.sessions
        self._users = state.users
        self._modules = state.modules
        self._arenas = state.arenas
        self._workloads = state.workloads
        self._records = state.records
        self._devices = devices
        self._on_bug = on_bug
        self._log = event_log
        self._events: deque[ev.Event] = deque()
        self._handling = False
        self.broken = False
        self._timer: asyncio.TimerHandle | None = None
        self._resizes: dict[int, OnResized] = {}
        self._strikes = strikes.Strikes()
        self._next_resize = 1
        self._carry_out: dict[type, Callable[[Any], None]] = {
            co.PrepareJob: self._prepare_job,
            co.StartJob: self._start_job,
            co.ResizeJob: self._resize_job,
            co.TakeBackPlan: self._forward,
            co.EndJob: self._forward,
            co.KillJob: self._forward,
            co.FinishJob: self._finish_job,
            co.CloseSession: self._close_session,
            co.ReplaceDevice: self._replace_device,
            co.SetTimer: self._set_timer,
            co.Confirm: lambda command: self._resized(command.ticket, None),
            co.Refuse: lambda command: self._resized(command.ticket, command.error),
            co.Drained: lambda command: self.drained.set(),
        }

    @property
    def draining(self) -> bool:
        """Whether no more jobs are accepted."""
        return self.scheduler.draining or self.broken

    # -- events

    def feed(self, event: ev.Event) -> None:
        """Have the scheduler handle an event, and carry out the commands that it returns."""
        if self.broken:
            return
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                event = self._events.popleft()
                try:
                    commands = self.scheduler.handle(event)
                except Exception:
                    self._bug(event)
                    raise
                if type(event) is ev.JobSubmitted:
                    self._jobs[event.job].record = self.scheduler.jobs.get(event.job)
                if self._log is not None:
                    self._log.write(event, commands)
                for command in commands:
                    try:
                        self._carry_out[type(command)](command)
                    except Exception:  # noqa: BLE001 - of one job: the others' commands must follow
                        _LOG.exception("%r could not be carried out; report this", command)
        finally:
            self._handling = False

    def _bug(self, event: ev.Event) -> None:
        """Stop after an exception in the scheduler: its state may be wrong."""
        self.broken = True
        self._events.clear()
        _LOG.critical("the scheduler failed on %r; the daemon ends; report this", event)
        if self._log is not None:
            self._log.write(event, [])
            self._log.flush()
        self._on_bug()

    def resize(
        self,
        job: JobId,
        reservation: Fraction | None,
        quota: Fraction | None,
        on_resized: OnResized,
    ) -> None:
        """Change a job's reservation or quota; ``on_resized`` gets None, or the error."""
        ticket = self._next_resize
        self._next_resize += 1
        self._resizes[ticket] = on_resized
        self.feed(ev.ResizeRequested(time.monotonic_ns(), ticket, job, reservation, quota))

    def announce(self, user: User, now_ns: int) -> None:
        """Tell the scheduler what a user may have, if that is news."""
        terms = self._users.news_of(user)
        if terms is not None:
            weight = terms.weight or 1
            self.feed(
                ev.UserChanged(now_ns, user.uid, user.name, weight, terms.reserve, terms.hold)
            )

    def change_times(self, settings: Settings) -> None:
        """Use the times and the limit of these settings from now on."""
        now_ns, old = time.monotonic_ns(), self.scheduler.settings
        event, before = (
            ev.TimesChanged(
                now_ns, one.hold_ns, one.rebalance_hold_ns, one.rebalance_limit, one.grace_ns
            )
            for one in (settings, old)
        )
        if event != before:
            self.feed(event)

    def cancel(self, job: SubmittedJob, *, by_owner: bool) -> None:
        """Cancel a job."""
        self.feed(ev.CancelRequested(time.monotonic_ns(), job.id, by_owner))

    # -- from the devices (gpud.server.hosts.interface.DeviceObserver)

    def device_ready(self, device: DeviceStatus) -> None:
        """Take notice that a host has become ready."""
        assert device.info is not None
        now_ns = time.monotonic_ns()
        self._records.add_event(
            now_ns, "device-ready", None, ("device", device.index), ("name", device.info.name)
        )
        info = device.info
        partitions = Partitions(info.partition_step, info.partition_most, info.partition_why)
        self.feed(ev.DeviceReady(now_ns, device.index, info.sms, device.spec, partitions))

    def device_failed(
        self, device: DeviceStatus, reason: str, culprit: JobId | None, unstarted: tuple[JobId, ...]
    ) -> None:
        """Take notice that a host that had been ready is lost."""
        if culprit is not None and "SIGKILL" not in reason:  # that came from outside
            self._strike(culprit)
        now_ns = time.monotonic_ns()
        self._records.add_event(
            now_ns,
            "device-failed",
            None,
            ("device", device.index),
            ("reason", reason),
            ("culprit", None if culprit is None else job_name(culprit)),
        )
        event = ev.DeviceFailed(now_ns, device.index, reason, culprit=culprit, unstarted=unstarted)
        self.feed(event)
        for one in unstarted:
            job = self._jobs.get(one)
            if job is not None:  # it waits again
                job.started_ns = None
                self._changed(job, now_ns)

    def variables_lost(self, module: Module) -> None:
        """Values that kernels may have written to a module's variables are lost with the host."""
        session = ("session", module.session), ("module", module.number)
        device = ("device", module.device)
        self._records.add_event(
            time.monotonic_ns(),
            "variables-lost",
            self._sessions.uid_of(module.session),
            device,
            *session,
        )

    def arrays_lost(self, device: DeviceStatus, session: int, count: int, size_bytes: int) -> None:
        """Arrays of a session are lost: their values were only in the memory of the lost host."""
        self._records.add_event(
            time.monotonic_ns(),
            "arrays-lost",
            self._sessions.uid_of(session),
            ("device", device.index),
            ("session", session),
            ("arrays", count),
            ("bytes", size_bytes),
        )

    def device_given_up(self, device: DeviceStatus, reason: str) -> None:
        """Take notice that the device has failed for good: jobs that wait for it fail."""
        now_ns = time.monotonic_ns()
        self._records.add_event(
            now_ns, "device-given-up", None, ("device", device.index), ("reason", reason)
        )
        self.feed(ev.DeviceFailed(now_ns, device.index, reason, final=True))

    def arena_of(self, session: int, device: int) -> tuple[int, int, int] | None:
        """Return (base, size, descriptor) of a session's arena on a device, if it has one there."""
        return self._arenas.arena_of(session, device)

    def job_prepared(self, job: JobId, error: GpudError | None) -> None:
        """Take notice that a host holds what a job needs, or preparing it failed with ``error``."""
        known = self._jobs.get(job)
        if known is None:
            return
        if error is not None and known.error is None:
            known.error = error
        self.feed(ev.JobPrepared(time.monotonic_ns(), job, error is not None))

    def blocks_left(self, message: hm.SlicesHeld) -> None:
        """Take notice of the slices that a job occupies."""
        job = self._jobs.get(JobId(message.job))
        if job is None:
            return
        self.feed(
            ev.BlocksLeft(
                time.monotonic_ns(), job.id, message.epoch, message.held, message.exhausted
            )
        )
        if message.exhausted and job.state is None:
            # Its allocation falls with the blocks that it holds.
            self._changed(job, time.monotonic_ns())

    def launch_ended(self, message: hm.LaneLaunchEnded) -> None:
        """Take notice that a lane's launch has ended unusually, and tell its owner."""
        job = self._jobs.get(JobId(message.job))
        if job is None:
            return
        error = None if message.error is None else from_wire(message.error)
        module = job.sites.get(message.site)
        if error is not None and module is not None:
            error = symbolized_in(error, job, module, self._arenas.nearest_array)
        job.owner.launch_ended(job.number, message, error)

    def lane_idle(self, message: hm.LaneLent) -> None:
        """Take notice that nothing runs in a lane."""
        self.feed(ev.LaneIdle(time.monotonic_ns(), JobId(message.job), message.epoch))

    def lane_woke(self, message: hm.LaneTookBack) -> None:
        """Take notice that a lane has woken, and what its device took back for it."""
        taken = tuple((JobId(job), slices) for job, slices in message.taken)
        self.feed(ev.LaneWoke(time.monotonic_ns(), JobId(message.job), message.epoch, taken))

    def job_ended(self, message: hm.RunEnded) -> None:
        """Take notice that a job has ended."""
        job = self._jobs.get(JobId(message.job))
        if job is None:
            return
        failed = message.error is not None
        if message.error is not None and job.error is None:
            job.error = symbolized(from_wire(message.error), job, self._arenas.nearest_array)
        job.output = message.output
        job.progress = (message.done, message.total)
        job.first_block_ns = message.first_block_ns
        job.release_ns = message.release_ns
        if message.ways:
            job.ways = message.ways
            self._devices[job.device].ways.update(message.ways)
        self.feed(ev.JobEnded(time.monotonic_ns(), job.id, failed, message.complete))

    # -- commands

    def _prepare_job(self, command: co.PrepareJob) -> None:
        self._devices[command.device].jobs.prepare(command.job, self._jobs[command.job].sequence)

    def _start_job(self, command: co.StartJob) -> None:
        job = self._jobs[command.job]
        sequence = job.sequence
        job.started_ns = now_ns = time.monotonic_ns()
        if job.lane:
            self._open_lane(job, command)
            self._changed(job, now_ns)
            return
        job.owner.job_begins(job)  # before the device is told, whose process may be quicker
        self._devices[command.device].jobs.start(
            sequence,
            hm.StartRun(
                job.id,
                job.session,
                job.packed,
                command.occupancy,
                command.slices,
                command.epoch,
                command.online,
                command.exclusive,
                command.quota,
            ),
        )
        self._changed(job, now_ns)

    def _open_lane(self, job: SubmittedJob, command: co.StartJob) -> None:
        """Make the ring of a lane, and give it to its device and its owner."""
        size = -(-RING_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE
        descriptor = memfd.create(f"gpud-lane-{job_name(job.id)}", size)
        opening = hm.StartLane(
            job.id, job.session, command.occupancy, command.slices, command.epoch, command.online,
            command.exclusive, command.quota,
        )  # fmt: skip
        try:
            if self._devices[command.device].jobs.open_lane(opening, descriptor):
                job.owner.lane_opened(job.number, size, descriptor)
        finally:
            os.close(descriptor)

    def _resize_job(self, command: co.ResizeJob) -> None:
        job = self._jobs[command.job]
        job.resizes += 1
        self._forward(command)
        self._changed(job, time.monotonic_ns())

    def _forward(self, command: co.ResizeJob | co.TakeBackPlan | co.EndJob | co.KillJob) -> None:
        """Send a command of the scheduler to the device's host as it is."""
        process = self._devices[command.device].process
        if process is not None:
            process.send(command)

    def _finish_job(self, command: co.FinishJob) -> None:
        job = self._jobs.pop(command.job)
        state, error = command.state, command.error
        if state == "failed" and error is None:
            error = job.error or DeviceLost("the job ended early, and its device did not say why")
        if job.started_ns is not None:
            self._changed(job, time.monotonic_ns(), ended=True)
        job.owner.job_finished(job, state, error)

    def _close_session(self, command: co.CloseSession) -> None:
        """Release everything of a session; none of its jobs is left on any device."""
        number = command.session
        session = self._sessions.close(number)
        for module in () if session is None else session.modules.values():
            self._devices[module.device].unload(module)
            self._modules.pop(module.number, None)
        for device in self._devices:
            device.close_session(number)
        self._arenas.close_session(number)
        self._workloads.session_closed(number)

    def _replace_device(self, command: co.ReplaceDevice) -> None:
        if command.culprit is not None:
            self._strike(command.culprit)
        self._devices[command.device].replace(f"was replaced: {command.reason}")

    def _strike(self, culprit: JobId) -> None:
        """Count that a job has cost the process of its device, maybe for the last time."""
        job = self._jobs.get(culprit)
        if job is None:
            return
        now_ns = time.monotonic_ns()
        if not self._strikes.add(job.owner.account, culprit, now_ns / 1e9):
            return
        _LOG.warning(
            "jobs of user %s have ended devices' processes %d times, job %s the last: none is "
            "taken for %g s while others use the daemon",
            user_name(job.uid), strikes.MOST, job_name(culprit), strikes.STOPPED_S,
        )  # fmt: skip
        self._records.add_event(now_ns, "user-stopped", job.uid, ("job", job_name(culprit)))

    def check_strikes(self, uid: int) -> None:
        """Check that a user's jobs may be taken, see `gpud.server.state.strikes`.

        Raises:
            LimitExceeded: they have cost others too much.
        """
        if self._strikes and any(one.account != uid for one in self._sessions.values()):
            self._strikes.check(uid, time.monotonic())

    def _set_timer(self, command: co.SetTimer) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.0, (command.at_ns - time.monotonic_ns()) / 1e9)
        self._timer = self._loop.call_later(delay_s, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.feed(ev.TimerFired(time.monotonic_ns()))

    def _resized(self, ticket: int, error: GpudError | None) -> None:
        on_resized = self._resizes.pop(ticket, None)
        if on_resized is not None:
            on_resized(error)

    def _changed(self, job: SubmittedJob, now_ns: int, *, ended: bool = False) -> None:
        """Record a job's current allocation."""
        record = job.record
        capsm = None if ended else 0.0 if record is None else record.alloc / SCALE
        self._records.changes.append(
            (now_ns, job.device, job.id, job.uid, capsm, job.kernels[0], job.online)
        )

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
