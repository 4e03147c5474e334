"""Device hosts: one child process for each device, started, fed, replaced.

Problem: a host can crash, hang or lose its context at any moment. Modules, variables and native
code are lost with it; sessions, arrays and queued jobs are not, and the jobs that wait must run on
the host that comes next.

Approach: everything that a host knows it was told by the front, which keeps what it takes to tell
it again: the rewritten PTX and the arenas' memory files. Nothing is told in advance: a new host
learns of an arena or a module when the first job or request needs it.

Terms:
    stock: what the present host has been told (`gpud.server.stock`).
    pending job: started by the scheduler while its host lacks something that it needs; its commands
        are kept and sent in order as soon as it is there.

Properties:
    one_failure: for each host that had become ready, the runner is told once that it has failed;
    fresh: nothing of an earlier host is believed of a later one;
    gives_up: a host that ends `_MOST_EARLY_ENDS` times before it is ready stays down, and says why.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from typing import Any, Protocol

from gpud.device.host import messages as hm
from gpud.errors import DeviceLost, GpudError
from gpud.server.child import Child, OnReply
from gpud.server.jobs import Chain
from gpud.server.modules import Module, Shape
from gpud.server.stock import Stock
from gpud.server.stream import Outbox
from gpud.units import JobId

__all__ = ["Device", "Owner"]

_LOG = logging.getLogger(__name__)
_MOST_EARLY_ENDS = 5
_ENDS_WITHIN_S = 30.0
_BACK_OFF_S = (0.0, 0.1, 0.5, 1.0, 2.0)
_END_S = 2.0

Connect = Callable[[], socket.socket]
"""Stands in for starting a process, in tests: returns the front's end of a new host's link."""


class Owner(Protocol):
    """What a device tells: `gpud.server.runner.Runner`."""

    def device_ready(self, device: Device) -> None:
        """A host is up."""

    def device_failed(self, device: Device, reason: str) -> None:
        """A host that was up is gone."""

    def device_given_up(self, device: Device, reason: str) -> None:
        """There will be no other host."""

    def blocks_left(self, message: hm.BlocksLeft) -> None:
        """See `gpud.device.host.messages.BlocksLeft`."""

    def job_ended(self, message: hm.JobEnded) -> None:
        """See `gpud.device.host.messages.JobEnded`."""

    def arena_of(self, session: int, device: int) -> tuple[int, int, int] | None:
        """(base, size, descriptor) of a session's memory on a device, if it has any there."""


