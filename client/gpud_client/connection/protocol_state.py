"""The protocol state of a session, without I/O.

Problem: one protocol has two kinds of I/O: threads that block, and an event loop. Pending requests,
the meaning of messages and the effects of a lost connection must be the same in both.

Approach: `ProtocolState` numbers requests and jobs, holds the pending ones, and settles them as
messages arrive. A procedure of several steps (compile, then measure, then submit) is written once
as a generator: it yields a `Request`, a `Notification`, or a list of jobs to wait for, and is sent
the answer. The channels (`gpud_client.connection.channel`, `gpud_client.aio.channel`) do the I/O,
wait, and run these generators.

Properties:
    settled_once: a request or job is settled once, whatever messages arrive;
    nothing_forgotten: when the connection is lost, everything pending is settled with the error.

Nothing here calls user code or blocks.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakSet, WeakValueDictionary

from gpud.errors import (
    ConnectionLost,
    Draining,
    GpudError,
    JobCancelled,
    LimitExceeded,
    from_wire,
)
from gpud.wire.framing import FrameDecoder
from gpud.wire.message_table import Sender
from gpud.wire.messages import (
    CLIENT_PROTOCOL,
    VERSION,
    Allocated,
    Answer,
    Arena,
    ArrayExported,
    Began,
    Compiled,
    Failed,
    Finished,
    Free,
    Goodbye,
    Happened,
    Hello,
    LaneOpened,
    LaunchEnded,
    Measured,
    MoveRegion,
    OpenLane,
    Submit,
    TurnRecalled,
    Welcome,
    WorkloadOpened,
    ZoneLent,
)
from gpud_client.connection.daemon_socket import MAX_FRAME_BYTES
from gpud_client.connection.pending import (
    Notification,
    Operation,
    PendingJob,
    PendingJobs,
    PendingLane,
    Request,
    Signal,
)

if TYPE_CHECKING:
    from gpud_client.arena import ArenaMemory

__all__ = ["ProtocolState", "Resumable", "connection_lost"]

_LOG = logging.getLogger("gpud_client")
_DAEMON = Sender.DAEMON  # a global: looking it up in its class takes longer
_MOST_REQUESTS = 1 << 32


class Resumable:
    """What a session that can go on with another daemon has made.

    Attributes:
        limit_s: how long the next daemon is waited for.
        allocations: of its arrays.
        modules: that are loaded.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.allocations: WeakSet[Any] = WeakSet()
        self.modules: WeakSet[Any] = WeakSet()


