"""The blocking shell: one socket, any number of threads.

Waiting and reading are `gpud_client.connection.socket_reader`'s; this is the rest: numbering and
sending, which are one step so that jobs go out in the order of their numbers, and driving
operations.

Properties:
    in_order: messages are sent in the order in which they were numbered;
    whole: an interrupt leaves no half of a message in the stream; the rest follows later;
    no_deadlock: a thread that cannot send, because the daemon waits to be read from, reads.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from gpud.errors import ConnectionLost, GpudError
from gpud_client.connection.protocol_state import (
    Notification,
    Operation,
    ProtocolState,
    Request,
    connection_lost,
)
from gpud_client.connection.socket_reader import SocketReader

__all__ = ["Channel"]

_SEND_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_JOIN_S = 1.0

T = TypeVar("T")


class Channel:
    """A connection for threads.

    Args:
        sock: connected and non-blocking; owned from now on.
        core: what comes in goes there.
        where: the socket's path, for messages.
    """

    def __init__(self, sock: socket.socket, core: ProtocolState, where: str) -> None:
        self.core = core
        self.where = where
        self._sock = sock
        self._reader = SocketReader(sock, core, where, self._send_garbage)
        self._sending = threading.Lock()
        self._unsent = bytearray()
        # What jobs and finalizers call; no detour, for the first is on the path of every job.
        self.call_later = self._reader.call_later
        self.kick = self._reader.kick
        _channels.add(self)

    def run(self, operation: Operation[T]) -> T:
        """Does an operation; blocks until it is done.

        Raises:
            GpudError: what the daemon answered with; `ConnectionLost` if it went away.
        """
        try:
            step = next(operation)
            while True:
                try:
                    found = self._step(step)
                except BaseException as error:  # noqa: BLE001  (the operation decides)
                    step = operation.throw(error)
                else:
                    step = operation.send(found)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except GpudError as error:
            # The steps in between say nothing to whoever called, and hide the line that does.
            raise error.with_traceback(None) from error.__cause__

    def submitting(self, job: Any, build: Callable[[int], Any]) -> Sequence[Any]:
        """Number a job and send it; no steps follow. Blocks only while the daemon does not read."""
        with self._sending:
            self._begin()
            self._unsent += self.core.open_job(job, build)
            self._push()
        self._reader.job_sent()
        return ()

    def wait(self, target: Any, timeout_s: float | None = None) -> bool:
        """Wait until a request or a job is settled; returns whether it is.

        Raises:
            ConnectionLost: the connection is lost, and the target was not settled by that.
        """
        if target._settled:
            return True
        if self._unsent:
            with self._sending:
                self._push()
        if self._reader.wait(target, timeout_s):
            return True
        self.check()
        return False

    def check(self) -> None:
        """Raises what the connection was lost with, if it is lost."""
        lost = self.core.lost
        if lost is not None:
            # A new one each time: an error that many threads raise would gather all their frames.
            raise type(lost)(str(lost)) from lost.__cause__

    def close(self) -> None:
        """End the session; jobs that have not ended are cancelled. May be called twice."""
        self._reader.hang_up()
        self._reader.wait_until_lost()
        self._reader.join(_JOIN_S)
        self._reader.release()
        self._reader.run_callbacks()

    def abandon(self) -> None:
        """End the session in a finalizer: takes no lock that another thread may hold."""
        self._reader.hang_up()
        if not self._reader.watched:
            self.core.close()
            self._reader.release()

    def _step(self, step: Any) -> Any:
        if isinstance(step, Request):
            return self._ask(step)
        if isinstance(step, Notification):
            with self._sending:
                self._begin()
                self._unsent += self.core.frame(step)
                self._push()
            return None
        for target in step:
            self.wait(target)
        return None

    def _ask(self, request: Request) -> Any:
        try:
            with self._sending:
                self._begin()
                self._unsent += self.core.open_request(request)
                self._push()
            self.wait(request)
        except BaseException:
            request.abandon()
            raise
        return request.answer()

    # -- sending: the caller holds _sending
    #
    # A message is numbered and put among the unsent bytes between two points at which the
    # interpreter looks for interrupts: there is none in `self._unsent += self.core.open_...`.

    def _begin(self) -> None:
        """Before a message: what finalizers freed may be what it needs."""
        self.check()
        if self.core.garbage:
            self._unsent += self.core.collect_garbage()

    def _push(self) -> None:
        """Send what is unsent; while that cannot be, read: the daemon may wait for it."""
        self._write()
        if not self._unsent:
            return
        writable = select.poll()
        writable.register(self._sock, select.POLLOUT)
        while self._unsent:
            writable.poll(1)
            self._reader.read_available()
            self.check()
            self._write()

    def _write(self) -> None:
        sent: list[int] = []
        try:
            # An interrupt comes before this line has begun or after it has ended, never between the
            # system call and its result.
            sent += map(self._sock.send, (self._unsent,), (_SEND_FLAGS,))
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._reader.read_available()  # the daemon may have said why
            self.check()
            raise connection_lost(self.where, error.strerror or str(error)) from error
        finally:
            for size in sent:  # a call here would be where the interrupt comes
                del self._unsent[:size]

    def _send_garbage(self) -> None:
        """Send what finalizers want to be sent, if nobody sends just now."""
        if self.core.garbage and self.core.lost is None and self._sending.acquire(blocking=False):
            try:
                with suppress(GpudError):
                    self._begin()
                    self._push()
            finally:
                self._sending.release()

    # -- after a fork

    def forked(self) -> None:
        """In the child process: the connection is the parent's."""
        self.core.lost = ConnectionLost(
            f"this connection to {self.where} belongs to process {os.getppid()}, which was "
            "forked; connect in the child process, or start it with the spawn method"
        )
        self.core.requests.clear()
        self.core.jobs.clear()
        self._sending = threading.Lock()
        self._unsent.clear()
        self._reader.forked()


_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def _after_fork() -> None:
    for channel in list(_channels):
        channel.forked()


os.register_at_fork(after_in_child=_after_fork)