class Device:
    """One device and its present host.

    Attributes:
        state: ``starting``, ``ready``, ``failed`` (given up) or ``stopped``.
        info: what the host said when it became ready; kept while the next one starts.
        failures: what has become of hosts, the latest last.
    """

    def __init__(
        self,
        index: int,
        spec: str,
        owner: Owner,
        outbox: Outbox,
        *,
        connect: Connect | None = None,
    ) -> None:
        self.index = index
        self.spec = spec
        self.state = "starting"
        self.info: hm.HostReady | None = None
        self.failures: list[str] = []
        self.restarts = 0
        self._owner = owner
        self._outbox = outbox
        self._connect = connect
        self._host: Child | None = None
        self._starting: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._early_ends: list[float] = []
        self._late_ends: list[float] = []
        self._settled = asyncio.Event()
        self._when_ready: list[tuple[Callable[[], None], OnReply]] = []
        self._stock = self._new_stock()
        self._pending: dict[int, list[Any]] = {}
        self._handlers: dict[type, Callable[[Any], None]] = {
            hm.BlocksLeft: owner.blocks_left,
            hm.JobEnded: owner.job_ended,
            hm.Replied: self._on_replied,
            hm.Refused: self._on_refused,
            hm.HostReady: self._on_ready,
            hm.Log: self._on_log,
        }

    # -- the host process

    @property
    def pid(self) -> int | None:
        """Of the host process."""
        return None if self._host is None else self._host.pid

    def start(self) -> None:
        """Start the first host."""
        self._begin(0.0)

    async def settled(self) -> None:
        """Wait until a host is ready, or none will be."""
        await self._settled.wait()

    def replace(self, reason: str) -> None:
        """End the host now and start another."""
        if self._host is not None:
            self._host.kill(reason)

    def kill(self) -> None:
        """End the host at once and start no other."""
        self.state = "stopped"
        if self._host is not None:
            self._host.kill("was ended with the daemon")
        self._refuse_waiting("was ended with the daemon")

    async def close(self) -> None:
        """Let the host end in order, kill it if it does not, and start no other."""
        self.state = "stopped"
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self._host is not None:
            await self._host.close(_END_S)
        if self._closing:
            await asyncio.wait(self._closing)
        self._refuse_waiting("was ended with the daemon")

    def _begin(self, delay_s: float) -> None:
        self._starting = asyncio.ensure_future(self._start(delay_s))

    async def _start(self, delay_s: float) -> None:
        if delay_s:
            await asyncio.sleep(delay_s)
        host = Child(
            f"device host {self.index} ({self.spec})",
            hm.HOST_PROTOCOL,
            self._outbox,
            on_message=lambda message: self._on_message(host, message),
            on_end=lambda reason: self._on_end(host, reason),
        )
        self._host = host
        self._stock = self._new_stock()
        try:
            if self._connect is not None:
                host.attach(self._connect())
            else:
                await host.start(["-m", "gpud.device.host", "--device", self.spec])
        except OSError as error:
            self._on_end(host, f"cannot be started: {error}")

    def _on_ready(self, info: hm.HostReady) -> None:
        self.info = info
        self.state = "ready"
        _LOG.info("device %d is ready: %s (pid %s)", self.index, info.name, self.pid)
        self._owner.device_ready(self)
        self._settled.set()
        waiting, self._when_ready = self._when_ready, []
        for action, _ in waiting:
            action()

    def _on_end(self, host: Child, reason: str) -> None:
        if host is not self._host:
            return
        self._host = None
        task = asyncio.ensure_future(host.closed())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        was_ready = self.state == "ready"
        self._stock = self._new_stock()
        self._pending.clear()
        if self.state == "stopped":
            self._settled.set()
            return
        self.state = "starting"
        self.failures = [*self.failures, reason][-16:]
        self.restarts += 1
        _LOG.error("device host %d (%s) %s", self.index, self.spec, reason)
        now = time.monotonic()
        # A job that ends its host each time it runs costs the others a pause, not the device.
        ends = self._late_ends if was_ready else self._early_ends
        ends[:] = [at for at in ends if at > now - _ENDS_WITHIN_S] + [now]
        if was_ready:
            self._owner.device_failed(self, reason)
        if len(self._early_ends) >= _MOST_EARLY_ENDS and not was_ready:
            self.state = "failed"
            self._settled.set()
            self._refuse_waiting(reason)
            self._owner.device_given_up(self, reason)
            return
        self._begin(_BACK_OFF_S[min(len(ends), len(_BACK_OFF_S)) - 1])

    def lost(self, reason: str) -> DeviceLost:
        """The error for what cannot be done on this device now."""
        return DeviceLost(f"device {self.index} ({self.spec}) {reason}", device=self.spec)

    def _refuse_waiting(self, reason: str) -> None:
        waiting, self._when_ready = self._when_ready, []
        for _, on_reply in waiting:
            on_reply(None, self.lost(reason))

    # -- jobs

    def start_job(self, chain: Chain, message: hm.StartJob) -> None:
        """Start a job as soon as its chain and its session's memory are ready."""
        stock, session = self._stock, message.session
        if stock.is_ready(chain, session):
            self._send(message)
            return
        pending = self._pending[message.job] = [message]

        def on_ready(error: GpudError | None) -> None:
            if stock is not self._stock or self._pending.get(message.job) is not pending:
                return  # the host is gone, or the job was ended
            del self._pending[message.job]
            if error is not None:
                self._owner.job_ended(_not_run(message.job, error, chain))
                return
            for one in pending:
                self._send(one)

        stock.make_ready(chain, session, on_ready)

    def resize_job(self, message: hm.ResizeJob) -> None:
        """Resize a job that was started."""
        pending = self._pending.get(message.job)
        if pending is None:
            self._send(message)
        else:
            pending.append(message)

    def end_job(self, job: JobId, chain: Chain) -> None:
        """End a job that was started."""
        if self._pending.pop(job, None) is None:
            self._send(hm.EndJob(job))
        else:
            self._owner.job_ended(_not_run(job, None, chain))

    # -- requests

    def open_arena(self, session: int) -> None:
        """Map a session's memory now, so that its first job need not wait.

        Should that fail, the job asks again, and hears why.
        """
        if self.state == "ready":
            self._stock.open_arena(session, lambda value, error: None)

    def when_ready(self, action: Callable[[], None], on_reply: OnReply) -> None:
        """Do ``action`` when there is a host, or tell ``on_reply`` why there is none."""
        if self.state == "ready":
            action()
        elif self.state == "starting":
            self._when_ready.append((action, on_reply))
        else:
            on_reply(
                None, self.lost(self.failures[-1] if self.failures else "was ended with the daemon")
            )

    def measure(self, module: Module, shape: Shape, on_reply: OnReply) -> None:
        """Make a kernel ready for a block shape; replies M."""
        self.when_ready(lambda: self._stock.measure(module, shape, on_reply), on_reply)

    def unload(self, module: Module) -> None:
        """Forget a module; no job of it is left."""
        self._stock.unload(module.number)

    def read_symbol(
        self, module: Module, name: str, offset: int, size: int, on_reply: OnReply
    ) -> None:
        """Replies bytes of a module variable."""
        self._with_module(
            module, lambda t: hm.ReadSymbol(t, module.number, name, offset, size), on_reply
        )

    def write_symbol(
        self, module: Module, name: str, offset: int, data: bytes, on_reply: OnReply
    ) -> None:
        """Writes bytes of a module variable; replies None."""
        self._with_module(
            module, lambda t: hm.WriteSymbol(t, module.number, name, offset, data), on_reply
        )

    def read_progress(self, jobs: tuple[JobId, ...], on_reply: OnReply) -> None:
        """Replies [job, task blocks done, in all] of those that the host has."""
        self._request(lambda t: hm.ReadProgress(t, jobs), on_reply)

    def close_session(self, session: int) -> None:
        """Forget a session's memory; no job of it is left."""
        self._stock.close_session(session)

    def _with_module(self, module: Module, make: Callable[[int], Any], on_reply: OnReply) -> None:
        self.when_ready(lambda: self._stock.with_module(module, make, on_reply), on_reply)

    # -- the link

    def _new_stock(self) -> Stock:
        return Stock(
            self._request, self._send, lambda session: self._owner.arena_of(session, self.index)
        )

    def _send(self, message: Any) -> None:
        if self._host is not None:
            self._host.send(message)

    def _request(
        self, make: Callable[[int], Any], on_reply: OnReply, descriptor: int | None = None
    ) -> None:
        if self._host is None or self.state != "ready":
            on_reply(None, self.lost("is being started again; ask again"))
            return

        def replied(value: Any, error: GpudError | None) -> None:
            # A link that ends says so as a plain error.
            on_reply(value, self.lost(str(error)) if type(error) is GpudError else error)

        self._host.request(make, replied, descriptor)

    def _on_message(self, host: Child, message: Any) -> None:
        if host is self._host:
            self._handlers[type(message)](message)

    def _on_replied(self, message: hm.Replied) -> None:
        assert self._host is not None
        self._host.reply(message.ticket, message.value)

    def _on_refused(self, message: hm.Refused) -> None:
        assert self._host is not None
        self._host.reply(message.ticket, None, message.error)

    def _on_log(self, message: hm.Log) -> None:
        _LOG.log(message.level, "device host %d: %s", self.index, message.text)


def _not_run(job: int, error: GpudError | None, chain: Chain) -> hm.JobEnded:
    """What a host would say of a job that never ran there."""
    wire = None if error is None else error.to_wire()
    return hm.JobEnded(job, wire, False, b"", 0, chain.total, 0, 0)
