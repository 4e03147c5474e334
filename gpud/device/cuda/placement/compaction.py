"""Compaction: offline blocks leave some SMs so that online blocks find room there.

Problem: capacity is counted in slices of any SMs. An online launch may have its share in total, and
no SM on which one of its blocks fits: an offline job that has three quarters of the device has
three quarters of every SM, and the slices that several jobs released may be on different SMs.
Blocks of the online launch would wait until some offline kernel is over.

Approach: the watcher sums what the blocks that are to stay take of each SM, 1/M each. So, as soon
as an online launch has begun, it knows for how many of its blocks there will be no room when all
blocks have left that are about to, and bars as many SMs as these need: offline blocks on them leave
at their next task block, and none begins there. When the online blocks have begun, or their launch
is over, the SMs are open again: offline jobs launch what they lack of their share on other SMs, or
there. As that packs them together, compaction is seldom needed again.

The sum is not exact: the hardware allocates registers in units, and the placement of blocks of
kernels in sliced and whole form is not known. So SMs are also barred for blocks that do not begin
although no block is about to leave.

Terms: the *pending* blocks of a launch are not told to release and have not begun, while task
blocks are left to claim. The launch is *short* of those of them for which there is no room.

Properties:
* SMs are barred only for a launch that is short of blocks, or has pending blocks at two polls with
  no block leaving at either;
* those SMs are barred of which offline blocks take the least, and first those without online
  blocks; an SM whose number the bitmap cannot hold is not barred;
* SMs are not barred longer than `_SECONDS` after the last block has left if the launch's blocks
  still do not begin, and then not again for that launch: it waits for something else.

How soon blocks begin after others have left is a guess.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gpud.compiler.abi.control_words import MOST_SMS
from gpud.device.cuda.launch.active_launch import ActiveLaunch

__all__ = ["NO_USAGE", "Compaction", "PendingBlocks", "PlacedRun", "SMUsage"]

_SECONDS: Final = 0.1
"""Twenty times as long as a long task block's 5 ms."""

_SETTLED_S: Final = 40e-6
"""How long a block takes at most to begin where there is room; polls are further apart."""

_NEARLY: Final = 1e-9
"""Rounding error allowed in a sum of 1/M, in blocks."""

SMUsage = npt.NDArray[np.float64]
"""What blocks take of each SM, by ``%smid``; 1: all of it. The last item is for all SMs with larger
numbers."""

NO_USAGE: Final[SMUsage] = np.zeros(MOST_SMS + 1)


class PendingBlocks(NamedTuple):
    """Blocks of a run's current launch that have not begun.

    Attributes:
        blocks: how many.
        occupancy: M of the launch.
        launches: what of it is on the device.
        sms: where they may begin; None: on any SM.
        most: how many blocks of the launch fit there if nothing else is resident.
    """

    blocks: int
    occupancy: int
    launches: tuple[ActiveLaunch, ...]
    sms: frozenset[int] | None
    most: int


class PlacedRun(Protocol):
    """What compaction needs to know of a run that has launches on the device."""

    urgent: bool

    @property
    def pending(self) -> PendingBlocks | None:
        """Blocks of the current launch that have not begun; None: there are none."""

    @property
    def leaving(self) -> bool:
        """Whether resident blocks are about to leave."""

    @property
    def sm_usage(self) -> SMUsage:
        """What its blocks that are to stay take of each SM."""


class Compaction:
    """Decides which SMs are barred to offline blocks. Under the device's lock.

    Attributes:
        barred: SMs on which no offline block is to be, by ``%smid``.
        clock: returns the time in seconds; tests replace it.
    """

    def __init__(self) -> None:
        self.barred: frozenset[int] = frozenset()
        self.clock: Callable[[], float] = time.monotonic
        self._pending_since: dict[ActiveLaunch, float] = {}  # restarts when any block is leaving
        self._given_up: set[ActiveLaunch] = set()
        self._until = 0.0

    def poll(self, runs: Iterable[PlacedRun]) -> bool:
        """Update `barred` for launches with pending blocks; whether it changed, for every run."""
        runs = tuple(runs)
        waiting = [pending for run in runs if run.urgent and (pending := run.pending) is not None]
        launches = {launch for pending in waiting for launch in pending.launches}
        self._given_up &= launches
        if not waiting:
            self._pending_since.clear()
            return self._bar(frozenset())
        now = self.clock()
        if any(run.leaving for run in runs):
            self._pending_since.clear()
            self._until = now + _SECONDS
        elif self.barred and now >= self._until:
            self._given_up |= launches
            return self._bar(frozenset())
        else:
            self._pending_since = {
                launch: self._pending_since.get(launch, now) for launch in launches
            }
        online, offline = NO_USAGE.copy(), NO_USAGE.copy()
        for run in runs:
            side = online if run.urgent else offline
            side += run.sm_usage
        wanted: frozenset[int] = self.barred
        for pending in waiting:
            if not self._given_up.issuperset(pending.launches):
                since = max(self._pending_since.get(launch, now) for launch in pending.launches)
                wanted |= _sms_to_bar(pending, online, offline, settled=now - since >= _SETTLED_S)
        if wanted != self.barred and not self.barred:
            self._until = now + _SECONDS
        return self._bar(wanted)

    def _bar(self, sms: frozenset[int]) -> bool:
        changed = sms != self.barred
        self.barred = sms
        if changed:
            self._pending_since.clear()
        return changed


def _sms_to_bar(
    pending: PendingBlocks, online: SMUsage, offline: SMUsage, *, settled: bool
) -> frozenset[int]:
    """Return the SMs that offline blocks must leave.

    Args:
        pending: the blocks that need room.
        online: what online blocks take of each SM.
        offline: what offline blocks take of each SM.
        settled: whether all pending blocks need room that is not there, whatever the sums say.
    """
    taken, kept = _blocks_lost(pending, online + offline), _blocks_lost(pending, online)
    short = pending.blocks if settled else pending.blocks + int(taken.sum()) - pending.most
    if short <= 0:
        return frozenset()
    gained = (taken - kept)[:MOST_SMS]
    order = np.lexsort((offline[:MOST_SMS], online[:MOST_SMS]))
    order = order[gained[order] > 0]
    enough = int(np.searchsorted(np.cumsum(gained[order]), short)) + 1
    return frozenset(order[:enough].tolist())


def _blocks_lost(pending: PendingBlocks, shares: SMUsage) -> npt.NDArray[np.int64]:
    """Return how many fewer blocks fit on each SM than if it were empty; 0: may not begin."""
    lost = np.ceil(shares * pending.occupancy - _NEARLY).clip(0, pending.occupancy).astype(np.int64)
    if pending.sms is not None:
        lost[[sm not in pending.sms for sm in range(len(lost))]] = 0
    return lost
