"""Lanes: streams with a standing share, whose launches are written into shared memory.

Problem: a submission over the socket passes the daemon's front and its event loop, which takes
longer than many kernels run.

Approach: a lane is admitted once, as a job that stays open. Its launches are records in a ring that
the device's process reads (`gpud.wire.lane_ring`), and their completions come back in it. A thread
that waits for a launch sleeps on the count of completions, a futex; nobody reads a socket for it.
What a completion does not hold, an error or output, comes as a message.

Properties:
    in_order: launches are numbered and written under one lock, and seen in the same order;
    bounded: there are at most `SLOTS` launches that are not seen; a submission beyond waits;
    nobody_hangs: when the lane ends, for whatever reason, all that is not seen is settled.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from gpud.errors import GpudError, InvalidArgument, JobCancelled, from_wire
from gpud.wire import lane_ring as ring
from gpud.wire.messages import CloseLane, Finished, LaneOpened, LaunchEnded
from gpud_client.connection.pending import Notification, wake
from gpud_client.launch.lane_completions import BATCH, Batch, LaneCompletions
from gpud_client.launch.lane_futex import ALL, Futex

if TYPE_CHECKING:
    from gpud_client.devices import Device

LaneJob = Any  # `gpud_client.launch.lane_jobs.LaneJob`, which is above this

__all__ = ["Lane"]

_LOOK_S = 0.1  # how long a thread sleeps before it looks whether the lane has ended
_LONGER_S = 10.0
_HEAD, _TAIL = ring.HEAD // 4, ring.TAIL // 4
_LISTENING = ring.LISTENING // 4
_MASK = 0xFFFFFFFF
_RECORD = struct.Struct("<6I8x")
_NEVER = -1


class Lane(LaneCompletions):
    """A stream with a share of its own; made by `Session.lane`.

    Give it as ``stream=`` to `Kernel.submit` or `Session.sequence`. Its jobs run in order, in the
    lane's share, and start without the daemon's scheduler. Leaving a ``with`` block waits for them
    and closes the lane. Thread-safe.
    """

    # From `_stop` on, or with less `_room`, a submission looks for more.
    __slots__ = (
        "_batches", "_ended", "_error", "_head", "_heads", "_number", "_opened", "_room",
        "_session", "_settled", "_sites", "_stop", "_waiting", "_writer", "device",
    )  # fmt: skip

    def __init__(self, session: Any, device: Device, number: int) -> None:
        super().__init__(session._core, number)
        self._session = session
        self.device = device
        self._sites: dict[Any, Any] = {}
        self._waiting: list[Any] = []
        self._settled = False  # opened, or not to be opened: as a request
        self._opened = self._ended = False
        self._error: GpudError | None = None
        self._batches: tuple[Batch, ...] = ()  # the one of the next launch
        self._writer: int | None = None  # the thread that is in the middle of a sequence
        self._head = self._stop = self._room = 0

    def __repr__(self) -> str:
        state = "closed" if self._finished else "open" if self._opened else "not open"
        return f"<Lane {self._core.session}.{self._number} on {self.device.name}: {state}>"  # type: ignore[attr-defined]

    @property
    def closed(self) -> bool:
        """Whether it takes no more launches: it was closed, or has failed."""
        return self._finished

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(wait=error is None)

    def synchronize(self) -> None:
        """Wait until all that was submitted to it has ended, however it ended."""
        if self._opened:
            self.wait(self._at - 1, None)

    def close(self, *, wait: bool = True) -> None:
        """Close it; may be called twice.

        Args:
            wait: For its jobs; else those that have not ended are cancelled.
        """
        if wait and not self._finished:
            self.synchronize()
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self._stop = _NEVER
        if self._core.lost is None:  # type: ignore[attr-defined]
            number = self._number
            self._session._channel._step(Notification(CloseLane(number)))
            with self._lock:
                self._arrived.wait_for(lambda: self._finished, _LONGER_S)

    # -- from the connection, on its thread

    def _open(self, message: LaneOpened, descriptor: int) -> None:
        """Take the ring."""
        try:
            self._map = mmap.mmap(descriptor, message.size)
        finally:
            os.close(descriptor)
        self._words = memoryview(self._map)[: ring.SLOTS_AT].cast("I")
        self._ends = Futex(self._map, ring.COMPLETED)
        self._heads = Futex(self._map, ring.HEAD)
        self._opened = self._settled = True
        wake(self._waiting)

    def _launch_ended(self, message: LaunchEnded) -> None:
        self._messages[message.launch] = message
        with self._lock:
            self._arrived.notify_all()

    def _settle(self, message: Finished) -> None:
        """End the lane, as the daemon says."""
        error: GpudError
        if message.error is not None:
            error = from_wire(message.error)
        else:
            error = JobCancelled("its lane was closed before it had ended")
        self._lose(error)

    def _lose(self, error: GpudError) -> None:
        with self._lock:
            if self._finished:
                return
            if self._opened:
                self._harvest()
            self._error = error
            self._finished = self._ended = True
            self._stop = _NEVER
            for batch in self._open_batches.values():
                for job in batch.jobs:
                    if job is not None and job._last >= self._seen:
                        job._lose(error)
            self._open_batches.clear()
            self._users.clear()
            self._arrived.notify_all()
        if self._opened:
            self._ends.wake(ALL)
        self._settled = True
        wake(self._waiting)

    # -- launches

    def _write(
        self,
        job: LaneJob,
        records: list[tuple[int, tuple[int, int, int], bytes]],
        allocations: list[Any],
    ) -> None:
        """Write the records of a job, (site, grid, parameters); wait while the ring is full."""
        with self._lock:
            try:
                for index, (site, grid, parameters) in enumerate(records):
                    slots = ring.slots_of(len(parameters))
                    self._make_room(slots)
                    self._writer = threading.get_ident()
                    self._stop = _NEVER  # nobody comes in between
                    if not index:
                        job._first, job._batches = self._at, self._batches
                    elif job._batches[-1] is not self._batches[0]:
                        job._batches += self._batches
                    # Not seen before its last launch is, or the first that was not written.
                    job._last = self._at + len(records) - 1 - index
                    for allocation in allocations:
                        self._users[allocation] = job._last
                    self._put(site, grid, parameters, slots)
                    self._batches[0].jobs[self._at % BATCH] = job
                    self._room -= slots
                    self._at += 1
                    self._words[_HEAD] = self._head
            finally:
                if self._writer == threading.get_ident():
                    self._writer = None
                    if not self._ended:
                        self._stop = self._at  # where the next one looks what there is
                    if len(records) > 1:
                        self._arrived.notify_all()
        self._wake_device()

    def _wake_device(self) -> None:
        """Wake a thread of the device, after the lock is released.

        That was a full barrier: the device sees `head`, or this its `listening`.
        """
        if self._words[_LISTENING]:
            self._heads.wake()

    def _make_room(self, slots: int) -> None:
        """Wait until a launch can be written; with the lock, which others may have meanwhile."""
        while True:
            if self._writer is not None and self._writer != threading.get_ident():
                self._arrived.wait(_LOOK_S)
                continue
            self._check()
            self._room = ring.SLOTS - ((self._head - self._words[_TAIL]) & _MASK)
            index = self._at // BATCH
            # What was in the place of this batch must have been copied out.
            needed = index * BATCH - (ring.SLOTS - BATCH)
            if self._seen < needed or self._room < slots:
                self._harvest()
            if self._room >= slots and self._seen >= needed:
                break
            number = needed - 1 if self._seen < needed else self._seen
            self._lock.release()
            try:
                self._wake_device()
                if number < self._at:
                    self.wait(number, _LOOK_S)
                else:  # all have ended, and slots are still to be copied
                    time.sleep(0)
            finally:
                self._lock.acquire()
        batch = self._open_batches.get(index)
        if batch is None:
            batch = self._open_batches[index] = Batch()
        self._batches = (batch,)
        self._stop = (index + 1) * BATCH

    def _put(self, site: int, grid: tuple[int, int, int], parameters: bytes, slots: int) -> None:
        at = ring.SLOTS_AT + self._head % ring.SLOTS * ring.SLOT_BYTES
        _RECORD.pack_into(self._map, at, self._at & _MASK, site, *grid, len(parameters))
        first = parameters[: ring.INLINE_BYTES]
        self._map[at + ring.INLINE_AT : at + ring.INLINE_AT + len(first)] = first
        for index in range(1, slots):
            begin = ring.INLINE_BYTES + (index - 1) * ring.SLOT_BYTES
            part = parameters[begin : begin + ring.SLOT_BYTES]
            at = ring.SLOTS_AT + (self._head + index) % ring.SLOTS * ring.SLOT_BYTES
            self._map[at : at + len(part)] = part
        self._head = (self._head + slots) & _MASK

    def _launch(
        self,
        job: LaneJob,
        site: Any,
        grid: tuple[int, int, int],
        values: list[Any],
        allocations: list[Any],
    ) -> None:
        """Write the only launch of a job, whose parameters fit into a slot."""
        with self._lock:
            if self._at >= self._stop or not self._room:
                self._make_room(1)
            number, head = self._at, self._head
            site.record.pack_into(
                self._map, ring.SLOTS_AT + head % ring.SLOTS * ring.SLOT_BYTES,
                number & _MASK, site.number, *grid, site.size, *values,
            )  # fmt: skip
            job._first = job._last = number
            batches = job._batches = self._batches
            batches[0].jobs[number % BATCH] = job
            for allocation in allocations:
                self._users[allocation] = number
            self._at = number + 1
            self._room -= 1
            self._words[_HEAD] = self._head = (head + 1) & _MASK
        self._wake_device()

    def _check(self) -> None:
        if self._finished or self._ended:
            raise self._closed_error()

    def _closed_error(self) -> GpudError:
        if self._error is None or isinstance(self._error, JobCancelled):
            return InvalidArgument("the lane is closed: open another with gpu.lane(...)")
        return self._error
