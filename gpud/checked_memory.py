"""The memory through which a client tells the checking mode of the CPU device about its arrays.

Problem: whether an access lies within an array, and whether what it reads was ever written, is
known to the client that makes and fills arrays, and has to be looked up by native code at each
access of a kernel. The code of a kernel must stay within its session's arena whatever a client
writes.

Approach: in a session that checks, the first array of each arena is the *board*. It begins where
the arena does, so that compiled code needs no further address. The client keeps in it a table of
its arrays, sorted by address; kernels' code keeps in it what it finds, which the device host reads
when a run is over. Each array is followed by its *shadow*, which is part of the same allocation and
so lies between it and the next array.

Terms, with offsets in bytes:

* *table*: there are two, and the word at `CURRENT` tells which one holds. A client changes the
  other one, and then that word. It has the arrays' first addresses, from `STARTS` on, and for each
  array a `ROW` of `ROW_BYTES`;
* *shadow* of an array of ``n`` bytes, with p = `padded` (n): one byte for each byte of the array,
  at p, 0 as long as it was never written; then two words of 64 bits for each byte, at 2p the last
  write, at 10p the last read. See `gpud.device.cpu.codegen.checking`;
* *finding*: see `FINDING`; a slot is free while its ``state`` is 0;
* *interval*: a stretch of one task block between two points at which its threads synchronise, or at
  which what it has written becomes visible to other blocks. The last `INTERVALS` are kept.

Properties:
* everything that code in a kernel reads here is checked against the arena before it is used as an
  address, since the client can write anything.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "BOARD_BYTES",
    "CURRENT",
    "FINDING",
    "FINDINGS",
    "FINDINGS_AT",
    "FINDING_BYTES",
    "INTERVALS",
    "INTERVALS_AT",
    "INTERVAL_BYTES",
    "LABEL_BYTES",
    "MAGIC",
    "MOST_ARRAYS",
    "NEXT_INTERVAL",
    "ROW",
    "ROWS_AT",
    "ROW_BYTES",
    "SERIAL",
    "SHADOW_FACTOR",
    "SPARE",
    "SPARE_BYTES",
    "STARTS_AT",
    "TABLE_BYTES",
    "TIME",
    "allocation_bytes",
    "padded",
]

MAGIC: Final = 0x6B63656863647067
"""The first word of a board; without it kernels check nothing."""

CURRENT: Final = 8
"""Two words of 32 bits: the table that holds, 0 or 1, and the arrays in it."""
TIME: Final = 64
"""Counts releases: points at which writes of a block become visible to others. In a cache line of
its own, as are the next two."""
NEXT_INTERVAL: Final = 128
SERIAL: Final = 192
"""The number of the last task block that has begun."""

SPARE: Final = 1024
"""Where a kernel accesses what it must not: `SPARE_BYTES` that mean nothing."""
SPARE_BYTES: Final = 256

FINDINGS: Final = 64
"""The most different findings that are kept until the run is over."""
FINDINGS_AT: Final = 4096
FINDING_BYTES: Final = 128
FINDING: Final = {
    "state": (0, "i32"),
    "kind": (4, "i32"),
    "site": (8, "i32"),
    "thread": (12, "i32"),
    "task_block": (16, "i32"),
    "bytes": (20, "i32"),
    "launch": (24, "i64"),
    "address": (32, "i64"),
    "start": (40, "i64"),
    "size": (48, "i64"),
    "times": (56, "i32"),
    "how": (60, "i32"),
    "other_site": (64, "i32"),
    "other_thread": (68, "i32"),
    "other_block": (72, "i32"),
    "lane": (76, "i32"),
}
"""``state``: 0 free, 1 being written, 2 complete. ``start`` and ``size``: the array, 0 if there is
none. ``times``: how often it was found. ``how``: what the access does. ``other_...``: the access
that it conflicts with."""

MOST_ARRAYS: Final = 4096
LABEL_BYTES: Final = 96
ROW: Final = {"end": (0, "i64"), "itemsize": (8, "i32"), "freed": (12, "i32"), "label": (16, "")}
"""``end``: the first address behind the array. ``freed``: 1 after it was freed. ``label``: its type
and shape for messages, UTF-8, filled with zeroes."""
ROW_BYTES: Final = 16 + LABEL_BYTES

STARTS_AT: Final = FINDINGS_AT + FINDINGS * FINDING_BYTES
ROWS_AT: Final = STARTS_AT + 2 * 8 * MOST_ARRAYS
TABLE_BYTES: Final = 8 * MOST_ARRAYS
"""Bytes from the one table's first addresses to the other's."""

INTERVALS: Final = 1 << 20
INTERVALS_AT: Final = (ROWS_AT + 2 * ROW_BYTES * MOST_ARRAYS + 4095) & -4096
INTERVAL_BYTES: Final = 32

BOARD_BYTES: Final = INTERVALS_AT + INTERVALS * INTERVAL_BYTES

SHADOW_FACTOR: Final = 18
"""The bytes of an allocation for each of its array's."""


def padded(size: int) -> int:
    """Return the bytes from an array's start to its shadow."""
    return (size + 63) & -64


def allocation_bytes(size: int) -> int:
    """Return the bytes of an array and its shadow."""
    return SHADOW_FACTOR * padded(size)
