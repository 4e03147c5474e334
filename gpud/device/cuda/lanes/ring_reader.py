"""The device's side of a lane's ring: launch records in, completions out.

The ring (`gpud.wire.lane_ring`) is written by a stranger, at any time. So a record is copied, and
the copy is checked; all counts are kept here, and what the ring says of them is written only.

Properties:
* whatever is in the ring, and however it changes, reading it ends, and a record that is returned
  has a site, a grid and a size of parameters that its lane knows;
* a completion is in the ring before the count that includes it; its client is woken once for what
  it waits for.
"""

from __future__ import annotations

import mmap
import struct
import threading
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from gpud.compiler.abi.control_words import MAX_TASK_BLOCKS
from gpud.device.lane_reports import RingError, ring_error
from gpud.device.record_wait import wake_shared
from gpud.wire import lane_ring as ring

__all__ = ["RingReader", "RingRecord"]

_MASK: Final = 0xFFFFFFFF
_HALF: Final = 1 << 31
_RECORD = struct.Struct("<8I")
_COMPLETION = struct.Struct("<II3Q")
_PAGE: Final = mmap.PAGESIZE


class RingRecord(NamedTuple):
    """A launch that was read from a ring.

    Attributes:
        grid: task blocks in x, y, z.
        parameters: as many bytes as the site's kernel takes.
        limit_ms: how long its job may run; 0: as long as it takes.
        goes_on: whether it belongs to the job of the launch before.
        seen: how many failures of jobs before it the client has seen; `gpud.wire.lane_ring.EVERY`:
            they do not matter.
    """

    number: int
    site: int
    grid: tuple[int, int, int]
    parameters: bytes
    limit_ms: int
    goes_on: bool
    seen: int


class RingReader:
    """Reads launches from a lane's ring and writes their completions.

    One thread at a time reads, and one at a time writes completions.

    Args:
        descriptor: of the ring's file; it may be closed afterwards.

    Attributes:
        tail: slots that were read.
    """

    def __init__(self, descriptor: int) -> None:
        size = -(-ring.RING_BYTES // _PAGE) * _PAGE
        self._map = mmap.mmap(descriptor, size)
        self._words = memoryview(self._map)[: ring.SLOTS_AT].cast("I")
        self.address: int = np.frombuffer(self._map, np.uint8).ctypes.data
        self.number = self.tail = 0
        self._woken = self._completed = 0
        self._listening = False
        self._barrier = threading.Lock()

    # -- records

    @property
    def head(self) -> int:
        """Slots that the client says it has written."""
        return self._words[ring.HEAD // 4]

    @property
    def has_records(self) -> bool:
        """Whether the client says that there is a record that was not read."""
        return self._words[ring.HEAD // 4] != self.tail

    def listen(self, *, listening: bool) -> None:
        """Say whether somebody is to be woken for the next record.

        Who has said so looks at `has_records` once more.
        """
        if listening == self._listening:
            return
        self._listening = listening
        self._words[ring.LISTENING // 4] = int(listening)
        if listening:
            with self._barrier:  # a full barrier: this is seen, or the next look sees the record
                pass

    def read(self, sizes: Sequence[int]) -> RingRecord | None:
        """Read the next launch; None: there is none.

        Args:
            sizes: of the parameters of each launch site's kernel, in bytes.

        Raises:
            ProtocolError: the record is none, or the ring says that it holds what it cannot.
        """
        tail = self.tail
        there = (self._words[ring.HEAD // 4] - tail) & _MASK
        if not there:
            return None
        if there > ring.SLOTS:
            raise self._wrong(RingError.HEAD, there, sizes)
        slot = self._slot(tail)
        number, site, x, y, z, size, limit_ms, flags = _RECORD.unpack_from(slot)
        if number != self.number:
            raise self._wrong(RingError.NUMBER, number, sizes)
        if site >= len(sizes):
            raise self._wrong(RingError.SITE, site, sizes)
        own = sizes[site]
        if size != own:
            raise self._wrong(RingError.SIZE, size, sizes)
        for extent in (x, y, z):
            if not 0 < extent <= MAX_TASK_BLOCKS:
                raise self._wrong(RingError.GRID, extent, sizes)
        if x * y * z > MAX_TASK_BLOCKS:
            raise self._wrong(RingError.GRID, y if x * y > MAX_TASK_BLOCKS else z, sizes)
        parameters, slots = slot[ring.INLINE_AT : ring.INLINE_AT + own], 1
        if own > ring.INLINE_BYTES:
            slots = ring.slots_of(own)
            if slots > there:
                raise self._wrong(RingError.CUT, slots, sizes)
            more = b"".join(self._slot(tail + index) for index in range(1, slots))
            parameters = (parameters + more)[:own]
        self.tail = self._words[ring.TAIL // 4] = (tail + slots) & _MASK
        self.number = (number + 1) & _MASK
        return RingRecord(
            number, site, (x, y, z), parameters, limit_ms, bool(flags & 1), flags >> 1
        )

    def _slot(self, count: int) -> bytes:
        at = ring.SLOTS_AT + count % ring.SLOTS * ring.SLOT_BYTES
        return self._map[at : at + ring.SLOT_BYTES]

    def _wrong(self, error: int, wrong: int, sizes: Sequence[int]) -> Exception:
        return ring_error(error, wrong, self.number, len(sizes))

    # -- completions

    def begin(self, number: int, accepted_ns: int) -> None:
        """Say that a launch has begun, the latest one so far."""
        place = self._completion(number)
        self._map[place + 8 : place + 16] = accepted_ns.to_bytes(8, "little")
        self._words[ring.BEGUN // 4] = (number + 1) & _MASK

    def complete(
        self,
        number: int,
        status: int,
        slices: int,
        accepted_ns: int,
        began_ns: int,
        ended_ns: int,
    ) -> None:
        """Write the completion of a launch, the latest one so far; `wake` wakes its client."""
        _COMPLETION.pack_into(
            self._map, self._completion(number), number, status | slices << ring.SLICES_SHIFT,
            accepted_ns, began_ns, ended_ns,
        )  # fmt: skip
        self._completed = following = (number + 1) & _MASK
        self._words[ring.BEGUN // 4] = following
        self._words[ring.COMPLETED // 4] = following

    def wake(self) -> None:
        """Wake the client, if it waits for what is complete and was not woken for that."""
        with self._barrier:  # a full barrier: the client sees the count, or this what it wants
            pass
        wanted = self._words[ring.WANTED // 4]
        if wanted != self._woken and (self._completed - wanted) & _MASK < _HALF:
            self._woken = wanted
            wake_shared(self.address + ring.COMPLETED)

    def end(self) -> None:
        """Say that the lane has ended, and wake everybody who waits for it."""
        self._words[ring.ENDED // 4] = 1
        wake_shared(self.address + ring.COMPLETED)

    @staticmethod
    def _completion(number: int) -> int:
        return ring.COMPLETIONS_AT + number % ring.SLOTS * ring.COMPLETION_BYTES
