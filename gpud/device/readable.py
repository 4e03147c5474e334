"""The memory that the host may read through a kernel's pointers.

Problem: a kernel passes pointers to the host (`printf`'s format and strings, an `assert`'s
message), and may pass any number. Reading there could leak another session's data or crash the
process.

Approach: the host reads only ranges that the kernel could read itself: its module's variables, its
session's arena, its block's own memory. Everything else is *unreadable*, and `UNREADABLE` stands
for it.

Properties:
* nothing outside the ranges is read;
* a text ends within its range and its limit, or is unreadable.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable

from gpud.compiler.abi.print_buffer import TEXT_LIMIT_BYTES

__all__ = ["EVERYTHING", "TEXT_LIMIT_BYTES", "UNREADABLE", "ReadableRanges"]

UNREADABLE = b"(unreadable)"

EVERYTHING = (1 << 16, (1 << 47) - (1 << 16))
"""The readable range of a module whose accesses have no bounds checks either."""

_FIRST_BYTES = 256  # most texts are shorter: more is read only if these bytes hold no NUL


class ReadableRanges:
    """Reads memory within given ranges only.

    Args:
        ranges: (address, size) in bytes of what may be read.
        read: ``(address, size)`` to bytes; the default reads this process's own memory.
    """

    __slots__ = ("_ranges", "_read")

    def __init__(
        self,
        ranges: Iterable[tuple[int, int]],
        read: Callable[[int, int], bytes] = ctypes.string_at,
    ) -> None:
        self._ranges = tuple((start, start + size) for start, size in ranges)
        self._read = read

    def bytes_at(self, address: int, size: int) -> bytes | None:
        """Return ``size`` bytes, 1 or more, at ``address``; None if not all are in one range."""
        return self._read(address, size) if 0 < size <= self._room(address) else None

    def text_at(self, address: int, limit: int = TEXT_LIMIT_BYTES) -> bytes | None:
        """Return the text at ``address`` up to its NUL; None if none is within range and limit."""
        room = min(self._room(address), limit + 1)
        for size in (min(room, _FIRST_BYTES), room):
            text, end, _ = self._read(address, size).partition(b"\0") if size else (b"", b"", b"")
            if end:
                return text
        return None

    def start_at(self, address: int, limit: int) -> bytes | None:
        """Return the text at ``address`` up to NUL or ``limit``; None if neither is in range."""
        if not 0 < limit <= self._room(address):
            return self.text_at(address, limit) if limit else b""
        return self._read(address, limit).partition(b"\0")[0]

    def _room(self, address: int) -> int:
        """Return how many bytes of its range follow ``address``; 0 if it is in no range."""
        return next((end - address for start, end in self._ranges if start <= address < end), 0)
