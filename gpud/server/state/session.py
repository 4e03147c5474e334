"""A client's session: its modules and jobs, and actions deferred until jobs have ended."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Protocol

from gpud.compiler.program import rejection
from gpud.device.host import messages as hm
from gpud.errors import GpudError, InternalError, InvalidArgument, UnknownName
from gpud.errors.base import shorten
from gpud.server.ipc.memory_sender import MemorySender
from gpud.server.ipc.stream import Stream
from gpud.server.state.access import Peer
from gpud.server.state.arenas import Arenas
from gpud.server.state.job_history import JobHistory
from gpud.server.state.modules import Kernel, Module
from gpud.server.state.quota import ARRAY_BYTES, FOLLOWED_BYTES, JOB_BYTES, User
from gpud.server.state.sequence import ValidatedSequence
from gpud.server.state.submitted_job import SubmittedJob
from gpud.units import SessionId, job_name
from gpud.wire.beginnings import Beginnings
from gpud.wire.messages import Answer, Began, Failed, Finished, LaneOpened, LaunchEnded

__all__ = ["PendingCompilation", "Session", "internal_error"]

_LOG = logging.getLogger(__name__)
_MOST_ALIKE = 512  # launches that are recognised by how they begin
_SEQUENCE_BYTES = 4 << 20  # as received, of the sequences that are kept
_MOST_NAME = 4000  # hosts read names of 4,096 characters, and those of variants are longer


class PendingCompilation(Protocol):
    """A compilation that a session waits for."""

    def cancel(self) -> None:
        """Withdraw the request; it is not answered any more."""


class Session:
    """The session of one client, opened by its `Hello`.

    Args:
        arenas: the memory of its arrays.
        history: gets its jobs when they have ended.

    Attributes:
        number: unique among the sessions that there are.
        uid: the user, as in ``peer``: what it may see and manage.
        account: the user for whom is counted what the session uses.
        send: sends a message; it is dropped if the client has disconnected.
        send_with: `send`, with a descriptor.
        program: the client's name, as it gives it.
        sequences: validated ones by device, bytes, and whether they are killable.
        alike: validated ones of one launch, with what a host gets in front of its parameters.
        jobs: those that have not ended, by number, oldest first.
        last_number: the number of the session's latest job.
        failed: how many of its jobs have failed; the first is logged, and the count at the end.
        user: the client's user, with the counts of all its sessions.
        host_memory: the quota for what the daemon keeps for this session.
        memory: passes memory of arrays on to it.
        waiters: its pending compilations.
        loaded: the modules that hosts may have loaded, least recently used first.
        blocks: (device, address) of its modules' variables, which are no arrays of the client's.
        gone: whether the client has disconnected; its jobs are being ended then.
        reports_begins: whether the client is told when a job begins.
        announced: whether the log has it: it uses a device.
    """

    def __init__(
        self,
        number: SessionId,
        peer: Peer,
        user: User,
        program: str,
        stream: Stream,
        *,
        arenas: Arenas,
        history: JobHistory,
    ) -> None:
        self.number = number
        self.peer = peer
        self.uid = peer.uid
        self.account = user.uid
        self.user = user
        self.host_memory = user.session_quota()
        self.memory = MemorySender()
        self.waiters: dict[PendingCompilation, None] = {}
        self.program = program
        self.stream = stream
        self.send = stream.send
        self.send_with = stream.send_with
        self.opened_ns = time.monotonic_ns()
        self.modules: dict[int, Module] = {}
        self.loaded: OrderedDict[Module, None] = OrderedDict()
        self.blocks: dict[tuple[int, int], None] = {}
        self.jobs: dict[int, SubmittedJob] = {}
        self.last_number = 0
        self.failed = 0
        self.sequences: OrderedDict[tuple[int, bytes, bool], ValidatedSequence] = OrderedDict()
        self.alike: Beginnings[tuple[ValidatedSequence, bytes]] = Beginnings(_MOST_ALIKE)
        self.gone = False
        self.reports_begins = False
        self.announced = False
        self._arenas = arenas
        self._history = history
        self._sequence_bytes = 0
        self._deferred: deque[tuple[int, Callable[[], None]]] = deque()
        self._freed = 0  # arrays that wait for jobs

    def reply(self, request: int, value: Any, error: GpudError | None) -> None:
        """Answer a request with ``value``, or with ``error``."""
        if error is None:
            self.send(Answer(request, value))
        else:
            self.fail(request, error)

    def fail(self, request: int, error: GpudError) -> None:
        """Answer a request with ``error``."""
        self.send(Failed(request, error.to_wire()))

    # -- modules

    def module(self, number: int) -> Module:
        """Return the module that the client calls ``number``.

        Raises:
            UnknownName: there is none of that number.
        """
        module = self.modules.get(number)
        if module is None:
            raise UnknownName(f"the session has no module {number}; it was unloaded or never made")
        return module

    def kernel(self, module: Module, index: int) -> Kernel:
        """Return a kernel of a module, if it can be run.

        Raises:
            UnknownName: the module has no such kernel.
            KernelRejected: gpud cannot run it.
            InvalidArgument: its name is longer than messages to device hosts allow.
        """
        count = module.program.kernel_count
        if index >= count:
            raise UnknownName(f"module {module.number} has {count} kernels, none {index}")
        kernel = module.program.kernel(index)
        if kernel.rejected:
            raise rejection(kernel.info)
        if len(kernel.entry) > _MOST_NAME:
            raise InvalidArgument(
                f"the name of kernel {shorten(kernel.name)} has {len(kernel.entry)} characters, "
                f"and kernels with up to {_MOST_NAME} can be run: give it a shorter one"
            )
        return kernel

    def forget_module(self, module: Module) -> None:
        """Drop a module: its number is unknown from now on."""
        del self.modules[module.number]
        self.forget_loaded(module)

    def forget_loaded(self, module: Module) -> None:
        """Drop what is known of a module on its host, as it is unloaded there."""
        self.loaded.pop(module, None)
        for key in [
            key
            for key, sequence in self.sequences.items()
            if any(needed is module for needed, _ in sequence.needs)
        ]:
            self._sequence_bytes -= self.sequences.pop(key).size_bytes
        self.alike.drop(lambda known: known[0].modules[0] is module)

    def keep_sequence(self, key: tuple[int, bytes, bool], sequence: ValidatedSequence) -> None:
        """Keep a validated sequence; drop the oldest ones above the limit."""
        self.sequences[key] = sequence
        self._sequence_bytes += sequence.size_bytes
        while self._sequence_bytes > _SEQUENCE_BYTES and len(self.sequences) > 1:
            _, dropped = self.sequences.popitem(last=False)
            self._sequence_bytes -= dropped.size_bytes

    # -- jobs

    def add_job(self, job: SubmittedJob) -> None:
        """Count a job that is about to be submitted.

        Raises:
            LimitExceeded: the session or its user has too many unfinished jobs, or too large ones.
        """
        self.user.check_jobs(len(self.jobs))
        sequence = job.sequence
        size = _size_of(job)
        self.host_memory.charge(
            size if sequence.jobs else size + sequence.charged_bytes, "this job"
        )
        sequence.jobs += 1
        self.user.jobs += 1
        self.jobs[job.number] = job

    @property
    def runs(self) -> bool:
        """Whether a job has not ended, those of lanes aside, which are seen to by clients."""
        return self._oldest() is not None

    def when_idle(self, action: Callable[[], None]) -> None:
        """Call ``action`` once all jobs submitted so far have ended."""
        if self._oldest() is not None:
            self._deferred.append((self.last_number, action))
        else:
            action()

    def free(self, device: int, address: int) -> None:
        """Free an array once all jobs submitted so far have ended.

        Raises:
            UnknownName: there is no such array.
        """
        self._arenas.free_after(self.number, device, address, self.last_number)
        self._freed += 1
        self._settle_arrays(self._oldest())

    def _settle_arrays(self, oldest: int | None) -> None:
        """Release the freed arrays that no job from ``oldest`` on can use."""
        count = self._arenas.settle(self.number, oldest)
        self._freed -= count
        self.host_memory.uncharge(count * ARRAY_BYTES)

    def lane_opened(self, lane: int, size: int, descriptor: int) -> None:
        """Give the client the ring of a lane; the descriptor may be closed then."""
        self.send_with(LaneOpened(lane, size), descriptor)

    def job_begins(self, job: SubmittedJob) -> None:
        """Notify the client that a job is about to begin, if it wants to know."""
        if self.reports_begins:
            self.send(Began(job.number))

    def job_finished(self, job: SubmittedJob, state: str, error: GpudError | None) -> None:
        """Notify the client of the end of a job, and release what waited for it."""
        number, jobs = job.number, self.jobs
        del jobs[number]
        self.user.jobs -= 1
        sequence = job.sequence
        sequence.jobs -= 1
        size = _size_of(job)
        self.host_memory.uncharge(size if sequence.jobs else size + sequence.charged_bytes)
        now_ns = time.monotonic_ns()
        stats = job.stats(now_ns)
        fields = None if error is None else error.to_wire()
        self.send(Finished(number, state, fields, job.output, stats, job.progress))
        memory_bytes = self._arenas.array_bytes(self.number, job.device)
        self._history.add(job, state, error, now_ns, stats, memory_bytes)
        if state == "failed":
            self.failed += 1
            if self.failed == 1:
                _LOG.info(
                    "job %s, the first of its session, failed: %s", job_name(job.id), job.error
                )
        oldest = self._oldest()
        if (self._freed or self._deferred) and (oldest is None or oldest > number):
            # It was the oldest, so deferred actions may have become due.
            self._settle(oldest)

    def _oldest(self) -> int | None:
        """Return the oldest job for which what is freed has to wait; clients see to their lanes."""
        return next((number for number, job in self.jobs.items() if not job.lane), None)

    def launch_ended(self, lane: int, launch: hm.LaneLaunchEnded, error: GpudError | None) -> None:
        """Notify the client how a launch of a lane has ended."""
        fields = None if error is None else error.to_wire()
        progress = launch.done, launch.total
        self.send(LaunchEnded(lane, launch.launch, launch.state, fields, launch.output, progress))

    def _settle(self, oldest: int | None) -> None:
        """Run the deferred actions that wait only for jobs before ``oldest``."""
        if self._freed:
            self._settle_arrays(oldest)
        deferred = self._deferred
        while deferred and (oldest is None or deferred[0][0] < oldest):
            deferred.popleft()[1]()


def _size_of(job: SubmittedJob) -> int:
    """Return what is charged for a job beside its sequence."""
    size = JOB_BYTES + FOLLOWED_BYTES * job.follows
    return size if job.packed is job.sequence.launches else size + len(job.packed)


def internal_error(error: Exception) -> InternalError:
    """Return the error that a client gets for an unexpected exception in handling its message."""
    return InternalError(
        f"the daemon failed on this request ({type(error).__name__}); its log says more",
        stage="server",
    )
