"""Seats: room in memory for one resident block, used again and again by one gang after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpud.compiler import control_words as cw
from gpud.device.cpu import output
from gpud.device.cpu.codegen.layout import HEADER, align_up
from gpud.device.cpu.records import CONTROL, SEAT, SEAT_BYTES

if TYPE_CHECKING:
    from gpud.device.cpu.gang import Gang
    from gpud.device.cpu.sm import VirtualSM

__all__ = ["LIMIT", "Seat", "SeatPool", "word_of"]


def word_of(name: str) -> int:
    """The index in `Seat.words` of a field of the block's header, or of `SEAT`."""
    if name in SEAT:
        return SEAT[name][0] // 4
    return (SEAT_BYTES + HEADER[name][0]) // 4


LIMIT = (CONTROL + cw.LIMIT) // 4
"""The index in `Seat.words` of the limit that the kernel reads."""


class Seat:
    """The memory of one resident block: its seat record, header, arrays and memories.

    Attributes:
        block: the address of the header.
        words: 32-bit words from the seat record on; see `word_of`.
        gang: whose it is now.
        sm: where it is now.
        index: its number in the gang, `NONE` once it is released.
    """

    __slots__ = ("_memory", "block", "gang", "index", "size", "sm", "words")

    def __init__(self, size: int) -> None:
        self.size = size
        self._memory = np.zeros(SEAT_BYTES + size + 256, np.uint8)
        first = self._memory.ctypes.data
        self.block: int = align_up(first + SEAT_BYTES, 256)
        start = self.block - SEAT_BYTES - first
        end = start + (SEAT_BYTES + size) // 4 * 4
        self.words = self._memory.data[start:end].cast("I")
        self.gang: Gang | None = None
        self.sm: VirtualSM | None = None
        self.index = 0
        output.register(self.block, self._print, self._assert)

    def _print(self, text: bytes) -> None:
        if self.gang is not None:
            self.gang.print(text)

    def _assert(self, thread: int, message: str) -> None:
        if self.gang is not None:
            self.gang.assertion = f"thread {thread}: {message}"


class SeatPool:
    """Seats that nobody uses, by size. The caller has a lock."""

    def __init__(self) -> None:
        self._free: dict[int, list[Seat]] = {}
        self.by_block: dict[int, Seat] = {}

    def take(self, size: int) -> Seat:
        """A seat with at least ``size`` bytes from its block's address on."""
        # Few sizes, so that jobs can use each other's: at most a fifth is wasted.
        step = 1 << max(10, size.bit_length() - 3)
        rounded = align_up(size, step)
        free = self._free.get(rounded)
        if free:
            return free.pop()
        seat = Seat(rounded)
        self.by_block[seat.block] = seat
        return seat

    def give(self, seat: Seat) -> None:
        """Take back a seat that has left its SM."""
        seat.gang = seat.sm = None
        self._free.setdefault(seat.size, []).append(seat)
