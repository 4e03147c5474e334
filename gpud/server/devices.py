"""Device hosts: one child process for each device, started, fed, replaced.

Problem: a host can crash, hang or lose its context at any moment. Modules, variables and native
code are lost with it; sessions, arrays and queued jobs are not, and the jobs that wait must run on
the host that comes next.

Approach: everything that a host knows it was told by the front, which keeps what it takes to tell
it again: the rewritten PTX, what was written to variables, and the arenas' memory files. Nothing is
told in advance: a new host learns of an arena or a module when the first job or request needs it.
A host that is silent for too long, or at one compilation, is replaced (`gpud.server.vigil`).

Terms:
    stock: what the present host has been told (`gpud.server.stock`).
    pending job: started by the scheduler while its host lacks something that it needs; its commands
        are kept and sent in order as soon as it is there.

Properties:
    one_failure: for each host that had become ready, the runner is told once that it has failed;
    fresh: nothing of an earlier host is believed of a later one;
    nothing_begun: the runner is told which jobs the lost host had not been told of;
    asked_again: a request that is lost with its host is put to the next one, a few times;
    no_false_blame: a job is named for the loss only if nothing else can be the reason;
    gives_up: after `_MOST_EARLY_ENDS` hosts in a row that end before they are ready there is no
        other, and it is said why.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpud.device.host import messages as hm
from gpud.errors import DeviceLost, GpudError, ProtocolError, UnknownName
from gpud.server.believed import check_error, check_reply
from gpud.server.child import Child, OnReply
from gpud.server.copied import CopiedMemory
from gpud.server.jobs import Chain
from gpud.server.loader import Loader, write_message
from gpud.server.modules import Module, Shape
from gpud.server.owner import HOST_COMMAND, Connect, Limits, Owner
from gpud.server.stock import Stock
from gpud.server.stream import Outbox
from gpud.server.suspects import Suspects
from gpud.server.vigil import Vigil
from gpud.units import JobId, SessionId, job_pair

__all__ = ["Device"]

_LOG = logging.getLogger(__name__)
_MOST_EARLY_ENDS = 5
_ENDS_WITHIN_S = 30.0
_BACK_OFF_S = (0.0, 0.1, 0.5, 1.0, 2.0)
_END_S = 2.0
_MOST_ASKS = 3


class Device:
    """One device and its present host.

    Attributes:
        state: ``starting``, ``ready``, ``failed`` (given up) or ``stopped``.
        info: what the host said when it became ready; kept while the next one starts.
        memory: its arrays, where they lie in memory of its own; None: they are in the files.
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
        command: Sequence[str] = HOST_COMMAND,
        limits: Limits = Limits(),  # noqa: B008 - a constant
    ) -> None:
        self.index = index
        self.spec = spec
        self.state = "starting"
        self.info: hm.HostReady | None = None
        self.memory: CopiedMemory | None = None
        self.failures: list[str] = []
        self.restarts = 0
        self._owner = owner
        self._outbox = outbox
        self._connect = connect
        self._command = [*command, "--device", spec]
        self._limits = limits
        self._host: Child | None = None
        self._vigil: Vigil | None = None
        self._told: dict[int, None] = {}  # jobs that the host was told to start
        self._useful = False  # a job has ended on this host
        self._replacing = False
        self._suspects = Suspects(
            outbox,
            f"device {index} ({spec})",
            None if connect is not None else lambda child: child.start(self._command),
            limits.compile,
        )
        self._loader = Loader(self._request, lambda: self._host, self._suspects, self.lost)
        self._starting: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._early_ends = 0  # since a host was ready
        self._late_ends: list[float] = []
        self._settled = asyncio.Event()
        self._when_ready: list[tuple[Callable[[], None], OnReply]] = []
        self._stock = self._new_stock()
        self._pending: dict[int, list[Any]] = {}
        self._handlers: dict[type, Callable[[Any], None]] = {
            hm.BlocksLeft: self._on_blocks_left,
            hm.JobEnded: self._on_job_ended,
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
            self._replacing = True
            self._host.kill(reason)

    def kill(self) -> None:
        """End the host at once and start no other."""
        self.state = "stopped"
        self._suspects.kill()
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
        await self._suspects.close()
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
        self._vigil = Vigil(
            self._outbox.loop,
            self._limits,
            self._ask,
            self._loader.compiling,
            # A driver may wait for kernels before it unmaps, and those may run for hours.
            lambda: self.memory is not None and bool(self._told),
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
        if self.memory is None and info.arrays == "copied":
            self.memory = CopiedMemory(self)
        self.state = "ready"
        self._early_ends = 0
        if self._vigil is not None:
            self._vigil.started()
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
        culprit, unstarted = self._examine()
        if was_ready:
            self._lose_arrays(reason)
        useful = self._forget_host(reason)
        if self.state == "stopped":
            self._settled.set()
            return
        self.state = "starting"
        self.failures = [*self.failures, reason][-16:]
        self.restarts += 1
        _LOG.error("device host %d (%s) %s", self.index, self.spec, reason)
        now = time.monotonic()
        # A job that ends its host each time it runs costs the others a pause, not the device; and
        # no pause where others get on meanwhile.
        if was_ready:
            late = [at for at in self._late_ends if at > now - _ENDS_WITHIN_S and not useful]
            self._late_ends = [*late, now]
            ends = len(self._late_ends)
            self._owner.device_failed(self, reason, culprit, unstarted)
        else:
            self._early_ends += 1
            ends = self._early_ends
        if self._early_ends >= _MOST_EARLY_ENDS:
            self.state = "failed"
            self._settled.set()
            self._refuse_waiting(reason)
            self._owner.device_given_up(self, reason)
            return
        self._begin(_BACK_OFF_S[min(ends, len(_BACK_OFF_S)) - 1])

    def lost(self, reason: str) -> DeviceLost:
        """The error for what cannot be done on this device now."""
        return DeviceLost(f"device {self.index} ({self.spec}) {reason}", device=self.spec)

    def _refuse_waiting(self, reason: str) -> None:
        waiting, self._when_ready = self._when_ready, []
        for _, on_reply in waiting:
            on_reply(None, self.lost(reason))

    def _examine(self) -> tuple[JobId | None, tuple[JobId, ...]]:
        """Who may have ended the host, as far as that is certain, and whom it never heard of."""
        alone = len(self._told) == 1 and not self._loader.compiling and not self._memory_stuck
        culprit = JobId(next(iter(self._told))) if alone else None
        return culprit, tuple(map(JobId, self._pending))

    def _forget_host(self, reason: str) -> bool:
        """Whatever was known of the host that is gone; whether it was of use."""
        suspect = not (self._replacing or self._memory_stuck or self.state == "stopped")
        if self._vigil is not None:
            self._vigil.stop()
            self._vigil = None
        self._stock = self._new_stock()
        self._pending.clear()
        self._told.clear()
        for module in self._loader.host_lost(reason, suspect=suspect):
            self._owner.variables_lost(module)
        self._replacing = False
        useful, self._useful = self._useful, False
        return useful

    def _lose_arrays(self, reason: str) -> None:
        """The arrays in the device's own memory are gone, but for what the files hold."""
        if self.memory is not None:
            said = f"were in the memory of its host, which {reason}"
            for session, count, size in self.memory.copies.host_lost(said):
                self._owner.arrays_lost(self, session, count, size)

    @property
    def _memory_stuck(self) -> bool:
        """Whether the host is ended for that; nobody's job or program is to blame."""
        return self._vigil is not None and self._vigil.memory_stuck

    def _ask(self, make: Callable[[int], Any], on_reply: OnReply) -> None:
        """Something that a thread of the host answers at once; nothing while it starts."""
        if self.state == "ready" and self._host is not None:
            self._host.request(make, on_reply)
        else:
            on_reply(None, None)

    def _kill(self, reason: str) -> None:
        if self._host is not None:
            self._host.kill(reason)

    # -- jobs

    def start_job(self, chain: Chain, message: hm.StartJob) -> None:
        """Start a job as soon as its chain and its session's memory are ready."""
        stock, session, memory = self._stock, SessionId(message.session), self.memory
        if self._host is None or not self._host.alive:
            self._pending[message.job] = [message]  # its end is about to be known
            return
        if memory is not None:
            problem = memory.problem(session, job_pair(JobId(message.job))[1])
            if problem is not None:
                self._owner.job_ended(_not_run(message.job, problem, chain))
                return
        if chain.ready is not stock:
            self._loader.ran(chain)
        if stock.is_ready(chain, session) and (memory is None or memory.is_written(session)):
            self._tell(message)
            return
        pending = self._pending[message.job] = [message]

        def on_ready(error: GpudError | None) -> None:
            if stock is not self._stock or self._pending.get(message.job) is not pending:
                return  # the host is gone, or the job was ended
            if self._host is None or not self._host.alive:
                return  # the host is gone, and the runner is about to hear that this was pending
            if error is None and memory is not None and not memory.is_written(session):
                memory.when_written(session, lambda: on_ready(None))
                return
            if error is None and memory is not None:
                error = memory.problem(session, job_pair(JobId(message.job))[1])
            del self._pending[message.job]
            if error is not None:
                self._owner.job_ended(_not_run(message.job, error, chain))
                return
            first, *rest = pending
            self._tell(first)
            for one in rest:
                self._send(one)

        stock.make_ready(chain, session, on_ready)

    def _tell(self, message: hm.StartJob) -> None:
        """Have the host start a job."""
        self._told[message.job] = None
        if self.memory is not None:
            self.memory.copies.began(SessionId(message.session))
        self._send(message)

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

    def kill_job(self, job: JobId) -> None:
        """End the task blocks of a job where they are: it was told to end and has not."""
        self._send(hm.KillJob(job))

    def _on_blocks_left(self, message: hm.BlocksLeft) -> None:
        if message.job in self._told:
            self._owner.blocks_left(message)

    def _on_job_ended(self, message: hm.JobEnded) -> None:
        if message.job not in self._told or not self._is_error(message.error):
            return  # not this host's to end; or its end, of which the owner hears
        del self._told[message.job]
        if self.memory is not None:
            self.memory.copies.ended(job_pair(JobId(message.job))[0])
        self._useful = True
        self._owner.job_ended(message)

    # -- requests

    def open_arena(self, session: int) -> None:
        """Map a session's memory now, so that its first job need not wait.

        Should that fail, the job asks again, and hears why.
        """
        if self.state == "ready":
            self._stock.open_arena(session, lambda value, error: None)

    def when_ready(self, action: Callable[[], None], on_reply: OnReply) -> None:
        """Do ``action`` when there is a host, or tell ``on_reply`` why there is none."""
        if self.state == "ready" and self._host is not None and self._host.alive:
            action()
        elif self.state in ("ready", "starting"):
            self._when_ready.append((action, on_reply))
        else:
            on_reply(
                None, self.lost(self.failures[-1] if self.failures else "was ended with the daemon")
            )

    def measure(self, module: Module, shape: Shape, on_reply: OnReply) -> None:
        """Make a kernel ready for a block shape; replies M."""
        self._ask_on(module, lambda reply: self._stock.measure(module, shape, reply), on_reply)

    def unload(self, module: Module) -> None:
        """Forget a module; no job of it is left."""
        module.forgotten = True
        self._stock.unload(module.number)
        self._loader.unload(module.number)

    def read_symbol(
        self, module: Module, name: str, offset: int, size: int, on_reply: OnReply
    ) -> None:
        """Replies bytes of a module variable.

        Once after a loss of what kernels may have written there it is an error that says so.
        """

        def ask(reply: OnReply) -> None:
            problem = self._loader.read_problem(module, name)
            if problem is not None:
                on_reply(None, problem)
            else:
                make = partial(_read, module.number, name, offset, size)
                self._stock.with_module(module, make, reply)

        self._ask_on(module, ask, on_reply)

    def write_symbol(
        self, module: Module, name: str, offset: int, data: bytes, on_reply: OnReply
    ) -> None:
        """Writes bytes of a module variable; replies None."""

        def written(value: Any, error: GpudError | None) -> None:
            if error is None:
                self._loader.wrote(module, name, offset, data)
            on_reply(value, error)

        make = partial(write_message, module.number, name, offset, data)
        self._ask_on(module, lambda reply: self._stock.with_module(module, make, reply), written)

    def read_progress(self, jobs: tuple[JobId, ...], on_reply: OnReply) -> None:
        """Replies [job, task blocks done, in all] of those that the host has."""
        self._request(lambda t: hm.ReadProgress(t, jobs), on_reply)

    def close_session(self, session: int) -> None:
        """Forget a session's memory; no job of it is left."""
        self._stock.close_session(session)
        if self.memory is not None:
            self.memory.close_session(SessionId(session))

    def _ask_on(self, module: Module, ask: Callable[[OnReply], None], on_reply: OnReply) -> None:
        """Ask a host, and if that is lost meanwhile, the next ones, `_MOST_ASKS` in all.

        Asking must do no harm if it is done twice.
        """
        asked = 0

        def again() -> None:
            nonlocal asked
            if module.forgotten:
                on_reply(None, UnknownName(f"module {module.number} was unloaded meanwhile"))
                return
            asked += 1
            ask(replied)

        def replied(value: Any, error: GpudError | None) -> None:
            if isinstance(error, DeviceLost) and asked < _MOST_ASKS:
                self.when_ready(again, on_reply)
            else:
                on_reply(value, error)

        self.when_ready(again, on_reply)

    # -- the link

    def _new_stock(self) -> Stock:
        return Stock(
            self._loader.request,
            self._send,
            lambda session: self._owner.arena_of(session, self.index),
            lambda session: () if self.memory is None else self.memory.arrays_of(session),
        )

    @property
    def stock(self) -> Stock:
        """What the present host has been told."""
        return self._stock

    def _send(self, message: Any) -> None:
        if self._host is not None:
            self._host.send(message)

    def _request(
        self, make: Callable[[int], Any], on_reply: OnReply, descriptor: int | None = None
    ) -> None:
        if self._host is None or self.state != "ready":
            on_reply(None, self.lost("is being started again; ask again"))
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
            # A link that ends says so as a plain error.
            on_reply(value, self.lost(str(error)) if type(error) is GpudError else error)

        self._host.request(made, replied, descriptor)

    def _on_message(self, host: Child, message: Any) -> None:
        if host is self._host:
            self._handlers[type(message)](message)

    def _on_replied(self, message: hm.Replied) -> None:
        assert self._host is not None
        self._host.reply(message.ticket, message.value)

    def _on_refused(self, message: hm.Refused) -> None:
        assert self._host is not None
        if self._is_error(message.error):
            self._host.reply(message.ticket, None, message.error)

    def _is_error(self, plain: dict[str, Any] | None) -> bool:
        """Whether an error can be read; the host is replaced if not."""
        try:
            check_error(plain)
        except ProtocolError as problem:
            self._kill(f"sent what cannot be: {problem}")
            return False
        return True

    def _on_log(self, message: hm.Log) -> None:
        _LOG.log(message.level, "device host %d: %s", self.index, message.text)


def _read(module: int, name: str, offset: int, size: int, ticket: int) -> hm.ReadSymbol:
    return hm.ReadSymbol(ticket, module, name, offset, size)


def _not_run(job: int, error: GpudError | None, chain: Chain) -> hm.JobEnded:
    """What a host would say of a job that never ran there."""
    wire = None if error is None else error.to_wire()
    return hm.JobEnded(job, wire, False, b"", 0, chain.total, 0, 0)
