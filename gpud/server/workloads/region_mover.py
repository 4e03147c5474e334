"""Moves regions of movable workloads out of their device's memory and back.

What is away lies in the session's own file, where it has its place. On a device with memory of its
own a region is copied there, and the device's memory is given back; coming back it is backed with
memory again and copied to the device. The memory of a CPU device is the machine's: there a region's
pages stay as they are, and are only counted elsewhere.

Properties:
    whole: the device's memory is given back only when all of a region is in the file;
    settled: `RegionMover.when_still` waits for a move under way, as its region must not be freed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from gpud.errors import GpudError
from gpud.server.ipc import memfd
from gpud.server.state.arenas import Arenas
from gpud.units import SessionId

__all__ = ["OnMoved", "Placed", "RegionMover"]

OnMoved = Callable[[GpudError | None], None]
"""Called when a move is over, with what went wrong."""


class Placed(NamedTuple):
    """A region in a session's arena.

    Attributes:
        session: whose it is.
        device: of which.
        address: device address.
        size: bytes.
    """

    session: SessionId
    device: int
    address: int
    size: int


class RegionMover:
    """The regions that are away, and those that move, each by the number of its workload.

    Args:
        arenas: the memory of sessions' arrays.

    Attributes:
        moved_bytes: how much of what was written has moved so far, in both directions.
        moving_ns: how long that took.
    """

    def __init__(self, arenas: Arenas) -> None:
        self._arenas = arenas
        self._away: dict[int, Placed] = {}
        self._moving: dict[int, list[Callable[[], None]]] = {}
        self.moved_bytes = 0
        self.moving_ns = 0

    @property
    def away_bytes(self) -> int:
        """Return the host memory that regions occupy."""
        return sum(map(self._written_bytes, self._away.values()))

    def is_away(self, workload: int) -> bool:
        """Return whether a workload's region is not on its device."""
        return workload in self._away

    def when_still(self, workload: int, action: Callable[[], None]) -> None:
        """Call ``action`` once the workload's region does not move, at once if it does not now."""
        if workload in self._moving:
            self._moving[workload].append(action)
        else:
            action()

    def note_away(self, workload: int, region: Placed) -> None:
        """Note that a new region, which is empty, is not on its device."""
        self._away[workload] = region

    def leave(self, workload: int, region: Placed, done: OnMoved) -> None:
        """Have a region leave its device, then call ``done``; after an error it is there, or lost.

        Its session has no job.
        """

        def left(error: GpudError | None) -> None:
            if error is None:
                self._away[workload] = region
            done(error)

        self._move(workload, region, self._arenas.move_out, left)

    def come_back(self, workload: int, region: Placed, done: OnMoved) -> None:
        """Have a region come back, then call ``done``; after an error it is still away."""

        def came(error: GpudError | None) -> None:
            if error is None:
                self.forget(workload)
            done(error)

        self._move(workload, region, self._arenas.move_in, came)

    def _move(self, workload: int, region: Placed, move: Callable[..., Any], done: OnMoved) -> None:
        if not self._arenas.is_copied(region.device):
            self.moved_bytes += self._written_bytes(region)
            done(None)
            return
        self._moving[workload] = []
        over = partial(self._over, workload, region, time.monotonic_ns(), done)
        move(region.session, region.device, (region.address, region.size), over)

    def _over(
        self,
        workload: int,
        region: Placed,
        began_ns: int,
        done: OnMoved,
        _: Any,
        error: GpudError | None,
    ) -> None:
        actions = self._moving.pop(workload)
        if error is None:
            self.moved_bytes += self._written_bytes(region)
            self.moving_ns += time.monotonic_ns() - began_ns
        done(error)
        for action in actions:
            action()

    def forget(self, workload: int) -> None:
        """Note that a workload's region is not away any more, or is gone."""
        self._away.pop(workload, None)

    def _written_bytes(self, region: Placed) -> int:
        known = self._arenas.arena_of(region.session, region.device)
        if known is None:  # its session has ended
            return 0
        base, _, descriptor = known
        return memfd.written_bytes(descriptor, region.address - base, region.size)
