"""Records of runs that are initialised ahead: at the end of one run for the next of its sequence.

Problem: a run's records are initialised by a copy, which takes time in front of the first launch,
and more if it is queued behind a large copy of somebody else's.

Approach: when a run is over, its records are initialised again at once, by a copy on its stream,
and kept with the sequence. The next run takes them: usually the copy is over long since. The first
run of a sequence, and those that run at once with others, initialise theirs as they begin.

Terms: records are *armed* when they are initialised, or will be when their event completes.

Properties:
* records have one owner at a time, and nothing else's words are in them when their event completes;
* what a copy that is under way reads or writes (a sequence's image, its records) returns to its
  pool only when the copy is over, also if the sequence is garbage-collected before;
* no more than `_MOST_COPIES` copies of this kind are under way.
"""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from gpud.compiler.abi.print_buffer import OUTPUT_RECORD_BYTES
from gpud.device.cuda.driver.calls import DriverError
from gpud.device.cuda.driver.context import Context
from gpud.device.cuda.launch import gate
from gpud.device.cuda.launch.active_launches import ActiveLaunches
from gpud.device.cuda.launch.batch import Batches, BatchMaker
from gpud.device.cuda.launch.sequence import CUDASequence
from gpud.device.cuda.memory.pool import DeviceBlock, MappedBlock, Pool
from gpud.errors import DeviceLost

__all__ = ["ArmedRecords", "RecordPool"]

_MOST_KEPT: Final = 4
"""Armed records of one sequence."""

_MOST_COPIES: Final = 32
"""Beyond these, records are returned instead of initialised."""


@dataclass(slots=True, eq=False)
class ArmedRecords:
    """What a run has of its own.

    Attributes:
        page: host memory: run words, the output record, and behind them the job records as they are
            when the last launch is over.
        block: device memory for the records.
        ready: event behind the copy that initialises them.
        batches: launches that are prepared to be queued together.
    """

    page: MappedBlock
    block: DeviceBlock
    ready: Any
    batches: Batches


class RecordPool:
    """Armed records of all sequences. Under the device's lock, but for what finalizers do.

    Args:
        launches: which have events.
        host_blocks, device_blocks: memory for records.
        control_event: behind the last work that writes to records while kernels run.
        maker: of batches; None: there are none.
    """

    def __init__(
        self,
        context: Context,
        launches: ActiveLaunches,
        host_blocks: Pool,
        device_blocks: Pool,
        control_event: Any,
        maker: BatchMaker | None = None,
    ) -> None:
        self._context = context
        self._launches = launches
        self._host_blocks = host_blocks
        self._device_blocks = device_blocks
        self._control_event = control_event
        self._maker = maker
        self._kept: weakref.WeakKeyDictionary[CUDASequence, list[ArmedRecords]] = (
            weakref.WeakKeyDictionary()
        )
        self._copying: deque[ArmedRecords] = deque()
        # (an image, records) of sequences that are gone; appended to by finalizers.
        self._left: deque[tuple[Any, list[ArmedRecords]]] = deque()

    def take(self, sequence: CUDASequence, stream: Any) -> ArmedRecords:
        """Return armed records for a run on ``stream``, which work there will find initialised.

        Raises:
            DriverError, OutOfMemory: there is no memory or event left, or a call failed.
        """
        self._collect()
        driver = self._context.enter()
        kept = self._kept.get(sequence)
        if kept:
            records = kept[-1]
            if not driver.is_over(records.ready):
                driver.call("cuStreamWaitEvent", stream, records.ready, 0)
            self._forget(kept.pop())
            return records
        with ExitStack() as undo:
            page = self._host_blocks.take(sequence.page_bytes)
            undo.callback(self._host_blocks.give, page)
            block = self._device_blocks.take(sequence.record_bytes)
            undo.callback(self._device_blocks.give, block)
            ready = self._launches.streams.take_event()
            undo.callback(self._launches.streams.give_event, ready)
            records = ArmedRecords(page, block, ready, Batches(self._maker, page, block))
            undo.callback(self._wait, stream)
            self._arm(sequence, records, stream)
            undo.pop_all()
        return records

    def give(self, sequence: CUDASequence, records: ArmedRecords, stream: Any) -> None:
        """Take records back and arm them; nothing accesses them any more.

        Raises:
            DeviceLost: a copy cannot be followed.
        """
        kept = self._kept.get(sequence)
        if kept is None:
            kept = self._kept[sequence] = []
            sequence.free_image.detach()
            left = (sequence.image_block, kept)
            weakref.finalize(sequence, self._left.append, left).atexit = False
        if sequence.output or len(kept) >= _MOST_KEPT or self._under_way() >= _MOST_COPIES:
            self._return(records)
            return
        try:
            self._arm(sequence, records, stream)
        except DriverError:
            self._wait(stream)
            self._return(records)
            return
        records.batches.arm(sequence)
        self._copying.append(records)
        kept.append(records)

    def _arm(self, sequence: CUDASequence, records: ArmedRecords, stream: Any) -> None:
        """Initialise records in the order of ``stream``."""
        driver = self._context.enter()
        words = records.page.words
        words[: (gate.RUN_BYTES + OUTPUT_RECORD_BYTES) // 4] = 0
        if not driver.is_over(self._control_event):  # late writes to their previous owner's
            driver.call("cuStreamWaitEvent", stream, self._control_event, 0)
        at, size = records.block.address, sequence.record_bytes
        driver.call("cuMemcpyHtoDAsync", at, sequence.image, size, stream)
        driver.call("cuEventRecord", records.ready, stream)

    def _under_way(self) -> int:
        """Return how many copies are under way."""
        driver = self._context.enter()
        while self._copying and driver.is_over(self._copying[0].ready):
            self._copying.popleft()
        return len(self._copying)

    def _collect(self) -> None:
        """Return what sequences have left behind that are gone, where copies are over."""
        if not self._left:
            return
        driver = self._context.enter()
        for _ in range(len(self._left)):
            image, kept = self._left.popleft()
            if all(driver.is_over(records.ready) for records in kept):
                while kept:
                    self._return(kept.pop())
                self._host_blocks.give(image)
            else:
                self._left.append((image, kept))

    def _forget(self, records: ArmedRecords) -> None:
        """Count their copy no longer: their event gets another use."""
        if records in self._copying:
            self._copying.remove(records)

    def _return(self, records: ArmedRecords) -> None:
        """Return records to the device's pools; nothing accesses them."""
        self._forget(records)
        records.batches.close()
        self._launches.streams.give_event(records.ready)
        self._device_blocks.give(records.block)
        self._host_blocks.give(records.page)

    def _wait(self, stream: Any) -> None:
        """Wait for a copy that may be under way."""
        try:
            self._context.enter().call("cuStreamSynchronize", stream)
        except DriverError as error:
            raise DeviceLost(f"a run's stream cannot be waited for: {error}") from error
