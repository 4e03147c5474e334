"""One device: starts its host process, exchanges messages with it, and replaces it on failure.

Problem: a host can crash, hang or lose its context at any moment. Modules, variables, native code
and what lies in the device's own memory are lost with it; sessions, memory files and queued jobs
are not, and waiting jobs must run on the host that replaces it.

Approach: the front keeps what a replacement needs: the rewritten PTX, the values that sessions
wrote to variables, and the arenas' memory files. Nothing is sent in advance: a new host gets an
arena or a module when the first job or request needs it. A host that does not answer for too long,
or compiles one kernel for too long, is replaced (`gpud.server.hosts.watchdog`).

`gpud.server.hosts.dispatcher` sends jobs, `gpud.server.hosts.requests` all other requests.

Terms:
    registry: the resources that the current host holds (`gpud.server.hosts.resources`).

Properties:
    one_failure: the runner is notified once of the failure of each host that had become ready;
    fresh: no state of an earlier host is assumed of a later one;
    unsent_reported: the runner is told which started jobs had not been sent to the lost host;
    no_false_blame: a job is named as the culprit only if there is no other possible cause;
    gives_up: after `_MOST_EARLY_ENDS` hosts in a row that end before they are ready, no other is
        started, and the reason is reported.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from gpud.device.host import messages as hm
from gpud.errors import DeviceLost, GpudError, ProtocolError
from gpud.server.hosts.device_memory import DeviceArrays
from gpud.server.hosts.dispatcher import JobDispatcher
from gpud.server.hosts.interface import HOST_COMMAND, Connect, DeviceObserver, HostLimits
from gpud.server.hosts.loader import Loader
from gpud.server.hosts.quarantine import Quarantine
from gpud.server.hosts.requests import HostRequests
from gpud.server.hosts.resources import ResourceRegistry
from gpud.server.hosts.validation import check_error, check_reply
from gpud.server.hosts.watchdog import Watchdog
from gpud.server.ipc.child_process import ENDED, ChildProcess, OnReply
from gpud.server.ipc.stream import Outbox
from gpud.server.state.device_status import DeviceStatus
from gpud.server.state.modules import Module
from gpud.units import JobId, SessionId

__all__ = ["Device"]

_LOG = logging.getLogger(__name__)
_MOST_EARLY_ENDS = 5
_ENDS_WITHIN_S = 30.0
_BACKOFF_S = (0.0, 0.1, 0.5, 1.0, 2.0)
_END_S = 2.0


class Device(DeviceStatus):
    """One device, with its current host process.

    Attributes:
        memory: its arrays, if the device has memory of its own; None: they are in the files.
        process: the host process; None if there is none.
        registry: the resources that the current host holds.
        jobs: sends jobs to the host.
        requests: sends other requests to the host.
        ways: how often launches were queued in which way, and why, since it was opened.
    """

    def __init__(
        self,
        index: int,
        spec: str,
        observer: DeviceObserver,
        outbox: Outbox,
        *,
        connect: Connect | None = None,
        command: Sequence[str] = HOST_COMMAND,
        limits: HostLimits = HostLimits(),  # noqa: B008 - a constant
    ) -> None:
        super().__init__(index, spec)
        self.memory: DeviceArrays | None = None
        self._observer = observer
        self._outbox = outbox
        self._connect = connect
        self._command = [*command, "--device", spec]
        self._limits = limits
        self.process: ChildProcess | None = None
        self._watchdog: Watchdog | None = None
        self._replacing = False
        self._quarantine = Quarantine(
            outbox,
            f"device {index} ({spec})",
            None if connect is not None else lambda child: child.start(self._command),
            limits.compile,
        )
        self._loader = Loader(
            self._request, lambda: self.process, self._quarantine, self.lost_error
        )
        self.jobs = JobDispatcher(self, observer, self._loader.ran, self._is_error)
        self.requests = HostRequests(self, self._loader)
        self._starting: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self.ways: Counter[str] = Counter()
        self._early_ends = 0  # hosts that ended before they were ready, since one was
        self._late_ends: list[float] = []
        self._settled = asyncio.Event()
        self.registry = self._new_registry()
        self._handlers: dict[type, Callable[[Any], None]] = {
            hm.SlicesHeld: self.jobs.blocks_left,
            hm.LaneLaunchEnded: self.jobs.launch_ended,
            hm.LaneLent: self.jobs.lane_idle,
            hm.LaneTookBack: self.jobs.lane_woke,
            hm.RunEnded: self.jobs.ended,
            hm.Replied: self._on_replied,
            hm.Refused: self._on_refused,
            hm.HostReady: self._on_ready,
            hm.Log: self._on_log,
        }

    # -- the host process

    @property
    def pid(self) -> int | None:
        """The process id of the host."""
        return None if self.process is None else self.process.pid

    @property
    def alive(self) -> bool:
        """Whether there is a host that can receive messages."""
        return self.process is not None and self.process.alive

    @property
    def last_failure(self) -> str:
        """How the last host ended."""
        return self.failures[-1] if self.failures else ENDED

    def start(self) -> None:
        """Start the first host."""
        self._begin(0.0)

    async def settled(self) -> None:
        """Wait until a host is ready or the device is given up."""
        await self._settled.wait()

    def replace(self, reason: str) -> None:
        """Kill the host and start another."""
        if self.process is not None:
            self._replacing = True
            self.process.kill(reason)

    def kill(self) -> None:
        """Kill the host and start no other."""
        self.state = "stopped"
        self._quarantine.kill()
        if self.process is not None:
            self.process.kill(ENDED)
        self.requests.refuse_waiting(ENDED)

    async def close(self) -> None:
        """Shut the host down, kill it after a timeout, and start no other."""
        self.state = "stopped"
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self.process is not None:
            await self.process.close(_END_S)
        await self._quarantine.close()
        if self._closing:
            await asyncio.wait(self._closing)
        self.requests.refuse_waiting(ENDED)

    def _begin(self, delay_s: float) -> None:
        self._starting = asyncio.ensure_future(self._start(delay_s))

    async def _start(self, delay_s: float) -> None:
        if delay_s:
            await asyncio.sleep(delay_s)
        host = ChildProcess(
            f"device host {self.index} ({self.spec})",
            hm.HOST_PROTOCOL,
            self._outbox,
            handlers=self._handlers,
            on_end=lambda reason: self._on_end(host, reason),
        )
        self.process = host
        self.registry = self._new_registry()
        self._watchdog = Watchdog(
            self._outbox.loop,
            self._limits,
            self._ask,
            self._loader.compiling,
            # A driver may wait for kernels before it unmaps, and those may run for hours.
            lambda: self.memory is not None and self.jobs.running,
            self._kill,
        )
        try:
            if self._connect is not None:
                host.attach(self._connect())
            else:
                await host.start(self._command)
        except OSError as error:
            self._on_end(host, f"cannot be started: {error}")

    def _on_ready(self, info: hm.HostReady) -> None:
        self.info = info
        self.always_polls = info.kind == "cpu"
        if self.memory is None and info.arrays == "copied":
            self.memory = DeviceArrays(self, self.requests)
        self.state = "ready"
        self._early_ends = 0
        if self._watchdog is not None:
            self._watchdog.started()
        _LOG.info("device %d is ready: %s (pid %s)", self.index, info.name, self.pid)
        self._observer.device_ready(self)
        self._settled.set()
        self.requests.ready()

    def _on_end(self, host: ChildProcess, reason: str) -> None:
        if host is not self.process:
            return
        self.process = None
        task = asyncio.ensure_future(host.closed())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        was_ready = self.state == "ready"
        left = self.jobs.host_lost()
        # Blamed only if there is no other possible cause.
        culprit = None if self._loader.compiling or self._memory_stuck else left.sole
        if was_ready:
            self._lose_arrays(reason)
        self._forget_host(reason)
        if self.state == "stopped":
            self._settled.set()
            return
        self.state = "starting"
        self.failures = [*self.failures, reason][-16:]
        self.restarts += 1
        _LOG.error("device host %d (%s) %s", self.index, self.spec, reason)
        now = time.monotonic()
        # A job that ends its host each time it runs delays the other jobs, but the device is not
        # given up; there is no delay if another job has ended in the meantime.
        if was_ready:
            late = [
                at for at in self._late_ends if at > now - _ENDS_WITHIN_S and not left.any_ended
            ]
            self._late_ends = [*late, now]
            ends = len(self._late_ends)
            self._observer.device_failed(self, reason, culprit, left.unsent)
        else:
            self._early_ends += 1
            ends = self._early_ends
        if self._early_ends >= _MOST_EARLY_ENDS:
            self.state = "failed"
            self._settled.set()
            self.requests.refuse_waiting(reason)
            self._observer.device_given_up(self, reason)
            return
        self._begin(_BACKOFF_S[min(ends, len(_BACKOFF_S)) - 1])

    def lost_error(self, reason: str) -> DeviceLost:
        """Return the error for a request that this device cannot serve now."""
        return DeviceLost(f"device {self.index} ({self.spec}) {reason}", device=self.spec)

    def _forget_host(self, reason: str) -> None:
        """Drop the state that belonged to the lost host."""
        suspect = not (self._replacing or self._memory_stuck or self.state == "stopped")
        if self._watchdog is not None:
            self._watchdog.stop()
            self._watchdog = None
        self.registry = self._new_registry()
        for module in self._loader.host_lost(reason, suspect=suspect):
            self._observer.variables_lost(module)
        self._replacing = False

    def _lose_arrays(self, reason: str) -> None:
        """Record the loss of the arrays whose values were only in the device's own memory."""
        if self.memory is not None:
            said = f"were in the memory of its host, which {reason}"
            for session, count, size in self.memory.copies.host_lost(said):
                self._observer.arrays_lost(self, session, count, size)

    @property
    def _memory_stuck(self) -> bool:
        """Whether the host was killed because its memory thread hung; no job is to blame then."""
        return self._watchdog is not None and self._watchdog.memory_stuck

    def _ask(self, make: Callable[[int], Any], on_reply: OnReply) -> None:
        """Send the host a heartbeat; while it starts, one is answered here."""
        if self.state == "ready" and self.process is not None:
            self.process.request(make, on_reply)
        else:
            on_reply(None, None)

    def _kill(self, reason: str) -> None:
        if self.process is not None:
            self.process.kill(reason)

    # -- sessions and modules

    def open_arena(self, session: int) -> None:
        """Map a session's arena now, so that its first job need not wait.

        An error is ignored: the job's own request repeats it and reports why.
        """
        if self.state == "ready":
            self.registry.open_arena(session, lambda value, error: None)

    def lend_zone(self, size: int, descriptor: int, on_reply: OnReply) -> None:
        """Have the temporary zone sent on a socket, given by its descriptor; see `hm.LendZone`."""
        self._request(lambda t: hm.LendZone(t, size), on_reply, descriptor)

    def clear_zone(self, on_reply: OnReply, *, free: bool) -> None:
        """Zero the temporary zone, or give its memory back; see `hm.ClearZone`."""
        self._request(lambda t: hm.ClearZone(t, free), on_reply)

    def unload(self, module: Module) -> None:
        """Unload a module; none of its jobs is left."""
        module.forgotten = True
        self.evict(module)

    def evict(self, module: Module) -> None:
        """Unload a module of which no job is left, until it is needed again."""
        self.registry.unload(module.number)
        self._loader.unload(module.number)

    def read_progress(self, jobs: tuple[JobId, ...], on_reply: OnReply) -> None:
        """Reply the progress of those of ``jobs`` that the host has: see `hm.ReadProgress`."""
        self._request(lambda t: hm.ReadProgress(t, jobs), on_reply)

    def close_session(self, session: int) -> None:
        """Release a session's arena and arrays; none of its jobs is left."""
        self.registry.close_session(session)
        if self.memory is not None:
            self.memory.close_session(SessionId(session))

    # -- the link

    def _new_registry(self) -> ResourceRegistry:
        return ResourceRegistry(
            self._loader.request,
            self._send,
            lambda session: self._observer.arena_of(session, self.index),
            lambda session: () if self.memory is None else self.memory.arrays_of(session),
        )

    def _send(self, message: Any) -> None:
        if self.process is not None:
            self.process.send(message)

    def _request(
        self, make: Callable[[int], Any], on_reply: OnReply, descriptor: int | None = None
    ) -> None:
        if self.process is None or self.state != "ready":
            on_reply(None, self.lost_error("is being started again; ask again"))
            return

        command: Any = None

        def made(ticket: int) -> Any:
            nonlocal command
            command = make(ticket)
            return command

        def replied(value: Any, error: GpudError | None) -> None:
            try:
                if error is None:
                    check_reply(command, value)
            except ProtocolError as problem:
                value, error = None, GpudError(f"sent what cannot be: {problem}")
                self._kill(error.message)
            # A plain GpudError means that the link to the host has ended.
            on_reply(value, self.lost_error(str(error)) if type(error) is GpudError else error)

        self.process.request(made, replied, descriptor)

    def _on_replied(self, message: hm.Replied) -> None:
        assert self.process is not None
        self.process.reply(message.ticket, message.value)

    def _on_refused(self, message: hm.Refused) -> None:
        assert self.process is not None
        if self._is_error(message.error):
            self.process.reply(message.ticket, None, message.error)

    def _is_error(self, plain: dict[str, Any]) -> bool:
        """Whether an error can be decoded; if not, the host is killed."""
        try:
            check_error(plain)
        except ProtocolError as problem:
            self._kill(f"sent what cannot be: {problem}")
            return False
        return True

    def _on_log(self, message: hm.Log) -> None:
        _LOG.log(message.level, "device host %d: %s", self.index, message.text)
