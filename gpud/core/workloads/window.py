"""The common region of one device: movable regions, which are on the device or in host memory.

Problem: what workloads keep may add up to more than the device has. Those that agreed to it, the
*movable* ones, need their region on the device only in their turns; it should be back before a turn
begins, and be moved while others have theirs.

Approach: movable regions lie in one common region of the persistent zone, the *window*, which is
as large as all of them together if that fits, and at least as large as the largest. A region that
comes back is placed such that, with all but the one that has the turn gone, and then with that gone
as well, what is free is in as large a piece as can be: so two at opposite ends of the window
alternate, and one is moved while the other has its turn. `gpud.core.workloads.moves` decides which.

Properties:
    apart: regions that are on the device, or on their way, do not overlap, and lie in the window;
    whole: a region is in exactly one `Place`, and leaves or comes back as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import Enum
from typing import NamedTuple

from gpud.core.memory.allocator import require

__all__ = ["Movable", "Place", "Window"]


class Place(Enum):
    """Where a movable region is."""

    HERE = "on the device"
    LEAVING = "moving to host memory"
    AWAY = "in host memory"
    RETURNING = "moving to the device"


class Movable(NamedTuple):
    """A movable region.

    Attributes:
        size: bytes of persistent memory.
        offset: bytes behind it in which it can grow.
        place: where it is.
        start: its position in the window; None: it is away.
    """

    size: int
    offset: int
    place: Place = Place.AWAY
    start: int | None = None

    @property
    def total(self) -> int:
        """Its bytes with the offset."""
        return self.size + self.offset


class Window:
    """The movable regions of one device, by workload.

    Attributes:
        start: the window's position in the device's memory.
        size: its bytes; 0: there are no movable regions.
    """

    def __init__(self) -> None:
        self.start = 0
        self.size = 0
        self._movable: dict[int, Movable] = {}

    def __contains__(self, workload: int) -> bool:
        return workload in self._movable

    def __iter__(self) -> Iterator[int]:
        return iter(self._movable)

    def __len__(self) -> int:
        return len(self._movable)

    def __getitem__(self, workload: int) -> Movable:
        return self._movable[workload]

    # -- queries

    @property
    def total(self) -> int:
        """The bytes of all movable regions."""
        return sum(one.total for one in self._movable.values())

    @property
    def largest(self) -> int:
        """The bytes of the largest movable region."""
        return max((one.total for one in self._movable.values()), default=0)

    @property
    def occupied_end(self) -> int:
        """The position in the window behind the last region that is not away."""
        return max((end for _, end in self._taken(())), default=0)

    def at(self, place: Place) -> list[int]:
        """Return the workloads whose regions are in a place."""
        return [number for number, one in self._movable.items() if one.place is place]

    def find(
        self, size: int, limit: int, *, without: Collection[int] = (), beside: int | None = None
    ) -> int | None:
        """Return a position for ``size`` bytes; None: there is no room.

        Args:
            size: bytes.
            limit: the position at which the region has to end at the latest.
            without: workloads whose regions are taken as gone.
            beside: the workload whose region stays; what else is free then shall be in one piece,
                and as large as can be once that has gone, too.
        """
        taken = self._taken(without)
        starts = [0, *(end for _, end in taken)]
        ends = [*(start for start, _ in taken), limit]
        places = []
        for start, end in zip(starts, (min(end, limit) for end in ends), strict=True):
            if end - start >= size:
                places += [start, end - size]
        kept = None if beside is None else self._movable.get(beside)
        stays = [] if kept is None or kept.start is None else [(kept.start, kept.total)]

        def worth(at: int) -> tuple[int, int, int]:
            own = at, size
            return -_largest_gap([*stays, own], limit), -_largest_gap([own], limit), at

        return min(places, key=worth, default=None)

    def _taken(self, without: Collection[int]) -> list[tuple[int, int]]:
        """Return start and end of each region that is not away, by position."""
        return sorted(
            (one.start, one.start + one.total)
            for number, one in self._movable.items()
            if one.start is not None and number not in without
        )

    # -- changes

    def add(self, workload: int, size: int, offset: int) -> None:
        """Add a movable region, which is empty, and on the device if there is room."""
        require(workload not in self._movable, f"workload {workload} has a region already")
        start = self.find(size + offset, self.size)
        place = Place.AWAY if start is None else Place.HERE
        self._movable[workload] = Movable(size, offset, place, start)

    def remove(self, workload: int) -> None:
        """Remove a region, wherever it is."""
        del self._movable[workload]

    def grow(self, workload: int, size: int) -> bool:
        """Grow a region within its offset; returns whether that is large enough."""
        one = self._movable[workload]
        if size > one.total:
            return False
        self._movable[workload] = one._replace(size=size, offset=one.total - size)
        return True

    def leave(self, workload: int) -> None:
        """Record that a region begins to move to host memory."""
        self._change(workload, Place.HERE, Place.LEAVING)

    def left(self, workload: int) -> None:
        """Record that a region is in host memory, and its place on the device is free."""
        self._change(workload, Place.LEAVING, Place.AWAY)
        self._movable[workload] = self._movable[workload]._replace(start=None)

    def come_back(self, workload: int, start: int) -> None:
        """Record that a region begins to move to the device, to a position in the window."""
        self._change(workload, Place.AWAY, Place.RETURNING)
        self._movable[workload] = self._movable[workload]._replace(start=start)

    def is_back(self, workload: int) -> None:
        """Record that a region is on the device again."""
        self._change(workload, Place.RETURNING, Place.HERE)

    def _change(self, workload: int, before: Place, after: Place) -> None:
        one = self._movable[workload]
        require(one.place is before, f"the region of workload {workload} is {one.place.value}")
        self._movable[workload] = one._replace(place=after)

    def validate(self) -> None:
        """Check every property.

        Raises:
            InternalError: one is violated.
        """
        at = 0
        for start, end in self._taken(()):
            require(start >= at, "two movable regions overlap")
            at = end
        require(at <= self.size, "a movable region is outside of the window")
        for number, one in self._movable.items():
            away = one.place is Place.AWAY
            require(away == (one.start is None), f"region {number} is at two places or at none")
        require(self.largest <= self.size, "the window is smaller than a region")
        require(bool(self._movable) or not self.size, "a window of nobody")


def _largest_gap(spans: list[tuple[int, int]], limit: int) -> int:
    """Return the largest free piece beside spans, which are starts and sizes."""
    at = largest = 0
    for start, size in sorted(spans):
        largest, at = max(largest, start - at), start + size
    return max(largest, limit - at)
