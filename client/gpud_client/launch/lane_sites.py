"""A lane's launch sites: which it has, and which one is replaced when it has as many as it may.

Properties:
    least_recent: the site that is replaced is the one whose last launch was written before those of
        all others;
    not_in_flight: that launch has ended before; and nobody is about to write another.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from gpud.errors import LimitExceeded
from gpud.wire.lane_ring import INLINE_BYTES, MOST_SITES
from gpud.wire.messages import PrepareLaunch
from gpud_client.connection.pending import Operation, Request
from gpud_client.launch.kernels import Launch
from gpud_client.launch.lane_base import LaneBase
from gpud_client.launch.lane_completions import Point

__all__ = ["LaunchSite", "pinned", "prepare", "unpin", "written"]

_RECORD = "<6I4xI"


class LaunchSite:
    """A launch site.

    Attributes:
        number: its number; -1 when another has it.
        size: bytes of the parameters.
        record: how a launch is packed; None: they do not fit into a slot, or are checked.
        last: the last launch that was written of it.
        pins: how many submissions are about to write launches of it.
    """

    __slots__ = ("last", "number", "pins", "record", "size")

    def __init__(self, number: int, size: int, record: struct.Struct | None) -> None:
        self.number = number
        self.size = size
        self.record = record
        self.last = -1
        self.pins = 1


def pinned(lane: LaneBase, launch: Launch) -> LaunchSite | None:
    """Return the launch site of a launch, which is not replaced before `unpin`; None: make one."""
    with lane._lock:
        site: LaunchSite | None = lane._sites.get((launch.kernel, launch.block, launch.shared))
        if site is not None:
            site.pins += 1
        return site


def written(lane: LaneBase, sites: Iterable[LaunchSite]) -> None:
    """Note that launches of these sites may have been written, up to the lane's latest."""
    with lane._lock:
        for site in sites:
            site.last = lane._at - 1


def unpin(lane: LaneBase, sites: Iterable[LaunchSite]) -> None:
    """Let these sites be replaced."""
    with lane._lock:
        for site in sites:
            site.pins -= 1


def prepare(lane: LaneBase, launch: Launch) -> Operation[LaunchSite]:
    """Have the device make a launch site, pinned, and keep it.

    Raises:
        LaneRefused: no lane can launch the kernel.
        LimitExceeded: all of the lane's sites are about to be used.
        GpudError: as for any launch.
    """
    kernel = launch.kernel
    packed = yield from kernel._pack(launch, lane.device)
    index = kernel._indices[lane.device.index]
    number, block, shared = packed.number, launch.block, launch.shared
    replaces = yield from _replaceable(lane)
    try:
        answer = yield Request(
            lambda request: PrepareLaunch(
                request, lane._number, number, index, block, shared, replaces
            )
        )
    except BaseException:
        with lane._lock:
            if replaces is None:
                lane._site_count -= 1
            else:
                lane._free_sites.append(replaces)
        raise
    size = len(launch._parameters)
    usual = size <= INLINE_BYTES and lane._session._core.checking is None
    record = struct.Struct(_RECORD + kernel._packer.layout) if usual else None
    site = LaunchSite(int(answer.value), size, record)
    with lane._lock:
        lane._sites[kernel, block, shared] = site
        if block[1:] == (1, 1):
            lane._sites[kernel, block[0], shared] = site  # as most people write it
    return site


def _replaceable(lane: LaneBase) -> Operation[int | None]:
    """Return the number of a launch site to replace, of which no launch is under way.

    None: there is room for another one.
    """
    with lane._lock:
        if lane._free_sites:
            return lane._free_sites.pop()
        if lane._site_count < MOST_SITES:
            lane._site_count += 1
            return None
        unused = [site for site in lane._sites.values() if not site.pins]
        if not unused:
            raise LimitExceeded(
                f"all {MOST_SITES} launch sites of the lane are about to be used: submit fewer "
                "different launches at once",
                limit="launch sites",
                value=MOST_SITES,
            )
        oldest = min(unused, key=lambda site: site.last)
        for key in [key for key, site in lane._sites.items() if site is oldest]:
            del lane._sites[key]
        number: int = oldest.number
        oldest.number = -1
    yield [Point(lane, oldest.last)]
    return number
