"""Reads the socket for all threads that wait (leader/followers pattern).

Problem: a thread that waits for a job should see its end after one wake-up, not after two by way of
another thread; yet callbacks and `concurrent.futures.wait` need a reader while no thread waits in
this library; and an idle client should not wake up at all.

Approach: waiting threads read the socket themselves. One thread at a time holds the *baton* and
reads; it settles requests and jobs for all threads, wakes those that waited for them, and passes
the baton on when its own target is settled. A background thread takes the baton when jobs are
pending and no thread has read for `_LOOK_S`, and gives it back when a user's thread begins to wait.
While nothing is pending, or another thread reads, it sleeps without a time limit.

Terms:
    baton: the right to read the socket, held by one thread at a time.
    waiter: a waiting thread and its target.

Properties:
    one_wake_up: if one thread waits, only that thread wakes when its answer arrives;
    no_lost_wake_up: while jobs are pending, a thread begins to read within twice `_LOOK_S`;
    idle: with nothing pending and nothing received, no thread wakes;
    no_lock_in_callbacks: a user's callback runs with no lock and no baton held.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gpud.errors import GpudError
from gpud_client.connection.protocol_state import ProtocolState, connection_lost

__all__ = ["SocketReader"]

_LOOK_S = 0.005
_LONGEST_S = 1e5  # for one system call, which is repeated for longer waits
_READ_BYTES = 1 << 18
_DESCRIPTORS = socket.CMSG_SPACE(8 * array("i").itemsize)
_READ_FLAGS = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC


class _Never:
    """A target that is never settled."""

    _settled = False


class _Waiter:
    """A thread that waits until ``target`` is settled; the background thread waits for None."""

    __slots__ = ("signal", "target", "thread")

    def __init__(self, target: Any) -> None:
        self.target = target
        self.thread = threading.get_ident()
        self.signal: threading.Lock | None = None  # locked while another thread reads

    def wake(self) -> None:
        if self.signal is not None:
            with suppress(RuntimeError):  # it was woken before
                self.signal.release()


class SocketReader:
    """Reads one socket for all threads.

    Args:
        sock: connected and non-blocking; closed by `release`.
        core: the protocol's state.
        where: the socket's path, for messages.
        on_kick: called by the background thread when it was woken; must not block.

    Attributes:
        closing: whether the session is being ended; threads stop reading.
        asleep: whether the background thread does not look whether a thread reads.
        callbacks: of users, to be run by a thread that holds no lock and no baton.
    """

    def __init__(
        self, sock: socket.socket, core: ProtocolState, where: str, on_kick: Callable[[], None]
    ) -> None:
        self.closing = False
        self._sock = sock
        self._core = core
        self._where = where
        self._on_kick = on_kick
        self._mutex = threading.Lock()
        self._reader: _Waiter | None = None
        self._waiters: deque[_Waiter] = deque()
        self._reads = 0
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._received: list[Any] = []  # the result of a system call, until it is handled
        self._unhandled = False
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self.callbacks: deque[Callable[[], None]] = deque()
        self._kicks = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._background: threading.Thread | None = None
        self.asleep = True
        self._released = False

    def wait(self, target: Any, timeout_s: float | None = None) -> bool:
        """Wait until ``target`` is settled or the connection is lost; returns whether it is."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while not target._settled and self._core.lost is None:
            self._wait_for(target, end)
            if self.callbacks:
                self.run_callbacks()
            elif end is not None and time.monotonic() >= end:
                break
        if self.callbacks:
            self.run_callbacks()
        return bool(target._settled)

    def wait_until_lost(self) -> None:
        """Wait until the connection is lost: for use after `hang_up`."""
        self.wait(_Never)

    def read_available(self) -> None:
        """Read what has arrived, unless another thread reads. Does not wait."""
        waiter = _Waiter(_Never)
        with self._mutex:
            if self._reader is None:
                self._reader = waiter
            elif self._reader.thread != waiter.thread:
                return
        try:
            while self._core.lost is None and self._poll.poll(0):
                self._receive()
        finally:
            self._pass_on(waiter)

    def run_callbacks(self) -> None:
        """Run the queued callbacks. The caller must hold no lock."""
        while self.callbacks:
            with suppress(IndexError):  # another thread was quicker
                self.callbacks.popleft()()

    def kick(self) -> None:
        """Wake the background thread, if there is one; safe in a finalizer."""
        if self._background is not None and not self._released:
            with suppress(OSError):
                os.eventfd_write(self._kicks, 1)

    # -- the baton

    def _wait_for(self, target: Any, end: float | None) -> None:
        """Read, or wait for the reading thread, until ``target`` is settled or ``end``.

        Returns early when there are callbacks to run.
        """
        waiter = _Waiter(target)
        try:
            with self._mutex:
                self._reads += 1
                reader = self._reader
                nested = reader is not None and reader.thread == waiter.thread
                if reader is None:
                    self._reader = waiter
                elif not nested:
                    signal = waiter.signal = threading.Lock()
                    signal.acquire()
                    self._waiters.append(waiter)
                    if reader.target is None:
                        self.kick()
            if waiter.signal is not None:
                waiter.signal.acquire(timeout=-1 if end is None else _left_s(end))
                if self._reader is not waiter:
                    return
            self._read(target, end)
        finally:
            self._pass_on(waiter)

    def _read(self, target: Any, end: float | None) -> None:
        while not target._settled and not self.callbacks and self._core.lost is None:
            if self._unhandled:
                self._settle()
            elif self._received or self._poll.poll(None if end is None else _left_s(end) * 1000):
                self._receive()
            elif end is not None and time.monotonic() >= end:
                return

    def _pass_on(self, waiter: _Waiter) -> None:
        """Pass the baton on, if ``waiter`` has it, and drop the waiter."""
        with self._mutex:
            if self._reader is not waiter:
                with suppress(ValueError):
                    self._waiters.remove(waiter)
                return
            self._reader = None
            while self._waiters and self._reader is None:
                following = self._waiters.popleft()
                if not following.target._settled:
                    self._reader = following
                following.wake()
            look = self._reader is None and self.asleep and bool(self._core.jobs)
        if look:
            self.look_soon()
        if self.closing:
            self.release()

    def _receive(self) -> None:
        """Receive and handle what has arrived. The caller holds the baton."""
        received = self._received
        if not received:  # else an interrupt came before it was handled
            try:
                # An interrupt is handled before or after this statement, never between the system
                # call and storing its result.
                received += map(
                    self._sock.recvmsg_into, ([self._buffer],), (_DESCRIPTORS,), (_READ_FLAGS,)
                )
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._lose(error.strerror or str(error))
                return
        size, ancillary, _, _ = received[0]
        if not size:
            self._lose("it has ended; its log may say why")
            return
        descriptors: list[int] = []
        for _, _, data in ancillary:
            descriptors += array("i", data[: len(data) - len(data) % 4])
        self._core.feed(self._buffer[:size], descriptors)
        del received[:]  # no call here: an interrupt could be handled before it
        self._unhandled = True
        self._settle()

    def _settle(self) -> None:
        try:
            self._core.settle()
            self._unhandled = False
        except GpudError as error:
            self._core.fail_all(connection_lost(self._where, error))
        finally:
            if self._waiters:
                self._wake_settled()

    def _wake_settled(self) -> None:
        with self._mutex:
            for waiter in self._waiters:
                if waiter.target._settled:
                    waiter.wake()

    def _lose(self, why: str) -> None:
        """End the session: the connection is lost, or was closed by `hang_up`."""
        if self.closing:
            self._core.close()  # even if the daemon has closed the connection first
        else:
            self._core.fail_all(connection_lost(self._where, why))
        self._wake_settled()

    # -- the background thread

    def look_soon(self) -> None:
        """Have the background thread check, after `_LOOK_S`, that a thread reads."""
        if self._background is None:
            with self._mutex:
                if not (self.watched or self.closing):
                    self._background = threading.Thread(
                        target=self._watch, name="gpud_client", daemon=True
                    )
                    self._background.start()
        self.asleep = False
        self.kick()

    def _watch(self) -> None:
        kicks = select.poll()
        kicks.register(self._kicks, select.POLLIN)
        both = select.poll()
        both.register(self._kicks, select.POLLIN)
        both.register(self._sock, select.POLLIN)
        while not self.closing:
            if self.asleep or self._core.lost is not None:
                kicks.poll()
                self._clear_kicks()
                continue
            reads = self._reads
            time.sleep(_LOOK_S)
            waiter = None
            with self._mutex:
                if self._reader is not None or not self._core.jobs:
                    self.asleep = True
                elif reads == self._reads:
                    waiter = self._reader = _Waiter(None)
            if waiter is not None:
                self._read_for_others(waiter, both)
            elif self.asleep and self._reader is None and self._core.jobs:
                self.asleep = False  # a job was submitted between the check and `_asleep = True`
        self.wait_until_lost()
        self.release()

    def _read_for_others(self, waiter: _Waiter, both: select.poll) -> None:
        try:
            while not (self._waiters or self.callbacks or self.closing or self._core.lost):
                if self._unhandled:
                    self._settle()
                    continue
                ready = dict(both.poll())
                if self._kicks in ready:
                    self._clear_kicks()
                    ready.pop(self._kicks)
                if ready:
                    self._receive()
        finally:
            self._pass_on(waiter)
        self.run_callbacks()

    def _clear_kicks(self) -> None:
        """Reset the wake-up: a job was sent, a thread waits, or finalizers have queued messages."""
        with suppress(OSError):
            os.eventfd_read(self._kicks)
        self._on_kick()

    # -- the end

    def hang_up(self) -> None:
        """Shut the socket down, which ends all waits; safe in a finalizer."""
        self.closing = True
        if not self._released:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        self.kick()

    def join(self, timeout_s: float) -> None:
        """Wait until the background thread has ended, unless called from it."""
        background = self._background
        if background is not None and background is not threading.current_thread():
            background.join(timeout_s)

    @property
    def watched(self) -> bool:
        """Whether there is a background thread, which will then end the session."""
        return self._background is not None

    def release(self) -> None:
        """Close the descriptors, unless a thread may still use them."""
        background = self._background
        if background is not None and background is not threading.current_thread():
            if background.is_alive():
                return
        with self._mutex:
            if self._released or self._reader is not None:
                return
            self._released = True
        self._sock.close()
        os.close(self._kicks)

    def forked(self) -> None:
        """Reset in a forked child process, which has none of the parent's other threads."""
        self.closing = True
        self._mutex = threading.Lock()
        self._reader, self._background = None, None
        self._waiters.clear()
        self.callbacks.clear()
        self.release()


def _left_s(end: float) -> float:
    return min(max(0.0, end - time.monotonic()), _LONGEST_S)
