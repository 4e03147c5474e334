"""A lane of a `Raw` client: its ring as bytes, to be written rightly or wrongly."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct

from gpud.wire import lane_ring as ring
from gpud.wire import messages as wm
from tests.support.raw_client import Raw

__all__ = ["RawLane"]

_FUTEX, _WAKE = 202, 1
_syscall = ctypes.CDLL(None).syscall


class RawLane:
    """The ring of an open lane, and what a good client counts about it.

    Args:
        descriptor: of the ring's file; it is closed.
        size: of that file.
        number: the lane's number in its session.
    """

    def __init__(self, descriptor: int, size: int, number: int) -> None:
        self.number = number
        self.map = mmap.mmap(descriptor, size)
        os.close(descriptor)
        self.words = memoryview(self.map)[: ring.SLOTS_AT].cast("I")
        self.head = self.launches = 0
        self._address = ctypes.addressof(ctypes.c_uint32.from_buffer(self.map, ring.HEAD))

    @classmethod
    def open(cls, client: Raw, number: int, reservation: tuple[int, int]) -> RawLane:
        """Open one, and wait for it."""
        client.send(wm.OpenLane(number, 0, reservation))
        opened = client.expect(wm.LaneOpened)
        return cls(client.descriptors.pop(), opened.size, number)

    def write(
        self,
        site: int,
        parameters: bytes,
        grid: tuple[int, int, int] = (1, 1, 1),
        limit_ms: int = 0,
        goes_on: int = 0,
        seen: int = ring.EVERY,
    ) -> int:
        """Write a launch record, without publishing it; returns where it begins."""
        flags = goes_on | seen << 1 & 0xFFFFFFFF
        record = struct.pack("<8I", self.launches, site, *grid, len(parameters), limit_ms, flags)
        slots = ring.slots_of(len(parameters))
        whole = (record + parameters).ljust(slots * ring.SLOT_BYTES, b"\0")
        begin = at = self.slot(self.head)
        for first in range(0, len(whole), ring.SLOT_BYTES):
            at = self.slot(self.head)
            self.map[at : at + ring.SLOT_BYTES] = whole[first : first + ring.SLOT_BYTES]
            self.head += 1
        self.launches += 1
        return begin

    @staticmethod
    def slot(count: int) -> int:
        """Return where a slot is, by its count."""
        return ring.SLOTS_AT + count % ring.SLOTS * ring.SLOT_BYTES

    def publish(self, head: int | None = None) -> None:
        """Say what is written, and wake the device, whether it says that it sleeps or not."""
        self.words[ring.HEAD // 4] = (self.head if head is None else head) & 0xFFFFFFFF
        _syscall(_FUTEX, ctypes.c_void_p(self._address), _WAKE, 8, None, None, 0)

    def word(self, at: int) -> int:
        """Return a word of the ring, by its offset."""
        return self.words[at // 4]
