"""The values that a session wrote to a module's variables, kept to be written to a new host.

A lost device host takes its modules' variables with it. Constants change only by the session's
writes, so repeating these restores them exactly; other variables may have been changed by kernels
as well, and those changes are lost.

Properties:
    overlay: `VariableWrites.pieces` gives, for every byte that was written, the last value, once;
    bounded: the bytes and pieces kept are limited; a variable that does not fit is dropped and
        listed in `missing`. Constants have an allowance of their own, larger than the constant
        memory of any GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["VariableWrites"]

_LIMIT_BYTES = 16 << 20
_CONSTANT_BYTES = 1 << 20
_PIECE_BYTES = 1 << 10  # counted for each piece beside its data: many are slow to write again


class VariableWrites:
    """The session's writes to the variables of one module.

    Attributes:
        missing: names of the variables of which nothing is kept, because they exceeded the limit.
    """

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._pieces: dict[str, dict[int, bytes]] = {}
        self._bytes = 0
        self._limit_bytes = limit_bytes
        self.missing: dict[str, None] = {}

    def write(self, name: str, offset: int, data: bytes, *, constant: bool = False) -> None:
        """Record a write to a variable."""
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
        """Yield (variable, offset, bytes) of what to write to a new host, in any order."""
        for name, pieces in self._pieces.items():
            for offset, data in pieces.items():
                yield name, offset, data

    def _keep(self, pieces: dict[int, bytes], offset: int, data: bytes) -> None:
        pieces[offset] = data
        self._bytes += len(data) + _PIECE_BYTES

    def _drop(self, pieces: dict[int, bytes], offset: int) -> None:
        self._bytes -= len(pieces.pop(offset)) + _PIECE_BYTES
