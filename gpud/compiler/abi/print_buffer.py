"""The buffer for kernels' ``printf`` output: its layout in device memory, and a decoder.

Problem: a thread that prints cannot wait for the host, and the strings that its arguments point to
may have changed when the host reads them.

Approach: `gpud_print` (`gpud.compiler.passes.runtime.printf_functions`) copies format, arguments
and strings into the buffer of its run, and the host formats them later.

Output record, 32 bytes of device memory. The field ``output`` of a job record
(`gpud.compiler.abi.control_words`) is its distance from that record; 0: output is not collected.

====== ===== ======== =========================================================================
offset type  name     meaning
====== ===== ======== =========================================================================
0      u64   buffer   address of the buffer, a multiple of 8; the buffer is all zero at first
8      u64   size     of the buffer in bytes
16     u64   used     bytes that threads have requested; more than ``size`` if calls did not fit
24     8 B            reserved, 0
====== ===== ======== =========================================================================

The buffer begins with a head of 16 bytes, counted in ``used``, whose first word is not 0 if a call
did not fit. Then comes one *entry* per call, each a multiple of 8 bytes long:

====== ===== ========= ========================================================================
offset type  name      meaning
====== ===== ========= ========================================================================
0      u32   bytes     size of the whole entry; 0: there is none yet
4      u32   complete  1: all of it is written
8      u32   format    bytes of the format
12     u32   values    bytes of the packed arguments
16     ...             the format and the arguments, each padded to a multiple of 8, and then for
                       each ``%s``: u32 offset of its pointer in the arguments, u32 length of the
                       text in bytes (`UNREADABLE`: it cannot be read), the text, padded
====== ===== ========= ========================================================================

Properties:
* ``order``: the output of one thread is in the order of its calls;
* ``whole``: a call that is decoded is complete, even while others are being written;
* ``any bytes``: whatever bytes a buffer holds, `calls` ends, and reads nothing outside of it.
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
"""Stands for the length of a text that cannot be read."""

TEXT_LIMIT_BYTES: Final = 1 << 16
"""The longest format or string, without its NUL, that is copied."""

MOST_VALUES_BYTES: Final = 256
"""The most bytes of packed arguments of a call: CUDA's ``printf`` takes at most 32 arguments."""

_RECORD = struct.Struct("<3Q8x")
_ENTRY = struct.Struct("<4I")
_TEXT = struct.Struct("<2I")


class PrintCall(NamedTuple):
    """One call of ``printf``.

    Attributes:
        format: the format, without its NUL.
        values: the packed arguments, as many bytes as could be read.
        texts: the text of each ``%s`` by the offset of its pointer in ``values``; None: unreadable.
    """

    format: bytes
    values: bytes
    texts: dict[int, bytes | None]


def output_record(buffer: int, size: int) -> bytes:
    """Encode the output record of a new run, for a buffer that is all zero."""
    return _RECORD.pack(buffer, size, BUFFER_HEAD_BYTES)


def has_dropped(buffer: bytes) -> bool:
    """Return whether a call did not fit into the buffer."""
    return any(buffer[:4])


def calls(buffer: bytes, before: bytes) -> Iterator[PrintCall]:
    """Decode the calls in a buffer, up to the first that is not complete.

    Args:
        buffer: the bytes of the buffer.
        before: the same buffer, read earlier: entries that are complete there are decoded. A copy
            of memory that a device writes to is read in no defined order, so the end of an entry
            may be read before it is written, and its ``complete`` afterwards.
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
