"""What the checking mode keeps for a block, and the numbers of its words and kinds of findings.

Terms: the *key* of a block is its launch and task block; when it changes, a new task block has
begun. Its *clock* counts the points at which its threads may have synchronised. A thread's ``sync``
is the clock's value up to which it has seen all threads of the block, its ``warp_sync`` likewise
for its warp.

A *word* of a shadow describes the last access to a byte: interval, thread, site, and two bits. 0 is
none.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final, NamedTuple

from gpud.device.cpu.abi.layout import BlockLayout, align_up

__all__ = [
    "ACCESS_FUNCTION",
    "ATOMIC",
    "FIRST_INTERVAL",
    "INTERVAL_SHIFT",
    "KEY_MARK",
    "MANY",
    "MOST_SHARED_BYTES",
    "SHARED_FUNCTION",
    "SHUFFLE_FUNCTION",
    "SITE_MASK",
    "SITE_SHIFT",
    "SNAPSHOT_BYTES",
    "STORED_FUNCTION",
    "SYNC_FUNCTION",
    "THREAD_MASK",
    "THREAD_SHIFT",
    "CheckState",
    "block_state",
]

MANY: Final = 1
"""Several threads have read the byte; the word has one of them."""
ATOMIC: Final = 2
SITE_SHIFT: Final = 2
SITE_MASK: Final = (1 << 20) - 1
THREAD_SHIFT: Final = 22
THREAD_MASK: Final = 1023
INTERVAL_SHIFT: Final = 32

ACCESS_FUNCTION: Final = "gpud.check.access"
"""``i64 (b, thread, address, origin, how, site)``: where the access is to be made."""
SHARED_FUNCTION: Final = "gpud.check.shared"
"""``void (b, thread, offset, how, site)``."""
STORED_FUNCTION: Final = "gpud.check.stored"
"""``void (b, thread, how, site)``."""
SHUFFLE_FUNCTION: Final = "gpud.check.shuffle"
"""``void (b, thread, mode, lane, bounds, members, site)``."""
SYNC_FUNCTION: Final = "gpud.check.sync"
"""``void (b, thread, what, barrier)``."""

FIRST_INTERVAL: Final = 0xA5000000
KEY_MARK: Final = 0x43686B00
"""Both make it unlikely that what another kernel left in a block's memory looks like a word."""

SNAPSHOT_BYTES: Final = 32
"""The widest store whose bytes are kept to see whether it changes them."""

MOST_SHARED_BYTES: Final = 227 << 10

_BARRIERS = 16


class CheckState(NamedTuple):
    """Offsets from a block's address.

    ``barriers`` and ``warps`` have for each barrier of the block and each warp the clock's value
    when it was last completed, ``arrived`` for each thread when it came to its last one; all are
    words of 32 bits, as ``sync`` and ``warp_sync``. ``cleared_bytes`` are those of all five.

    ``snapshot`` has for each thread what it is about to overwrite, and where: see `SNAPSHOT`.
    ``shared`` has two words for each byte of shared memory, first all of the last writes.
    """

    launch: int
    task_block: int
    serial: int
    clock: int
    interval: int
    acquired: int
    pending: int
    barriers: int
    warps: int
    arrived: int
    sync: int
    warp_sync: int
    cleared_bytes: int
    snapshot: int
    shared: int
    shared_bytes: int


SNAPSHOT_WORDS: Final = 16
"""Of 64 bits, for each thread: the old bytes, then address, writes, reads, initialised, bytes."""


def block_state(layout: BlockLayout, shared_bytes: int) -> CheckState:
    """Return the state's place in a block, of which ``shared_bytes`` of shared memory are watched.

    The clock's values are directly behind one another, so that they can be cleared together.
    """
    words = [
        layout.word(f"check.{name}")[0]
        for name in ("launch", "task_block", "serial", "clock", "interval", "acquired", "pending")
    ]
    lengths = (4 * _BARRIERS, align_up(4 * layout.warps, 16), *3 * (4 * layout.padded,))
    clocks = layout.region("check.clocks", sum(lengths))
    places = accumulate(lengths[:-1], initial=clocks)
    snapshot = layout.region("check.snapshot", 8 * SNAPSHOT_WORDS * layout.padded)
    shared = layout.region("check.shared", 16 * shared_bytes)
    return CheckState._make([*words, *places, sum(lengths), snapshot, shared, shared_bytes])
