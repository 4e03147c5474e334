"""The two zones of one device's memory: persistent regions from its start, temporary at its end.

Problem: workloads that take turns on a device keep what lives across their iterations, and share
the memory for what lives within one. All that they keep must fit side by side, with room to grow,
and beside it the largest need within one iteration: not the sum of these needs.

Approach: the persistent zone begins at the device's first byte. A region is placed behind the last
one and its offset, or in the first gap that a closed workload has left and that is large enough.
The temporary zone ends at the device's last byte and is as large as the largest need, so that the
two begin as far apart as the device's memory allows. Movable regions are, or are not, in a common
region (`gpud.core.workloads.window`), which is placed as any other and changes its size at its end.
Positions are where memory is counted; `gpud.core.memory.ledger` gives addresses.

Terms (units in brackets):
    position [bytes]: from the device's first byte.
    region: the persistent memory of a workload.
    offset [bytes]: what stays free behind a region, into which it can grow at its place.

Properties:
    apart: no region and its offset overlap another one's, or the temporary zone;
    sufficient: the temporary zone is as large as the largest need;
    atomic: a call that raises or returns None has changed nothing.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from gpud.core.memory.allocator import PAGE_BYTES, require, whole_pages
from gpud.core.workloads.window import Window

__all__ = ["Need", "Region", "Zones"]


class Need(NamedTuple):
    """The memory that a workload asks for, in bytes.

    Attributes:
        persistent: what lives across its iterations, 1 byte or more.
        temporary: what lives within one of them, at most.
        offset: the room in which the persistent memory can grow.
    """

    persistent: int
    temporary: int
    offset: int

    @property
    def whole(self) -> Need:
        """The same in whole pages."""
        return Need(*(whole_pages(size) for size in self))


class Region(NamedTuple):
    """A workload's persistent memory, and the room behind it.

    Attributes:
        start: position of its first byte; of a movable one that is away, of the common region.
        size: bytes, in whole pages.
        offset: bytes behind it in which it can grow.
        workload: whose it is.
    """

    start: int
    size: int
    offset: int
    workload: int

    @property
    def end(self) -> int:
        """Position behind the region's offset, where the next region may begin."""
        return self.start + self.size + self.offset


