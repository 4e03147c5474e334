"""Sees the launches of a lane end: completions in its ring, and messages about some.

Problem: a program may have 100,000 launches a second, and ask about one in a thousand.

Approach: completions are looked at a batch at a time, and copied out of the ring as bytes, so that
a job which nobody asks about costs nothing when it ends. Who asks has the job settled, with what
its batch holds. Jobs that have failed, have output, or have a callback are settled by themselves.

Terms:
    batch: `BATCH` launches, whose completions lie side by side in the ring.
    seen: of a launch: it has ended, its message has come if there is one, and so have all before.
"""

from __future__ import annotations

import mmap
import struct
import threading
import time
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

from gpud.wire import lane_ring as ring
from gpud.wire.messages import LaunchEnded
from gpud_client.launch.lane_futex import ALL, Futex
from gpud_client.launch.streams import StreamBase

LaneJob = Any  # `gpud_client.launch.lane_job_base.LaneJobBase`, which is above this

__all__ = ["BATCH", "Batch", "LaneCompletions", "Point"]

BATCH = ring.SLOTS // 4

_LOOK_S = 0.1  # how long a thread sleeps before it looks whether the lane has ended
_SPINS, _LONG = 300, 1200  # looks before a thread sleeps: some 18 us, and 75
_SPIN_CREDIT = 2  # launches after which it sleeps at once, if none had ended by then
_RETRY = 60  # launches after which it looks once more
_LINGER_S = 1.0  # how long the watcher stays when nothing is to be watched
_COMPLETED = ring.COMPLETED // 4
_WANTED = ring.WANTED // 4
_MASK = 0xFFFFFFFF
_STATUS = 0xFF
_COMPLETION = struct.Struct("<IIQQQ")
_NONE = -1
_FEW_USERS = 64
_ORDER = count()


class Batch:
    """Some launches, one after the other.

    Attributes:
        jobs: those of the launches, until all are seen.
        completions: as in the ring, once all are seen.
    """

    __slots__ = ("completions", "jobs")

    def __init__(self) -> None:
        self.jobs: list[LaneJob | None] = [None] * BATCH
        self.completions: bytes | None = None


class Point:
    """A launch of a lane, and all before, as something to wait for."""

    __slots__ = ("_lane", "_last")

    def __init__(self, lane: LaneCompletions, last: int) -> None:
        self._lane = lane
        self._last = last

    @property
    def _settled(self) -> bool:
        return self._lane._finished or self._last < self._lane._seen


