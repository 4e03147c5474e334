"""Lanes: streams with a standing share, whose launches are written into shared memory.

Problem: a submission over the socket passes the daemon's front and its event loop, which takes
longer than many kernels run.

Approach: a lane is admitted once, as a job that stays open. Its launches are records in a ring that
the device's process reads (`gpud.wire.lane_ring`), and their completions come back in it. A thread
that waits for a launch sleeps on the count of completions, a futex; nobody reads a socket for it.
What a completion does not hold, an error or output, comes as a message.

Properties:
    in_order: launches are numbered and written under one lock, and settled in the same order;
    bounded: there are at most `SLOTS` launches that are not settled; a submission beyond waits;
    nobody_hangs: when the lane ends, for whatever reason, all that is not settled is.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
import threading
import time
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from gpud.errors import GpudError, InvalidArgument, JobCancelled, from_wire
from gpud.wire import lane_ring as ring
from gpud.wire.messages import CloseLane, Finished, LaneOpened, LaunchEnded
from gpud_client.connection.pending import Notification, wake
from gpud_client.launch.streams import Stream

if TYPE_CHECKING:
    from gpud_client.devices import Device

LaneJob = Any  # `gpud_client.launch.lane_jobs.LaneJob`, which is above this

__all__ = ["Lane", "check_machine"]

_FUTEX = {"x86_64": 202}
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_LOOK_S = 0.1  # how long a thread sleeps before it looks whether the lane has ended
_LONGER_S = 10.0
_HEAD, _TAIL = ring.HEAD // 4, ring.TAIL // 4
_COMPLETED, _LISTENING = ring.COMPLETED // 4, ring.LISTENING // 4
_WAITING, _WANTED = ring.WAITING // 4, ring.WANTED // 4
_MASK = 0xFFFFFFFF
_COMPLETION = struct.Struct("<IIQQQ")
_RECORD = struct.Struct("<6I8x")


class Lane(Stream):
    """A stream with a share of its own; made by `Session.lane`.

    Give it as ``stream=`` to `Kernel.submit` or `Session.sequence`. Its jobs run in order, in the
    lane's share, and start without the daemon's scheduler. Leaving a ``with`` block waits for them
    and closes the lane. Thread-safe.
    """

    __slots__ = (
        "_arrived", "_at", "_ended", "_error", "_finished", "_head", "_lock", "_map", "_messages",
        "_number", "_opened", "_pending", "_session", "_settled", "_sites", "_starting", "_waiters",
        "_waiting", "_watcher", "_words", "device",
    )  # fmt: skip

    def __init__(self, session: Any, device: Device, number: int) -> None:
        super().__init__(session._core, number)
        self._session = session
        self.device = device
        self._lock = threading.RLock()
        self._arrived = threading.Condition(self._lock)
        self._pending: deque[LaneJob] = deque()
        self._messages: dict[int, LaunchEnded] = {}
        self._sites: dict[Any, int] = {}
        self._waiters: list[int] = []
        self._waiting: list[Any] = []
        self._settled = False  # opened, or not to be opened: as a request
        self._opened = self._ended = self._finished = False
        self._error: GpudError | None = None
        self._watcher: threading.Thread | None = None
        self._starting = threading.Lock()
        self._head = self._at = 0

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
        with self._lock:
            last = self._pending[-1] if self._pending else None
        if last is not None:
            self.wait(last._last, None)

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
        self._opened = self._settled = True
        wake(self._waiting)

    def _launch_ended(self, message: LaunchEnded) -> None:
        with self._lock:
            self._messages[message.launch] = message
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
            lost = list(self._pending)
            self._pending.clear()
            for job in lost:
                job._lose(error)
            self._arrived.notify_all()
        if self._opened:
            _futex(self._map, ring.COMPLETED, _FUTEX_WAKE, 1 << 30, None)
        self._settled = True
        wake(self._waiting)

    # -- launches

    def _write(self, job: LaneJob, records: list[tuple[int, tuple[int, int, int], bytes]]) -> None:
        """Write the records of a job, (site, grid, parameters); wait while the ring is full."""
        with self._lock:
            for site, grid, parameters in records:
                slots = ring.slots_of(len(parameters))
                while True:
                    self._check()
                    room = ring.SLOTS - ((self._head - self._words[_TAIL]) & _MASK)
                    behind = (self._at - self._words[_COMPLETED]) & _MASK
                    oldest = self._pending[0]._first if self._pending else self._at
                    unread = (self._at - oldest) & _MASK
                    if slots <= room and unread < ring.SLOTS:
                        break
                    self._harvest()
                    if behind and unread >= ring.SLOTS // 2:
                        self._sleep((self._at - behind // 2) & _MASK, _LOOK_S)
                self._put(site, grid, parameters, slots)
            if not records:
                return
            job._last = (self._at - 1) & _MASK
            job._first = (self._at - len(records)) & _MASK
            self._pending.append(job)
            self._words[_HEAD] = self._head
            if len(self._pending) > ring.SLOTS // 2:
                self._harvest()
        # Releasing the lock was a full barrier: the device sees `head`, or this its `listening`.
        if self._words[_LISTENING]:
            _futex(self._map, ring.HEAD, _FUTEX_WAKE, 1, None)

    def _put(self, site: int, grid: tuple[int, int, int], parameters: bytes, slots: int) -> None:
        at = ring.SLOTS_AT + self._head % ring.SLOTS * ring.SLOT_BYTES
        _RECORD.pack_into(self._map, at, self._at, site, *grid, len(parameters))
        first = parameters[: ring.INLINE_BYTES]
        self._map[at + ring.INLINE_AT : at + ring.INLINE_AT + len(first)] = first
        for index in range(1, slots):
            begin = ring.INLINE_BYTES + (index - 1) * ring.SLOT_BYTES
            part = parameters[begin : begin + ring.SLOT_BYTES]
            at = ring.SLOTS_AT + (self._head + index) % ring.SLOTS * ring.SLOT_BYTES
            self._map[at : at + len(part)] = part
        self._head = (self._head + slots) & _MASK
        self._at = (self._at + 1) & _MASK

    def _latest(self) -> LaneJob | None:
        """Return the latest job that is not settled."""
        with self._lock:
            return self._pending[-1] if self._pending else None

    def _check(self) -> None:
        if self._finished or self._ended:
            raise self._closed_error()

    def _closed_error(self) -> GpudError:
        if self._error is None or isinstance(self._error, JobCancelled):
            return InvalidArgument("the lane is closed: open another with gpu.lane(...)")
        return self._error

    # -- completions

    def _harvest(self) -> None:
        """Settle the jobs whose completions are there, in order; with the lock."""
        pending, completed = self._pending, self._words[_COMPLETED]
        while pending:
            job = pending[0]
            if (completed - job._last - 1) & _MASK >= 1 << 31:
                return
            if not self._settle_job(job):
                return
            pending.popleft()

    def _settle_job(self, job: LaneJob) -> bool:
        """Settle a job that has ended; returns False while a message about it is missing."""
        told: list[LaunchEnded] = []
        times = (0, 0, 0)
        for number in job._numbers():
            place = ring.COMPLETIONS_AT + number % ring.SLOTS * ring.COMPLETION_BYTES
            _, status, *found = _COMPLETION.unpack_from(self._map, place)
            times = (times[0] or found[0], times[1] or found[1], found[2])
            if status != ring.DONE:
                message = self._messages.get(number)
                if message is None:
                    return False
                told.append(message)
        for message in told:
            del self._messages[message.launch]
        job._complete(told, times)
        return True

    def wait(self, number: int, timeout_s: float | None) -> bool:
        """Wait until launch ``number`` is settled; returns whether it is."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._lock:
                if self._finished:
                    return True
                self._harvest()
                oldest = self._pending[0]._last if self._pending else self._at
                if not self._pending or (oldest - number - 1) & _MASK < 1 << 31:
                    return True
                left = _LOOK_S if end is None else min(_LOOK_S, end - time.monotonic())
                if left <= 0:
                    return False
                arrived = (self._words[_COMPLETED] - oldest - 1) & _MASK < 1 << 31
                if arrived:  # it has ended, and the message about it is on its way
                    self._arrived.wait(left)
                    continue
                self._waiters.append(number)
            try:
                self._sleep((number + 1) & _MASK, left)
            finally:
                with self._lock:
                    self._waiters.remove(number)

    def _sleep(self, wanted: int, timeout_s: float) -> None:
        """Sleep until ``wanted`` launches are completed, or for a time."""
        words = self._words
        with self._lock:
            seen = words[_COMPLETED]
            if (seen - wanted) & _MASK < 1 << 31:
                return
            nearest = min(
                [wanted, *((one + 1) & _MASK for one in self._waiters)],
                key=lambda one: (one - seen) & _MASK,
            )
            words[_WANTED] = nearest
            words[_WAITING] = 1
        # A full barrier, as in `_write`.
        seen = words[_COMPLETED]
        if (seen - wanted) & _MASK < 1 << 31 or self._finished:
            return
        _futex(self._map, ring.COMPLETED, _FUTEX_WAIT, seen, timeout_s)

    def _watch(self) -> None:
        """Have a thread settle jobs as they end, for those who do not ask.

        Whoever calls this may hold the condition of a future, which a thread with the lane's lock
        needs to settle it. A watcher that ends does so with that lock, when no job is pending: it
        does not miss the caller's.
        """
        with self._starting:
            if self._watcher is None and not self._finished:
                self._watcher = threading.Thread(
                    target=self._run_watcher, name="gpud_client lane", daemon=True
                )
                self._watcher.start()

    def _run_watcher(self) -> None:
        while True:
            with self._lock:
                if self._finished or not self._pending:
                    self._watcher = None
                    return
                number = self._pending[0]._last
            self.wait(number, 1.0)


def _futex(shared: mmap.mmap, at: int, what: int, value: int, timeout_s: float | None) -> None:
    """Make the system call on a word of a ring."""
    address = ctypes.addressof(ctypes.c_uint32.from_buffer(shared, at))
    limit = None
    if timeout_s is not None:
        seconds = int(timeout_s)
        limit = ctypes.byref((ctypes.c_long * 2)(seconds, int((timeout_s - seconds) * 1e9)))
    _syscall(_FUTEX_NUMBER, address, what, value, limit, None, 0)


_FUTEX_NUMBER = _FUTEX.get(platform.machine(), 0)
_syscall = ctypes.CDLL(None).syscall
_syscall.argtypes = (
    ctypes.c_long, ctypes.c_void_p, ctypes.c_long, ctypes.c_ulong, ctypes.c_void_p,
    ctypes.c_void_p, ctypes.c_long,
)  # fmt: skip


def check_machine() -> None:
    """Refuse lanes on machines where stores may overtake each other.

    Raises:
        InvalidArgument: this is one.
    """
    if not _FUTEX_NUMBER:
        raise InvalidArgument(
            f"lanes need a processor of the x86-64 family, not {platform.machine()}: submit to a "
            "stream of gpu.stream()"
        )