class ProtocolState:
    """The protocol state of one session.

    Attributes:
        session: Its number; 0 before the daemon has answered.
        requests: pending ones, by number.
        lanes: those that have not ended, by number.
        ended_lanes: the numbers of those that ended with a daemon, until the session goes on.
        jobs: those that have not ended, by number.
        most_jobs: how many of these and of lanes there may be.
        arenas: by device index.
        garbage: messages to be sent before the next one; finalizers append to it.
        lost: the error with which the session ended; None while it is open.
        has_waited: whether a wait for memory was logged.
        new_arenas: where arenas go that the daemon announces; `arenas`, but for a session that is
            being resumed.
        advice: what to do when the connection is lost.
        workloads: by number.
        moves: of workloads that this process does not know yet, what the daemon asks for.
        resumable: what can go on with another daemon; None: the session ends with its daemon.
        checking: tells the checking mode about arrays, a `gpud_client.checking.Checking`; None: the
            session does not check.
        failed_streams: with failures that were not seen.
        exporting: held by who asks for memory of an array, and has not taken it yet.
        events: takes those that the daemon sends, and None when the session ends; None: they are
            dropped.
    """

    def __init__(self) -> None:
        self.session = 0
        self.requests: dict[int, Request] = {}
        self.jobs: dict[int, PendingJob] = {}
        self.lanes: dict[int, PendingLane] = {}
        self.most_jobs = sys.maxsize
        self.ended_lanes: list[int] = []
        self.arenas: dict[int, ArenaMemory] = {}
        self.garbage: deque[Any] = deque()
        self.lost: GpudError | None = None
        self.has_waited = False
        self.new_arenas = self.arenas
        self.advice = ""
        self.workloads: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self.moves: dict[int, bool] = {}
        self.resumable: Resumable | None = None
        self.checking: Any = None
        self.failed_streams: WeakSet[Any] = WeakSet()
        self.exporting = threading.Lock()
        self.events: SimpleQueue[dict[str, Any] | None] | None = None
        self._descriptors: deque[int] = deque()
        self._decoder = FrameDecoder(MAX_FRAME_BYTES)
        self._body: bytes | None = None
        self._last_request = 0
        self._last_job = 0
        self._last_stream = 0
        self._room: Signal | None = None

    def __reduce__(self) -> NoReturn:
        """Refuse to pickle or copy sessions, arrays, kernels and streams, which all lead here."""
        raise TypeError(
            "a session and what was made with it belong to this process, and cannot be pickled or "
            "copied: connect in the other process, and give it values, as array.get() has them"
        )

    @property
    def last_job(self) -> int:
        """The number of the latest job."""
        return self._last_job

    # -- outgoing

    def hello(self, program: str) -> Operation[Welcome]:
        """Open the session."""
        welcome: Welcome = yield Request(lambda number: Hello(number, VERSION, program[:256]))
        if not isinstance(welcome, Welcome):
            raise ConnectionLost("the program that listens there does not speak gpud's protocol")
        self.session = welcome.session
        return welcome

    def open_request(self, request: Request) -> bytes:
        """Give a request its number and return its frame. If this raises, nothing has changed."""
        number = self._last_request % (_MOST_REQUESTS - 1) + 1
        frame = CLIENT_PROTOCOL.encode(request.build(number))
        self._last_request = number
        self.requests[number] = request
        return frame

    @staticmethod
    def frame(notice: Notification) -> bytes:
        """Return the frame of a message that has no answer."""
        return CLIENT_PROTOCOL.encode(notice.message)

    def open_job(
        self, job: PendingJob, terms: tuple[Any, ...], users: Iterable[PendingJobs]
    ) -> bytes:
        """Give a job its number and return its frame; if this raises, the number is used again.

        Args:
            job: to be submitted.
            terms: the fields of `gpud.wire.messages.Submit` after its number.
            users: of the arrays and modules that the job uses.
        """
        number = self._last_job + 1
        # Before it is sent: from now on reads of these arrays wait for this job.
        for pending in users:
            if len(pending.numbers) >= pending.most:
                pending.prune(self.jobs)
            pending.numbers.append(number)
        frame = CLIENT_PROTOCOL.encode(Submit(number, *terms))
        self._last_job = number
        job._ref = (self.session, number)
        job._users = users
        self.jobs[number] = job
        return frame

    def open_lane(self, lane: PendingLane, terms: tuple[Any, ...]) -> bytes:
        """Give a lane its number, as a job, and return its frame.

        Args:
            lane: to be opened.
            terms: the fields of `gpud.wire.messages.OpenLane` after its number.
        """
        number = self._last_job + 1
        frame = CLIENT_PROTOCOL.encode(OpenLane(number, *terms))
        self._last_job = number
        lane._number = number
        self.lanes[number] = lane
        return frame

    def collect_garbage(self) -> bytes:
        """Return the frames of the messages that finalizers have queued."""
        frames = b""
        while self.garbage:
            frames += CLIENT_PROTOCOL.encode(self.garbage.popleft())
        return frames

    def find_room(self) -> Signal | None:
        """Return what to wait for before another job is opened; None: there is room.

        One thread calls this at a time.
        """
        if len(self.jobs) + len(self.lanes) < self.most_jobs:
            return None
        # Made before the second look: a job that ends after that one sets it.
        room = self._room = self._room or Signal()
        return room if len(self.jobs) + len(self.lanes) >= self.most_jobs else None

    def wait_for_room(
        self, room: Signal | None, submit: Callable[[], Signal | None], *, wait: bool
    ) -> Operation[None]:
        """Submit once there is room.

        Args:
            room: what to wait for first.
            submit: returns None, or what to wait for before it is called again.
            wait: whether to.

        Raises:
            LimitExceeded: there is no room, and it is not waited for.
        """
        while room is not None:
            if not wait:
                raise LimitExceeded(
                    f"the session has {self.most_jobs} jobs that have not ended, as many as it "
                    "may: wait for some, or submit without wait=False, which waits",
                    limit="max_jobs_per_session",
                    value=self.most_jobs,
                )
            yield [room]
            room = submit()

    def _make_room(self) -> None:
        """Wake what waits for room."""
        room, self._room = self._room, None
        if room is not None:
            room.set()

    def next_stream(self) -> int:
        """Return a stream number that was not used before."""
        self._last_stream += 1
        return self._last_stream

    # -- incoming

    def feed(self, buffer: memoryview, received: list[Any]) -> None:
        """Keep received bytes and descriptors; `settle` handles them.

        After an interrupt, call it again, unless ``received`` is empty.

        Args:
            buffer: into which they were received.
            received: what `socket.recvmsg_into` has returned, alone in a list, which is emptied.

        Raises:
            GpudError: a frame is invalid; the connection cannot be used any more.
        """
        size, ancillary, _, _ = received[0]
        data = buffer[:size]
        if ancillary:
            descriptors: list[int] = []
            for _, _, packed in ancillary:
                descriptors += array("i", packed[: len(packed) - len(packed) % 4])
            received[0] = size, (), 0, None
            self._descriptors += descriptors
        body = self._decoder.only_frame(data) if self._body is None else None
        # No interrupt is handled between a change and the next statement: there is no call.
        if body is not None:
            self._body = body
            del received[:]
            return
        self._decoder.feed(data)
        del received[:]

    def settle(self) -> None:
        """Handle the received messages, settling requests and jobs.

        After an interrupt, call it again: it resumes where it was.

        Raises:
            GpudError: the daemon has sent `Goodbye` or an invalid message; the connection cannot be
                used any more.
        """
        frames = self._decoder.frames()
        while True:
            # The current message is kept until it was handled: handling it twice is harmless,
            # losing it is not.
            body = self._body
            if body is None:
                body = next(frames, None)
                if body is None:
                    return
                self._body = body
            self._handle(CLIENT_PROTOCOL.decode(body, _DAEMON))
            self._body = None

    def _handle(self, message: Any) -> None:
        kind = type(message)
        if kind is Finished:
            lane = self.lanes.pop(message.number, None)
            if lane is not None:
                lane._settle(message)
            else:
                job = self.jobs.get(message.number)
                if job is None or self._is_put_off(job, message):
                    return
                job._settle(message)
                self.jobs.pop(message.number, None)
            if self._room is not None:
                self._make_room()
        elif kind in _ANSWERS:
            self._settle(message.request, message, None)
        elif kind is Failed:
            self._failed(message)
        elif kind is Arena:
            from gpud_client.arena import ArenaMemory  # which gpuctl has no use for

            descriptor = self._descriptors.popleft() if self._descriptors else None
            self.new_arenas[message.device] = ArenaMemory(message.base, message.size, descriptor)
        elif kind is LaunchEnded:
            lane = self.lanes.get(message.lane)
            if lane is not None:
                lane._launch_ended(message)
        elif kind is LaneOpened:
            descriptor = self._descriptors.popleft() if self._descriptors else None
            lane = self.lanes.get(message.number)
            if lane is not None and descriptor is not None:
                lane._map_ring(message, descriptor)
        elif kind is Began:
            job = self.jobs.get(message.number)
            if job is not None:
                job._begun = True
        elif kind is TurnRecalled:
            workload = self.workloads.get(message.workload)
            if workload is not None:
                workload._recall()
        elif kind is MoveRegion:
            # The thread that has opened it may be about to add it: one of both takes the request.
            self.moves[message.workload] = message.away
            workload = self.workloads.get(message.workload)
            if workload is not None and self.moves.pop(message.workload, None) is not None:
                workload._move(away=message.away)
        elif kind is ArrayExported:
            descriptor = None
            if message.attached and self._descriptors:
                descriptor = self._descriptors.popleft()
            memory = None if descriptor is None else socket.socket(fileno=descriptor)
            self._settle(message.request, (message.host, memory), None)
        elif kind is ZoneLent:
            descriptor = self._descriptors.popleft() if self._descriptors else None
            workload = self.workloads.get(message.workload)
            if workload is not None and descriptor is not None:
                workload._zone_lent(descriptor)
            elif descriptor is not None:
                os.close(descriptor)
        elif kind is Happened:
            if self.events is not None:
                self.events.put(message.event)
        elif kind is Goodbye:
            error = from_wire(message.error)
            lost = ConnectionLost(f"the daemon closed the connection: {error}")
            lost.__cause__ = error
            raise lost

    def _is_put_off(self, job: PendingJob, message: Finished) -> bool:
        """Whether a daemon that shuts down has refused a job that the next one can run."""
        return (
            self.resumable is not None
            and message.error is not None
            and message.error.get("code") == Draining.code
            and not job._begun
            and job._kept is not None
        )

    def _settle(self, number: int, value: Any, error: BaseException | None) -> None:
        request = self.requests.get(number)
        if request is not None:
            request.settle(value, error)
            self.requests.pop(number, None)

    def _failed(self, message: Failed) -> None:
        error = from_wire(message.error)
        number = getattr(error, "job", None)
        if message.request in self.requests:
            self._settle(message.request, None, error)
        elif number in self.jobs:
            self.jobs[number]._settle(Finished(number, "failed", message.error, b"", {}, (0, 0)))
            self.jobs.pop(number, None)
            self._make_room()
        else:
            _LOG.warning("the daemon refused a message that has no answer: %s", error)

    # -- the end

    def lose(self, error: GpudError) -> None:
        """End the session, whose connection is lost, with the error and what to do."""
        if self.advice:
            error, cause = ConnectionLost(f"{error}; {self.advice}"), error.__cause__
            error.__cause__ = cause
        self.fail_all(error)

    def suspend(self, error: GpudError) -> None:
        """Forget the connection, which is lost, but keep what can go on with another daemon.

        Requests fail with ``error``, and can be repeated. May be called again before that daemon
        was reached.
        """
        again = ConnectionLost(f"{error}; ask again: the session goes on with the next daemon")
        for request in list(self.requests.values()):
            request.settle(None, again)
        self.requests.clear()
        for workload in list(self.workloads.values()):  # the next daemon does not know them
            workload._lose()
        self.workloads.clear()
        self.moves.clear()
        self._drop_descriptors()
        self._decoder = FrameDecoder(MAX_FRAME_BYTES)
        self._body = None
        self.ended_lanes += self.lanes
        self._lose_lanes(
            ConnectionLost(
                f"{error}; the lane has ended with its daemon, and arrays that its launches were "
                "writing hold unspecified values: open another with gpu.lane(...), the session "
                "goes on with the next daemon"
            )
        )
        if self.new_arenas is not self.arenas:
            for arena in self.new_arenas.values():
                arena.close()
        self.new_arenas = {}
        self._make_room()

    def take_new_arenas(self) -> None:
        """Use the arenas of the daemon with which the session goes on."""
        before, self.arenas = self.arenas, self.new_arenas
        for arena in before.values():
            arena.close()

    def fail_all(self, error: GpudError, job_error: GpudError | None = None) -> None:
        """End the session: settle everything pending with ``error``.

        Args:
            error: for requests, and for later uses of the session.
            job_error: for jobs, if different.
        """
        # Twice: a thread that sees `lost` may rely on what it has opened being settled, and one
        # that did not see it may have opened more.
        for _ in range(2):
            for request in list(self.requests.values()):
                request.settle(None, error)
            for job in list(self.jobs.values()):
                job._lose(job_error or error)
            self._lose_lanes(job_error or error)
            if self.lost is None:
                self.lost = error
        self.requests.clear()
        self.jobs.clear()
        self._make_room()
        self._drop_descriptors()
        for arena in (*self.arenas.values(), *self.new_arenas.values()):
            arena.close()
        if self.events is not None:
            self.events.put(None)

    def _lose_lanes(self, error: GpudError) -> None:
        for lane in list(self.lanes.values()):
            lane._lose(error)
        self.lanes.clear()

    def _drop_descriptors(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def close(self) -> None:
        """End the session at the user's request: jobs that have not ended are cancelled."""
        self.fail_all(
            ConnectionLost("the session is closed; connect again"),
            JobCancelled("the session was closed before the job had ended"),
        )

    def free(self, device: int, address: int) -> None:
        """Queue a message that frees an array; safe in a finalizer."""
        if self.lost is None:
            self.garbage.append(Free(device, address))


def connection_lost(where: str, why: GpudError | str) -> ConnectionLost:
    """Return the error for a lost connection.

    Args:
        where: the socket's path.
        why: the reason as text, or the error in what was received.
    """
    if isinstance(why, ConnectionLost):
        return why
    lost = ConnectionLost(f"the connection to the daemon at {where} is lost: {why}")
    lost.__cause__ = why if isinstance(why, GpudError) else None
    return lost


_ANSWERS = frozenset((Answer, Allocated, Compiled, Measured, Welcome, WorkloadOpened))
