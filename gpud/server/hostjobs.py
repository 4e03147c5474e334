"""The jobs of one device: told to its present host, or kept until that has what they need.

Terms:
    pending job: started by the scheduler while its host lacks something that it needs; its commands
        are kept and sent in order as soon as it is there.

Properties:
    nothing_of_others: what a host says of a job that it was not told of is left out;
    answered: a job that was started and cannot be told to its host ends with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from gpud.device.host import messages as hm
from gpud.errors import GpudError
from gpud.server.copied import CopiedMemory
from gpud.server.jobs import Chain
from gpud.server.owner import Owner
from gpud.server.stock import Stock
from gpud.units import JobId, SessionId, job_pair

__all__ = ["HostJobs", "Left"]


class Left(NamedTuple):
    """What a host that is lost leaves.

    Attributes:
        alone: the only job that it was told of and had not ended.
        pending: those that it was not told of.
        useful: whether a job has ended on it.
    """

    alone: JobId | None
    pending: tuple[JobId, ...]
    useful: bool


class Host(Protocol):
    """What is needed of the device: `gpud.server.devices.Device`."""

    memory: CopiedMemory | None

    @property
    def stock(self) -> Stock:
        """Of the present host."""

    @property
    def alive(self) -> bool:
        """Whether there is a host that can be told something."""

    def send(self, message: Any) -> None:
        """Send it a command that is not answered."""


class HostJobs:
    """Of one device.

    Args:
        host: the device.
        owner: hears how its jobs stand.
        runs: called when a job's launches are about to run on a host.
    """

    def __init__(self, host: Host, owner: Owner, runs: Callable[[Chain], None]) -> None:
        self._host = host
        self._owner = owner
        self._runs = runs
        self._pending: dict[int, list[Any]] = {}
        self._told: dict[int, None] = {}
        self._useful = False

    @property
    def running(self) -> bool:
        """Whether the host was told of a job that has not ended."""
        return bool(self._told)

    def host_lost(self) -> Left:
        """The host is gone, and all that it was told."""
        alone = JobId(next(iter(self._told))) if len(self._told) == 1 else None
        left = Left(alone, tuple(map(JobId, self._pending)), self._useful)
        self._pending.clear()
        self._told.clear()
        self._useful = False
        return left

    # -- commands

    def start(self, chain: Chain, message: hm.StartJob) -> None:
        """Start a job as soon as its chain and its session's memory are ready."""
        host, session = self._host, SessionId(message.session)
        stock, memory = host.stock, host.memory
        if not host.alive:
            self._pending[message.job] = [message]  # its end is about to be known
            return
        if memory is not None:
            problem = memory.problem(session, job_pair(JobId(message.job))[1])
            if problem is not None:
                self._owner.job_ended(_not_run(message.job, problem, chain))
                return
        if chain.ready is not stock:
            self._runs(chain)
        if stock.is_ready(chain, session) and (memory is None or memory.is_written(session)):
            self._tell(message)
            return
        pending = self._pending[message.job] = [message]

        def on_ready(error: GpudError | None) -> None:
            if stock is not host.stock or self._pending.get(message.job) is not pending:
                return  # the host is gone, or the job was ended
            if not host.alive:
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
                host.send(one)

        stock.make_ready(chain, session, on_ready)

    def _tell(self, message: hm.StartJob) -> None:
        """Have the host start a job."""
        self._told[message.job] = None
        memory = self._host.memory
        if memory is not None:
            memory.copies.began(SessionId(message.session))
        self._host.send(message)

    def resize(self, message: hm.ResizeJob) -> None:
        """Resize a job that was started."""
        pending = self._pending.get(message.job)
        if pending is None:
            self._host.send(message)
        else:
            pending.append(message)

    def end(self, job: JobId, chain: Chain) -> None:
        """End a job that was started."""
        if self._pending.pop(job, None) is None:
            self._host.send(hm.EndJob(job))
        else:
            self._owner.job_ended(_not_run(job, None, chain))

    def kill(self, job: JobId) -> None:
        """End the task blocks of a job where they are: it was told to end and has not."""
        self._host.send(hm.KillJob(job))

    # -- what the host says, checked

    def blocks_left(self, message: hm.BlocksLeft) -> None:
        """What a job occupies."""
        if message.job in self._told:
            self._owner.blocks_left(message)

    def ended(self, message: hm.JobEnded) -> None:
        """A job has ended."""
        if message.job not in self._told:
            return  # not this host's to end
        del self._told[message.job]
        memory = self._host.memory
        if memory is not None:
            memory.copies.ended(job_pair(JobId(message.job))[0])
        self._useful = True
        self._owner.job_ended(message)


def _not_run(job: int, error: GpudError | None, chain: Chain) -> hm.JobEnded:
    """What a host would say of a job that never ran there."""
    wire = None if error is None else error.to_wire()
    return hm.JobEnded(job, wire, False, b"", 0, chain.total, 0, 0)
