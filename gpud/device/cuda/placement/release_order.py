"""Which blocks of a launch leave when it shrinks: those that empty whole SMs.

Problem: a GPU spreads the blocks of a launch over all SMs. If those with the highest indices leave,
every SM has some left, and a kernel of which few blocks fit on an SM finds room nowhere, though
its share is free in total.

Approach: blocks report on which SM they are (`gpud.device.cuda.program.report_blocks`), and each
can be released individually. So the blocks of one SM leave, then those of the next, in the same
order of SMs for all launches: where several shrink, the same SMs come free. Blocks that have not
begun leave before any other: they would take the room that comes free.

Terms: a block's *turn* is its position in the order in which blocks leave, from 0 on; the
*released* blocks are those that have been told to release.

Properties:
* ``exact``: of n blocks, ``n - limit`` are released, whatever is known of where they are;
* ``monotone``: a released block stays released, as long as limits fall;
* ``whole``: of the SMs on which blocks had begun when the order was computed, at most one has both
  released blocks and others, as long as limits are lowered and nothing is cleared;
* ``prepared``: what was computed ahead is what would be computed now;
* where no SM is known, or ``by_sm`` is False, the blocks with the highest indices leave.

SMs can also be *cleared*: all blocks on them are released then, whatever their turns were.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

__all__ = ["ReleaseOrder"]


@lru_cache(maxsize=64)
def _first_turns(count: int) -> npt.NDArray[np.int64]:
    """Return the turns of blocks that have not begun; they are replaced, not changed."""
    turns: npt.NDArray[np.int64] = np.arange(count - 1, -1, -1)
    turns.flags.writeable = False
    return turns


class ReleaseOrder:
    """The order in which the blocks of one launch leave.

    Args:
        sms: 1 + the SM of each block, 0: it has not begun; uint16, which the GPU writes.
        by_sm: whether whole SMs are to come free.
    """

    __slots__ = ("_begun", "_by_sm", "_count", "_released", "_rows", "_sms", "_turns")

    def __init__(self, sms: npt.NDArray[np.uint16], *, by_sm: bool) -> None:
        self._sms = sms
        self._by_sm = by_sm
        self._count = len(sms)
        self._turns = _first_turns(len(sms))
        self._begun = 0
        self._released = 0
        self._rows: dict[int, npt.NDArray[np.uint32]] = {}  # `stays` by limit, in this order

    def prepare(self, limits: Iterable[int]) -> None:
        """Compute `stays` ahead for these limits, so that a release does not have to."""
        for limit in limits:
            if limit < self._count - self._released:
                self._row(limit)

    def poll(self) -> None:
        """Update the order, if more blocks have begun, so that a release does not have to."""
        if self._by_sm and self._begun < self._count:
            keys = self._sms.copy()  # blocks begin meanwhile
            begun = int(np.count_nonzero(keys))
            if begun != self._begun:
                self._begun = begun
                keys += 1
                self._order(keys)

    def lower(self, limit: int) -> None:
        """Release blocks until ``limit`` are not released."""
        self.poll()
        self._released = self._count - limit

    def clear(self, sms: Collection[int]) -> int:
        """Release all blocks on these SMs; how many are not released then."""
        self.poll()
        keys = self._sms.copy()
        there = np.isin(keys, np.fromiter(sms, np.int64, len(sms)) + 1)
        there &= self._turns >= self._released
        keys += 1
        keys[there] = 0
        self._order(keys)
        self._released += int(np.count_nonzero(there))
        return self._count - self._released

    @property
    def stays(self) -> npt.NDArray[np.uint32]:
        """A bit for each block: whether it is not released."""
        return self._row(self._count - self._released)

    def _row(self, limit: int) -> npt.NDArray[np.uint32]:
        words = self._rows.get(limit)
        if words is None:
            bits = np.packbits(self._turns >= self._count - limit, bitorder="little")
            words = np.zeros(-(-self._count // 32), np.uint32)
            words.view(np.uint8)[: len(bits)] = bits
            self._rows[limit] = words
        return words

    def _order(self, keys: npt.NDArray[np.uint16]) -> None:
        """Sort blocks by their keys, behind those that are released already."""
        keys[self._turns < self._released] = 0
        # Reversed, so that of the blocks on one SM the last leaves first.
        order = self._count - 1 - np.argsort(keys[::-1], kind="stable")
        turns = np.empty(self._count, np.int64)
        turns[order] = np.arange(self._count)
        self._turns = turns
        self._rows.clear()

    @property
    def coming(self) -> int:
        """How many blocks are not released, and have not begun."""
        if self._begun == self._count:
            return 0
        return int(np.count_nonzero((self._sms == 0) & (self._turns >= self._released)))

    @property
    def absent(self) -> int:
        """How many blocks are released, and have not begun: each leaves as soon as it begins."""
        return int(np.count_nonzero((self._sms == 0) & (self._turns < self._released)))

    @property
    def resident_sms(self) -> npt.NDArray[np.intp]:
        """The SM of each block that has begun and is not released."""
        return self._sms[(self._sms > 0) & (self._turns >= self._released)].astype(np.intp) - 1
