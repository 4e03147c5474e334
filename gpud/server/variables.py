"""What a session has written to the variables of a module: to be written again to a new host.

A device host that is lost takes its modules' variables with it. Constants change only by what the
session writes, so with that a new host has them exactly; other variables may have been changed by
kernels as well, and those changes are lost.

Properties:
    overlay: `Written.pieces` gives, for every byte that was written, the last value, once;
    bounded: at most `limit_bytes` are kept; what does not fit is known to be missing.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["Written"]

_LIMIT_BYTES = 16 << 20


class Written:
    """Of one module.

    Attributes:
        missing: names of the variables of which not everything that was written is kept.
    """

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._pieces: dict[str, dict[int, bytes]] = {}
        self._bytes = 0
        self._limit_bytes = limit_bytes
        self.missing: dict[str, None] = {}

    @property
    def size_bytes(self) -> int:
        """What is kept."""
        return self._bytes

    def write(self, name: str, offset: int, data: bytes) -> None:
        """Bytes of a variable were written."""
        pieces = self._pieces.setdefault(name, {})
        end = offset + len(data)
        for start, old in list(pieces.items()):
            stop = start + len(old)
            if start < end and offset < stop:
                self._bytes -= len(pieces.pop(start))
                if start < offset:
                    self._keep(pieces, start, old[: offset - start])
                if end < stop:
                    self._keep(pieces, end, old[end - start :])
        if self._bytes + len(data) > self._limit_bytes:
            self.missing[name] = None
        elif data:
            self._keep(pieces, offset, data)

    def pieces(self) -> Iterator[tuple[str, int, bytes]]:
        """Yields (variable, offset, bytes): what to write again, in any order."""
        for name, pieces in self._pieces.items():
            for offset, data in pieces.items():
                yield name, offset, data

    def _keep(self, pieces: dict[int, bytes], offset: int, data: bytes) -> None:
        pieces[offset] = data
        self._bytes += len(data)
