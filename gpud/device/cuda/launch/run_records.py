"""What one run of a chain has on the device: a stream, run words, job records, an output buffer.

Job records are set up by a copy on the run's own stream, so that no launch there is before it and
no thread waits for it; a launch on another stream waits for it there, see `RunRecords.wait_on`.
Behind them is a bitmap of SMs on which the run is to have no blocks
(`gpud.compiler.abi.control_words`) and, if a kernel of the chain prints, the output record
(`gpud.compiler.abi.print_buffer`). Run words are those of `gpud.device.cuda.launch.gate`.

A run can move to a stream of another place (`gpud.device.cuda.placement.partitioner`): what is on
the old one goes on there, and the new one waits for it.

Properties:
* a `RunRecords` that could not be made holds nothing;
* what it held is used again only when nothing on its streams can touch it, and records only behind
  what is written to them on the device's own stream.

It has not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from gpud.compiler.abi import control_words as cw
from gpud.compiler.abi.print_buffer import OUTPUT_RECORD_BYTES, output_record
from gpud.device.cuda.driver.calls import DriverError
from gpud.device.cuda.launch import gate
from gpud.device.cuda.launch.chain import Chain
from gpud.device.cuda.launch.output import OUTPUT_BYTES, read
from gpud.device.cuda.placement.partitioner import GreenContext
from gpud.errors import DeviceLost

if TYPE_CHECKING:
    from gpud.device.cuda.device import CUDADevice

__all__ = ["RunRecords"]


class RunRecords:
    """Records and words of one run. Under the device's lock.

    Args:
        device: where.
        chain: whose image the records begin with; kept by the caller.
        urgent: whether its stream is of the highest priority.
        place: where its launches run; None: anywhere.

    Attributes:
        stream: for its launches.
        place: of the stream.
        loose: whether something is on the stream that no launch waits for.
        named: address of the bitmap.
    """

    def __init__(
        self, device: CUDADevice, chain: Chain, urgent: bool, place: GreenContext | None = None
    ) -> None:
        self._device = device
        self._urgent = urgent
        self._said = bytes(cw.NAMED_BYTES)
        self.loose = False
        with ExitStack() as undo:
            self._page = device.host_blocks.take(gate.RUN_BYTES + OUTPUT_RECORD_BYTES)
            undo.callback(device.host_blocks.give, self._page)
            self._page.view[:] = 0
            self._output = device.output_buffers.take() if chain.output else None
            if self._output is not None:
                undo.callback(device.output_buffers.give, self._output)
            self._records = device.device_blocks.take(chain.record_bytes)
            undo.callback(device.device_blocks.give, self._records)
            self.stream = device.launches.take_stream(urgent, place)
            self.place = place
            undo.callback(device.launches.give_stream, self.stream, urgent, place)
            self._ready = device.launches.take_event()
            undo.callback(device.launches.give_event, self._ready)
            undo.callback(self._settle)
            driver = device.context.enter()
            if not driver.is_over(device.control_event):  # for whoever had the records before
                driver.call("cuStreamWaitEvent", self.stream, device.control_event, 0)
            to, size = self._records.address, chain.record_bytes
            self.named: int = to + size - cw.NAMED_BYTES
            driver.call("cuMemcpyHtoDAsync", to, chain.image, size, self.stream)
            self.loose = True
            if self._output is not None:
                record = output_record(self._output.address, OUTPUT_BYTES)
                self._page.view[gate.RUN_BYTES :][: len(record)] = np.frombuffer(record, np.uint8)
                of, size = self._page.address + gate.RUN_BYTES, len(record)
                driver.call("cuMemcpyHtoDAsync", to + chain.output, of, size, self.stream)
            driver.call("cuEventRecord", self._ready, self.stream)
            self._close = undo.pop_all()

    def close(self) -> None:
        """Give everything back; no launch is on the device."""
        self._close.close()

    def _settle(self) -> None:
        """Wait for a gate or a copy on the way to a launch that failed: they are short."""
        if self.loose:
            try:
                self._device.context.enter().call("cuStreamSynchronize", self.stream)
            except DriverError as error:
                raise DeviceLost(f"a run's stream cannot be waited for: {error}") from error

    def move(self, place: GreenContext | None) -> None:
        """Have what is launched from now on run in ``place``, after what is on the stream."""
        if place is self.place:
            return
        launches = self._device.launches
        driver = self._device.context.enter()
        stream = launches.take_stream(self._urgent, place)
        self._close.callback(launches.give_stream, stream, self._urgent, place)
        event = launches.take_event()
        self._close.callback(launches.give_event, event)
        driver.call("cuEventRecord", event, self.stream)
        driver.call("cuStreamWaitEvent", stream, event, 0)
        self.stream, self.place, self.loose = stream, place, True
        self._close.callback(self._settle)

    @property
    def printed(self) -> tuple[bytes, bytes]:
        """The output buffer as it is now, as `gpud.device.cuda.launch.output.read` has it."""
        return (b"", b"") if self._output is None else read(self._output)

    # -- words

    @property
    def current(self) -> int:
        """The stage that runs, or ran last."""
        return int(self._page.words[gate.CURRENT])

    def begin(self, stage: int) -> None:
        """Make ``stage`` the current one, without a gate: nothing is on the device."""
        self._page.words[gate.CURRENT] = stage

    def stop(self) -> None:
        """Let gates open nothing more."""
        self._page.words[gate.STOP] = 1

    def help(self, stage: int) -> None:
        """Keep the gate behind ``stage`` closed: a launch is about to be added to it."""
        self._page.words[gate.HELPED] = stage + 1

    def gate(self, stage: int, *, always: bool) -> None:
        """Put the gate before ``stage`` on the stream; ``always``: it looks at nothing before."""
        self.loose = True
        previous = 0 if always else self.job(stage - 1)
        launches = self._device.launches
        launches.gate(self.stream, self.job(stage), previous, self._page.address, stage)

    # -- records

    def wait_on(self, stream: Any) -> None:
        """Have what follows on another stream wait until the records are set up."""
        driver = self._device.context.enter()
        driver.call("cuStreamWaitEvent", stream, self._ready, 0)

    def job(self, stage: int) -> int:
        """Address of a stage's job record."""
        address: int = self._records.address
        return address + cw.JOB_BYTES * stage

    def record(self, stage: int, size: int = cw.JOB_BYTES) -> bytes:
        """The first ``size`` bytes of a stage's job record, as they are now."""
        found = np.empty(size, np.uint8)
        self._device.context.copy_out(found.ctypes.data, self.job(stage), size)
        return found.tobytes()

    def name(self, sms: frozenset[int]) -> None:
        """Name these SMs in the bitmap, once the records are set up; returns at once."""
        bits = cw.named_sms(sms)
        words = [
            (self.named + at, int.from_bytes(bits[at : at + 4], "little"))
            for at in range(0, cw.NAMED_BYTES, 4)
            if bits[at : at + 4] != self._said[at : at + 4]
        ]
        if words:
            self._set(words)
        self._said = bits

    @property
    def is_ready(self) -> bool:
        """Whether the records have been set up."""
        return self._device.context.enter().is_over(self._ready)

    def kill(self, stages: set[int]) -> None:
        """Set the kill words of ``stages``, once the records are set up; returns at once."""
        self._set([(self.job(stage) + cw.KILL, 1) for stage in sorted(stages)])

    def _set(self, words: Iterable[tuple[int, int]]) -> None:
        """Have values written at addresses in the records, while kernels run."""
        driver, stream = self._device.context.enter(), self._device.control_stream
        if not self.is_ready:
            self.wait_on(stream)
        try:
            for address, value in words:
                driver.call("cuStreamWriteValue32", stream, address, value, 0)
        finally:
            driver.call("cuEventRecord", self._device.control_event, stream)
