"""Moves regions of movable workloads between the sessions' files and host memory.

A region that is away lies in a memory file of its own, which only the daemon has. What was never
written is not copied. Copying runs on a thread, by system calls that let go of Python's lock, so
that the front goes on. While a region moves, the session's file may hold what the region holds.

Properties:
    whole: a region is copied before its pages in the session's file are freed, and back before its
        host memory is;
    settled: `RegionMover.when_still` waits for a move under way, as its region must not be freed.
"""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import time
from collections.abc import Callable
from functools import partial

from gpud.server.ipc import memfd

__all__ = ["OnMoved", "RegionMover"]

OnMoved = Callable[[OSError | None], None]
"""Called when a move is over, with what went wrong."""

_CHUNK_BYTES = 4 << 20


class RegionMover:
    """The regions that are away, and those that move, each by the number of its workload.

    Args:
        loop: the event loop.

    Attributes:
        moved_bytes: how much was copied so far, in both directions.
        moving_ns: how long that took.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._away: dict[int, int] = {}  # descriptors
        self._sizes: dict[int, int] = {}
        self._moving: dict[int, list[Callable[[], None]]] = {}
        self.moved_bytes = 0
        self.moving_ns = 0

    @property
    def away_bytes(self) -> int:
        """Return the host memory that regions occupy."""
        return sum(os.fstat(descriptor).st_blocks * 512 for descriptor in self._away.values())

    def when_still(self, workload: int, action: Callable[[], None]) -> None:
        """Call ``action`` once the workload's region does not move, at once if it does not now."""
        if workload in self._moving:
            self._moving[workload].append(action)
        else:
            action()

    def leave(self, workload: int, descriptor: int, offset: int, size: int, done: OnMoved) -> None:
        """Copy a range of a session's file to host memory and free its pages, then call ``done``.

        After an error the range is as it was.
        """
        try:
            host = memfd.create(f"gpud-moved-w{workload}", size)
        except OSError as error:
            self._loop.call_soon(done, error)
            return
        self._away[workload] = host
        source = os.dup(descriptor)  # the session may end meanwhile
        work = partial(_leave, source, os.dup(host), offset, size)
        self._start(workload, work, partial(self._left, workload, done))

    def _left(self, workload: int, done: OnMoved, error: OSError | None) -> None:
        if error is not None:
            self.forget(workload)
        done(error)

    def come_back(
        self, workload: int, descriptor: int, offset: int, size: int, done: OnMoved
    ) -> None:
        """Copy a range back from host memory, which is freed, then call ``done``.

        After an error the region is still in host memory.
        """
        host = self._away.get(workload)
        if host is None:  # nothing was ever written
            self._loop.call_soon(done, None)
            return
        work = partial(_come_back, os.dup(host), os.dup(descriptor), offset, size)
        self._start(workload, work, partial(self._came_back, workload, done))

    def _came_back(self, workload: int, done: OnMoved, error: OSError | None) -> None:
        if error is None:
            self.forget(workload)
        done(error)

    def _start(self, workload: int, work: Callable[[], int], done: OnMoved) -> None:
        self._moving[workload] = []
        began_ns = time.monotonic_ns()

        def over(future: asyncio.Future[int]) -> None:
            error = future.exception()
            if error is None:
                self.moved_bytes += future.result()
                self.moving_ns += time.monotonic_ns() - began_ns
            elif not isinstance(error, OSError):
                raise error
            actions = self._moving.pop(workload)
            done(error)
            for action in actions:
                action()

        self._loop.run_in_executor(None, work).add_done_callback(over)

    def forget(self, workload: int) -> None:
        """Free what a workload has in host memory."""
        descriptor = self._away.pop(workload, None)
        if descriptor is not None:
            os.close(descriptor)


# -- on a thread ------------------------------------------------------------------------------


def _leave(source: int, host: int, offset: int, size: int) -> int:
    try:
        copied = _copy(source, offset, host, 0, size)
        memfd.punch(source, offset, size)
        return copied
    finally:
        os.close(source)
        os.close(host)


def _come_back(host: int, target: int, offset: int, size: int) -> int:
    try:
        return _copy(host, 0, target, offset, size)
    finally:
        os.close(host)
        os.close(target)


def _copy(source: int, start: int, target: int, to: int, size: int) -> int:
    """Copy what is written of a range from one file to another; returns the bytes."""
    copied, at, end = 0, start, start + size
    with mmap.mmap(source, size, prot=mmap.PROT_READ, offset=start) as mapped:
        view = memoryview(mapped)
        try:
            while (first := _next(source, at, end, os.SEEK_DATA)) < end:
                at = _next(source, first, end, os.SEEK_HOLE)
                while first < at:
                    piece = view[first - start : min(at, first + _CHUNK_BYTES) - start]
                    with piece:
                        written = os.pwrite(target, piece, to + first - start)
                    first += written
                    copied += written
        finally:
            view.release()
    return copied


def _next(descriptor: int, at: int, end: int, what: int) -> int:
    try:
        return min(end, os.lseek(descriptor, at, what))
    except OSError as error:
        if error.errno == errno.ENXIO:  # there is no more
            return end
        raise
