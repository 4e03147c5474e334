"""Makes fat binaries, as nvcc 13.0 writes them, so that no test needs it."""

from __future__ import annotations

import struct
from collections.abc import Callable

import lz4.block
import zstandard

from gpud.compiler.images.fat_binary import ELF, LTO, PTX

__all__ = ["ELF", "LTO", "LZ4", "PACKERS", "PTX", "ZSTD", "container", "entry", "ptx"]

LZ4, ZSTD, ONLY_THIS_ARCH = 0x2000, 0x8000, 0x100000

PACKERS: dict[int, Callable[[bytes], bytes]] = {
    0: lambda data: data,
    LZ4: lambda data: lz4.block.compress(data, store_size=False),
    ZSTD: lambda data: zstandard.ZstdCompressor().compress(data),
}


def ptx(name: str, target: str = "sm_80", version: str = "8.0") -> bytes:
    """Return a program with one kernel, which does nothing."""
    text = f".version {version}\n.target {target}\n.address_size 64\n"
    return f"{text}.visible .entry {name}() {{ ret; }}\n".encode()


def entry(kind: int, arch: int, data: bytes, packing: int = 0, flags: int = 0) -> bytes:
    """Return an entry, packed in one of the ways of `PACKERS`, and padded to eight bytes."""
    packed = PACKERS[packing](data)
    padding = bytes(-len(packed) % 8)
    header = struct.pack(
        "<HHIQIIHHIIIQQQ",
        kind, 0x101, 64, len(packed) + len(padding), len(packed) if packing else 0, 0, 0, 9, arch,
        0, 0, 0x11 | packing | flags, 0, len(data) if packing else 0,
    )  # fmt: skip
    return header + packed + padding


def container(*entries: bytes) -> bytes:
    """Return a fat binary of these entries."""
    body = b"".join(entries)
    return struct.pack("<4sHHQ", b"\x50\xed\x55\xba", 1, 16, len(body)) + body
