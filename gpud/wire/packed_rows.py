"""Many msgpack values in one bytes object, of which any one is read without reading the others.

The front keeps what it may once need of a program in this form: to unpack thousands of kernels and
instructions would keep it from serving others.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

import msgpack

__all__ = ["PackedRows"]

_OFFSET_BYTES = 4


class PackedRows:
    """The rows of `pack`.

    Args:
        data: from `pack`: the number of rows and their ends, little-endian u32, then the rows.
    """

    __slots__ = ("_begin", "_data", "_length")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._length = int.from_bytes(data[:_OFFSET_BYTES], "little")
        self._begin = _OFFSET_BYTES * (1 + self._length)
        if len(data) < self._begin or len(data) != self._begin + self._end(self._length - 1):
            raise ValueError("the rows are cut off")

    @staticmethod
    def pack(rows: Iterable[Any]) -> bytes:
        """Return the rows as bytes."""
        packer = msgpack.Packer(unicode_errors="surrogatepass")
        packed = [packer.pack(row) for row in rows]
        ends = array("I")
        end = 0
        for one in packed:
            end += len(one)
            ends.append(end)
        count = len(packed).to_bytes(_OFFSET_BYTES, "little")
        return b"".join((count, ends.tobytes(), *packed))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self._length:
            raise IndexError(index)
        start, end = (self._begin + self._end(at) for at in (index - 1, index))
        return msgpack.unpackb(self._data[start:end], unicode_errors="surrogatepass")

    @property
    def size_bytes(self) -> int:
        """Its memory."""
        return len(self._data)

    def array(self) -> list[bytes]:
        """Return the pieces of a msgpack array of the rows."""
        header = msgpack.Packer().pack_array_header(self._length)
        return [header, self._data[self._begin :]]

    def _end(self, index: int) -> int:
        """Return the end of a row among the rows, 0 for the one before the first."""
        at = _OFFSET_BYTES * (1 + index)
        return int.from_bytes(self._data[at : at + _OFFSET_BYTES], "little") if index >= 0 else 0
