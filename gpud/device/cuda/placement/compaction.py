"""Compaction: offline blocks move together where online ones find no room.

Problem: capacity is counted in slices of any SMs. An online launch may have its share in sum, and
no SM on which one of its blocks fits: an offline job that has three quarters of the device has
three quarters of every SM, and jobs that gave up blocks may have given up others' neighbours.
Blocks of the online launch would wait until some offline kernel is over.

Approach: the watcher adds up what the blocks that stay take of each SM, 1/M each. So it sees, as
soon as an online launch has begun, for how many of its blocks there will be no room when all have
left that leave anyway, and bars as many SMs as these need: offline blocks on them leave at their
next task block, and none begins there. When the online blocks are there, or their launch is over,
the SMs are open again: offline jobs begin on other SMs, or there, what they lack of their share.
They have moved together by that, so that it seldom has to be done again.

That sum is not all: the hardware hands out registers in pieces, and nobody knows where blocks of
kernels in sliced and whole form are. So SMs are barred, too, for blocks that do not come though
nobody is leaving any more.

Terms: a launch *lacks* the blocks of it that are not told to leave and have not begun, as long as
something is left for them to claim. It is *short* of those of them for which there is no room.

Properties:
* SMs are barred only for a launch that is short of blocks, or lacks some at two looks with nobody
  leaving at either;
* those of which offline blocks take the least are, and first those without online ones; an SM whose
  number cannot be named is not;
* they are not barred longer than `_SECONDS` after the last has left for a launch that does not come
  all the same, and then not again for the same one: what it waits for is something else.

Nothing here has run on a GPU yet; how soon blocks come after others have left is a guess.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpud.compiler.abi.control_words import MOST_SMS

if TYPE_CHECKING:
    from gpud.device.cuda.execution.gang import Gang
    from gpud.device.cuda.launch.active_launches import ActiveLaunch

__all__ = ["NOBODY", "Compaction", "PendingBlocks", "Shares"]

_SECONDS: Final = 0.1
"""Twenty times as long as a long task block's 5 ms."""

_SETTLED_S: Final = 40e-6
"""How long a block takes at most to begin where there is room; looks are further apart."""

_NEARLY: Final = 1e-9
"""Of a block: what sums of 1/M may be wrong by."""

Shares = npt.NDArray[np.float64]
"""What blocks take of each SM, by ``%smid``; 1: all of it. Last, of those that cannot be named."""

NOBODY: Final[Shares] = np.zeros(MOST_SMS + 1)


class PendingBlocks(NamedTuple):
    """Blocks of a run that have not begun.

    Attributes:
        blocks: how many.
        occupancy: M of their launch.
        launches: the launches of it.
        sms: where they may be; None: on any SM.
        most: how many of its blocks fit there if nobody else is.
    """

    blocks: int
    occupancy: int
    launches: tuple[ActiveLaunch, ...]
    sms: frozenset[int] | None
    most: int


class Compaction:
    """Bars SMs. Under the device's lock.

    Attributes:
        barred: SMs on which no offline block is to be, by ``%smid``.
        clock: tells the time in seconds; tests have their own.
    """

    def __init__(self) -> None:
        self.barred: frozenset[int] = frozenset()
        self.clock: Callable[[], float] = time.monotonic
        self._pending_since: dict[ActiveLaunch, float] = {}  # since when, with nobody leaving
        self._hopeless: set[ActiveLaunch] = set()
        self._until = 0.0

    def poll(self, gangs: Iterable[Gang]) -> bool:
        """See who lacks what; whether other SMs are barred now, which every run is to be told."""
        gangs = tuple(gangs)
        waiting = [
            pending for gang in gangs if gang.urgent and (pending := gang.pending) is not None
        ]
        launches = {launch for pending in waiting for launch in pending.launches}
        self._hopeless &= launches
        if not waiting:
            self._pending_since.clear()
            return self._bar(frozenset())
        now = self.clock()
        if any(gang.leaving for gang in gangs):
            self._pending_since.clear()
            self._until = now + _SECONDS
        elif self.barred and now >= self._until:
            self._hopeless |= launches
            return self._bar(frozenset())
        else:
            self._pending_since = {
                launch: self._pending_since.get(launch, now) for launch in launches
            }
        online, offline = NOBODY.copy(), NOBODY.copy()
        for gang in gangs:
            side = online if gang.urgent else offline
            side += gang.sm_usage
        wanted: frozenset[int] = self.barred
        for pending in waiting:
            if not self._hopeless.issuperset(pending.launches):
                since = max(self._pending_since.get(launch, now) for launch in pending.launches)
                wanted |= _chosen(pending, online, offline, settled=now - since >= _SETTLED_S)
        if wanted != self.barred and not self.barred:
            self._until = now + _SECONDS
        return self._bar(wanted)

    def _bar(self, sms: frozenset[int]) -> bool:
        changed = sms != self.barred
        self.barred = sms
        if changed:
            self._pending_since.clear()
        return changed


def _chosen(
    pending: PendingBlocks, online: Shares, offline: Shares, *, settled: bool
) -> frozenset[int]:
    """The SMs that offline blocks are to leave for it; ``settled``: no block comes any more."""
    taken, kept = _taken(pending, online + offline), _taken(pending, online)
    short = pending.blocks if settled else pending.blocks + int(taken.sum()) - pending.most
    if short <= 0:
        return frozenset()
    gained = (taken - kept)[:MOST_SMS]
    order = np.lexsort((offline[:MOST_SMS], online[:MOST_SMS]))
    order = order[gained[order] > 0]
    enough = int(np.searchsorted(np.cumsum(gained[order]), short)) + 1
    return frozenset(order[:enough].tolist())


def _taken(pending: PendingBlocks, shares: Shares) -> npt.NDArray[np.int64]:
    """How many blocks fewer fit on each SM than if nobody were there; 0 where they cannot be."""
    found = (
        np.ceil(shares * pending.occupancy - _NEARLY).clip(0, pending.occupancy).astype(np.int64)
    )
    if pending.sms is not None:
        found[[sm not in pending.sms for sm in range(len(found))]] = 0
    return found
