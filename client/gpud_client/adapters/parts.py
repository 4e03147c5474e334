"""Places the allocations of a profile so that few granules hold what turns out to persist.

Problem: what persists of a profiled iteration stays where it was made, and memory is kept in whole
granules: one small array would keep a granule, and a large one the two at its ends.

Approach: large parts begin at granules, and small ones lie together in a part of the range that is
theirs. If that is full, a small part has a granule of its own.

Properties:
    whole: a part of a granule or more shares its granules with no other part.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpud_client.workloads.memory import MemoryRange

__all__ = ["ProfileParts"]

_SMALL = 8
"""Small parts have 1 / `_SMALL` of the range."""


class ProfileParts:
    """The parts of a range, given by their offsets.

    Args:
        size: of the range, in bytes.
        granule: bytes.
    """

    def __init__(self, size: int, granule: int) -> None:
        self._granule = granule
        self._first_large = min(size, self._whole(size // _SMALL))
        self._small = MemoryRange(0, self._first_large, ())
        self._large = MemoryRange(self._first_large, size - self._first_large, ())

    def take(self, size: int) -> int | None:
        """Return the offset of a new part; None: there is no room."""
        offset = self._small.take(size) if size < self._granule else None
        return self._large.take(self._whole(size)) if offset is None else offset

    def give_back(self, offset: int, size: int) -> None:
        """Make a part free."""
        if offset < self._first_large:
            self._small.give_back(offset, size)
        else:
            self._large.give_back(offset, self._whole(size))

    def restrict(self, pieces: Sequence[tuple[int, int]]) -> None:
        """Have room only within ``pieces``, sorted (offset, end), in which all parts lie."""
        first = self._first_large
        self._small.restrict((start, min(end, first)) for start, end in pieces if start < first)
        large = [(max(start, first), end) for start, end in pieces if end > first]
        self._large.restrict((start - first, end - first) for start, end in large)

    def _whole(self, size: int) -> int:
        return -(-size // self._granule) * self._granule
