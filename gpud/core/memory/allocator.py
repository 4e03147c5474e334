"""The allocator of one arena: assigns addresses to arrays.

Problem: arrays are allocated and freed in any order, some frees take effect only when jobs that
may use the array have ended, and fragmentation must not exhaust the addresses.

Approach: arrays take whole pages, placed first-fit into holes, which are kept sorted and merged.
The requested size is kept, for reports of out-of-bounds accesses. Deferred frees wait in a queue,
in the order of the jobs.

Terms (units in brackets):
    hole: a maximal range of whole pages without an array.
    used [bytes]: in arrays, including those that wait to be freed; whole pages.
    lent: an array whose memory is counted elsewhere, as the temporary memory of a workload is.

Properties:
    disjoint: no two arrays overlap, waiting ones included, and each lies in the arena;
    merged: no two holes touch, so freeing everything leaves one hole;
    deferred: a range that waits for jobs is freed only when the last of them has ended.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Final, NamedTuple

from gpud.errors import InternalError
from gpud.units import Address, SessionId

__all__ = ["PAGE_BYTES", "ArenaAllocator", "ArenaRange", "require", "whole_pages"]

PAGE_BYTES: Final = 4096
"""Arrays occupy a multiple of this, so that their memory can be unmapped when they are freed."""


class ArenaRange(NamedTuple):
    """A session's addresses on a device: ``size`` bytes, a power of two, from ``base``."""

    session: SessionId
    device: int
    base: Address
    size: int


