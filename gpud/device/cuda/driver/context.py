"""The device's primary context: entered by every thread that calls the driver, left for good once.

Problem: a context is current per thread, and calls come from several: those that read commands,
load programs and map memory, and the one that watches launches.

Approach: the *primary* context, the one that the CUDA runtime and libraries of the same process
would use. It is made so that waiting blocks the thread instead of spinning. `Context.enter` costs
one look at a thread-local flag after the first time.

A kernel whose threads need more local memory than any before has the driver make room for all that
can be resident, and wait until everything before it is over. So there is room for `_STACK_BYTES` a
thread from the beginning (1.1 GB on an H100), and `Context.make_room` asks for more in good time.
The driver never gives it back (CUDA Driver API 13.0, cuCtxSetLimit and CU_CTX_LMEM_RESIZE_TO_MAX).

Properties:
* no call waits by spinning;
* `close` gives the context back once, however often it is called.

This module has not run on a GPU yet.
"""

from __future__ import annotations

import threading
from typing import Any

from gpud.device.cuda.driver.calls import Driver
from gpud.device.cuda.driver.watchdog import DriverWatchdog
from gpud.device.cuda.program.machine_code import MachineCode
from gpud.errors import InvalidArgument

__all__ = ["Context"]

_STACK_BYTES = 4 << 10
"""Four times what the driver begins with; few kernels need more."""


class Context:
    """The context of one GPU.

    Args:
        driver: the door to it.
        index: the GPU's, as the driver counts (``CUDA_VISIBLE_DEVICES`` has its say).

    Attributes:
        driver: as given.
        device: the driver's handle.
        least_priority, greatest_priority: of streams; the greatest is the smallest number.
        stack_bytes: local memory that there is room for, a thread.
        watchdog: for calls that may wait for kernels.
        machine_code: of programs that were loaded.

    Raises:
        InvalidArgument: there is no such GPU.
    """

    def __init__(self, driver: Driver, index: int) -> None:
        count = int(driver.call("cuDeviceGetCount"))
        if not 0 <= index < count:
            raise InvalidArgument(
                f"there is no cuda:{index}: the driver shows {count} GPU{'s' * (count != 1)} here"
            )
        self.driver = driver
        self.index = index
        self.device = driver.call("cuDeviceGet", index)
        wanted = int(driver.api.CUctx_flags.CU_CTX_SCHED_BLOCKING_SYNC)
        driver.call("cuDevicePrimaryCtxSetFlags", self.device, wanted)
        self._handle = driver.call("cuDevicePrimaryCtxRetain", self.device)
        self._entered = threading.local()
        self._open = True
        self.stack_bytes = 0
        self.watchdog = DriverWatchdog()
        self.machine_code = MachineCode()
        try:
            self.enter()
            self.make_room(_STACK_BYTES)
            least, greatest = driver.call("cuCtxGetStreamPriorityRange")
        except BaseException:
            self.close()
            raise
        self.least_priority = int(least)
        self.greatest_priority = int(greatest)

    def enter(self) -> Driver:
        """Make the context this thread's; the driver, for the calls that follow."""
        if not getattr(self._entered, "yes", False):
            self.driver.call("cuCtxSetCurrent", self._handle)
            self._entered.yes = True
        return self.driver

    def make_room(self, local_bytes: int) -> None:
        """Have room for so much local memory a thread; waits for all kernels if that is more."""
        if local_bytes > self.stack_bytes:
            driver = self.enter()
            driver.call("cuCtxSetLimit", driver.api.CUlimit.CU_LIMIT_STACK_SIZE, local_bytes)
            self.stack_bytes = local_bytes

    def attribute(self, name: str) -> int:
        """See `Driver.attribute`."""
        return self.driver.attribute(self.device, name)

    @property
    def name(self) -> str:
        """What the driver calls the GPU."""
        raw: Any = self.driver.call("cuDeviceGetName", 256, self.device)
        return bytes(raw).partition(b"\0")[0].decode(errors="replace")

    @property
    def memory_bytes(self) -> int:
        """All of the GPU's memory."""
        return int(self.driver.call("cuDeviceTotalMem", self.device))

    def free_bytes(self) -> int:
        """What could be allocated now."""
        free, _ = self.enter().call("cuMemGetInfo")
        return int(free)

    @property
    def uuid(self) -> str:
        """The GPU's own name, as NVML takes it."""
        raw = bytes(self.driver.call("cuDeviceGetUuid", self.device).bytes).hex()
        return f"GPU-{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}"

    def copy_in(self, address: int, source: int, size: int) -> None:
        """Copy from host memory to the device's; every launch that follows sees it."""
        if size:
            self.enter().call("cuMemcpyHtoD", address, source, size)
            self._settle()

    def copy_out(self, target: int, address: int, size: int) -> None:
        """Copy from the device's memory to the host's."""
        if size:
            self.enter().call("cuMemcpyDtoH", target, address, size)

    def fill(self, address: int, byte: int, size: int) -> None:
        """Set bytes of the device's memory; every launch that follows sees it."""
        self.enter().call("cuMemsetD8", address, byte, size)
        self._settle()

    def _settle(self) -> None:
        """Wait for the default stream, which none of our own waits for.

        A memset returns before it is done, and so may a copy from memory that is not page-locked.
        """
        self.driver.call("cuStreamSynchronize", 0)

    def close(self) -> None:
        """Give the context back. With it goes all that lives in it, whatever runs."""
        if self._open:
            self._open = False
            self.driver.call("cuDevicePrimaryCtxRelease", self.device)
