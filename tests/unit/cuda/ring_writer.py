"""The client's side of a lane's ring, for tests of the device's."""

from __future__ import annotations

import mmap
import struct

from gpud.wire import lane_ring as ring

__all__ = ["RingWriter"]


class RingWriter:
    """Writes launch records, and reads what the device says.

    Args:
        descriptor: of the ring's file.

    Attributes:
        map: the ring.
        launches: that were written.
    """

    def __init__(self, descriptor: int) -> None:
        self.map = mmap.mmap(descriptor, 0)
        self._words = memoryview(self.map)[: ring.SLOTS_AT].cast("I")
        self.head = self.launches = 0

    def write(
        self,
        site: int,
        parameters: bytes,
        grid: tuple[int, int, int] = (1, 1, 1),
        limit_ms: int = 0,
        goes_on: int = 0,
        seen: int = ring.EVERY,
    ) -> int:
        """Write a launch record, and say that it is there; returns its number."""
        flags = goes_on | seen << 1 & 0xFFFFFFFF
        record = struct.pack("<8I", self.launches, site, *grid, len(parameters), limit_ms, flags)
        slots = ring.slots_of(len(parameters))
        whole = (record + parameters).ljust(slots * ring.SLOT_BYTES, b"\0")
        for first in range(0, len(whole), ring.SLOT_BYTES):
            at = ring.SLOTS_AT + self.head % ring.SLOTS * ring.SLOT_BYTES
            self.map[at : at + ring.SLOT_BYTES] = whole[first : first + ring.SLOT_BYTES]
            self.head += 1
        self.launches += 1
        self.say(ring.HEAD, self.head)
        return self.launches - 1

    def say(self, at: int, value: int) -> None:
        """Set a word of the ring, by its offset."""
        self._words[at // 4] = value & 0xFFFFFFFF

    def word(self, at: int) -> int:
        """Return a word of the ring, by its offset."""
        return self._words[at // 4]

    @property
    def completed(self) -> int:
        """Launches that have ended."""
        return self.word(ring.COMPLETED)

    def completion(self, number: int) -> tuple[int, int, int, int, int, int]:
        """Return a completion: number, status, slices, and when accepted, begun and ended."""
        at = ring.COMPLETIONS_AT + number % ring.SLOTS * ring.COMPLETION_BYTES
        found, status, accepted, began, ended = struct.unpack_from("<II3Q", self.map, at)
        return found, status & 0xFF, status >> ring.SLICES_SHIFT, accepted, began, ended
