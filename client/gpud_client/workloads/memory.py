"""Places a workload's arrays within its memory, without asking the daemon."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable
from typing import Any

from gpud_client.connection.pending import PendingJobs

__all__ = ["ALIGNMENT", "MemoryPart", "MemoryRange"]

ALIGNMENT = 256
"""Bytes to which arrays are aligned, as a driver's own allocations are."""

_PAGE_BYTES = 4096  # of which the daemon gives whole ones


class MemoryRange:
    """A range of device addresses, and the parts of it that arrays have. Thread-safe.

    Parts are placed into the first hole that is large enough. One that is given back while jobs may
    use it stays as it is until they have ended.

    Args:
        base: address of the first byte.
        size: bytes.
        unended: the numbers of the session's jobs that have not ended.

    Attributes:
        base: address of the first byte.
        size: bytes.
        used: the bytes of all parts.
        peak: the most bytes up to the end of a part so far.
    """

    def __init__(self, base: int, size: int, unended: Collection[int]) -> None:
        self.base = base
        self.size = size
        self.used = 0
        self.peak = 0
        self._unended = unended
        self._lock = threading.Lock()
        self._holes = [(0, size)] if size else []  # (offset, end), sorted
        self._deferred: deque[tuple[frozenset[int], int, int]] = deque()

    def take(self, size: int) -> int | None:
        """Return the address of a new part; None: no hole is large enough."""
        size = _aligned(size)
        with self._lock:
            self._settle()
            for index, (start, end) in enumerate(self._holes):
                if end - start >= size:
                    rest = [(start + size, end)] if start + size < end else []
                    self._holes[index : index + 1] = rest
                    self.used += size
                    self.peak = max(self.peak, start + size)
                    return self.base + start
        return None

    def missing(self, size: int) -> int:
        """Return how large the range must be for a part of ``size`` bytes at its end."""
        with self._lock:
            last = self._holes[-1] if self._holes else (self.size, self.size)
            start = last[0] if last[1] == self.size else self.size
            return start + _aligned(size)

    def give_back(self, address: int, size: int) -> None:
        """Make a part free, once the jobs that were submitted so far have ended."""
        using = frozenset(self._unended)
        start = address - self.base
        self._deferred.append((using, start, start + _aligned(size)))
        # A finalizer may call this within another call of this thread, which goes on then: what is
        # deferred is free at the next `take`.
        if self._lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._lock.release()

    def grow(self, size: int) -> None:
        """Make the range ``size`` bytes long, which is more than before."""
        with self._lock:
            if size > self.size:
                self._insert(self.size, size)
                self.size = size

    def trim(self, least: int = 0) -> None:
        """Make the range end behind the part that has reached farthest, at a whole page.

        ``least``: bytes that it keeps if it has them.
        """
        with self._lock:
            size = -(-max(1, self.peak, least) // _PAGE_BYTES) * _PAGE_BYTES
            if size < self.size:
                self.size = size
                self._holes = [(a, min(b, size)) for a, b in self._holes if a < size]

    def restrict(self, pieces: Iterable[tuple[int, int]]) -> None:
        """Have holes only within ``pieces``, sorted (offset, end), in which all parts lie."""
        with self._lock:
            self._settle()
            self._holes = [
                (max(start, low), min(end, high))
                for low, high in pieces
                for start, end in self._holes
                if max(start, low) < min(end, high)
            ]

    def _settle(self) -> None:
        # One by one, as others append to it meanwhile.
        for _ in range(len(self._deferred)):
            using, start, end = self._deferred.popleft()
            if any(number in self._unended for number in using):
                self._deferred.append((using, start, end))
            else:
                self.used -= end - start
                self._insert(start, end)

    def _insert(self, start: int, end: int) -> None:
        holes: list[tuple[int, int]] = []
        for hole in sorted([*self._holes, (start, end)]):
            if holes and holes[-1][1] == hole[0]:
                holes[-1] = (holes[-1][0], hole[1])
            else:
                holes.append(hole)
        self._holes = holes


class MemoryPart:
    """The memory of one array; given back when neither the array nor a view of it is left.

    Stands in for the session's own allocations, whose attributes it has.

    Args:
        of: the range that it is part of.
        owner: kept alive, as the range is the owner's.
        device: index of the device.
        address: device address.
        size: bytes.

    Attributes:
        device: index of the device.
        address: device address.
        size: bytes.
        lost: whether the device lost the values.
        users: the jobs that use it.
        of: the range that it is part of.
        owner: the workload.
    """

    __slots__ = ("__weakref__", "address", "device", "lost", "of", "owner", "size", "users")

    def __init__(self, of: MemoryRange, owner: Any, device: int, address: int, size: int) -> None:
        self.of = of
        self.owner = owner
        self.device = device
        self.address = address
        self.size = size
        self.lost = False
        self.users = PendingJobs()

    @property
    def array(self) -> int:
        """Address of the memory that the daemon knows, of which this is a part."""
        return self.of.base

    @property
    def offset(self) -> int:
        """Where in that memory this is, in bytes."""
        return self.address - self.of.base

    def __del__(self) -> None:
        self.of.give_back(self.address, self.size)


def _aligned(size: int) -> int:
    return -(-max(1, size) // ALIGNMENT) * ALIGNMENT
