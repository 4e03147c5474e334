"""The asyncio channel: sends, receives and runs operations on one event loop, without threads.

Received messages are handled when the socket is readable; coroutines that wait are woken through
futures of the loop. Messages are sent at once; what the socket does not accept is buffered, and
while the buffer is large, submitting waits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from array import array
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
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
    wake,
)
from gpud_client.connection.protocol_state import ProtocolState, connection_lost

__all__ = ["AsyncChannel"]

_LOG = logging.getLogger("gpud_client")
_RETRY_S = 0.1
_READ_BYTES = 1 << 18
_HIGH_BYTES = 1 << 20  # unsent, from which on submitting awaits
_DESCRIPTORS = socket.CMSG_SPACE(8 * array("i").itemsize)

T = TypeVar("T")


class _WaitWritable:
    """A step: wait until the send buffer has shrunk."""


class AsyncChannel:
    """A connection for coroutines of the running event loop.

    Args:
        sock: connected and non-blocking; owned from now on.
        core: the protocol's state.
        where: the socket's path, for messages.
    """

    def __init__(self, sock: socket.socket, core: ProtocolState, where: str) -> None:
        self.core = core
        self.where = where
        self._sock = sock
        self._process = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._unsent = bytearray()
        self._room: list[Callable[[], object]] = []
        self._closed = False
        self._attached = True  # whether the socket is open and read
        self._resume: Callable[[GpudError], Operation[None]] | None = None
        self._resuming: asyncio.Task[None] | None = None
        self._loop.add_reader(sock, self._on_readable)

    def resume_with(self, resume: Callable[[GpudError], Operation[None]]) -> None:
        """Have the session go on with the next daemon; see `Channel.resume_with`."""
        self._resume = resume

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation.

        Raises:
            GpudError: the daemon's error, or `ConnectionLost`.
        """
        resuming = self._resuming
        if resuming is not None and asyncio.current_task() is not resuming:
            await asyncio.wait([resuming])
        try:
            step: Any = next(operation)
            while True:
                try:
                    answer = await self._step(step)
                except BaseException as error:  # noqa: BLE001  (the operation decides)
                    step = operation.throw(error)
                else:
                    step = operation.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except GpudError as error:  # without the operation's frames, as in `Channel.run`
            raise error.with_traceback(None) from error.__cause__

    def submitting(
        self,
        job: PendingJob,
        terms: tuple[Any, ...],
        users: Iterable[PendingJobs],
        wait: bool = True,
    ) -> Generator[Any, Any, None]:
        """Send a job, numbered.

        The steps wait for room, and for a daemon that does not read.

        Args:
            job: see `ProtocolState.open_job`, as for all that follow.
            terms: of the job.
            users: of what it uses.
            wait: whether to wait for room.
        """
        room = self._submit(job, terms, users)
        if room is not None:
            yield from self.core.wait_for_room(
                room, lambda: self._submit(job, terms, users), wait=wait
            )
        while len(self._unsent) > _HIGH_BYTES:
            yield _WaitWritable

    def _submit(
        self, job: PendingJob, terms: tuple[Any, ...], users: Iterable[PendingJobs]
    ) -> Signal | None:
        self.check()
        room = self.core.find_room()
        if room is None:
            self._send(self.core.open_job(job, terms, users))
        return room

    def opening_lane(self, lane: Any, terms: tuple[Any, ...]) -> None:
        """Send `gpud.wire.messages.OpenLane`; the lane is told when it is open, or cannot be."""
        self.check()
        self._send(self.core.open_lane(lane, terms))

    async def wait(self, target: Any) -> None:
        """Wait until a request or a job is settled. May be cancelled."""
        if target._settled:
            return
        self.check()
        future, wake_it = self._new_future()
        lane = getattr(target, "_lane", None)
        if lane is not None:
            lane._watch(target._last, lambda: self.call_from_thread(wake_it))
            await future
            return
        target._waiting.append(wake_it)
        try:
            await future
        finally:
            target._waiting.remove(wake_it)

    def check(self) -> None:
        """Raise the error that the connection was lost with, if it is lost."""
        if self._process != os.getpid():
            raise ConnectionLost(
                f"this connection to {self.where} belongs to process {self._process}, which was "
                "forked; connect in the child process"
            )
        lost = self.core.lost
        if lost is not None:
            raise type(lost)(str(lost)) from lost.__cause__
        if self._resuming is None:
            return
        if asyncio.current_task() is not self._resuming:
            raise ConnectionLost(
                f"the daemon at {self.where} has ended; this was not submitted or asked for: do it "
                "again, the session goes on with the next daemon"
            )
        if not self._attached:
            raise ConnectionLost("the next daemon has ended, too")

    def kick(self) -> None:
        """Have the messages of finalizers sent; safe in any thread."""
        if not self._closed:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._send_garbage)

    def call_soon(self, fn: Callable[[Any], object], job: Any) -> None:
        """Have the event loop call ``fn(job)``; exceptions go to the loop's handler."""
        self._loop.call_soon(fn, job)

    def call_from_thread(self, fn: Callable[..., object], *args: object) -> None:
        """Have the event loop call ``fn(*args)``, unless it has ended; from any thread."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(fn, *args)

    def close(self) -> None:
        """End the session; jobs that have not ended are cancelled. May be called twice."""
        self.core.close()
        self._release()
        if self._resuming is not None:
            self._resuming.cancel()

    def abandon(self) -> None:
        """End the session in a finalizer, in any thread."""
        if not self._closed and self._process == os.getpid():
            if self._loop.is_closed():
                self.close()
            else:
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self.close)

    async def _step(self, step: Any) -> Any:
        if isinstance(step, Request):
            self.check()
            self._send(self.core.open_request(step))
            try:
                await self.wait(step)
            except BaseException:
                step.abandon()
                raise
            return step.answer()
        if isinstance(step, Notification):
            self.check()
            self._send(self.core.frame(step))
            return None
        if step is _WaitWritable:
            future, wake_it = self._new_future()
            self._room.append(wake_it)
            await future
            self.check()
            return None
        for target in step:
            await self.wait(target)
        return None

    def _new_future(self) -> tuple[asyncio.Future[None], Callable[[], None]]:
        """Return a future to wait for, and what wakes whoever does."""
        future: asyncio.Future[None] = self._loop.create_future()

        def wake_it() -> None:
            if not future.done():
                future.set_result(None)

        return future, wake_it

    # -- the socket

    def _on_readable(self) -> None:
        try:
            received = self._sock.recvmsg_into(
                [self._buffer], _DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error.strerror or str(error))
            return
        if not received[0]:
            self._lose("it has ended; its log may say why")
            return
        try:
            self.core.feed(self._buffer, [received])
            self.core.settle()
        except GpudError as error:
            self._lose(error)

    def _send(self, frame: bytes) -> None:
        waiting = bool(self._unsent)  # the loop sends these when the socket is writable
        if self.core.garbage:
            self._unsent += self.core.collect_garbage()
        self._unsent += frame
        if not waiting:
            self._write()

    def _send_garbage(self) -> None:
        if self.core.garbage and self.core.lost is None and self._resuming is None:
            self._send(b"")

    def _write(self) -> None:
        try:
            with memoryview(self._unsent) as rest:
                sent = self._sock.send(rest, socket.MSG_NOSIGNAL)
            del self._unsent[:sent]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._unsent.clear()  # the daemon's last messages can still be read
        if self._unsent:
            self._loop.add_writer(self._sock, self._write)
        else:
            self._loop.remove_writer(self._sock)
        if len(self._unsent) <= _HIGH_BYTES:
            self._wake_writers()

    def _wake_writers(self) -> None:
        wake(self._room)
        self._room.clear()

    # -- the end of the connection

    def _lose(self, why: GpudError | str) -> None:
        error = connection_lost(self.where, why)
        if self._resume is None:
            self._end(error)
            return
        self._detach()
        self.core.suspend(error)
        if self._resuming is None:  # else that task finds out, and tries again
            self._resuming = self._loop.create_task(self._go_on(self._resume, error))

    async def _go_on(
        self, resume: Callable[[GpudError], Operation[None]], error: GpudError
    ) -> None:
        """Connect to the next daemon, and make the session's state again there."""
        kept = self.core.resumable
        assert kept is not None
        end = self._loop.time() + kept.limit_s
        try:
            while not self._attached:
                self._attach(await self._connect(end, error, kept.limit_s))
                try:
                    await self.run(resume(error))
                except ConnectionLost:
                    if self._is_attached() or self._loop.time() >= end:
                        raise
        except GpudError as failed:
            self._end(failed)
        except Exception as failed:  # noqa: BLE001  (all others would wait for ever)
            _LOG.exception("the session could not be resumed")
            self._end(connection_lost(self.where, f"resuming failed: {failed!r}"))
        finally:
            self._resuming = None
        self._send_garbage()

    async def _connect(self, end: float, error: GpudError, limit_s: float) -> socket.socket:
        while True:
            try:
                return await asyncio.to_thread(connect_socket, self.where)
            except ConnectionLost as failed:
                if self._loop.time() >= end:
                    raise ConnectionLost(
                        f"{error}; no other daemon was there within {limit_s:g} s: {failed}"
                    ) from failed
            await asyncio.sleep(_RETRY_S)

    def _attach(self, sock: socket.socket) -> None:
        self._sock = sock
        self._attached = True
        self._loop.add_reader(sock, self._on_readable)

    def _is_attached(self) -> bool:
        """Return `_attached`, which a step may have changed: type checkers do not know."""
        return self._attached

    def _detach(self) -> None:
        if not self._attached:
            return
        self._attached = False
        self._unsent.clear()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
        self._wake_writers()
        self._sock.close()

    def _end(self, error: GpudError) -> None:
        self.core.lose(error)
        self._release()

    def _release(self) -> None:
        self._closed = True
        self._detach()
