"""What one run of a chain has on the device: a stream, its run words, and its job records.

Job records are set up by a copy on the run's own stream, so that no launch there is before it and
no thread waits for it; a launch on another stream waits for it there, see `Run.wait_on`. Run words
are those of `gpud.device.cuda.gate`.

Properties:
* a `Run` that could not be made holds nothing;
* what it held is used again only when nothing on its stream can touch it.

It has not run on a GPU yet.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from gpud.compiler import control_words as cw
from gpud.device.cuda import gate
from gpud.device.cuda.chain import Chain
from gpud.device.cuda.driver import DriverError
from gpud.errors import DeviceLost

if TYPE_CHECKING:
    from gpud.device.cuda.device import CUDADevice

__all__ = ["Run"]


class Run:
    """Records and words of one run. Under the device's lock.

    Args:
        device: where.
        chain: whose image the records begin with; kept by the caller.
        urgent: whether its stream is of the highest priority.

    Attributes:
        stream: for its launches.
        loose: whether something is on the stream that no flight waits for.
    """

    def __init__(self, device: CUDADevice, chain: Chain, urgent: bool) -> None:
        self._device = device
        self.loose = False
        with ExitStack() as undo:
            self._page = device.host_blocks.take(gate.RUN_BYTES)
            undo.callback(device.host_blocks.give, self._page)
            self._page.view[:] = 0
            self._records = device.device_blocks.take(chain.record_bytes)
            undo.callback(device.device_blocks.give, self._records)
            self.stream = device.flights.take_stream(urgent)
            undo.callback(device.flights.give_stream, self.stream, urgent)
            self._ready = device.flights.take_event()
            undo.callback(device.flights.give_event, self._ready)
            undo.callback(self._settle)
            driver = device.context.enter()
            to, size = self._records.address, chain.record_bytes
            driver.call("cuMemcpyHtoDAsync", to, chain.image, size, self.stream)
            self.loose = True
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
        flights = self._device.flights
        flights.gate(self.stream, self.job(stage), previous, self._page.address, stage)

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

    @property
    def is_ready(self) -> bool:
        """Whether the records have been set up."""
        return self._device.context.enter().is_over(self._ready)

    def kill(self, stages: set[int]) -> None:
        """Set the kill words of ``stages``; waits for the records to be set up, which is short."""
        driver = self._device.context.enter()
        driver.call("cuEventSynchronize", self._ready)
        for stage in sorted(stages):
            at = self.job(stage) + cw.KILL
            driver.call("cuStreamWriteValue32", self._device.control_stream, at, 1, 0)
