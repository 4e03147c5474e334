"""What a session has written to the variables of a module: to be written again to a new host.

A device host that is lost takes its modules' variables with it. Constants change only by what the
session writes, so with that a new host has them exactly; other variables may have been changed by
kernels as well, and those changes are lost.

Properties:
    overlay: `VariableWrites.pieces` gives, for every byte that was written, the last value, once;
    bounded: no more than a limit is kept, of bytes and of pieces; nothing is kept of a variable
        that does not fit, and that is known. Constants have room of their own, more than those of
        any GPU take.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["VariableWrites"]

_LIMIT_BYTES = 16 << 20
_CONSTANT_BYTES = 1 << 20
_PIECE_BYTES = 1 << 10  # that each piece counts beside its own: many are slow to write again


class VariableWrites:
    """Of one module.

    Attributes:
        missing: names of the variables of which nothing is kept, as it was too much.
    """

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._pieces: dict[str, dict[int, bytes]] = {}
        self._bytes = 0
        self._limit_bytes = limit_bytes
        self.missing: dict[str, None] = {}

    def write(self, name: str, offset: int, data: bytes, *, constant: bool = False) -> None:
        """Bytes of a variable were written."""
        if not data or name in self.missing:
            return
        pieces = self._pieces.setdefault(name, {})
        end = offset + len(data)
        for start, old in list(pieces.items()):
            stop = start + len(old)
            if start < end and offset < stop:
                self._drop(pieces, start)
                if start < offset:
                    self._keep(pieces, start, old[: offset - start])
                if end < stop:
                    self._keep(pieces, end, old[end - start :])
        self._keep(pieces, offset, data)
        if self._bytes > self._limit_bytes + (_CONSTANT_BYTES if constant else 0):
            self.missing[name] = None
            for start in list(pieces):
                self._drop(pieces, start)

    def pieces(self) -> Iterator[tuple[str, int, bytes]]:
        """Yields (variable, offset, bytes): what to write again, in any order."""
        for name, pieces in self._pieces.items():
            for offset, data in pieces.items():
                yield name, offset, data

    def _keep(self, pieces: dict[int, bytes], offset: int, data: bytes) -> None:
        pieces[offset] = data
        self._bytes += len(data) + _PIECE_BYTES

    def _drop(self, pieces: dict[int, bytes], offset: int) -> None:
        self._bytes -= len(pieces.pop(offset)) + _PIECE_BYTES