class LaneCompletions(StreamBase):
    """What a lane knows of the ends of its launches.

    Numbers of launches do not wrap here: `_at` is the next one's, `_seen` that of the first launch
    that is not seen.
    """

    __slots__ = (
        "_arrived", "_at", "_ends", "_finished", "_lock", "_map", "_messages", "_open_batches",
        "_scanned", "_seen", "_spin_credit", "_starting", "_unusual", "_users", "_waiters",
        "_watched", "_watcher", "_words",
    )  # fmt: skip

    _map: mmap.mmap
    _words: memoryview
    _ends: Futex  # on which those sleep who wait for launches

    def __init__(self, channel: Any, sticky: bool) -> None:
        super().__init__(channel, 0, sticky)
        self._lock = threading.RLock()
        self._arrived = threading.Condition(self._lock)
        self._at = self._seen = self._scanned = 0
        self._finished = False
        self._spin_credit = _SPIN_CREDIT
        self._open_batches: dict[int, Batch] = {}
        self._messages: dict[int, LaunchEnded] = {}
        self._unusual: list[LaneJob] = []  # with a message about one of their launches
        self._users: dict[Any, int] = {}  # allocations, by the last launch that uses each
        self._waiters: list[int] = []
        self._starting = threading.Condition(threading.Lock())  # of the two below
        self._watcher: threading.Thread | None = None
        # Launches that are waited for, and what is to be called: a heap.
        self._watched: list[tuple[int, int, Callable[[], object]]] = []

    def _latest(self) -> Point | None:
        """Return the latest launch, unless it is seen."""
        return self._unseen(self._at - 1)

    def _latest_with(self, allocation: Any) -> Point | None:
        """Return the latest launch that uses some memory, unless it is seen."""
        return self._unseen(self._users.get(allocation, _NONE))

    def _unseen(self, number: int) -> Point | None:
        return None if self._finished or number < self._seen else Point(self, number)

    def _completed(self) -> int:
        return self._seen + ((self._words[_COMPLETED] - self._seen) & _MASK)

    def _harvest(self) -> None:
        """See the launches that have ended, in order; with the lock."""
        seen, end = self._seen, min(self._completed(), self._at)
        while seen < end:
            stop = min(end, seen - seen % BATCH + BATCH)
            at = _place(seen)
            size = (stop - seen) * ring.COMPLETION_BYTES
            statuses = self._map[at + 4 : at + size : ring.COMPLETION_BYTES]
            if statuses.count(ring.DONE) < stop - seen:
                stop = self._note_unusual(seen, statuses)
            if stop == seen:
                break
            seen = stop
            if not seen % BATCH:
                batch = self._open_batches.pop(seen // BATCH - 1, None)
                if batch is not None:
                    begin = _place(seen - BATCH)
                    batch.completions = self._map[begin : begin + BATCH * ring.COMPLETION_BYTES]
                    batch.jobs = []
        if seen == self._seen and not self._watched:
            return
        self._seen = seen
        if self._unusual:
            self._unusual = [job for job in self._unusual if not self._settle_job(job)]
        if self._watched:
            self._settle_watched()
        if seen == self._at:
            self._users.clear()
        elif seen - self._scanned > max(_FEW_USERS, len(self._users)):
            self._scanned = seen
            self._users = {one: last for one, last in self._users.items() if last >= seen}

    def _note_unusual(self, first: int, statuses: bytes) -> int:
        """Note which launches have messages; returns the number of the first one without."""
        batch = self._open_batches[first // BATCH]
        for number, status in enumerate(statuses, first):
            if status != ring.DONE:
                if number & _MASK not in self._messages:
                    return number
                self._unusual.append(batch.jobs[number % BATCH])
        return first + len(statuses)

    def _settle_job(self, job: LaneJob) -> bool:
        """Settle a job if its launches are seen; returns whether it is. With the lock."""
        if job._over:
            return True
        if job._last >= self._seen:
            return False
        told: list[LaunchEnded] = []
        times, slices_ns = (0, 0, 0), 0
        for number in range(job._first, job._last + 1):
            kept = job._batches[number // BATCH - job._first // BATCH].completions
            at = number % BATCH * ring.COMPLETION_BYTES
            if kept is None:
                _, status, *found = _COMPLETION.unpack_from(self._map, _place(number))
            else:
                _, status, *found = _COMPLETION.unpack_from(kept, at)
            times = (times[0] or found[0], times[1] or found[1], found[2])
            slices_ns += (status >> ring.SLICES_SHIFT) * max(0, found[2] - found[0])
            if status & _STATUS != ring.DONE:
                told.append(self._messages.pop(number & _MASK))
        job._complete(told, times, slices_ns)
        return True

    def _accepted_ns(self, number: int) -> int:
        """Return when a launch was accepted that has begun, and is not seen."""
        return int(_COMPLETION.unpack_from(self._map, _place(number))[2])

    def _is_done(self, number: int) -> bool:
        """Wait a while for the end of launch ``number``, the only one of its job.

        It returns whether the launch is done, without a message about it. If not, nothing is known:
        whoever waits goes on with `_wait`. This is what most programs do with most jobs, so it
        sees no launch, and leaves that to a batch.
        """
        if not self._spin(number):
            with self._lock:
                if self._finished or self._waiters:
                    return False  # whom the device is to wake must be found out
                self._waiters.append(number)
                self._words[_WANTED] = (number + 1) & _MASK
            try:
                now = self._words[_COMPLETED]  # behind a full barrier, as in `_write`
                if not ((now - number - 1) & _MASK < 1 << 31 or self._finished):
                    self._ends.sleep(now, _LOOK_S)
            finally:
                with self._lock:
                    self._waiters.remove(number)
        with self._lock:  # nobody writes over what is not seen
            return (
                self._seen <= number < self._completed()
                and self._map[_place(number) + 4] == ring.DONE
            )

    def _spin(self, number: int) -> bool:
        """Look for the end of launch ``number`` for some microseconds: adaptive spinning.

        To wake a thread on another core takes some 20 us, so a short launch there ends before this
        thread would be asleep. Launches that take longer, or wait for this core, make it spin no
        more, but for one of `_RETRY`, and longer then: the other core has been idle, and wakes up
        more slowly.
        """
        credit = self._spin_credit
        if credit > 0:
            spins = _SPINS
        else:
            spins = 1 if credit > -_RETRY else _LONG
        words, after = self._words, number + 1
        for _ in range(spins):
            if (words[_COMPLETED] - after) & _MASK < 1 << 31:
                if spins > 1:
                    self._spin_credit = _SPIN_CREDIT
                return True
        self._spin_credit = 0 if spins == _LONG else credit - 1
        return False

    def _wait(self, number: int, timeout_s: float | None) -> bool:
        """Wait until launch ``number`` is seen; returns whether it is."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        left = _LOOK_S
        while True:
            if end is not None:
                left = min(_LOOK_S, end - time.monotonic())
            if self._pause(number, left):
                return True
            if left <= 0:
                return False

    def _pause(self, number: int, timeout_s: float) -> bool:
        """Sleep until launch ``number`` may be seen, or for a time; returns whether it was seen."""
        with self._lock:
            completed = self._completed() > number  # by now: it may be so a moment later
            if not self._finished and number >= self._seen:
                self._harvest()
            if self._finished or number < self._seen:
                return True
            if timeout_s <= 0:
                return False
            if completed:  # the message about it is on its way
                self._arrived.wait(timeout_s)
                return False
            self._waiters.append(number)
        try:
            self._sleep(number, timeout_s)
        finally:
            with self._lock:
                self._waiters.remove(number)
        return False

    def _sleep(self, number: int, timeout_s: float) -> None:
        """Sleep until a launch has ended, or for a time."""
        words = self._words
        with self._lock:
            count = self._completed()
            if count > number:
                return
            nearest = min(one for one in self._waiters if one >= count)
            words[_WANTED] = (nearest + 1) & _MASK
        # A full barrier, as in `_write`.
        now = words[_COMPLETED]
        if (now - number - 1) & _MASK < 1 << 31 or self._finished:
            return
        self._ends.sleep(now, timeout_s)

    def _watch(self, number: int, call: Callable[[], object]) -> None:
        """Have a thread call something once launch ``number`` is seen.

        Whoever calls this may hold the condition of a future, which a thread with the lane's lock
        needs to settle it. So this does not wait for that lock.
        """
        with self._starting:
            sleeps = bool(self._watched) and number < self._watched[0][0]  # for a later launch
            heappush(self._watched, (number, next(_ORDER), call))
            if self._watcher is None:
                self._watcher = threading.Thread(
                    target=self._run_watcher, name="gpud_client lane", daemon=True
                )
                self._watcher.start()
            else:
                self._starting.notify_all()
        if sleeps:
            self._ends.wake(ALL)

    def _settle_watched(self) -> None:
        """Call what is to be called; with the lock."""
        due: list[Callable[[], object]] = []
        with self._starting:
            while self._watched and (self._finished or self._watched[0][0] < self._seen):
                due.append(heappop(self._watched)[2])
        for call in due:
            call()

    def _run_watcher(self) -> None:
        while True:
            with self._lock:
                if not self._finished:
                    self._harvest()
                self._settle_watched()
            with self._starting:
                if not self._watched and not self._finished:
                    self._starting.wait(_LINGER_S)
                if not self._watched:
                    self._watcher = None
                    return
                number = self._watched[0][0]
            self._pause(number, _LOOK_S)


def _place(number: int) -> int:
    """Return where the completion of a launch is in the ring."""
    return ring.COMPLETIONS_AT + number % ring.SLOTS * ring.COMPLETION_BYTES