class ArenaAllocator:
    """The arrays and holes of an arena.

    Attributes:
        arena: the range that is managed.
        used: bytes of all arrays, in whole pages.
        arrays: the requested size by address, without arrays that wait to be freed.
        waiting: the arrays that wait to be freed: (last job, address, requested size).
        waiting_bytes: bytes of those arrays, in whole pages.
        lent: the bytes of lent arrays, in whole pages, by address.
    """

    def __init__(self, arena: ArenaRange) -> None:
        self.arena = arena
        self.used = 0
        self.lent: dict[Address, int] = {}
        self.arrays: dict[Address, int] = {}
        self.waiting: deque[tuple[int, Address, int]] = deque()
        self.waiting_bytes = 0
        # The start and end addresses of the holes, sorted.
        self.starts: list[int] = [arena.base]
        self.ends: list[int] = [arena.base + arena.size]

    @property
    def counted(self) -> int:
        """Bytes of all arrays that are not lent."""
        return self.used - sum(self.lent.values())

    def lend(self, asked: int) -> Address | None:
        """Return the address of a new lent array, in the last hole that is large enough."""
        size = whole_pages(asked)
        holes = zip(reversed(self.starts), reversed(self.ends), strict=True)
        at = next((end - size for start, end in holes if end - start >= size), None)
        address = None if at is None else self.allocate(asked, at)
        if address is not None:
            self.lent[address] = size
        return address

    def allocate(self, asked: int, at: int | None = None) -> Address | None:
        """Return the address of a new array of ``asked`` bytes; None: no hole is large enough.

        Args:
            asked: bytes.
            at: the address, of a page; None: in the first hole that is large enough.
        """
        size = whole_pages(asked)
        holes = enumerate(zip(self.starts, self.ends, strict=True))
        if at is None:
            index = next((index for index, (start, end) in holes if end - start >= size), None)
        else:
            index = next((i for i, (start, end) in holes if start <= at and at + size <= end), None)
        if index is None:
            return None
        start, end = self.starts[index], self.ends[index]
        address = Address(start if at is None else at)
        # What is left of the hole, before and after the array.
        rest = [(a, b) for a, b in ((start, address), (address + size, end)) if a < b]
        self.starts[index : index + 1] = [a for a, _ in rest]
        self.ends[index : index + 1] = [b for _, b in rest]
        self.arrays[address] = asked
        self.used += size
        return address

    def shrink(self, address: Address, asked: int) -> tuple[Address, int]:
        """Make an array smaller at its place.

        Returns:
            Address and bytes, in whole pages, of what it gives back, to be passed to `release`.
        """
        before, after = whole_pages(self.arrays[address]), whole_pages(asked)
        require(0 < after <= before, "an array shrinks to more than it has, or to nothing")
        self.arrays[address] = asked
        return Address(address + after), before - after

    def free_after(self, address: Address, last_job: int) -> None:
        """Defers freeing an array until jobs up to ``last_job``, which never falls, have ended."""
        size = self.arrays.pop(address)
        self.waiting.append((last_job, address, size))
        self.waiting_bytes += whole_pages(size)

    def reclaim(self, oldest_job: int | None) -> list[tuple[Address, int]]:
        """Remove the waiting arrays whose last job is before ``oldest_job``; None: all of them.

        Returns:
            Their addresses and bytes in whole pages, to be passed to `release`.
        """
        settled = []
        while self.waiting and (oldest_job is None or self.waiting[0][0] < oldest_job):
            _, address, asked = self.waiting.popleft()
            size = whole_pages(asked)
            self.waiting_bytes -= size
            settled.append((address, size))
        return settled

    def release(self, address: Address, size: int) -> None:
        """Make ``size`` bytes in whole pages a hole, merged with adjacent holes."""
        end = address + size
        index = bisect_left(self.starts, address)
        joins_left = index > 0 and self.ends[index - 1] == address
        joins_right = index < len(self.starts) and self.starts[index] == end
        if joins_left and joins_right:
            self.ends[index - 1] = self.ends[index]
            del self.starts[index], self.ends[index]
        elif joins_left:
            self.ends[index - 1] = end
        elif joins_right:
            self.starts[index] = address
        else:
            self.starts.insert(index, address)
            self.ends.insert(index, end)
        self.used -= size

    def holes(self) -> list[tuple[Address, int]]:
        """Return the address and the bytes of each hole."""
        ends = zip(self.starts, self.ends, strict=True)
        return [(Address(start), end - start) for start, end in ends]

    def largest_hole(self) -> int:
        """Return the bytes of the largest hole."""
        return max((size for _, size in self.holes()), default=0)

    def nearest(self, address: int) -> tuple[Address, int] | None:
        """Return the address and requested size of the array nearest to ``address``.

        Arrays that wait to be freed count, as jobs may still use them. None: there are no arrays.
        """
        arrays = [*self.arrays.items(), *((start, size) for _, start, size in self.waiting)]

        def distance(array: tuple[Address, int]) -> tuple[int, int]:
            start, size = array
            return max(0, start - address, address - (start + size - 1)), start

        return min(arrays, key=distance, default=None)

    def validate(self) -> None:
        """Check every property that can be checked on one state.

        Raises:
            InternalError: one is violated.
        """
        asked = [*self.arrays.items(), *((address, size) for _, address, size in self.waiting)]
        require(all(size > 0 for _, size in asked), "an array of nothing")
        taken = sorted((address, whole_pages(size)) for address, size in asked)
        holes = list(zip(self.starts, self.ends, strict=True))
        pieces = sorted([*((start, start + size) for start, size in taken), *holes])
        at = int(self.arena.base)
        for start, end in pieces:
            require(start == at < end, "arrays and holes overlap, or leave a gap")
            at = end
        require(at == self.arena.base + self.arena.size, "the arena has another end")
        touching = set(self.starts) & set(self.ends)
        require(not touching, "two holes touch")
        require(self.used == sum(size for _, size in taken), "used bytes of an arena")
        waiting = sum(whole_pages(size) for *_, size in self.waiting)
        require(self.waiting_bytes == waiting, "waiting bytes")
        order = [job for job, *_ in self.waiting]
        require(order == sorted(order), "waiting ranges are out of order")


def whole_pages(size: int) -> int:
    """Return the bytes of the pages that hold ``size`` bytes."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def require(holds: bool, what: str) -> None:
    """Check a condition on the accounting; ``what`` names its violation.

    Raises:
        InternalError: ``holds`` is False.
    """
    if not holds:
        raise InternalError(f"memory accounting is wrong: {what}", stage="memory")
