"""Which blocks of a launch leave when it has to give some up: those that empty whole SMs.

Problem: a GPU deals the blocks of a launch out over all SMs. If those with the highest indices
leave, every SM has some left, and a kernel of which few blocks fit on an SM finds room nowhere,
though its share is free in sum.

Approach: blocks tell on which SM they are (`gpud.device.cuda.program.report_starts`), and each can
be told to leave by itself. So those of one SM leave, then those of the next, in the same order of
SMs for all
launches: where several give up blocks, the same SMs come free. Blocks that have not begun leave
before any other: they would take the room that comes free.

Terms: a block's *turn* is its place in the order in which blocks leave, from 0 on; the *told* are
those whose turn has come.

Properties:
* ``exact``: of n blocks, ``n - limit`` are told, whatever is known of where they are;
* ``monotone``: who is told stays told, as long as limits fall;
* ``whole``: of the SMs on which blocks had begun when the order was found, one at most has both
  told ones and others, as long as limits are lowered and nothing is cleared;
* where nothing is known, or they are not to leave by SM, those with the highest indices leave.

SMs can also be *cleared*: all blocks on them are told then, wherever their turns were.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

__all__ = ["ReleaseOrder"]


class ReleaseOrder:
    """The order in which the blocks of one launch leave.

    Args:
        sms: 1 + the SM of each block, 0: it has not begun; uint16, and changed from outside.
        by_sm: whether whole SMs are to come free.
    """

    __slots__ = ("_begun", "_by_sm", "_count", "_sms", "_told", "_turns")

    def __init__(self, sms: npt.NDArray[np.uint16], *, by_sm: bool) -> None:
        self._sms = sms
        self._by_sm = by_sm
        self._count = len(sms)
        self._turns: npt.NDArray[np.int64] = np.arange(len(sms) - 1, -1, -1)
        self._begun = 0
        self._told = 0

    def poll(self) -> None:
        """Find the order anew, if more blocks have begun: so that a release need not."""
        if self._by_sm and self._begun < self._count:
            keys = self._sms.copy()  # blocks begin meanwhile
            begun = int(np.count_nonzero(keys))
            if begun != self._begun:
                self._begun = begun
                keys += 1
                self._order(keys)

    def lower(self, limit: int) -> None:
        """Tell blocks until ``limit`` are not told."""
        self.poll()
        self._told = self._count - limit

    def clear(self, sms: Collection[int]) -> int:
        """Tell all blocks that are on these SMs; how many are not told then."""
        self.poll()
        keys = self._sms.copy()
        there = np.isin(keys, np.fromiter(sms, np.int64, len(sms)) + 1)
        there &= self._turns >= self._told
        keys += 1
        keys[there] = 0
        self._order(keys)
        self._told += int(np.count_nonzero(there))
        return self._count - self._told

    @property
    def stays(self) -> npt.NDArray[np.uint32]:
        """A bit for each block: whether it is not told."""
        bits = np.packbits(self._turns >= self._told, bitorder="little")
        words = np.zeros(-(-self._count // 32), np.uint32)
        words.view(np.uint8)[: len(bits)] = bits
        return words

    def _order(self, keys: npt.NDArray[np.uint16]) -> None:
        """Have blocks leave in the order of their keys, behind those that are told already."""
        keys[self._turns < self._told] = 0
        # Backwards, so that of blocks on one SM the last leaves first.
        order = self._count - 1 - np.argsort(keys[::-1], kind="stable")
        self._turns[order] = np.arange(self._count)

    @property
    def coming(self) -> int:
        """How many blocks are not told, and have not begun."""
        if self._begun == self._count:
            return 0
        return int(np.count_nonzero((self._sms == 0) & (self._turns >= self._told)))

    @property
    def absent(self) -> int:
        """How many blocks are told, and have not begun: they leave when there is room for them."""
        return int(np.count_nonzero((self._sms == 0) & (self._turns < self._told)))

    @property
    def resident_sms(self) -> npt.NDArray[np.intp]:
        """On which SMs those are that are not told and have begun: SM by number, one each."""
        return self._sms[(self._sms > 0) & (self._turns >= self._told)].astype(np.intp) - 1
