"""Reads fat binaries: containers of a program's PTX and machine code for several architectures.

Problem: nvcc puts what it makes of a file into one container, and picking from it is the driver's
task. The format is not documented, and the bytes come from any client.

Approach: a walk over the headers with every length checked against what is there. Entries may be
compressed, with LZ4 (as a raw block) or with zstd; well-kept libraries unpack them.

Layout, little-endian; offsets and sizes in bytes, as nvcc 13.0 writes it and others have described:

====== ===== ========================================================================
offset type  of the container's header
====== ===== ========================================================================
0      u32   the magic number
4      u16   version, 1
6      u16   size of this header
8      u64   size of all entries behind it
====== ===== ========================================================================

====== ===== ========================================================================
offset type  of an entry's header, which its payload follows
====== ===== ========================================================================
0      u16   kind: 1 PTX, 2 ELF, 8 LTO IR
4      u32   size of this header
8      u64   size of the payload, with padding
16     u32   size of the compressed payload, without padding
28     u32   architecture: 90 for sm_90
40     u64   flags
56     u64   size of the unpacked payload; 0 if it is not compressed
====== ===== ========================================================================

Properties:
    total: any bytes give entries, or raise an `ImageError`;
    bounded: unpacking makes at most as many bytes as its caller allows.

Source: files that nvcc 13.0 made with each ``--compress-mode``; the tool ``fatbin-decompress`` of
the Cricket project describes the same header.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from gpud.errors import ImageError, MissingDependency

__all__ = ["ELF", "LTO", "MAGIC", "PTX", "Entry", "best_ptx", "entries", "unpacked"]

MAGIC: Final = b"\x50\xed\x55\xba"
PTX: Final = 1
ELF: Final = 2
LTO: Final = 8

_HEADER = struct.Struct("<4sHHQ")
_ENTRY = struct.Struct("<HxxIQI8xI8xQ8xQ")
_LZ4, _ZSTD = 0x2000, 0x8000
_ONLY_THIS_ARCH = 0x100000  # sm_90a
_MOST_ENTRIES = 4096


class Entry(NamedTuple):
    """One program of a container.

    Attributes:
        kind: `PTX`, `ELF`, `LTO`, or another number.
        arch: the architecture it is for, 90 for sm_90.
        flags: how it is compressed, among others.
        payload: its bytes as they are stored, with padding if it is not compressed.
        size: of the unpacked bytes, as the container says; 0: as many as are stored.
    """

    kind: int
    arch: int
    flags: int
    payload: bytes
    size: int

    @property
    def only_this_arch(self) -> bool:
        """Whether it runs on no newer architecture: sm_90a."""
        return bool(self.flags & _ONLY_THIS_ARCH)


def entries(image: bytes) -> list[Entry]:
    """Return the entries of a container, in its order.

    Raises:
        ImageError: it is cut off, or not a container.
    """
    if len(image) < _HEADER.size:
        raise _damaged(f"it has {len(image)} bytes, its header {_HEADER.size}")
    magic, version, at, size = _HEADER.unpack_from(image)
    if magic != MAGIC or version != 1 or at < _HEADER.size:
        raise _damaged(f"its header says version {version} and {at} bytes")
    end = at + size
    if end > len(image):
        raise _damaged(f"it has {len(image)} bytes, and its header says {end}")
    found: list[Entry] = []
    while at < end:
        if end - at < _ENTRY.size or len(found) == _MOST_ENTRIES:
            raise _damaged(f"entry {len(found)} at byte {at} is cut off")
        kind, header, stored, packed, arch, flags, unpacked_size = _ENTRY.unpack_from(image, at)
        begin = at + header
        if header < _ENTRY.size or begin + stored > end or packed > stored:
            raise _damaged(f"entry {len(found)} at byte {at} ends behind the container")
        compressed = flags & (_LZ4 | _ZSTD)
        payload = image[begin : begin + (packed if compressed else stored)]
        found.append(Entry(kind, arch, flags, payload, unpacked_size if compressed else 0))
        at = begin + stored
    return found


def best_ptx(held: Sequence[Entry], sm: int | None) -> Entry | None:
    """Return the PTX that suits a device best: the newest that it runs.

    Where the device is older than all of it, the oldest: its refusal says what is missing.

    Args:
        held: the entries.
        sm: the device's compute capability times ten; None: not known.
    """
    texts = [one for one in held if one.kind == PTX]

    def runs(one: Entry) -> bool:
        return sm is None or (one.arch == sm if one.only_this_arch else one.arch <= sm)

    able = [one for one in texts if runs(one)]
    if able:
        return max(able, key=lambda one: (not one.only_this_arch, one.arch))
    return min(texts, key=lambda one: one.arch, default=None)


def unpacked(entry: Entry, most: int) -> bytes:
    """Return an entry's bytes, decompressed.

    Raises:
        ImageError: they are damaged, or more than ``most``.
        MissingDependency: the library that decompresses them is not installed.
    """
    if not entry.flags & (_LZ4 | _ZSTD):
        return entry.payload
    if not 0 < entry.size <= most:
        raise _damaged(f"an entry has {entry.size} bytes when unpacked, of at most {most}")
    name = "lz4" if entry.flags & _LZ4 else "zstandard"
    try:
        data = _lz4(entry) if entry.flags & _LZ4 else _zstd(entry)
    except ImportError as error:
        raise MissingDependency(name, extra="daemon") from error
    if len(data) != entry.size:
        raise _damaged(f"an entry has {len(data)} bytes when unpacked, and says {entry.size}")
    return data


def _lz4(entry: Entry) -> bytes:
    import lz4.block

    try:
        return bytes(lz4.block.decompress(entry.payload, uncompressed_size=entry.size))
    except lz4.block.LZ4BlockError as error:
        raise _damaged(f"LZ4 cannot unpack an entry: {error}") from error


def _zstd(entry: Entry) -> bytes:
    import zstandard

    try:
        # What the frame itself says of its size is not believed.
        with zstandard.ZstdDecompressor().stream_reader(entry.payload) as stream:
            return bytes(stream.read(entry.size + 1))
    except zstandard.ZstdError as error:
        raise _damaged(f"zstd cannot unpack an entry: {error}") from error


def _damaged(problem: str) -> ImageError:
    return ImageError(
        f"the fat binary is damaged: {problem}; make it again, or pass the PTX itself",
        kind="damaged",
    )
