"""A device whose programs are checked for more than their bounds: with a board, as a session has.

Each array has its shadow, and counts as written: cases fill them or expect zeroes.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from gpud.checked_memory import BOARD_BYTES, allocation_bytes
from gpud_client.checking import Board
from tests.conformance.checked_device import CheckedDevice

_ARENA_BYTES = 1 << 31


class _Array:
    """Zeroed memory in the arena; ``view`` is its bytes."""

    def __init__(self, address: int, view: npt.NDArray[np.uint8]) -> None:
        self.address = address
        self.view = view


class _Memory:
    """The arena, as the client's `gpud_client.arena.ArenaMemory` shows it."""

    def __init__(self, base: int, raw: npt.NDArray[np.uint8]) -> None:
        self.base = base
        self._raw = raw

    def view(self, address: int, size: int, _: object) -> npt.NDArray[np.uint8]:
        start = address - self.base
        return self._raw[start : start + size]


class CheckingDevice(CheckedDevice):
    """A `CheckedDevice` on whose board every array is listed while it lives."""

    def __init__(self, device: Any) -> None:
        super().__init__(device, _ARENA_BYTES)
        self._shown = _Memory(self.arena[0], self._view)
        self._end = BOARD_BYTES
        self._listed: list[weakref.ref[_Array]] = []
        self.board = Board(self._shown)  # type: ignore[arg-type]

    def allocate(self, size: int) -> Any:
        """Zeroed memory, with a shadow behind it."""
        wanted = -(-allocation_bytes(size) // 4096) * 4096
        if not any(one() is not None for one in self._listed):
            self._listed.clear()
            self._view[BOARD_BYTES : self._end] = 0
            self._end = BOARD_BYTES
            self.board.rows.clear()
        start, self._end = self._end, self._end + wanted
        base, most = self.arena
        if self._end > most:
            raise MemoryError(f"the tests' arena of {most} bytes is full")
        view = self._view[start : start + size]
        array = _Array(base + start, view)
        self._listed.append(weakref.ref(array))
        self.board.add(base + start, size, 1, f"array {len(self._listed)}")
        self.board.write(base + start, size)
        return array
