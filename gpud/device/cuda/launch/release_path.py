"""How running blocks are told to release: the words that they read, and five ways to set them.

Problem: a persistent block reads a word of its launch record before every claim. The host must
change the word while the kernel runs, with low latency, and without needing room on an SM; and the
read must be cheap. Which way is fastest has to be measured on a GPU.

Approach: what blocks report (`gpud.compiler.abi.control_words`, the status record) is always in
host memory that the GPU writes over the bus, so that the host can read it without asking the
driver. A release path determines where launch records are, and how their words are set.

``mapped``       in host memory that the GPU reads over the bus; setting a word is one store. The
                 default until the others have been measured.
``news``         in host memory as well, but the GPU reads it there only when a number in device
                 memory has changed, which some of its blocks fetch from host memory
                 (`gpud.device.cuda.program.forward_news`); setting a word is one store
``write_value``  in device memory; ``cuStreamWriteValue32`` for each word that changes, on a stream
                 of its own.
``copy``         in device memory; one copy of all words on a stream of its own.
``memset``       in device memory; a memset of each word that changes on a stream of its own.

Blocks report with plain stores to a place of their own, which nothing waits for: an atomic on host
memory is a round trip over the bus, and those on one word are made one after the other. The host
stores and loads whole words, which is atomic for both sides (CUDA Programming Guide 13, 5.7.3). No
word is written by both.

Launch records in device memory are written by the driver, so while it does not answer
(`gpud.device.cuda.driver.watchdog`) they cannot be changed. With those paths kernels also read
``halt`` in the status record from time to time (`gpud.device.cuda.program.host_poll`).

Properties:
* a record is complete before the launch that follows it on its stream begins, and `place` never
  undoes a word that was set after it;
* a slot's memory is reused only after it was returned, and device memory only for launch records
  again, so that late writes to it precede the next `place` on the same stream;
* `Slot.live` is never less than the true number.

A memset may run as a kernel, which waits for room.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gpud.compiler.abi import control_words as cw
from gpud.device.cuda.driver.context import Context
from gpud.device.cuda.memory.pool import DeviceBlock, MappedBlock, Pool

__all__ = ["RELEASE_PATHS", "ReleasePath", "Slot"]

_STAYS, _NAMED = range(2)

_MOST_KEPT, _MOST_SIZES = 32, 64
"""Slots that are kept of each number of blocks, and of how many numbers; others return memory."""


class Slot:
    """The records of one launch.

    Args:
        page: mapped host memory: for the launch record, or the source from which it is copied, and
            behind it the status record.
        blocks: persistent blocks; 0 in other forms.
        record: device memory for the launch record; None: it is in the page.

    Attributes:
        address: of the launch record, the kernel's hidden parameter.
        orders: the host's copy of the two words that each 32 blocks read; uint32[n, 2].
        sms: 1 + the SM of each block; 0: it has not begun, or is not in persistent form.
        status: address of the status record.
        said: the word in host memory that numbers changes of its orders; None: nobody reads it.
    """

    __slots__ = (
        "_addresses",
        "_left",
        "_status",
        "address",
        "blocks",
        "orders",
        "page",
        "record",
        "said",
        "size",
        "sms",
        "status",
    )

    def __init__(self, page: MappedBlock, blocks: int, record: DeviceBlock | None = None) -> None:
        self.page = page
        self.blocks = blocks
        self.record = record
        self.said: npt.NDArray[np.uint32] | None = None
        self.size = size = cw.launch_bytes(blocks)
        self.address = page.address if record is None else record.address
        self.orders: npt.NDArray[np.uint32] = page.words[cw.ORDERS // 4 : size // 4].reshape(-1, 2)
        self.status: int = page.address + size
        self._addresses = page.words[: cw.BASE // 4].view(np.uint64)
        self._status = page.words[size // 4 :]
        sm_bytes = page.view[size + cw.SM : size + cw.SM + 2 * blocks]
        self.sms: npt.NDArray[np.uint16] = sm_bytes.view(np.uint16)
        # As truth values, which are counted the fastest.
        self._left = page.view[size + cw.left_at(blocks) :][:blocks].view(np.bool_)

    def write(self, job: int, base: int, bitmap: int) -> None:
        """Initialise both records for a launch that has not begun."""
        fresh = _fresh(self.blocks)
        self.page.view[: len(fresh)] = fresh
        self._addresses[0] = job
        self._addresses[1] = self.status
        self.page.words[cw.BASE // 4] = base
        if bitmap:
            self.orders[:, _NAMED] = cw.named_at(job, bitmap)

    def count_change(self) -> None:
        """Count a change that was made."""
        if self.said is not None:
            self.said += 1

    def halt(self) -> None:
        """Have blocks release that also read ``halt``."""
        self._status[cw.HALT // 4] = 1

    @property
    def job(self) -> int:
        """The address of the job record."""
        return int(self._addresses[0])

    @property
    def live(self) -> int:
        """How many persistent blocks have not left."""
        return self.blocks - int(np.count_nonzero(self._left))

    @property
    def begun(self) -> bool:
        """Whether the first block has begun; may be late to say so."""
        return bool(self.sms[0] if self.blocks else self._status[cw.BEGUN // 4])


@lru_cache(maxsize=_MOST_SIZES)
def _fresh(blocks: int) -> npt.NDArray[np.uint8]:
    """Return the records of a launch that has not begun, but for addresses and ``base``."""
    return np.frombuffer(cw.launch_record(0, 0, blocks) + cw.status_record(blocks), np.uint8)


class ReleasePath:
    """Launch records in host memory that the GPU reads: ``mapped``.

    Args:
        context: of the device.
        host: pool of mapped host memory.

    Attributes:
        name: as in `RELEASE_PATHS`.
        at_once: whether `set_stays` makes no driver call.
        host_poll: whether kernels need `gpud.device.cuda.program.host_poll`: launch records are in
            device memory.
        news: whether kernels need `gpud.device.cuda.program.forward_news`.
    """

    name: ClassVar[str] = "mapped"
    news: ClassVar[bool] = False
    at_once: ClassVar[bool] = True
    host_poll: ClassVar[bool] = False

    def __init__(self, context: Context, host: Pool) -> None:
        self._context = context
        self._host = host
        self._kept: dict[int, list[Slot]] = {}

    def take(self, blocks: int) -> Slot:
        """Allocate the records of a launch with ``blocks`` persistent blocks; 0 in other forms.

        Raises:
            OutOfMemory: the driver has none left.
        """
        kept = self._kept.get(blocks)
        return kept.pop() if kept else self._made(blocks)

    def give(self, slot: Slot) -> None:
        """Return a slot: the launch is over, or never began."""
        kept = self._kept.get(slot.blocks)
        if kept is None and len(self._kept) < _MOST_SIZES:
            kept = self._kept[slot.blocks] = []
        if kept is None or len(kept) >= _MOST_KEPT:
            self._drop(slot)
        else:
            kept.append(slot)

    def _made(self, blocks: int) -> Slot:
        """Allocate a new slot."""
        return Slot(self._page(blocks), blocks)

    def _drop(self, slot: Slot) -> None:
        """Return a slot's memory."""
        self._host.give(slot.page)

    def place(self, slot: Slot, job: int, base: int, bitmap: int, stream: Any) -> None:
        """Write the records for a launch that will follow on ``stream``."""
        slot.write(job, base, bitmap)

    def set_stays(self, slot: Slot, stays: npt.NDArray[np.uint32]) -> None:
        """Tell blocks whose bit is 0 to release; returns at once."""
        self._set(slot, _STAYS, stays)

    def halt(self, slot: Slot) -> None:
        """Tell all blocks to release, without the driver and without a lock."""
        slot.orders[:, _STAYS] = 0

    def set_bitmap(self, slot: Slot, bitmap: int) -> None:
        """Set the address of the bitmap of barred SMs, 0: none; returns at once."""
        value = cw.named_at(slot.job, bitmap)
        self._set(slot, _NAMED, np.full(len(slot.orders), value, np.uint32))

    def _set(self, slot: Slot, which: int, values: npt.NDArray[np.uint32]) -> None:
        """Set the word ``which`` of all pairs."""
        slot.orders[:, which] = values

    def _page(self, blocks: int) -> MappedBlock:
        page: MappedBlock = self._host.take(cw.launch_bytes(blocks) + cw.status_bytes(blocks))
        return page

    def synchronize(self) -> None:
        """Wait until all words are set."""

    def close(self) -> None:
        """Free everything; no launch is on the device."""