class Zones:
    """The zones of one device.

    Args:
        size: of the device's memory for arrays, in bytes.

    Attributes:
        size: the same.
        window: the common region of the movable ones.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.window = Window()
        self._regions: list[Region] = []  # sorted by start
        self._temporary: dict[int, int] = {}

    # -- queries

    @property
    def regions(self) -> tuple[Region, ...]:
        """The regions that are always on the device, by position."""
        return tuple(self._regions)

    @property
    def movable(self) -> tuple[Region, ...]:
        """The movable regions, wherever they are."""
        found = (self.region(workload) for workload in self.window)
        return tuple(region for region in found if region is not None)

    @property
    def present(self) -> tuple[Region, ...]:
        """The regions that have a place on the device now, by position."""
        there = [one for one in self.movable if self.window[one.workload].start is not None]
        return tuple(sorted([*self._regions, *there]))

    @property
    def temporary(self) -> Mapping[int, int]:
        """The temporary need of each workload, in bytes."""
        return MappingProxyType(self._temporary)

    @property
    def temporary_bytes(self) -> int:
        """The size of the temporary zone."""
        return max(self._temporary.values(), default=0)

    @property
    def persistent_end(self) -> int:
        """The position behind the last region and its offset."""
        return max((end for _, end in self._taken(self.window.size)), default=0)

    @property
    def persistent_bytes(self) -> int:
        """The bytes of all regions with their offsets; of movable ones, of their common region."""
        return self._fixed_bytes + self.window.size

    @property
    def used_bytes(self) -> int:
        """The bytes that both zones take from the device."""
        return self.persistent_bytes + self.temporary_bytes

    def region(self, workload: int) -> Region | None:
        """Return a workload's region; None if it has none."""
        if workload in self.window:
            one = self.window[workload]
            return Region(self.window.start + (one.start or 0), one.size, one.offset, workload)
        return next((one for one in self._regions if one.workload == workload), None)

    def position(
        self, need: Need, other_bytes: int = 0, window_bytes: int | None = None
    ) -> int | None:
        """Return where a region for ``need`` would begin; None: it does not fit now.

        Args:
            need: in whole pages.
            other_bytes: the device's memory that is in use outside of the zones.
            window_bytes: the size of the common region; None: the one that it has.
        """
        window = self.window.size if window_bytes is None else window_bytes
        temporary = max(self.temporary_bytes, need.temporary)
        size = need.persistent + need.offset
        if self._fixed_bytes + window + size + temporary + other_bytes > self.size:
            return None
        at = 0
        taken = self._taken(window)
        last = max((end for _, end in taken), default=0)
        for start, end in taken:
            if start - at >= size and last + temporary <= self.size:
                return at
            at = end
        return at if at + size + temporary <= self.size else None

    def window_for(self, need: Need, other_bytes: int, *, movable: bool) -> int | None:
        """Return how large the common region can be if ``need`` is placed, too; None: not at all.

        It may be less than it is now: then ``need`` fits once regions behind its end are away.

        Args:
            need: in whole pages.
            other_bytes: the device's memory that is in use outside of the zones.
            movable: whether it is for a movable region.
        """
        window, size = self.window, need.persistent + need.offset
        if movable:
            most = self._room(max(self.temporary_bytes, need.temporary), other_bytes)
            most = min(most, window.total + size)
            return most if most >= max(window.largest, size) else None
        if self.position(need, other_bytes) is not None:
            return window.size
        if not window.size:
            return None
        temporary = max(self.temporary_bytes, need.temporary)
        left = self.size - self._fixed_bytes - size - temporary - other_bytes
        after = [start for start, _ in self._taken(0) if start >= window.start]
        end = min([*after, self.size - temporary])
        for most in (left, min(left, end - size - window.start)):
            smaller = min(window.size, most // PAGE_BYTES * PAGE_BYTES)
            if smaller < window.largest:
                break
            if self.position(need, other_bytes, smaller) is not None:
                return smaller
        return None

    @property
    def _fixed_bytes(self) -> int:
        return sum(region.size + region.offset for region in self._regions)

    def _taken(self, window_bytes: int) -> list[tuple[int, int]]:
        """Return start and end of each region and of the common one, by position."""
        taken = [(region.start, region.end) for region in self._regions]
        if window_bytes:
            taken.append((self.window.start, self.window.start + window_bytes))
        return sorted(taken)

    def _room(self, temporary: int, other_bytes: int) -> int:
        """Return the most bytes that the common region can have, at its place if it has one."""
        left = self.size - self._fixed_bytes - temporary - other_bytes
        start, end = self.window.start, self.size - temporary
        if not self.window.size:
            start = self._regions[-1].end if self._regions else 0
        if any(region.end > end for region in self._regions):
            return 0
        following = [region.start for region in self._regions if region.start > start]
        return max(0, min([left, end - start, *(one - start for one in following)])) & -PAGE_BYTES

    # -- changes

    def place(self, workload: int, need: Need, other_bytes: int = 0) -> Region | None:
        """Give a workload its region, and make the temporary zone large enough.

        Returns:
            The region; None if it does not fit, see `position`.
        """
        require(self.region(workload) is None, f"workload {workload} has a region already")
        whole = need.whole
        require(whole.persistent > 0, f"workload {workload} keeps nothing")
        start = self.position(whole, other_bytes)
        if start is None:
            return None
        region = Region(start, whole.persistent, whole.offset, workload)
        insort(self._regions, region, key=attrgetter("start"))
        self._temporary[workload] = whole.temporary
        return region

    def place_movable(self, workload: int, need: Need, window_bytes: int) -> None:
        """Give a workload a movable region in the common one, which is made ``window_bytes`` large.

        Args:
            workload: whose it is.
            need: of the workload.
            window_bytes: as `window_for` returned it; no region lies behind it.
        """
        require(self.region(workload) is None, f"workload {workload} has a region already")
        whole = need.whole
        require(whole.persistent > 0, f"workload {workload} keeps nothing")
        if not self.window.size:
            self.window.start = self._regions[-1].end if self._regions else 0
        self.window.size = window_bytes
        self.window.add(workload, whole.persistent, whole.offset)
        self._temporary[workload] = whole.temporary

    def fit_window(self, other_bytes: int, *, widen: bool) -> None:
        """Make the common region as large as all movable ones, as far as that is possible.

        Args:
            other_bytes: the device's memory that is in use outside of the zones.
            widen: whether it may become larger.
        """
        window = self.window
        wanted = window.total
        if wanted > window.size:
            most = self._room(self.temporary_bytes, other_bytes) if widen and window.size else 0
            window.size = max(window.size, min(wanted, most))
        else:
            window.size = max(wanted, window.occupied_end)

    def grow(self, workload: int, size: int) -> Region | None:
        """Grow a region at its place to ``size`` bytes, within its offset.

        Returns:
            The region as it is then; None if its offset is too small.
        """
        region = self.region(workload)
        require(region is not None, f"workload {workload} has no region")
        assert region is not None
        size = max(whole_pages(size), region.size)
        if workload in self.window:
            return self.region(workload) if self.window.grow(workload, size) else None
        if size > region.size + region.offset:
            return None
        grown = region._replace(size=size, offset=region.offset - (size - region.size))
        self._regions[self._regions.index(region)] = grown
        return grown

    def shrink(self, workload: int, need: Need) -> Region | None:
        """Give back what a workload does not need: its memory stays where it is.

        Returns:
            The region as it is then; None if the workload has less than it needs.
        """
        region, whole = self.region(workload), need.whole
        require(region is not None, f"workload {workload} has no region")
        assert region is not None
        size = whole.persistent + whole.offset
        if size > region.size + region.offset or whole.temporary > self._temporary[workload]:
            return None
        shrunk = region._replace(size=whole.persistent, offset=whole.offset)
        self._regions[self._regions.index(region)] = shrunk
        self._temporary[workload] = whole.temporary
        return shrunk

    def remaining(self, other_bytes: int) -> Need:
        """Return a need that takes all that can be had, half of it for each kind.

        Args:
            other_bytes: the device's memory that is in use outside of the zones.
        """
        end = max(self.persistent_end, self.persistent_bytes)
        left = self.size - end - self.temporary_bytes - other_bytes
        pages = max(0, left // PAGE_BYTES)
        persistent = pages // 2 * PAGE_BYTES
        temporary = self.temporary_bytes + (pages - pages // 2) * PAGE_BYTES
        return Need(min(PAGE_BYTES, persistent), temporary, max(0, persistent - PAGE_BYTES))

    def remove(self, workload: int) -> None:
        """Take a workload's memory out of both zones."""
        region = self.region(workload)
        require(region is not None, f"workload {workload} has no region")
        assert region is not None
        if workload in self.window:
            self.window.remove(workload)
        else:
            self._regions.remove(region)
        del self._temporary[workload]

    def validate(self) -> None:
        """Check every property.

        Raises:
            InternalError: one is violated.
        """
        at = 0
        for start, end in self._taken(self.window.size):
            require(start >= at, "two regions overlap")
            at = end
        for region in self._regions:
            require(region.size >= 0 and region.offset >= 0, "a region of less than nothing")
        self.window.validate()
        require(at + self.temporary_bytes <= self.size, "the two zones overlap")
        owners = [*(region.workload for region in self._regions), *self.window]
        require(set(owners) == set(self._temporary), "a workload has memory in one zone only")
        require(len(set(owners)) == len(owners), "a workload has two regions")
