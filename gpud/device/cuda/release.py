"""How running blocks learn that they are to release: the limit words, and four ways to set them.

Problem: a persistent block looks at its launch's limit before every claim. The word must change
while the kernel runs, soon, and without a place on an SM, for there may be none; and looking must
be cheap. Which way is fastest is for a GPU to say.

Approach: launch records (`gpud.compiler.control_words`) live in *slots*. A release path is where
the slots are and how a limit is set. Where the bitmap lies that names SMs is set in the same way.

``mapped``       in host memory that the GPU reads over the bus; setting it is one store. The
                 default until the others have been measured, and the only one by which blocks can
                 be told anything while the driver does not answer (`gpud.device.cuda.patience`).
``write_value``  in device memory; ``cuStreamWriteValue32`` on a stream of its own.
``copy``         in device memory; a copy of one word on a stream of its own.
``memset``       in device memory; a memset of one word on a stream of its own.

Blocks subtract from ``live`` at the GPU's scope: on host memory that is atomic among them, and at
the system's scope only where the bus has atomics. The host stores and loads whole words, which is
atomic for both sides (CUDA Programming Guide 13, 5.7.3). No word is written by both.

Properties:
* a record is complete before the launch that follows it on its stream begins, and a limit that was
  set after `ReleasePath.place` is never undone by it;
* a slot is used again only after it was given back;
* `ReleasePath.live` is never less than the truth.

None of the four has run on a GPU yet. A memset may be a kernel, which waits for room.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, ClassVar

import numpy as np

from gpud.compiler import control_words as cw
from gpud.device.cuda.context import Context
from gpud.device.cuda.memory import DeviceBlock, MappedBlock
from gpud.errors import LimitExceeded

__all__ = ["RELEASE_PATHS", "ReleasePath", "Slot"]

_SLOTS = 1 << 14
_LIMIT, _LIVE, _BEGUN = cw.LIMIT // 4, cw.LIVE // 4, cw.BEGUN // 4
_NAMED, _JOB = cw.NAMED // 4, cw.JOB // 8
_WORDS = cw.LAUNCH_BYTES // 4

Slot = int
"""The number of a launch record."""


class ReleasePath:
    """Slots for launch records in host memory that the GPU reads: ``mapped``.

    Args:
        context: of the device.

    Attributes:
        name: as in `RELEASE_PATHS`.
    """

    name: ClassVar[str] = "mapped"

    def __init__(self, context: Context) -> None:
        self._context = context
        # Also what the other paths copy from.
        self._host = MappedBlock(context, _SLOTS * cw.LAUNCH_BYTES)
        self._words = self._host.words.reshape(_SLOTS, _WORDS)
        self._bytes = self._host.view.reshape(_SLOTS, cw.LAUNCH_BYTES)
        self._quads = self._bytes.view(np.uint64)
        self._free = list(range(_SLOTS - 1, -1, -1))

    def take(self) -> Slot:
        """A slot that nobody uses.

        Raises:
            LimitExceeded: there are too many launches at once.
        """
        if not self._free:
            raise LimitExceeded(f"{_SLOTS} launches are on the device, and no more can be")
        return self._free.pop()

    def give(self, slot: Slot) -> None:
        """Take a slot back: its launch is over, or never began."""
        self._free.append(slot)

    def address(self, slot: Slot) -> int:
        """Where kernels find the record: their hidden parameter."""
        return self._host.address + slot * cw.LAUNCH_BYTES

    def place(self, slot: Slot, record: bytes, stream: Any) -> None:
        """Write a launch record for a launch that will follow on ``stream``."""
        self._bytes[slot] = np.frombuffer(record, np.uint8)

    def set_limit(self, slot: Slot, limit: int) -> None:
        """Tell blocks whose index is ``limit`` or more to release; returns at once."""
        self._set(slot, _LIMIT, limit)

    def halt(self, slot: Slot) -> None:
        """Tell all blocks to release, without the driver and without a lock."""
        self._words[slot, _LIMIT] = 0

    def set_named(self, slot: Slot, named: int) -> None:
        """Set the address of the bitmap that names SMs, 0: none are named; returns at once."""
        self._set(slot, _NAMED, cw.named_at(int(self._quads[slot, _JOB]), named))

    def _set(self, slot: Slot, word: int, value: int) -> None:
        """Set a word of the record at once."""
        self._words[slot, word] = value

    def refresh(self) -> None:
        """Look at what blocks have written, where that is not seen anyway."""

    def live(self, slot: Slot) -> int:
        """How many blocks of the launch have not left, as last seen."""
        return int(self._words[slot, _LIVE])

    def begun(self, slot: Slot) -> bool:
        """Whether its first block has begun; may be late to say so."""
        return bool(self._words[slot, _BEGUN])

    def close(self) -> None:
        """Give everything back; no launch is on the device."""
        self._host.free()


class _InDeviceMemory(ReleasePath):
    """Slots in device memory, written on a stream of their own.

    What blocks write there is read by one copy for all slots, once in a look at a gang: a copy for
    each word would take longer than a release may.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        with ExitStack() as undo:
            undo.callback(super().close)
            self._device = DeviceBlock(context, _SLOTS * cw.LAUNCH_BYTES)
            undo.callback(self._device.free)
            driver = context.enter()
            self._stream = driver.call(
                "cuStreamCreateWithPriority",
                int(driver.api.CUstream_flags.CU_STREAM_NON_BLOCKING),
                context.greatest_priority,
            )
            undo.callback(driver.call, "cuStreamDestroy", self._stream)
            timing = int(driver.api.CUevent_flags.CU_EVENT_DISABLE_TIMING)
            self._on_the_way: set[Slot] = set()
            self._seen = np.zeros_like(self._words)
            self._used = 0  # slots that were ever taken
            self._placed = driver.call("cuEventCreate", timing)
            undo.callback(driver.call, "cuEventDestroy", self._placed)
            self._close = undo.pop_all()

    def address(self, slot: Slot) -> int:
        return self._device.address + slot * cw.LAUNCH_BYTES

    def place(self, slot: Slot, record: bytes, stream: Any) -> None:
        super().place(slot, record, stream)
        driver = self._context.enter()
        source = self._host.address + slot * cw.LAUNCH_BYTES
        self._seen[slot] = self._words[slot]
        self._used = max(self._used, slot + 1)
        self._arrived()
        self._on_the_way.add(slot)
        # On our stream, so that whatever sets the limit afterwards comes afterwards.
        driver.call("cuMemcpyHtoDAsync", self.address(slot), source, cw.LAUNCH_BYTES, self._stream)
        driver.call("cuEventRecord", self._placed, self._stream)
        driver.call("cuStreamWaitEvent", stream, self._placed, 0)

    def _arrived(self) -> bool:
        """Whether all records that were placed are in device memory."""
        if self._context.enter().is_over(self._placed):
            self._on_the_way.clear()
        return not self._on_the_way

    def _set(self, slot: Slot, word: int, value: int) -> None:
        super()._set(slot, word, value)
        at = slot * cw.LAUNCH_BYTES + 4 * word
        self._write(self._device.address + at, self._host.address + at, value)

    def halt(self, slot: Slot) -> None:
        """Nothing: only the driver could, which does not answer then."""

    def _write(self, address: int, source: int, value: int) -> None:
        """Have ``value`` written at ``address``; it is at ``source`` in page-locked memory."""
        raise NotImplementedError

    def refresh(self) -> None:
        self._arrived()
        size = self._used * cw.LAUNCH_BYTES
        self._context.copy_out(self._seen.ctypes.data, self._device.address, size)
        for slot in self._on_the_way:
            self._seen[slot] = self._words[slot]  # what is there is another launch's

    def live(self, slot: Slot) -> int:
        return int(self._seen[slot, _LIVE])

    def begun(self, slot: Slot) -> bool:
        return bool(self._seen[slot, _BEGUN])

    def close(self) -> None:
        self._close.close()


class WriteValue(_InDeviceMemory):
    """``write_value``: the stream itself writes the word."""

    name = "write_value"

    def _write(self, address: int, source: int, value: int) -> None:
        self._context.enter().call("cuStreamWriteValue32", self._stream, address, value, 0)


class Copy(_InDeviceMemory):
    """``copy``: one word from page-locked memory.

    The copy may read the word later, and then finds what was set since: as good.
    """

    name = "copy"

    def _write(self, address: int, source: int, value: int) -> None:
        self._context.enter().call("cuMemcpyHtoDAsync", address, source, 4, self._stream)


class Memset(_InDeviceMemory):
    """``memset``: one word."""

    name = "memset"

    def _write(self, address: int, source: int, value: int) -> None:
        self._context.enter().call("cuMemsetD32Async", address, value, 1, self._stream)


RELEASE_PATHS: dict[str, type[ReleasePath]] = {
    path.name: path for path in (ReleasePath, WriteValue, Copy, Memset)
}
"""Every release path by its name."""
