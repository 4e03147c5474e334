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

import logging
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from gpud.errors import ConnectionLost, GpudError
from gpud_client.connection.daemon_socket import connect_socket
from gpud_client.connection.pending import (
    Notification,
    Operation,
    PendingJob,
    PendingJobs,
    Request,
    Signal,
)
from gpud_client.connection.protocol_state import ProtocolState, connection_lost
from gpud_client.connection.socket_reader import CallbackThread, SocketReader

__all__ = ["Channel"]

_LOG = logging.getLogger("gpud_client")
_SEND_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_JOIN_S = 1.0
_RETRY_S = 0.1
_ROOM_MS = 1000  # after which a sender looks again whether the connection is lost

T = TypeVar("T")
Resume = Callable[[GpudError], Operation[None]]


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
        self._sending = threading.Lock()
        self._unsent = bytearray()
        self._callbacks = CallbackThread()
        self.call_later = self._callbacks.add
        self._closing = threading.Event()
        self._resume: Resume | None = None
        self._resuming: _Resuming | None = None
        self._sock = sock
        self._reader = self._new_reader()
        self._reader.start()
        _channels.add(self)

    def run(self, operation: Operation[T]) -> T:
        """Run an operation; blocks until it is done.

        Raises:
            GpudError: the daemon's error, or `ConnectionLost`.
        """
        if self._resuming is not None:
            self._await_resumption()
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
        self,
        job: PendingJob,
        terms: tuple[Any, ...],
        users: Iterable[PendingJobs],
        wait: bool = True,
    ) -> Iterable[Any]:
        """Send a job, numbered; returns the steps that are left, if there is no room for it.

        Args:
            job: see `ProtocolState.open_job`, as for all that follow.
            terms: of the job.
            users: of what it uses.
            wait: whether to wait for room.
        """
        room = self._submit(job, terms, users)
        if room is None:
            return ()
        return self.core.wait_for_room(room, lambda: self._submit(job, terms, users), wait=wait)

    def _submit(
        self, job: PendingJob, terms: tuple[Any, ...], users: Iterable[PendingJobs]
    ) -> Signal | None:
        """Send a job unless there is no room; blocks only while the daemon does not read."""
        core = self.core
        with self._sending:
            if core.lost is not None or core.garbage or self._resuming is not None:
                self._begin()
            room = core.find_room()
            if room is not None:
                return room
            self._unsent += core.open_job(job, terms, users)
            self._push()
        if core.garbage:
            self.kick()
        return None

    def opening_lane(self, lane: Any, terms: tuple[Any, ...]) -> None:
        """Send `gpud.wire.messages.OpenLane`; the lane is told when it is open, or cannot be."""
        self._transmit(self.core.open_lane, lane, terms)

    def wait(self, target: Any, timeout_s: float | None = None) -> bool:
        """Wait until a request or a job is settled; returns whether it is.

        Raises:
            ConnectionLost: the connection is lost, and the target was not settled by that.
        """
        if target._settled:
            return True
        lane = getattr(target, "_lane", None)
        if lane is not None:
            return bool(lane._wait(target._last, timeout_s))
        if self._unsent:
            with self._sending:
                self._push()
            if self.core.garbage:
                self.kick()
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        reader = self._reader
        if reader.lent and self.core.lost is None and reader.read_for(target, until_s):
            return True
        woken = threading.Lock()
        woken.acquire()
        waiting = target._waiting
        waiting.append(woken.release)
        reader.sleepers.append(target)
        try:
            reader.recall()
            # The order matters: who settles it, or loses the connection, looks who waits later.
            if not target._settled and self.core.lost is None:
                if until_s is None:
                    woken.acquire()
                else:
                    left_s = max(0.0, until_s - time.monotonic())
                    woken.acquire(timeout=min(left_s, threading.TIMEOUT_MAX))
        finally:
            reader.sleepers.remove(target)
            waiting.remove(woken.release)
        if target._settled:
            return True
        self.check()
        return False

    def call_back(self, *, always: bool) -> None:
        """Have what comes handled at once, though no thread waits for it.

        Args:
            always: from now on.
        """
        self._reader.always |= always
        self._reader.recall()

    def check(self) -> None:
        """Raise the error that the connection was lost with, if it is lost."""
        lost = self.core.lost
        if lost is not None:
            # A new one each time: one error raised by many threads would collect all their frames.
            raise type(lost)(str(lost)) from lost.__cause__

    def close(self) -> None:
        """End the session; jobs that have not ended are cancelled. May be called twice."""
        self.abandon()
        resuming = self._resuming
        if resuming is not None and resuming.thread != threading.get_ident():
            resuming.over.wait(_JOIN_S)
        self._reader.join(_JOIN_S)
        self._callbacks.join(_JOIN_S)

    def abandon(self) -> None:
        """End the session in a finalizer: takes no lock that another thread may hold for long."""
        self._closing.set()
        self._reader.hang_up()

    def kick(self) -> None:
        """Send the messages of finalizers, unless another thread is sending: it does so afterwards.

        One may have been added after that thread has queued those that there were, and the daemon
        may wait for it. Safe in a finalizer, as it does not wait: what the socket has no room for
        goes with the next message, or after the next one that arrives.
        """
        core = self.core
        while (core.garbage or self._unsent) and core.lost is None and self._resuming is None:
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
            self._transmit(self.core.frame, step)
            return None
        for target in step:
            self.wait(target)
        return None

    def _ask(self, request: Request) -> Any:
        try:
            self._transmit(self.core.open_request, request)
            if not self.wait(request, self._answer_s):
                raise ConnectionLost(
                    f"the daemon at {self.where} does not answer; its log may say why"
                )
        except BaseException:
            request.abandon()
            raise
        return request.answer()

    def _transmit(self, framed: Callable[..., bytes], *args: Any) -> None:
        """Send the frame that ``framed`` makes, and then what has come while this thread sent."""
        with self._sending:
            self._begin()
            self._unsent += framed(*args)
            self._push()
        if self.core.garbage:
            self.kick()

    # -- sending: the caller holds _sending
    #
    # A message is numbered and put among the unsent bytes between two points at which the
    # interpreter looks for interrupts: there is none in `self._unsent += framed(...)` once it is.

    def _begin(self) -> None:
        """Queue the messages of finalizers first: the next message may need what they free."""
        self.check()
        resuming = self._resuming
        if resuming is not None:
            if resuming.thread != threading.get_ident():
                raise ConnectionLost(
                    f"{resuming.why}; this was not submitted or asked for: do it again, the "
                    "session goes on with the next daemon"
                )
            if self._reader.ended.is_set():  # nothing would settle what is opened now
                raise ConnectionLost("the next daemon has ended, too")
        if self.core.garbage:
            self._unsent += self.core.collect_garbage()

    def _push(self) -> None:
        """Send all unsent bytes; blocks while the socket is full."""
        while self._unsent:
            try:
                self._send()
            except (BlockingIOError, InterruptedError):
                self._reader.recall()
                writable = select.poll()
                writable.register(self._sock, select.POLLOUT)
                writable.poll(_ROOM_MS)
                self.check()
            except OSError as error:
                self._reader.ended.wait(_JOIN_S)  # the daemon may have sent the reason
                self.check()
                if self._resume is not None:  # it settles what was to be sent
                    self._unsent.clear()
                    return
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

    # -- the end of the connection, in the thread that has read it

    def resume_with(self, resume: Resume) -> None:
        """Have the session go on with the next daemon after the connection was lost.

        Args:
            resume: makes the session's state again, given why it was lost; run for each connection
                that could be made.
        """
        self._resume = resume

    def _new_reader(self) -> SocketReader:
        self._sock.setblocking(True)  # for the reader: all that sends says MSG_DONTWAIT
        return SocketReader(self._sock, self.core, self.where, self.kick, self._connection_ended)

    def _connection_ended(self, reader: SocketReader, error: GpudError) -> None:
        core = self.core
        if self._resume is None or self._closing.is_set() or core.lost is not None:
            self._end(error)
            reader.ended.set()
            with self._sending:  # else its descriptor could be another file's while a thread sends
                reader.close()
            return
        reader.ended.set()
        with self._sending:
            reader.close()
            if reader is self._reader:
                self._unsent.clear()
                core.suspend(error)
            if self._resuming is not None:  # that thread finds out, and tries again
                return
            resuming = self._resuming = _Resuming(threading.get_ident(), error)
        try:
            self._go_on(self._resume, error)
        except GpudError as failed:
            self._end(failed)
        except Exception as failed:  # noqa: BLE001  (all others would wait for ever)
            _LOG.exception("the session could not be resumed")
            self._end(connection_lost(self.where, f"resuming failed: {failed!r}"))
        finally:
            if self._resuming is resuming:
                self._resuming = None
            resuming.over.set()
            self.kick()  # arrays may have been dropped meanwhile

    def _end(self, error: GpudError) -> None:
        if self._closing.is_set():
            self.core.close()  # even if the daemon has closed the connection first
        elif self.core.lost is None:
            self.core.lose(error)
        self._callbacks.end()
        self._reader.hang_up()

    def _go_on(self, resume: Resume, error: GpudError) -> None:
        """Connect to the next daemon, and make the session's state again there.

        Raises:
            GpudError: that failed, or there is no daemon for too long.
        """
        kept = self.core.resumable
        assert kept is not None
        end = time.monotonic() + kept.limit_s
        while True:
            sock = self._connect(end, error, kept.limit_s)
            with self._sending:
                if self._closing.is_set():
                    sock.close()
                    raise error
                self._unsent.clear()
                self.core.suspend(error)
                self._sock = sock
                reader = self._reader = self._new_reader()
            reader.start()
            try:
                self.run(resume(error))
            except ConnectionLost:
                if not reader.ended.is_set() or time.monotonic() >= end:
                    raise
            with self._sending:
                if not reader.ended.is_set():
                    self._resuming = None  # from now on its thread resumes when it ends
                    return

    def _connect(self, end: float, error: GpudError, limit_s: float) -> socket.socket:
        while True:
            try:
                return connect_socket(self.where)
            except ConnectionLost as failed:
                if time.monotonic() >= end:
                    raise ConnectionLost(
                        f"{error}; no other daemon was there within {limit_s:g} s: {failed}"
                    ) from failed
            if self._closing.wait(_RETRY_S):
                raise error

    def _await_resumption(self) -> None:
        """Wait until the session goes on or is lost, unless this thread sees to it."""
        resuming = self._resuming
        if resuming is not None and resuming.thread != threading.get_ident():
            resuming.over.wait()

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
        self._callbacks = CallbackThread()
        self._resume = self._resuming = None
        self._reader.forked()
        self._sock.close()


class _Resuming:
    """That a session is being resumed, and by which thread; ``over`` is set at the end."""

    def __init__(self, thread: int, why: GpudError) -> None:
        self.thread = thread
        self.why = why
        self.over = threading.Event()


_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def _after_fork() -> None:
    for channel in list(_channels):
        channel.forked()


os.register_at_fork(after_in_child=_after_fork)
