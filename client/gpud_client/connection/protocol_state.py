"""The protocol state of a session, without I/O.

Problem: one protocol has two kinds of I/O: threads that block, and an event loop. Pending requests,
the meaning of messages and the effects of a lost connection must be the same in both.

Approach: `ProtocolState` numbers requests and jobs, holds the pending ones, and settles them as
messages arrive. A procedure of several steps (compile, then measure, then submit) is written once
as a generator: it yields a `Request`, a `Notification`, or a list of jobs to wait for, and is sent
the answer. The channels (`gpud_client.connection.channel`, `gpud_client.aio.channel`) do the I/O,
wait, and run these generators.

Terms:
    settled: a request that is answered or failed, or a job that has ended; the state is final.
    operation: a generator of steps; its return value is the result.

Properties:
    settled_once: a request or job is settled once, whatever messages arrive;
    nothing_forgotten: when the connection is lost, everything pending is settled with the error.

Nothing here calls user code or blocks.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from gpud.errors import ConnectionLost, GpudError, JobCancelled, from_wire
from gpud.wire.framing import FrameDecoder
from gpud.wire.message_table import Sender
from gpud.wire.messages import (
    CLIENT_PROTOCOL,
    VERSION,
    Allocated,
    Answer,
    Arena,
    Compiled,
    Failed,
    Finished,
    Free,
    Goodbye,
    Hello,
    Measured,
    Welcome,
)
from gpud_client.arena import ArenaMemory
from gpud_client.connection.daemon_socket import MAX_FRAME_BYTES

if TYPE_CHECKING:
    from gpud_client.launch.jobs import JobBase

__all__ = [
    "Notification",
    "Operation",
    "PendingJobs",
    "ProtocolState",
    "Request",
    "Step",
    "connection_lost",
    "wake",
]

_LOG = logging.getLogger("gpud_client")
_DAEMON = Sender.DAEMON  # a global: looking it up in its class takes longer
_MOST_REQUESTS = 1 << 32
_PRUNE_AT = 64

T = TypeVar("T")


class Request:
    """A request and its answer.

    Args:
        build: makes the message, given the request's number.
        undo: called with the answer if the request was abandoned.

    Attributes:
        abandoned: whether the caller is no longer waiting for the answer.
        _settled: whether `value` or `error` is set; jobs have the same attribute.
        _waiting: futures of an event loop, done when it is settled; jobs have it, too.
    """

    __slots__ = ("_settled", "_waiting", "abandoned", "build", "error", "undo", "value")

    def __init__(
        self, build: Callable[[int], Any], undo: Callable[[Any], None] | None = None
    ) -> None:
        self.build = build
        self.undo = undo
        self.value: Any = None
        self.error: BaseException | None = None
        self._settled = False
        self.abandoned = False
        self._waiting: dict[Any, None] = {}

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Set the answer or the error, unless it is settled."""
        if self._settled:
            return
        self.value, self.error = value, error
        self._settled = True
        if self.abandoned and self.undo is not None and error is None:
            self.undo(value)
        wake(self._waiting)

    def abandon(self) -> None:
        """Wait for the answer no longer; it is undone when it arrives, or now if it has."""
        self.abandoned = True
        if self._settled and self.undo is not None and self.error is None:
            self.undo(self.value)

    def answer(self) -> Any:
        """Return the answer, or raise the request's error."""
        if self.error is not None:
            raise self.error
        return self.value


class Notification(NamedTuple):
    """A message that has no answer."""

    message: Any


class PendingJobs:
    """The jobs that use an array or module and may not have ended."""

    __slots__ = ("_most", "_numbers")

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._most = _PRUNE_AT

    def add(self, number: int, core: ProtocolState) -> None:
        """Add a job that is about to be submitted and not in `ProtocolState.jobs` yet."""
        if len(self._numbers) >= self._most:
            jobs = core.jobs
            self._numbers = [one for one in self._numbers if one in jobs]
            self._most = max(_PRUNE_AT, 2 * len(self._numbers))
        self._numbers.append(number)

    def unended(self, core: ProtocolState) -> list[Any]:
        """The jobs that have not ended."""
        jobs = core.jobs
        return [job for number in self._numbers if (job := jobs.get(number)) is not None]


Step = Request | Notification | list[Any]
Operation = Generator[Step, Any, T]