class NewsPath(ReleasePath):
    """``news``: each change is numbered, after it was stored."""

    name = "news"
    news = True

    def halt(self, slot: Slot) -> None:
        super().halt(slot)
        slot.count_change()

    def _set(self, slot: Slot, which: int, values: npt.NDArray[np.uint32]) -> None:
        super()._set(slot, which, values)
        slot.count_change()


class _InDeviceMemory(ReleasePath):
    """Launch records in device memory, written on a stream of their own."""

    at_once = False
    host_poll = True

    def __init__(self, context: Context, host: Pool) -> None:
        super().__init__(context, host)
        with ExitStack() as undo:
            driver = context.enter()
            self._own = Pool(context, DeviceBlock)
            undo.callback(self._own.close)
            self._stream = driver.call(
                "cuStreamCreateWithPriority",
                int(driver.api.CUstream_flags.CU_STREAM_NON_BLOCKING),
                context.greatest_priority,
            )
            undo.callback(driver.call, "cuStreamDestroy", self._stream)
            timing = int(driver.api.CUevent_flags.CU_EVENT_DISABLE_TIMING)
            self._placed = driver.call("cuEventCreate", timing)
            undo.callback(driver.call, "cuEventDestroy", self._placed)
            self._close = undo.pop_all()

    def _made(self, blocks: int) -> Slot:
        record = self._own.take(cw.launch_bytes(blocks))
        try:
            return Slot(self._page(blocks), blocks, record)
        except Exception:
            self._own.give(record)
            raise

    def _drop(self, slot: Slot) -> None:
        super()._drop(slot)
        self._own.give(slot.record)

    def place(self, slot: Slot, job: int, base: int, bitmap: int, stream: Any) -> None:
        super().place(slot, job, base, bitmap, stream)
        driver = self._context.enter()
        # On our own stream, so that words that are set later are written later.
        source = slot.page.address
        driver.call("cuMemcpyHtoDAsync", slot.address, source, slot.size, self._stream)
        driver.call("cuEventRecord", self._placed, self._stream)
        driver.call("cuStreamWaitEvent", stream, self._placed, 0)

    def halt(self, slot: Slot) -> None:
        slot.halt()

    def _set(self, slot: Slot, which: int, values: npt.NDArray[np.uint32]) -> None:
        changed = np.flatnonzero(slot.orders[:, which] != values)
        super()._set(slot, which, values)
        at = slot.address + cw.ORDERS + 4 * which
        for pair in changed.tolist():
            self._write(at + cw.ORDER_BYTES * pair, int(values[pair]))

    def _write(self, address: int, value: int) -> None:
        """Write ``value`` to ``address`` in stream order."""
        raise NotImplementedError

    def synchronize(self) -> None:
        self._context.enter().call("cuStreamSynchronize", self._stream)

    def close(self) -> None:
        self._close.close()


class WriteValue(_InDeviceMemory):
    """``write_value``: a stream write for each word that changes."""

    name = "write_value"

    def _write(self, address: int, value: int) -> None:
        self._context.enter().call("cuStreamWriteValue32", self._stream, address, value, 0)


class Copy(_InDeviceMemory):
    """``copy``: one copy of all pairs from page-locked memory.

    The copy may run late and then reads newer words: that is right as well.
    """

    name = "copy"

    def _set(self, slot: Slot, which: int, values: npt.NDArray[np.uint32]) -> None:
        slot.orders[:, which] = values
        source, size = slot.page.address + cw.ORDERS, slot.size - cw.ORDERS
        driver = self._context.enter()
        driver.call("cuMemcpyHtoDAsync", slot.address + cw.ORDERS, source, size, self._stream)


class Memset(_InDeviceMemory):
    """``memset``: a memset of each word that changes."""

    name = "memset"

    def _write(self, address: int, value: int) -> None:
        self._context.enter().call("cuMemsetD32Async", address, value, 1, self._stream)


RELEASE_PATHS: dict[str, type[ReleasePath]] = {
    path.name: path for path in (ReleasePath, NewsPath, WriteValue, Copy, Memset)
}
"""Every release path by its name."""
