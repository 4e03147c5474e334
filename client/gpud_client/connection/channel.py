"""The blocking channel: sends messages and runs operations for any number of threads.

`gpud_client.connection.socket_reader` reads. Messages are numbered and sent in one step under a
lock, so that jobs are sent in the order of their numbers. A thread that waits for a request or a
job sleeps on a lock of its own, which is released when that is settled.

Properties:
    in_order: messages are sent in the order in which they were numbered;
    whole: after an interrupt in mid-message, the rest of the message is sent later;
    no_deadlock: while a thread cannot send, because the daemon waits for its output to be read, it
        is read;
    no_lost_wake_up: a wait ends when its target is settled or the connection is lost.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from gpud.errors import ConnectionLost, GpudError
from gpud_client.connection.pending import Notification, Operation, PendingJob, PendingJobs, Request
from gpud_client.connection.protocol_state import ProtocolState, connection_lost
from gpud_client.connection.socket_reader import SocketReader

__all__ = ["Channel"]

_SEND_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_JOIN_S = 1.0
_ROOM_MS = 1000  # after which a sender looks again whether the connection is lost

T = TypeVar("T")


class Channel:
    """A connection that threads share.

    Args:
        sock: connected and non-blocking; owned from now on.
        core: the protocol's state.
        where: the socket's path, for messages.
        answer_s: how long a request may take; None: no limit.
    """

    def __init__(
        self, sock: socket.socket, core: ProtocolState, where: str, answer_s: float | None = None
    ) -> None:
        self.core = core
        self.where = where
        self._answer_s = answer_s
        self._sock = sock
        sock.setblocking(True)  # for the reader: all that sends says MSG_DONTWAIT
        self._sending = threading.Lock()
        self._unsent = bytearray()
        self._reader = SocketReader(sock, core, where, self.kick, self._release)
        self.call_later = self._reader.call_later
        _channels.add(self)

    def run(self, operation: Operation[T]) -> T:
        """Run an operation; blocks until it is done.

        Raises:
            GpudError: the daemon's error, or `ConnectionLost`.
        """
        try:
            step = next(operation)
            while True:
                try:
                    answer = self._step(step)
                except BaseException as error:  # noqa: BLE001  (the operation decides)
                    step = operation.throw(error)
                else:
                    step = operation.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except GpudError as error:
            # Drop the operation's frames, which would hide the caller's line in the traceback.
            raise error.with_traceback(None) from error.__cause__

    def submitting(
        self, job: PendingJob, terms: tuple[Any, ...], users: Iterable[PendingJobs]
    ) -> Sequence[Any]:
        """Send a job, numbered; no steps are left. Blocks only while the daemon does not read.

        Args:
            job: see `ProtocolState.open_job`, as for all that follow.
            terms: of the job.
            users: of what it uses.
        """
        core = self.core
        with self._sending:
            if core.lost is not None or core.garbage:
                self._begin()
            self._unsent += core.open_job(job, terms, users)
            self._push()
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
        woken = threading.Lock()
        woken.acquire()
        waiting = target._waiting
        waiting.append(woken.release)
        try:
            # The order matters: who settles it, or loses the connection, looks who waits later.
            if not target._settled and self.core.lost is None:
                if timeout_s is None:
                    woken.acquire()
                else:
                    woken.acquire(timeout=min(max(timeout_s, 0), threading.TIMEOUT_MAX))
        finally:
            waiting.remove(woken.release)
        if target._settled:
            return True
        self.check()
        return False

    def check(self) -> None:
        """Raise the error that the connection was lost with, if it is lost."""
        lost = self.core.lost
        if lost is not None:
            # A new one each time: one error raised by many threads would collect all their frames.
            raise type(lost)(str(lost)) from lost.__cause__

    def close(self) -> None:
        """End the session; jobs that have not ended are cancelled. May be called twice."""
        self._reader.hang_up()
        self._reader.join(_JOIN_S)

    def abandon(self) -> None:
        """End the session in a finalizer: takes no lock that another thread may hold."""
        self._reader.hang_up()

    def kick(self) -> None:
        """Send the messages of finalizers, unless another thread is sending: it will.

        Safe in a finalizer, as it does not wait: what the socket has no room for goes with the next
        message, or after the next one that arrives.
        """
        core = self.core
        while (core.garbage or self._unsent) and core.lost is None:
            held: list[bool] = []
            try:
                # As with `send` below: no interrupt comes between the lock and storing that it is
                # held.
                held += map(self._sending.acquire, (False,))
                if not held[0]:
                    return
                self._unsent += core.collect_garbage()
                self._send()
            except OSError:  # there is no room; or the reader will find out what is wrong
                return
            finally:
                if held and held[0]:
                    self._sending.release()

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
            if not self.wait(request, self._answer_s):
                raise ConnectionLost(
                    f"the daemon at {self.where} does not answer; its log may say why"
                )
        except BaseException:
            request.abandon()
            raise
        return request.answer()

    # -- sending: the caller holds _sending
    #
    # A message is numbered and put among the unsent bytes between two points at which the
    # interpreter looks for interrupts: there is none in `self._unsent += self.core.open_...`.

    def _begin(self) -> None:
        """Queue the messages of finalizers first: the next message may need what they free."""
        self.check()
        if self.core.garbage:
            self._unsent += self.core.collect_garbage()

    def _push(self) -> None:
        """Send all unsent bytes; blocks while the socket is full."""
        while self._unsent:
            try:
                self._send()
            except (BlockingIOError, InterruptedError):
                writable = select.poll()
                writable.register(self._sock, select.POLLOUT)
                writable.poll(_ROOM_MS)
                self.check()
            except OSError as error:
                self._reader.wait_for_end(_JOIN_S)  # the daemon may have sent the reason
                self.check()
                raise connection_lost(self.where, error.strerror or str(error)) from error

    def _send(self) -> None:
        """Send all unsent bytes for which the socket has room."""
        sent: list[int] = []
        while self._unsent:
            try:
                # An interrupt is handled before or after this statement, never between the system
                # call and storing its result.
                sent += map(self._sock.send, (self._unsent,), (_SEND_FLAGS,))
            finally:
                for size in sent:  # no call here: an interrupt could be handled in it
                    del self._unsent[:size]
                sent = []

    def _release(self) -> None:
        with self._sending:  # else its descriptor could be another file's while a thread sends
            self._sock.close()

    # -- after a fork

    def forked(self) -> None:
        """Invalidate the channel in a forked child process: the connection is the parent's."""
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
