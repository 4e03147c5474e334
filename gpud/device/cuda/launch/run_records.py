"""Device-side records of one run of a sequence: stream, run words, job records, output buffer.

Job records are initialised ahead (`gpud.device.cuda.launch.armed_records`); no launch on the run's
stream precedes that and no thread waits for it; a launch on another stream waits for it, see
`CUDARunRecords.wait_on`. Behind the last launch they are copied to host memory, see
`CUDARunRecords.copy_back`.
Behind them are a bitmap of the SMs that are barred to the run (`gpud.compiler.abi.control_words`)
and, if a kernel of the sequence prints, the output record (`gpud.compiler.abi.print_buffer`). Run
words are those of `gpud.device.cuda.launch.gate`.

A run can move to a stream of another place (`gpud.device.cuda.placement.partitioner`): work on the
old stream continues there, and the new stream waits for it.

Properties:
* a `CUDARunRecords` that could not be created holds no resources;
* its resources are reused only when nothing on its streams can access them, and records only after
  what is written to them on the device's control stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from gpud.compiler.abi import control_words as cw
from gpud.compiler.abi.print_buffer import output_record
from gpud.device.cuda.driver.calls import DriverError
from gpud.device.cuda.launch import gate
from gpud.device.cuda.launch.active_launch import ActiveLaunch
from gpud.device.cuda.launch.batch import Queued
from gpud.device.cuda.launch.output import OUTPUT_BYTES, read
from gpud.device.cuda.launch.resources import LaunchResources
from gpud.device.cuda.launch.sequence import COPIES_AT, CUDASequence
from gpud.device.cuda.memory.pool import MappedBlock
from gpud.device.cuda.placement.green_context import GreenContext
from gpud.errors import DeviceLost

__all__ = ["CUDARunRecords"]


_NONE_BARRED: Final = bytes(cw.NAMED_BYTES)


class CUDARunRecords:
    """Records and words of one run. Under the device's lock.

    Args:
        device: what the run launches with.
        sequence: whose image initialises the records; kept alive by the caller.
        urgent: whether its stream has the highest priority.
        place: where its launches run; None: anywhere.

    Attributes:
        unawaited: whether work is on the stream that no launch's end covers.
        bitmap: address of the bitmap of barred SMs.
    """

    def __init__(
        self,
        device: LaunchResources,
        sequence: CUDASequence,
        urgent: bool,
        place: GreenContext | None = None,
    ) -> None:
        self._device = device
        self._urgent = urgent
        self._barred_bits = _NONE_BARRED
        self.unawaited = False
        self._sequence = sequence
        self._copied = False
        # Not an ExitStack: it takes a few microseconds in front of every first launch.
        self._undo: list[Callable[[], None]] = []
        self._output: MappedBlock | None = None
        try:
            self._take(place)
        except BaseException:
            self.close()
            raise

    def _take(self, place: GreenContext | None) -> None:
        """Take what it needs."""
        device, sequence, undo = self._device, self._sequence, self._undo
        if sequence.output:
            output = self._output = device.output_buffers.take()
            undo.append(lambda: device.output_buffers.give(output))
        stream = self.stream = device.launches.streams.take_stream(self._urgent, place)
        self.place = place
        undo.append(lambda: device.launches.streams.give_stream(stream, self._urgent, place))
        armed = self._armed = device.armed.take(sequence, stream)
        undo.append(self._give_back)
        self._page, self._records = armed.page, armed.block
        undo.append(self._synchronize)
        self.unawaited = True
        to = self._records.address
        self.bitmap: int = to + sequence.record_bytes - cw.NAMED_BYTES
        if self._output is not None:
            record = output_record(self._output.address, OUTPUT_BYTES)
            self._page.view[gate.RUN_BYTES :][: len(record)] = np.frombuffer(record, np.uint8)
            of, size = self._page.address + gate.RUN_BYTES, len(record)
            driver = device.context.enter()
            driver.call("cuMemcpyHtoDAsync", to + sequence.output, of, size, stream)
            driver.call("cuEventRecord", armed.ready, stream)

    def _give_back(self) -> None:
        """Return the records, to be initialised for the next run."""
        self._device.armed.give(self._sequence, self._armed, self.stream)

    def close(self) -> None:
        """Return everything, the last taken first; no launch is on the device."""
        while self._undo:
            self._undo.pop()()

    def _synchronize(self) -> None:
        """Wait for gates and copies whose launch failed: they are short."""
        if self.unawaited:
            try:
                self._device.context.enter().call("cuStreamSynchronize", self.stream)
            except DriverError as error:
                raise DeviceLost(f"a run's stream cannot be waited for: {error}") from error

    def move(self, place: GreenContext | None) -> None:
        """Run later launches in ``place``, after the work that is on the stream now."""
        if place is self.place:
            return
        launches = self._device.launches
        driver = self._device.context.enter()
        stream = launches.streams.take_stream(self._urgent, place)
        self._undo.append(lambda: launches.streams.give_stream(stream, self._urgent, place))
        event = launches.streams.take_event()
        self._undo.append(lambda: launches.streams.give_event(event))
        driver.call("cuEventRecord", event, self.stream)
        driver.call("cuStreamWaitEvent", stream, event, 0)
        self.stream, self.place, self.unawaited = stream, place, True
        self._undo.append(self._synchronize)

    @property
    def printed(self) -> tuple[bytes, bytes]:
        """The output buffer's content now, as `gpud.device.cuda.launch.output.read` returns it."""
        return (b"", b"") if self._output is None else read(self._output)

    # -- words

    @property
    def current(self) -> int:
        """The number of the launch that runs, or ran last."""
        return int(self._page.words[gate.CURRENT])

    def begin(self, number: int) -> None:
        """Make launch ``number`` the current one without a gate; nothing is on the device."""
        self._page.words[gate.CURRENT] = number

    def stop(self) -> None:
        """Have gates open no more launches."""
        self._page.words[gate.STOP] = 1

    def mark_helped(self, number: int) -> None:
        """Keep the gate behind launch ``number`` closed: a helper is about to be added to it."""
        self._page.words[gate.HELPED] = number + 1

    def gate(self, number: int, *, always: bool) -> None:
        """Queue the gate before launch ``number``; ``always``: whatever the one before did."""
        self.unawaited = True
        previous = 0 if always else self.job(number - 1)
        launches = self._device.launches
        launches.gate(self.stream, self.job(number), previous, self._page.address, number)

    def queue(
        self, first: int, slices: int, why_not: str, ways: Counter[str], *, copies: bool
    ) -> Queued | None:
        """Queue launches from ``first`` on as a batch, see `Batches.queue`.

        ``copies``: whether the job records behind the last launch are then the final ones.
        """
        queued = self._armed.batches.queue(
            self._sequence, first, slices, self.stream, why_not, ways
        )
        if queued is not None:
            self._copied = queued.copied and copies
            self.unawaited = queued.error is not None
        return queued

    # -- records

    def wait_on(self, stream: Any) -> None:
        """Have later work on another stream wait until the records are initialised."""
        driver = self._device.context.enter()
        driver.call("cuStreamWaitEvent", stream, self._armed.ready, 0)

    def job(self, number: int) -> int:
        """Return the address of a launch's job record."""
        address: int = self._records.address
        return address + cw.JOB_BYTES * number

    def copy_back(self, last: ActiveLaunch) -> None:
        """Queue a copy of all job records to host memory behind ``last``; its event comes later.

        Then nobody has to wait for a copy when the run is over.
        """
        driver, size = self._device.context.enter(), cw.JOB_BYTES * len(self._sequence.prepared)
        to = self._page.address + COPIES_AT
        driver.call("cuMemcpyDtoHAsync", to, self._records.address, size, self.stream)
        self._device.launches.follow(last, self.stream)
        self._copied = True

    def changing(self) -> None:
        """Note that a launch is about to change job records that may have been copied."""
        self._copied = False

    def final_record(self, number: int) -> bytes:
        """Return a launch's job record; all that was begun of the run is over."""
        if not self._copied:
            return self.record(number)
        at = COPIES_AT + cw.JOB_BYTES * number
        return self._page.view[at : at + cw.JOB_BYTES].tobytes()

    def record(self, number: int, size: int = cw.JOB_BYTES) -> bytes:
        """Return the first ``size`` bytes of a launch's job record, as they are now."""
        record = np.empty(size, np.uint8)
        self._device.context.copy_out(record.ctypes.data, self.job(number), size)
        return record.tobytes()

    def bar(self, sms: frozenset[int]) -> None:
        """Set the bitmap to these SMs, once the records are initialised; returns at once."""
        if not sms and self._barred_bits == _NONE_BARRED:
            return
        bits = cw.named_sms(sms)
        words = [
            (self.bitmap + at, int.from_bytes(bits[at : at + 4], "little"))
            for at in range(0, cw.NAMED_BYTES, 4)
            if bits[at : at + 4] != self._barred_bits[at : at + 4]
        ]
        if words:
            self._set(words)
        self._barred_bits = bits

    @property
    def is_ready(self) -> bool:
        """Whether the records have been initialised."""
        return self._device.context.enter().is_over(self._armed.ready)

    def kill(self, numbers: set[int]) -> None:
        """Set these launches' kill words, once the records are initialised; return at once."""
        self._set([(self.job(number) + cw.KILL, 1) for number in sorted(numbers)])

    def _set(self, words: Iterable[tuple[int, int]]) -> None:
        """Write values to addresses in the records, while kernels run."""
        driver, stream = self._device.context.enter(), self._device.control_stream
        if not self.is_ready:
            self.wait_on(stream)
        try:
            for address, value in words:
                driver.call("cuStreamWriteValue32", stream, address, value, 0)
        finally:
            driver.call("cuEventRecord", self._device.control_event, stream)
