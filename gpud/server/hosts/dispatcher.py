"""Prepares a device's host for jobs, sends them to it, and passes its job messages on.

Properties:
    unknown_ignored: messages of a host about a job that was not sent to it are ignored;
    answered: a started job that cannot be sent to its host ends with the reason, or is reported as
        unsent when the host is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from gpud.device.host import messages as hm
from gpud.errors import GpudError
from gpud.server.hosts.current_host import CurrentHost
from gpud.server.hosts.device_memory import DeviceArrays
from gpud.server.hosts.interface import DeviceObserver
from gpud.server.state.sequence import ValidatedSequence
from gpud.units import JobId, SessionId, job_pair

__all__ = ["JobDispatcher", "UnfinishedJobs"]


class UnfinishedJobs(NamedTuple):
    """The jobs that a lost host leaves unfinished.

    Attributes:
        sole: the only unfinished job that had been sent to it; None if there was not exactly one.
        unsent: jobs that were started but not sent to it.
        any_ended: whether a job had ended on it.
    """

    sole: JobId | None
    unsent: tuple[JobId, ...]
    any_ended: bool


class JobHost(CurrentHost, Protocol):
    """The current host, with the arrays that jobs may have to wait for.

    Attributes:
        memory: the device's arrays, if it has memory of its own.
    """

    memory: DeviceArrays | None


class JobDispatcher:
    """Dispatches jobs to the current host of one device.

    Args:
        host: the device's current host.
        observer: notified of the state of jobs.
        runs: called when a sequence is about to run on a host for the first time.
        is_error: checks that an error can be decoded; if not, it ends the host.
    """

    def __init__(
        self,
        host: JobHost,
        observer: DeviceObserver,
        runs: Callable[[ValidatedSequence], None],
        is_error: Callable[[dict[str, Any]], bool],
    ) -> None:
        self._is_error = is_error
        self._host = host
        self._observer = observer
        self._runs = runs
        self._unsent: dict[int, None] = {}
        self._sent: dict[int, None] = {}
        self._lanes: set[int] = set()  # of those that were sent
        self._any_ended = False

    @property
    def running(self) -> bool:
        """Whether a job that was sent to the host has not ended."""
        return bool(self._sent)

    def host_lost(self) -> UnfinishedJobs:
        """Forget the jobs of the host, which is lost; returns what it leaves."""
        sole = JobId(next(iter(self._sent))) if len(self._sent) == 1 else None
        left = UnfinishedJobs(sole, tuple(map(JobId, self._unsent)), self._any_ended)
        self._unsent.clear()
        self._sent.clear()
        self._lanes.clear()
        self._any_ended = False
        return left

    # -- commands

    def is_prepared(self, sequence: ValidatedSequence, session: SessionId, number: int) -> bool:
        """Whether the host holds everything that job ``number``, submitted now, needs.

        If so, it stays true for as long as this host lives.
        """
        memory = self._host.memory
        return self._host.registry.is_ready(sequence, session) and (
            memory is None or memory.is_written(session, number)
        )

    def prepare(self, job: JobId, sequence: ValidatedSequence) -> None:
        """Give the host what a job needs; then calls `DeviceObserver.job_prepared`.

        The call is left out if the host is lost meanwhile.
        """
        host, (session, number) = self._host, job_pair(job)
        registry, memory = host.registry, host.memory

        def prepared(error: GpudError | None) -> None:
            if registry is not host.registry or not host.alive:
                return  # the observer is notified of the lost host instead
            if error is None and memory is not None:
                error = memory.problem(session, number)
            self._observer.job_prepared(job, error)

        def on_ready(error: GpudError | None) -> None:
            if error is None and memory is not None:
                memory.when_written(session, number, lambda: prepared(None))
            else:
                prepared(error)

        registry.make_ready(sequence, session, on_ready)

    def start(self, sequence: ValidatedSequence, message: hm.StartRun) -> None:
        """Start a job for which the host is prepared."""
        host = self._host
        process, memory = host.process, host.memory
        if process is None or not process.alive:
            self._unsent[message.job] = None  # reported by `host_lost`, which follows
            return
        if memory is not None:
            session, number = job_pair(JobId(message.job))
            problem = memory.problem(session, number)
            if problem is not None:
                self._observer.job_ended(_not_run(message.job, problem, sequence.total))
                return
            memory.copies.job_started(session)
        if sequence.ran is not host.registry:
            sequence.ran = host.registry
            self._runs(sequence)
        self._sent[message.job] = None
        process.send(message)

    def open_lane(self, message: hm.StartLane, descriptor: int) -> bool:
        """Open a lane, for which the host is prepared; ``descriptor`` is that of its ring.

        Returns whether it was: its jobs could use values that the device has lost.
        """
        process, memory = self._host.process, self._host.memory
        if process is None or not process.alive:
            self._unsent[message.job] = None  # reported by `host_lost`, which follows
            return True
        if memory is not None:  # any array of the session may change until the lane's end
            session, number = job_pair(JobId(message.job))
            problem = memory.problem(session, number)
            if problem is not None:
                self._observer.job_ended(_not_run(message.job, problem, 0))
                return False
            memory.copies.job_started(session, lane=True)
        self._sent[message.job] = None
        self._lanes.add(message.job)
        process.send_with(message, descriptor)
        return True

    # -- messages from the host

    def launch_ended(self, message: hm.LaneLaunchEnded) -> None:
        """Pass on how a lane's launch has ended."""
        if message.job not in self._sent:
            return
        if message.error is None or self._is_error(message.error):
            self._observer.launch_ended(message)

    def blocks_left(self, message: hm.SlicesHeld) -> None:
        """Pass on the slices that a job occupies."""
        if message.job in self._sent:
            self._observer.blocks_left(message)

    def lane_idle(self, message: hm.LaneLent) -> None:
        """Pass on that a lane is idle."""
        if message.job in self._sent:
            self._observer.lane_idle(message)

    def lane_woke(self, message: hm.LaneTookBack) -> None:
        """Pass on that a lane has woken; what it took is not its own affair."""
        self._observer.lane_woke(message)

    def ended(self, message: hm.RunEnded) -> None:
        """Pass on that a job has ended."""
        if message.job not in self._sent:
            return  # it was never sent to this host, or has ended already
        if message.error is not None and not self._is_error(message.error):
            return
        del self._sent[message.job]
        memory = self._host.memory
        if memory is not None:
            lane = message.job in self._lanes
            memory.copies.job_ended(job_pair(JobId(message.job))[0], lane=lane)
        self._lanes.discard(message.job)
        self._any_ended = True
        self._observer.job_ended(message)


def _not_run(job: int, error: GpudError, total: int) -> hm.RunEnded:
    """Return the `RunEnded` of a job that was refused before it was sent to a host."""
    return hm.RunEnded(job, error.to_wire(), False, b"", 0, total, 0, 0)
