"""The jobs of one device: its host is given what they need, and then told of them.

Properties:
    nothing_of_others: what a host says of a job that it was not told of is left out;
    answered: a job that was started and cannot be told to its host ends with the reason, or is
        among those that the host had not been told of when it was lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gpud.device.host import messages as hm
from gpud.errors import GpudError
from gpud.server.hosts.current_host import CurrentHost
from gpud.server.hosts.interface import DeviceObserver
from gpud.server.scheduling.jobs import Chain
from gpud.units import JobId, job_pair

__all__ = ["JobDispatcher", "UnfinishedJobs"]


class UnfinishedJobs(NamedTuple):
    """What a host that is lost leaves.

    Attributes:
        sole: the only job that it was told of and had not ended.
        unsent: those that were started and that it was not told of.
        any_ended: whether a job has ended on it.
    """

    sole: JobId | None
    unsent: tuple[JobId, ...]
    any_ended: bool


class JobDispatcher:
    """Of one device.

    Args:
        host: the device.
        observer: hears how its jobs stand.
        runs: called when a job's launches are about to run on a host.
    """

    def __init__(
        self, host: CurrentHost, observer: DeviceObserver, runs: Callable[[Chain], None]
    ) -> None:
        self._host = host
        self._observer = observer
        self._runs = runs
        self._unsent: dict[int, None] = {}
        self._sent: dict[int, None] = {}
        self._any_ended = False

    @property
    def running(self) -> bool:
        """Whether the host was told of a job that has not ended."""
        return bool(self._sent)

    def host_lost(self) -> UnfinishedJobs:
        """The host is gone, and all that it was told."""
        sole = JobId(next(iter(self._sent))) if len(self._sent) == 1 else None
        left = UnfinishedJobs(sole, tuple(map(JobId, self._unsent)), self._any_ended)
        self._unsent.clear()
        self._sent.clear()
        self._any_ended = False
        return left

    # -- commands

    def is_prepared(self, job: JobId, chain: Chain) -> bool:
        """Whether the host has what a job needs that is submitted now.

        It has it then as long as it lives.
        """
        session, number = job_pair(job)
        memory = self._host.memory
        return self._host.registry.is_ready(chain, session) and (
            memory is None or memory.is_written(session, number)
        )

    def prepare(self, job: JobId, chain: Chain) -> None:
        """Give the host what a job needs. The observer hears of it, unless the host is lost."""
        host, (session, number) = self._host, job_pair(job)
        registry, memory = host.registry, host.memory

        def prepared(error: GpudError | None) -> None:
            if registry is not host.registry or not host.alive:
                return  # the host is gone, and the observer hears of that
            if error is None and memory is not None:
                error = memory.problem(session, number)
            self._observer.job_prepared(job, error)

        def on_ready(error: GpudError | None) -> None:
            if error is None and memory is not None:
                memory.when_written(session, number, lambda: prepared(None))
            else:
                prepared(error)

        registry.make_ready(chain, session, on_ready)

    def start(self, chain: Chain, message: hm.StartJob) -> None:
        """Start a job for which the host is prepared."""
        host = self._host
        memory = host.memory
        if not host.alive:
            self._unsent[message.job] = None  # its end is about to be known
            return
        if memory is not None:
            session, number = job_pair(JobId(message.job))
            problem = memory.problem(session, number)
            if problem is not None:
                self._observer.job_ended(_not_run(message.job, problem, chain))
                return
            memory.copies.job_started(session)
        if chain.ran is not host.registry:
            chain.ran = host.registry
            self._runs(chain)
        self._sent[message.job] = None
        host.send(message)

    def resize(self, message: hm.ResizeJob) -> None:
        """Resize a job that was started."""
        self._host.send(message)

    def end(self, job: JobId) -> None:
        """End a job that was started."""
        self._host.send(hm.EndJob(job))

    def kill(self, job: JobId) -> None:
        """End the task blocks of a job where they are: it was told to end and has not."""
        self._host.send(hm.KillJob(job))

    # -- what the host says, checked

    def blocks_left(self, message: hm.BlocksLeft) -> None:
        """What a job occupies."""
        if message.job in self._sent:
            self._observer.blocks_left(message)

    def ended(self, message: hm.JobEnded) -> None:
        """A job has ended."""
        if message.job not in self._sent:
            return  # not this host's to end
        del self._sent[message.job]
        memory = self._host.memory
        if memory is not None:
            memory.copies.job_ended(job_pair(JobId(message.job))[0])
        self._any_ended = True
        self._observer.job_ended(message)


def _not_run(job: int, error: GpudError, chain: Chain) -> hm.JobEnded:
    """What a host would say of a job that never ran there."""
    return hm.JobEnded(job, error.to_wire(), False, b"", 0, chain.total, 0, 0)