class ProtocolState:
    """The protocol state of one session.

    Attributes:
        session: Its number; 0 before the daemon has answered.
        requests: pending ones, by number.
        jobs: those that have not ended, by number.
        arenas: by device index.
        garbage: messages to be sent before the next one; finalizers append to it.
        lost: the error with which the session ended; None while it is open.
        has_waited: whether a wait for memory was logged.
    """

    def __init__(self) -> None:
        self.session = 0
        self.requests: dict[int, Request] = {}
        self.jobs: dict[int, JobBase] = {}
        self.arenas: dict[int, ArenaMemory] = {}
        self.garbage: deque[Any] = deque()
        self.lost: GpudError | None = None
        self.has_waited = False
        self._descriptors: deque[int] = deque()
        self._decoder = FrameDecoder(MAX_FRAME_BYTES)
        self._body: bytes | None = None
        self._last_request = 0
        self._last_job = 0
        self._last_stream = 0

    def __reduce__(self) -> NoReturn:
        """Refuse to pickle or copy sessions, arrays, kernels and streams, which all lead here."""
        raise TypeError(
            "a session and what was made with it belong to this process, and cannot be pickled or "
            "copied: connect in the other process, and give it values, as array.get() has them"
        )

    # -- outgoing

    def hello(self, program: str) -> Operation[Welcome]:
        """Open the session."""
        welcome: Welcome = yield Request(lambda number: Hello(number, VERSION, program[:256]))
        if not isinstance(welcome, Welcome):
            raise ConnectionLost("the program that listens there does not speak gpud's protocol")
        self.session = welcome.session
        return welcome

    def open_request(self, request: Request) -> bytes:
        """Number a request; returns its frame. Nothing has changed if it raises."""
        number = self._last_request % (_MOST_REQUESTS - 1) + 1
        frame = CLIENT_PROTOCOL.encode(request.build(number))
        self._last_request = number
        self.requests[number] = request
        return frame

    @staticmethod
    def frame(notice: Notification) -> bytes:
        """The frame of a message that has no answer."""
        return CLIENT_PROTOCOL.encode(notice.message)

    def open_job(self, job: JobBase, build: Callable[[int], Any]) -> bytes:
        """Number a job; returns its frame. Nothing has changed if it raises."""
        number = self._last_job + 1
        frame = CLIENT_PROTOCOL.encode(build(number))
        self._last_job = number
        job._ref = (self.session, number)
        self.jobs[number] = job
        return frame

    def collect_garbage(self) -> bytes:
        """The frames of the messages that finalizers have queued."""
        found = b""
        while self.garbage:
            found += CLIENT_PROTOCOL.encode(self.garbage.popleft())
        return found

    def next_stream(self) -> int:
        """A stream number that was not used before."""
        self._last_stream += 1
        return self._last_stream

    # -- incoming

    def feed(self, data: bytes | memoryview, descriptors: Iterable[int] = ()) -> None:
        """Buffer received bytes and descriptors; `settle` handles them.

        Raises:
            GpudError: a frame is invalid; the connection cannot be used any more.
        """
        self._decoder.feed(data)
        self._descriptors += descriptors

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
            job = self.jobs.get(message.number)
            if job is not None:
                job._settle(message)
                self.jobs.pop(message.number, None)
        elif kind in _ANSWERS:
            self._settle(message.request, message, None)
        elif kind is Failed:
            self._failed(message)
        elif kind is Arena:
            descriptor = self._descriptors.popleft() if self._descriptors else None
            self.arenas[message.device] = ArenaMemory(message.base, message.size, descriptor)
        elif kind is Goodbye:
            error = from_wire(message.error)
            lost = ConnectionLost(f"the daemon closed the connection: {error}")
            lost.__cause__ = error
            raise lost

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
        else:
            _LOG.warning("the daemon refused a message that has no answer: %s", error)

    # -- the end

    def fail_all(self, error: GpudError, job_error: GpudError | None = None) -> None:
        """End the session: settle everything pending with ``error``.

        Args:
            error: for requests, and for later uses of the session.
            job_error: for jobs, if different.
        """
        # `lost` is set last: a thread that sees it may rely on everything being settled.
        for request in list(self.requests.values()):
            request.settle(None, error)
        for job in list(self.jobs.values()):
            job._lose(job_error or error)
        if self.lost is None:
            self.lost = error
        self.requests.clear()
        self.jobs.clear()
        while self._descriptors:
            os.close(self._descriptors.popleft())
        for arena in self.arenas.values():
            arena.close()

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


def wake(waiting: Iterable[Any]) -> None:
    """Set the results of these futures of an event loop, waking the coroutines that await them."""
    for future in waiting:
        if not future.done():
            future.set_result(None)


def connection_lost(where: str, why: GpudError | str) -> ConnectionLost:
    """The error for a lost connection.

    Args:
        where: the socket's path.
        why: the reason as text, or the error in what was received.
    """
    if isinstance(why, ConnectionLost):
        return why
    lost = ConnectionLost(f"the connection to the daemon at {where} is lost: {why}")
    lost.__cause__ = why if isinstance(why, GpudError) else None
    return lost


_ANSWERS = frozenset((Answer, Allocated, Compiled, Measured, Welcome))
