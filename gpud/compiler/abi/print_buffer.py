"""What ``printf`` of kernels leaves in memory for the host: layouts, and reading them back.

Problem: a thread that prints cannot wait for the host, and what its pointers mean may be gone or
changed when the host looks. Approach: `gpud_print`
(`gpud.compiler.passes.runtime.printf_functions`) copies everything that the text needs into the
buffer of its run, and the host makes the text when it has time.

Output record, 32 bytes of device memory. The field ``output`` of a job record
(`gpud.compiler.abi.control_words`) is its distance from that record; 0: nobody listens.

====== ===== ======== =========================================================================
offset type  name     meaning
====== ===== ======== =========================================================================
0      u64   buffer   address of the buffer, multiple of 8, which reads as zero at first
8      u64   size     of the buffer in bytes
16     u64   used     bytes that threads have asked for; more than ``size`` if some got none
24     8 B            reserved, 0
====== ===== ======== =========================================================================

The buffer begins with 16 bytes, of which the first word is not 0 if a call did not fit; ``used``
counts them, too. Then one *entry* a call, each a multiple of 8 bytes long:

====== ===== ========= ========================================================================
offset type  name      meaning
====== ===== ========= ========================================================================
0      u32   bytes     of the whole entry; 0: there is none yet
4      u32   complete  1: all of it is written
8      u32   format    bytes of the format
12     u32   values    bytes of the packed arguments
16     ...             the format and the arguments, each filled up to a multiple of 8, and then
                       for each ``%s``: u32 offset of its pointer in the arguments, u32 bytes of
                       the text (`UNREADABLE`: it cannot be read), the text, filled up
====== ===== ========= ========================================================================

Properties:
* ``order``: what one thread prints stands in the order of its calls;
* ``whole``: a call that is told is told as it was made, while others are being written;
* ``any bytes``: whatever lies in a buffer, `calls` ends, and reads nothing outside of it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

__all__ = [
    "BUFFER",
    "BUFFER_HEAD_BYTES",
    "COMPLETE",
    "ENTRY_BYTES",
    "FORMAT",
    "MOST_VALUES_BYTES",
    "OUTPUT_RECORD_BYTES",
    "SIZE",
    "TEXT_LIMIT_BYTES",
    "UNREADABLE",
    "USED",
    "VALUES",
    "PrintCall",
    "calls",
    "has_dropped",
    "output_record",
]

# Byte offsets in the output record.
BUFFER: Final = 0
SIZE: Final = 8
USED: Final = 16
OUTPUT_RECORD_BYTES: Final = 32

BUFFER_HEAD_BYTES: Final = 16

# Byte offsets in an entry.
COMPLETE: Final = 4
FORMAT: Final = 8
VALUES: Final = 12
ENTRY_BYTES: Final = 16

UNREADABLE: Final = 0xFFFFFFFF
"""The length of a text that cannot be read."""

TEXT_LIMIT_BYTES: Final = 1 << 16
"""The longest format or string, without its NUL, that is read for a kernel."""

MOST_VALUES_BYTES: Final = 256
"""What the arguments of a call have at most: CUDA's ``printf`` takes 32."""

_RECORD = struct.Struct("<3Q8x")
_ENTRY = struct.Struct("<4I")
_TEXT = struct.Struct("<2I")


class PrintCall(NamedTuple):
    """One call of ``printf``.

    Attributes:
        format: without its NUL.
        values: the packed arguments, as many bytes as could be read.
        texts: of each ``%s`` by the offset of its pointer in ``values``; None: unreadable.
    """

    format: bytes
    values: bytes
    texts: dict[int, bytes | None]


def output_record(buffer: int, size: int) -> bytes:
    """The output record of a fresh run, for a buffer that reads as zero."""
    return _RECORD.pack(buffer, size, BUFFER_HEAD_BYTES)


def has_dropped(buffer: bytes) -> bool:
    """Whether a call did not fit."""
    return any(buffer[:4])


def calls(buffer: bytes, before: bytes) -> Iterator[PrintCall]:
    """The calls in a buffer up to the first that is not complete.

    Args:
        buffer: as it is read.
        before: the same buffer, read earlier: what is complete there is believed. A copy of
            memory that a device writes to reads in no certain order, so an entry's end may be
            read before it is written, and the mark that it is complete afterwards.
    """
    at = BUFFER_HEAD_BYTES
    while at + ENTRY_BYTES <= len(buffer):
        size, complete, length, packed = _ENTRY.unpack_from(before, at)
        if complete != 1 or size < ENTRY_BYTES or size % 8 or size > len(buffer) - at:
            return
        yield _call(buffer[at : at + size], length, packed)
        at += size


def _call(entry: bytes, length: int, packed: int) -> PrintCall:
    at = ENTRY_BYTES
    text = entry[at : at + length]
    at += _filled(length)
    values = entry[at : at + packed]
    at += _filled(packed)
    texts: dict[int, bytes | None] = {}
    while at + _TEXT.size <= len(entry):
        offset, size = _TEXT.unpack_from(entry, at)
        at += _TEXT.size
        if size == UNREADABLE:
            texts.setdefault(offset, None)
            continue
        texts.setdefault(offset, entry[at : at + size])
        at += _filled(size)
    return PrintCall(text, values, texts)


def _filled(size: int) -> int:
    return (size + 7) & ~7
