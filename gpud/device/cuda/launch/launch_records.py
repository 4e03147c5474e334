"""The records of launches, in host memory that the GPU accesses, and the words that release blocks.

Problem: a persistent block reads a word of its launch record before every claim. The host must
change the word while the kernel runs, with low latency, without a driver call and without needing
room on an SM.

Approach: the launch record, and the status record in which blocks report
(`gpud.compiler.abi.control_words`), lie in page-locked host memory that the GPU accesses over the
bus. A release is one store of the host, and what blocks report is read without asking the driver.

Blocks report with plain stores to a place of their own, which nothing waits for: an atomic on host
memory is a round trip over the bus, and those on one word are made one after the other. The host
stores and loads whole words, which is atomic for both sides (CUDA Programming Guide 13, 5.7.3). No
word is written by both.

Properties:
* a record is complete before the launch that follows it is queued;
* a slot's memory is reused only after it was returned;
* `Slot.live` is never less than the true number.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gpud.compiler.abi import control_words as cw
from gpud.device.cuda.memory.pool import MappedBlock, Pool

__all__ = ["LaunchRecords", "Slot"]

_STAYS, _NAMED = range(2)

_MOST_KEPT, _MOST_SIZES = 32, 64
"""Slots that are kept of each number of blocks, and of how many numbers; others return memory."""


class Slot:
    """The records of one launch, in one ``page``: the launch record, and the status record behind.

    ``blocks`` is the number of persistent blocks, 0 in other forms; ``orders``, uint32[n, 2], the
    two words that each 32 blocks read; ``sms`` is 1 + the SM of each block, 0 for one that has not
    begun. ``address`` is the launch record's, the kernel's hidden parameter, and ``status`` that of
    the status record.
    """

    __slots__ = ("_addresses", "_left", "_status", "address", "blocks", "orders", "page", "sms",
                 "status")  # fmt: skip

    def __init__(self, page: MappedBlock, blocks: int) -> None:
        self.page = page
        self.blocks = blocks
        size = cw.launch_bytes(blocks)
        self.address = page.address
        self.orders: npt.NDArray[np.uint32] = page.words[cw.ORDERS // 4 : size // 4].reshape(-1, 2)
        self.status: int = page.address + size
        self._addresses = page.words[: cw.BASE // 4].view(np.uint64)
        self._status = page.words[size // 4 :]
        sm_bytes = page.view[size + cw.SM : size + cw.SM + 2 * blocks]
        self.sms: npt.NDArray[np.uint16] = sm_bytes.view(np.uint16)
        # As truth values, which are counted the fastest.
        self._left = page.view[size + cw.left_at(blocks) :][:blocks].view(np.bool_)

    def write(self, job: int, base: int, bitmap: int) -> None:
        """Initialise both records for a launch that has not begun."""
        fresh = _fresh(self.blocks)
        self.page.view[: len(fresh)] = fresh
        self._addresses[0] = job
        self._addresses[1] = self.status
        self.page.words[cw.BASE // 4] = base
        if bitmap:
            self.set_bitmap(bitmap)

    def set_stays(self, stays: npt.NDArray[np.uint32]) -> None:
        """Tell blocks whose bit is 0 to release."""
        self.orders[:, _STAYS] = stays

    def halt(self) -> None:
        """Tell all blocks to release."""
        self.orders[:, _STAYS] = 0

    def set_bitmap(self, bitmap: int) -> None:
        """Set the address of the bitmap of barred SMs, 0: none."""
        self.orders[:, _NAMED] = cw.named_at(int(self._addresses[0]), bitmap)

    @property
    def live(self) -> int:
        """How many persistent blocks have not left."""
        return self.blocks - int(np.count_nonzero(self._left))

    @property
    def begun(self) -> bool:
        """Whether the first block has begun; may be late to say so."""
        return bool(self.sms[0] if self.blocks else self._status[cw.BEGUN // 4])


@lru_cache(maxsize=_MOST_SIZES)
def _fresh(blocks: int) -> npt.NDArray[np.uint8]:
    """Return the records of a launch that has not begun, but for addresses and ``base``."""
    return np.frombuffer(cw.launch_record(0, 0, blocks) + cw.status_record(blocks), np.uint8)


class LaunchRecords:
    """Slots of a device, in memory of its pool ``host``; some are kept for later launches."""

    def __init__(self, host: Pool) -> None:
        self._host = host
        self._kept: dict[int, list[Slot]] = {}

    def take(self, blocks: int) -> Slot:
        """Return a slot for a launch of ``blocks`` persistent blocks, 0 in other forms.

        Raises:
            OutOfMemory: the driver has none left.
        """
        kept = self._kept.get(blocks)
        if kept:
            return kept.pop()
        page: MappedBlock = self._host.take(cw.launch_bytes(blocks) + cw.status_bytes(blocks))
        return Slot(page, blocks)

    def give(self, slot: Slot) -> None:
        """Take a slot back: the launch is over, or never began."""
        kept = self._kept.get(slot.blocks)
        if kept is None and len(self._kept) < _MOST_SIZES:
            kept = self._kept[slot.blocks] = []
        if kept is None or len(kept) >= _MOST_KEPT:
            self._host.give(slot.page)
        else:
            kept.append(slot)
