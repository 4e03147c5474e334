"""The device's primary context, which every thread that calls the driver enters.

Problem: a context is current per thread, and several threads call: those that read commands, load
programs and map memory, and the one that watches launches.

Approach: use the *primary* context, the one that the CUDA runtime and libraries of the same process
would use. Its flags make waiting block the thread instead of spinning. After a thread's first call,
`Context.enter` only tests a thread-local flag.

When a kernel needs more local memory per thread than any before it, the driver allocates for all
threads that can be resident, and first waits until the device is idle. So `_STACK_BYTES` per thread
are reserved from the start (1.1 GB on an H100), and `Context.make_room` reserves more ahead of a
launch. The driver never frees it (CUDA Driver API 13.0, cuCtxSetLimit and
CU_CTX_LMEM_RESIZE_TO_MAX).

Properties:
* no call waits by spinning;
* `close` releases the context once, however often it is called.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from gpud.device.cuda.driver.calls import Driver, DriverError
from gpud.device.cuda.driver.machine_code import MachineCode
from gpud.device.cuda.driver.watchdog import DriverWatchdog
from gpud.errors import InvalidArgument

__all__ = ["Context"]

_STACK_BYTES = 4 << 10
"""Four times the driver's default; few kernels need more."""


class Context:
    """The context of one GPU.

    Args:
        driver: for all calls.
        index: the GPU's number in the driver's order, which ``CUDA_VISIBLE_DEVICES`` changes.

    Attributes:
        least_priority, greatest_priority: of streams; the greatest is the smallest number.
        stack_bytes: local memory reserved per thread.
        watchdog: for calls that may wait for kernels.
        machine_code: cache of compiled programs.

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
        """Make the context current in this thread; returns the driver for the calls that follow."""
        if not getattr(self._entered, "yes", False):
            self.driver.call("cuCtxSetCurrent", self._handle)
            self._entered.yes = True
        return self.driver

    def make_room(self, local_bytes: int) -> None:
        """Reserve ``local_bytes`` of local memory per thread; an increase waits for all kernels."""
        if local_bytes > self.stack_bytes:
            driver = self.enter()
            driver.call("cuCtxSetLimit", driver.api.CUlimit.CU_LIMIT_STACK_SIZE, local_bytes)
            self.stack_bytes = local_bytes

    def attribute(self, name: str) -> int:
        """See `Driver.attribute`."""
        return self.driver.attribute(self.device, name)

    @property
    def name(self) -> str:
        """The GPU's name, from the driver."""
        raw: Any = self.driver.call("cuDeviceGetName", 256, self.device)
        return bytes(raw).partition(b"\0")[0].decode(errors="replace")

    @property
    def memory_bytes(self) -> int:
        """The GPU's total memory."""
        return int(self.driver.call("cuDeviceTotalMem", self.device))

    def free_bytes(self) -> int:
        """Return how much device memory is free now."""
        free, _ = self.enter().call("cuMemGetInfo")
        return int(free)

    @property
    def uuid(self) -> str:
        """The GPU's UUID, as NVML takes it."""
        return self.driver.uuid(self.device)

    def copy_in(self, address: int, source: int, size: int) -> None:
        """Copy from host memory to device memory; every later launch sees it."""
        if size:
            self.enter().call("cuMemcpyHtoD", address, source, size)
            self._sync_default_stream()

    def copy_out(self, target: int, address: int, size: int) -> None:
        """Copy from device memory to host memory."""
        if size:
            self.enter().call("cuMemcpyDtoH", target, address, size)

    def read(self, address: int, size: int) -> bytes:
        """Read device memory; return no bytes if it cannot be read."""
        copy = np.empty(size, np.uint8)
        try:
            self.copy_out(copy.ctypes.data, address, size)
        except DriverError:
            return b""
        return copy.tobytes()

    def fill(self, address: int, byte: int, size: int) -> None:
        """Set bytes of device memory; every later launch sees it."""
        self.enter().call("cuMemsetD8", address, byte, size)
        self._sync_default_stream()

    def _sync_default_stream(self) -> None:
        """Wait for the default stream, with which our own streams do not synchronize.

        A memset returns before it is done, and so may a copy from pageable memory.
        """
        self.driver.call("cuStreamSynchronize", 0)

    def close(self) -> None:
        """Release the context and everything in it, whatever runs."""
        if self._open:
            self._open = False
            self.driver.call("cuDevicePrimaryCtxRelease", self.device)
