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
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, Self

from gpud.errors import (
    ConnectionLost,
    GpudError,
    InvalidArgument,
    JobCancelled,
    LimitExceeded,
    from_wire,
)
from gpud.wire import lane_ring as ring
from gpud.wire.messages import CloseLane, Finished, LaneOpened, LaunchEnded
from gpud_client.connection.faces import operation
from gpud_client.connection.pending import Notification, Operation, Signal
from gpud_client.launch.lane_completions import BATCH, Batch, LaneCompletions, Point
from gpud_client.launch.lane_futex import ALL, Futex
from gpud_client.launch.streams import Failure

if TYPE_CHECKING:
    from gpud_client.devices import Device

LaneJob = Any  # `gpud_client.launch.lane_job_base.LaneJobBase`, which is above this

__all__ = ["LaneBase"]

_HEAD, _TAIL = ring.HEAD // 4, ring.TAIL // 4
_LISTENING = ring.LISTENING // 4
_MASK = 0xFFFFFFFF
_RECORD = struct.Struct("<8I")
_NEVER = -1


class LaneBase(LaneCompletions):
    """State and operations common to `Lane` and `AsyncLane`.

    Args:
        session: Has it.
        device: On which it is.
        terms: The fields of `gpud.wire.messages.OpenLane` after its number.
        sticky: As of any stream.

    Attributes:
        device: On which it is.
    """

    # From `_stop` on, or with less `_room`, a submission looks for more.
    __slots__ = (
        "_batches", "_closed", "_ended", "_error", "_failures", "_flags", "_free_sites", "_head",
        "_heads", "_opened", "_opening", "_room", "_sent", "_session", "_site_count", "_sites",
        "_stop", "_terms", "_writer",
        "device",
    )  # fmt: skip

    _job_class: ClassVar[type[Any]]

    def __init__(self, session: Any, device: Device, terms: tuple[Any, ...], sticky: bool) -> None:
        super().__init__(session._channel, sticky)
        self._session = session
        self.device = device
        self._terms = terms
        self._sites: dict[Any, Any] = {}
        self._site_count = 0
        self._free_sites: list[int] = []  # whose kernels are used no more
        self._opening, self._closed = Signal(), Signal()
        self._sent = False  # that it is to be opened
        self._opened = self._ended = False
        self._error: GpudError | None = None
        self._batches: tuple[Batch, ...] = ()  # the one of the next launch
        self._writer: Signal | None = None  # who is in the middle of a sequence; set at its end
        self._head = self._stop = self._room = 0
        self._failures = 0  # of jobs that failed by themselves
        self._flags = ring.flags(0 if sticky else None)
        _lanes.add(self)

    def __repr__(self) -> str:
        state = "closed" if self._finished else "open" if self._opened else "not open"
        name = f"{self._session._core.session}.{self._number}"
        return f"<{type(self).__name__} {name} on {self.device.name}: {state}>"

    @property
    def closed(self) -> bool:
        """Whether it takes no more launches: it was closed, or has failed."""
        return self._finished

    @operation
    def close(self, *, wait: bool = True) -> Operation[None]:
        """Close it; may be called twice.

        Args:
            wait: For its jobs; else those that have not ended are cancelled.
        """
        yield from self._end(wait)

    def _stop_submissions(self) -> bool:
        """Take no more launches; returns whether the daemon is to be told."""
        with self._lock:
            tell = self._sent and not self._ended
            self._ended = True
            self._stop = _NEVER
        return tell

    # -- failures: with the lock

    def _job_failed(self, job: Any) -> Failure | None:
        failure = super()._job_failed(job)
        if failure is not None:
            for allocation, last in self._users.items():
                if last >= job._first:
                    allocation.users.failure = failure
        return failure

    def _count_failure(self, job: Any) -> int:
        self._failures += 1
        return self._failures

    def _failure_seen(self, number: int) -> None:
        self._flags = ring.flags(number)

    # -- steps of operations

    def _wait_for_all(self) -> Operation[None]:
        yield [Point(self, self._at - 1)]

    def _made(self) -> Self:
        """Return the lane, as `Session.lane` does: where methods block, once it is open."""
        raise NotImplementedError

    def _enter(self) -> Operation[None]:
        """Open it, once; waits until it has its share."""
        try:
            if not self._sent:
                self._sent = True
                self._channel.opening_lane(self, self._terms)
            yield [self._opening]
        except BaseException:
            if self._number and self._stop_submissions():
                yield Notification(CloseLane(self._number))
            raise
        if not self._opened:
            assert self._error is not None
            raise self._error

    def _leave(self, error: BaseException | None) -> Operation[None]:
        yield from self._end(wait=error is None)

    def _end(self, wait: bool) -> Operation[None]:
        if wait:
            yield [Point(self, self._at - 1)]
        if self._stop_submissions() and self._core.lost is None:
            yield Notification(CloseLane(self._number))
            yield [self._closed]

    # -- from the connection, on its thread

    def _map_ring(self, message: LaneOpened, descriptor: int) -> None:
        """Take the ring."""
        try:
            self._map = mmap.mmap(descriptor, message.size)
        finally:
            os.close(descriptor)
        self._words = memoryview(self._map)[: ring.SLOTS_AT].cast("I")
        self._ends = Futex(self._map, ring.COMPLETED)
        self._heads = Futex(self._map, ring.HEAD)
        self._opened = True
        self._opening.set()

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
        with self._starting:
            self._starting.notify_all()
        self._opening.set()
        self._closed.set()

    # -- launches

    def _write(
        self,
        job: LaneJob,
        records: list[tuple[int, tuple[int, int, int], bytes]],
        allocations: list[Any],
        limit_ms: int,
        *,
        wait: bool,
    ) -> Operation[None]:
        """Write the records of a job, (site, grid, parameters); waits while the ring is full.

        Raises:
            LimitExceeded: it is full, and ``wait`` is false.
        """
        turn = Signal()
        written = 0
        try:
            while True:
                with self._lock:
                    self._check()
                    obstacle: Any = self._writer
                    if obstacle is None or obstacle is turn:
                        self._writer = turn
                        self._stop = _NEVER  # nobody comes in between
                        written, obstacle = self._write_some(
                            job, records, written, allocations, limit_ms
                        )
                self._wake_device()
                if obstacle is None:
                    return
                if not (wait or written):
                    raise LimitExceeded(
                        f"the lane's ring holds {ring.SLOTS} launches, and is full: wait for some, "
                        "or submit without wait=False, which waits",
                        limit="lane",
                        value=ring.SLOTS,
                    )
                yield [obstacle]
        finally:
            with self._lock:
                if self._writer is turn:
                    self._writer = None
                    if not self._ended:
                        self._stop = self._at  # where the next one looks what there is
            turn.set()

    def _write_some(
        self,
        job: LaneJob,
        records: list[tuple[int, tuple[int, int, int], bytes]],
        index: int,
        allocations: list[Any],
        limit_ms: int,
    ) -> tuple[int, Point | None]:
        """Write records from ``index`` on; returns how far, and what the rest waits for."""
        for site, grid, parameters in records[index:]:
            slots = ring.slots_of(len(parameters))
            obstacle = self._find_room(slots)
            self._stop = _NEVER
            if obstacle is not None:
                return index, obstacle
            if not index:
                job._first, job._batches = self._at, self._batches
                # Not seen before its last launch is, or the first that was not written.
                job._last = self._at + len(records) - 1
                for allocation in allocations:
                    self._users[allocation] = job._last
            elif job._batches[-1] is not self._batches[0]:
                job._batches += self._batches
            self._put(site, grid, parameters, slots, (limit_ms, self._flags | int(index > 0)))
            self._batches[0].jobs[self._at % BATCH] = job
            self._room -= slots
            self._at += 1
            self._words[_HEAD] = self._head
            index += 1
        return index, None

    def _wake_device(self) -> None:
        """Wake a thread of the device, after the lock is released.

        That was a full barrier: the device sees `head`, or this its `listening`.
        """
        if self._words[_LISTENING]:
            self._heads.wake()

    def _find_room(self, slots: int) -> Point | None:
        """Make room for a launch; returns what there is to wait for first. With the lock."""
        self._room = ring.SLOTS - ((self._head - self._words[_TAIL]) & _MASK)
        index = self._at // BATCH
        # What was in the place of this batch must have been copied out.
        needed = index * BATCH - (ring.SLOTS - BATCH)
        if self._seen < needed or self._room < slots:
            self._harvest()
            self._room = ring.SLOTS - ((self._head - self._words[_TAIL]) & _MASK)
        if self._seen < needed:
            return Point(self, needed - 1)
        if self._room < slots:
            return Point(self, self._seen)
        batch = self._open_batches.get(index)
        if batch is None:
            batch = self._open_batches[index] = Batch()
        self._batches = (batch,)
        self._stop = (index + 1) * BATCH
        return None

    def _put(
        self,
        site: int,
        grid: tuple[int, int, int],
        parameters: bytes,
        slots: int,
        terms: tuple[int, int],
    ) -> None:
        at = ring.SLOTS_AT + self._head % ring.SLOTS * ring.SLOT_BYTES
        _RECORD.pack_into(self._map, at, self._at & _MASK, site, *grid, len(parameters), *terms)
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
    ) -> bool:
        """Write the only launch of a job, whose parameters fit into a slot.

        Returns whether it was written: else there is something to wait for.
        """
        with self._lock:
            if (self._at >= self._stop or not self._room) and (
                self._ended or self._writer is not None or self._find_room(1) is not None
            ):
                return False
            number, head = self._at, self._head
            if site.number < 0:  # replaced meanwhile
                return False
            site.last = number
            site.record.pack_into(
                self._map, ring.SLOTS_AT + head % ring.SLOTS * ring.SLOT_BYTES,
                number & _MASK, site.number, *grid, site.size, self._flags, *values,
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
        return True

    def _check(self) -> None:
        if self._finished or self._ended:
            raise self._closed_error()
        if not self._opened:
            raise InvalidArgument(
                "the lane is not open yet: use `async with gpu.lane(...) as lane`, or await it"
            )

    def _closed_error(self) -> GpudError:
        if self._error is None or isinstance(self._error, JobCancelled):
            return InvalidArgument("the lane is closed: open another with gpu.lane(...)")
        return self._error

    def _forked(self) -> None:
        """Invalidate it in a forked child process: the ring is the parent's, too."""
        self._lock, self._starting = threading.RLock(), threading.Condition(threading.Lock())
        self._watcher, self._watched = None, []
        self._error = ConnectionLost(
            f"this lane belongs to process {os.getppid()}, which was forked; connect and open one "
            "in the child process"
        )
        self._finished = self._ended = True
        self._stop = _NEVER


_lanes: weakref.WeakSet[LaneBase] = weakref.WeakSet()


def _after_fork() -> None:
    for lane in list(_lanes):
        lane._forked()


os.register_at_fork(after_in_child=_after_fork)
