"""The state that all connections share: sessions, devices, modules, memory and ended jobs."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Container, Iterator
from fractions import Fraction
from functools import partial
from itertools import islice
from typing import Any

import gpud
from gpud.config import Config
from gpud.core import events as ev
from gpud.core.wait_reasons import waiting_reason
from gpud.errors import DeviceLost, GpudError, LimitExceeded, UnknownName
from gpud.errors.base import shorten_error
from gpud.server.handlers.answers import Answers
from gpud.server.handlers.connection import Connection
from gpud.server.hosts.compile_pool import CompilePool, CompileWaiter
from gpud.server.hosts.device import Device
from gpud.server.hosts.fair_queue import FairQueue
from gpud.server.hosts.gpu_monitor import GpuMonitor
from gpud.server.hosts.runner import Runner
from gpud.server.ipc import file_descriptors
from gpud.server.ipc.stream import Outbox, Stream
from gpud.server.state.access import Peer, may_manage, user_name
from gpud.server.state.arenas import Arenas
from gpud.server.state.modules import Module
from gpud.server.state.quota import Users
from gpud.server.state.session import Session
from gpud.server.state.submitted_job import NAMES_KEPT, Job
from gpud.telemetry.records import EventRecord, Records
from gpud.units import JobId, SessionId
from gpud.wire import messages as wm

__all__ = ["Front"]

_LOG = logging.getLogger(__name__)
_JOBS_PER_TURN = 48  # jobs of an ended session that are cancelled in one turn; some 4 ms
_TEXT_LENGTH = 2048  # of each text of an error in the history
_LAST_NUMBER = (1 << 32) - 1  # of sessions and modules, on the wire


class Front:
    """The daemon's state between the sockets and the scheduler.

    Attributes:
        config: the settings.
        draining: no more jobs are accepted.
        modules: all that hosts may have loaded, by number.
        answers: builds large answers in slices.
        measuring: the queue of kernels to compile on devices, fair by device and user.
        users: the counts and quotas of each user.
        gpu_monitors: readers of GPU metrics, by the device's index.
        sessions: by number; those whose client has gone stay until their jobs have ended.
    """

    def __init__(
        self,
        config: Config,
        outbox: Outbox,
        runner: Runner,
        records: Records,
        compiler: CompilePool,
        arenas: Arenas,
        offline_floor: Callable[[int], Fraction],
    ) -> None:
        self.config = config
        self.outbox = outbox
        self.runner = runner
        self.records = records
        self.compiler = compiler
        self.arenas = arenas
        self.offline_floor = offline_floor
        self.devices: list[Device] = runner.devices
        self.draining = False
        self.started_ns = time.monotonic_ns()
        self.sessions: dict[int, Session] = {}
        self.connections: dict[Connection, None] = {}
        self.all_disconnected = asyncio.Event()
        self.all_disconnected.set()
        self.modules: dict[int, Module] = {}
        self.measuring = FairQueue()
        self.answers = Answers(outbox.loop)
        self.users = Users(config)
        self.gpu_monitors: dict[int, GpuMonitor] = {}
        self._next_session = 1
        self._next_module = 1
        self._ended: dict[JobId, Job] = {}
        self._followers: dict[int, Session] = {}
        self.counts = {"done": 0, "failed": 0, "cancelled": 0}
        runner.on_close_session = self._close_session
        arenas.descriptors_left = self._descriptors_left
        runner.user_of = self._user_of

    # -- connections and sessions

    def connected(self, sock: socket.socket, peer: Peer) -> None:
        """Take a new connection; it is closed with an error if it is over a limit."""
        connection = Connection(self, sock, peer)
        self.connections[connection] = None
        connection.user.connections += 1
        self.all_disconnected.clear()
        try:
            self._check_connections()
            connection.user.check_connections()
        except LimitExceeded as error:
            connection.goodbye(error)

    def _check_connections(self) -> None:
        """Check the daemon's limits on connections, the latest included.

        Raises:
            LimitExceeded: there is one too many.
        """
        count, most = len(self.connections), self.config.max_connections
        if count > most:
            raise LimitExceeded(
                f"the daemon serves {most} connections and has no room for another; close some, "
                "or raise max_connections in its configuration",
                limit="max_connections",
                value=most,
            )
        if self._descriptors_left() < 0:
            raise LimitExceeded(
                f"the daemon has no descriptors for more than {count - 1} connections; close some, "
                "or raise the daemon's LimitNOFILE",
                limit="LimitNOFILE",
                value=count - 1,
            )

    def _descriptors_left(self) -> int:
        return file_descriptors.remaining(len(self.connections), self.arenas.files)

    def open_session(self, peer: Peer, program: str, stream: Stream) -> Session:
        """Open a session for a client that has sent `Hello`."""
        number = self._next_session
        self._next_session = _number_after(number, self.sessions)
        user = self.users.user(peer.uid)
        session = Session(self, number, peer, user, program, stream)
        user.sessions += 1
        self.sessions[number] = session
        self.runner.feed(ev.SessionOpened(session.opened_ns, SessionId(number)))
        self.records.add_event(
            session.opened_ns,
            "session-opened",
            peer.uid,
            ("session", number),
            ("program", program),
            ("user", user_name(peer.uid)),
            ("pid", peer.pid),
        )
        _LOG.info(
            "session %d: %s (pid %d, user %s)", number, program, peer.pid, user_name(peer.uid)
        )
        return session

    def connection_ended(self, connection: Connection, reason: str) -> None:
        """A client has disconnected or was dropped: end its session."""
        self.connections.pop(connection, None)
        if not self.connections:
            self.all_disconnected.set()
        connection.user.connections -= 1
        session = connection.session
        if session is None:
            self.users.forget_unused(connection.user)
            return
        session.gone = True
        self._cancel_waiters(iter(list(session.waiters)))
        self.follow(session, False)
        now_ns = time.monotonic_ns()
        _LOG.info(
            "session %d ended: %s; %d jobs had failed, %d had not ended",
            session.number, reason, session.failed, len(session.jobs),
        )  # fmt: skip
        self.records.add_event(
            now_ns,
            "session-closed",
            session.peer.uid,
            ("session", session.number),
            ("reason", reason),
        )
        jobs = session.jobs.values() if len(session.jobs) > _JOBS_PER_TURN else ()
        # The latest first, running jobs last, so that no waiting job starts meanwhile.
        waiting = [job for job in jobs if job.started_ns is None]
        self._end_jobs(session, iter(waiting[::-1]))

    def _cancel_waiters(self, waiters: Iterator[CompileWaiter]) -> None:
        """Cancel a session's pending compilations, in portions as `_end_jobs`."""
        portion = list(islice(waiters, _JOBS_PER_TURN))
        for waiter in portion:
            waiter.cancel()
        if portion:
            self.outbox.loop.call_soon(self._cancel_waiters, waiters)

    def _end_jobs(self, session: Session, jobs: Iterator[Job]) -> None:
        """Cancel a session's jobs, then end it; in portions, so that others need not wait long."""
        portion = list(islice(jobs, _JOBS_PER_TURN))
        if not portion:
            now_ns = time.monotonic_ns()
            self.runner.feed(ev.SessionClosed(now_ns, SessionId(session.number)))
            return
        for job in portion:
            if job.number in session.jobs:
                self.runner.cancel(job)
        self.outbox.loop.call_soon(self._end_jobs, session, jobs)

    def _user_of(self, number: int) -> int | None:
        session = self.sessions.get(number)
        return None if session is None else session.peer.uid

    def _close_session(self, number: SessionId) -> None:
        """Release everything of a session; none of its jobs is left on any device."""
        session = self.sessions.pop(number, None)
        if session is not None:
            for module in session.modules.values():
                self.devices[module.device].unload(module)
                self.modules.pop(module.number, None)
        for device in self.devices:
            device.close_session(number)
        self.arenas.close_session(number)
        if session is not None:
            session.host_memory.close()
            session.user.sessions -= 1
            self.users.forget_unused(session.user)

    def welcome(self, session: Session, hello: wm.Hello) -> wm.Welcome:
        """The reply to ``hello``."""
        return wm.Welcome(
            hello.request,
            min(hello.version, wm.VERSION),
            session.number,
            [self.describe_device(device) for device in self.devices],
            {
                "message_bytes": self.config.max_message_bytes,
                "jobs": self.config.max_jobs_per_session,
                "memory_bytes": self.arenas.session_limit_bytes,
            },
            {"version": gpud.__version__, "pid": os.getpid(), "policy": self.config.policy},
        )

    def watch_gpus(self) -> None:
        """Start to monitor the devices that are GPUs."""
        for device in self.devices:
            if device.info is not None and device.info.uuid:
                on_xid = partial(self._xid, device.index)
                monitor = GpuMonitor(self.outbox.loop, device.info.uuid, on_xid)
                self.gpu_monitors[device.index] = monitor

    def _xid(self, index: int, number: int) -> None:
        _LOG.warning("device %d: the driver reports Xid %d; see NVIDIA's Xid Errors", index, number)
        self.records.add_event(
            time.monotonic_ns(), "gpu-error", None, ("device", index), ("xid", number)
        )

    def poll(self) -> None:
        """Called once a second: read GPU metrics, end sessions that hold memory outside arrays."""
        for monitor in self.gpu_monitors.values():
            monitor.poll()
        excesses = {excess.session: excess for excess in self.arenas.find_excess()}
        if not excesses:
            return
        for connection in list(self.connections):
            session = connection.session
            excess = None if session is None else excesses.get(SessionId(session.number))
            if excess is None:
                continue
            error = LimitExceeded(
                f"the session keeps {excess.held_bytes} bytes of memory on device {excess.device}, "
                f"where its arrays have {excess.arrays_bytes}; write to what you have allocated "
                "only, or allocate more",
                limit="session_memory",
                value=excess.arrays_bytes,
            )
            _LOG.warning("session %d is ended: %s", excess.session, error)
            connection.goodbye(error)

    # -- devices

    def describe_device(self, device: Device) -> dict[str, Any]:
        """A device as described to clients."""
        info = device.info
        online = info.sms - self.offline_floor(info.sms) if info else 0
        return {
            "index": device.index,
            "spec": device.spec,
            "name": info.name if info else device.spec,
            "kind": info.kind if info else device.spec.partition(":")[0],
            "sms": info.sms if info else 0,
            "memory_bytes": self.arenas.capacity_bytes(device.index),
            "capability": info.capability if info else 0,
            "arrays": info.arrays if info else "shared",
            "online_sms": str(online),
            "exclusive_step": info.partition_step if info else 0,
            "state": device.state,
        }

    def usable_device(self, index: int) -> Device:
        """The device with that index.

        Raises:
            UnknownName: there is none.
            DeviceLost: it is there no more, and will not be again.
        """
        if index >= len(self.devices):
            raise UnknownName(
                f"there is no device {index}; the daemon has {len(self.devices)}, from 0"
            )
        device = self.devices[index]
        if device.state == "failed":
            raise DeviceLost(
                f"device {index} ({device.spec}) does not start any more: its host "
                f"{device.last_failure}; see the daemon's log, and restart the daemon",
                device=device.spec,
            )
        return device

    def next_module(self) -> int:
        """The number of a new module, unique among all sessions."""
        number = self._next_module
        self._next_module = _number_after(number, self.modules)
        return number

    # -- jobs

    def visible_job(self, session: Session, job: JobId) -> Job | None:
        """A job that has not ended, if the session's user may see it; else None."""
        found = self.runner.jobs.get(job)
        return found if found is not None and may_manage(session.peer, found.uid) else None

    def ended_job(self, session: Session, job: JobId) -> Job | None:
        """A recently ended job, if the session's user may see it; else None."""
        found = self._ended.get(job)
        return found if found is not None and may_manage(session.peer, found.uid) else None

    def job_ended(self, job: Job, state: str, error: GpudError | None, now_ns: int) -> None:
        """Record the end of a job; its owner was notified."""
        if error is not None:
            # A kernel's name may have a MiB, and is in the error of each of its jobs that fails.
            error = shorten_error(error, _TEXT_LENGTH, NAMES_KEPT)
        self.counts[state] += 1
        job.end(state, error, now_ns)
        ended = self.records.ended
        if len(ended) == ended.maxlen and ended:
            self._ended.pop(ended[0].id, None)
        ended.append(job)
        if ended:  # empty if the history is configured to keep none
            self._ended[job.id] = job
        self.records.add_event(now_ns, f"job-{state}", job.uid, ("job", job.id), ("error", error))

    def job_row(self, job: Job, now_ns: int) -> dict[str, Any]:
        """The job as shown in tables: see `Job.row`."""
        row = job.row(now_ns, user_name(job.uid), self.records.epoch_ns)
        record = job.record
        if record is None:
            return {**row, "waits_for": None}
        device = self.runner.scheduler.devices[record.device]
        return {**row, "waits_for": waiting_reason(record, device)}

    # -- followers

    def follow(self, session: Session, on: bool) -> None:
        """Start or stop to send a session every event that its user may see."""
        if on:
            self._followers[session.number] = session
        else:
            self._followers.pop(session.number, None)
        self.records.on_event = self._notify_followers if self._followers else None

    def _notify_followers(self, record: EventRecord) -> None:
        told = wm.Happened(self.records.describe(record))
        for session in self._followers.values():
            if may_manage(session.peer, record.uid):
                session.send(told)


def _number_after(number: int, taken: Container[int]) -> int:
    """The next number that is not taken, wrapping to 1 after `_LAST_NUMBER`."""
    while True:
        number = number + 1 if number < _LAST_NUMBER else 1
        if number not in taken:
            return number
