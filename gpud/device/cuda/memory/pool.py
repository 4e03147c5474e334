"""Pools of memory blocks: on the GPU, and page-locked on the host where both sides address it.

Problem: control words must be set up for each run without allocating from the driver: freeing
memory waits for every kernel on the device, and a persistent kernel may run for hours.

Approach: blocks are taken from a pool, rounded to powers of two, and return there; the driver gets
them back when the device is closed. Small ones are cut from *slabs*, the first of which is
allocated when the device is opened: whether an allocation waits for kernels is not documented, and
runs begin with the device's lock held. `MappedBlock` is host memory that the GPU reads and writes
over the bus at the same address; `DeviceBlock` is memory on the GPU.

Properties:
* a reused block is zeroed where the caller is promised zeroes, and has one owner at a time;
* nothing is returned to the driver while kernels may run.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from gpud.device.cuda.driver.calls import DriverError
from gpud.device.cuda.driver.context import Context
from gpud.errors import OutOfMemory

__all__ = ["DeviceBlock", "MappedBlock", "Pool", "out_of_memory"]

_LEAST_BYTES = 256
_SLAB_BYTES = 1 << 20


def out_of_memory(
    context: Context, error: DriverError, size: int, limit: str = "device"
) -> Exception:
    """Return the exception for ``size`` bytes that the driver refused with ``error``."""
    if error.status != "OUT_OF_MEMORY":
        return error
    return OutOfMemory(size, context.free_bytes(), limit=limit)


class MappedBlock:
    """Zeroed page-locked host memory that the GPU addresses; the interface's `Memory`.

    Attributes:
        view: the bytes, uint8.
        words: the same as uint32.
    """

    __slots__ = ("_context", "address", "size", "view", "words")

    def __init__(self, context: Context, size: int) -> None:
        self._context = context
        self.size = size
        rounded = -(-size // _LEAST_BYTES) * _LEAST_BYTES
        driver = context.enter()
        api = driver.api
        flags = int(api.CU_MEMHOSTALLOC_PORTABLE) | int(api.CU_MEMHOSTALLOC_DEVICEMAP)
        try:
            with context.watchdog.blocking_call("cuMemHostAlloc", rounded):
                self.address = int(driver.call("cuMemHostAlloc", rounded, flags))
        except DriverError as error:
            raise out_of_memory(context, error, size) from error
        held = (ctypes.c_uint8 * rounded).from_address(self.address)
        whole: npt.NDArray[np.uint8] = np.frombuffer(memoryview(held).cast("B"), np.uint8)
        whole[:] = 0
        self.view = whole[:size]
        self.words: npt.NDArray[np.uint32] = whole.view(np.uint32)

    def part(self, offset: int, size: int) -> MappedBlock:
        """Return a part of it, which must not be freed; offset and size are multiples of 256."""
        made = object.__new__(MappedBlock)
        made._context, made.size, made.address = self._context, size, self.address + offset
        made.view = self.view[offset : offset + size]
        made.words = self.words[offset // 4 : (offset + size) // 4]
        return made

    def free(self) -> None:
        """Return it to the driver; waits for the device."""
        self._context.enter().call("cuMemFreeHost", self.address)


class DeviceBlock:
    """Uninitialised memory on the GPU.

    Attributes:
        size: in bytes.
    """

    __slots__ = ("_context", "address", "size")

    def __init__(self, context: Context, size: int) -> None:
        self._context = context
        self.size = size
        try:
            driver = context.enter()
            with context.watchdog.blocking_call("cuMemAlloc", size):
                self.address = int(driver.call("cuMemAlloc", size))
        except DriverError as error:
            raise out_of_memory(context, error, size) from error

    def part(self, offset: int, size: int) -> DeviceBlock:
        """Return a part of it, which must not be freed."""
        made = object.__new__(DeviceBlock)
        made._context, made.size, made.address = self._context, size, self.address + offset
        return made

    def free(self) -> None:
        """Return it to the driver; waits for the device."""
        self._context.enter().call("cuMemFree", self.address)


class Pool:
    """Pool of blocks, by powers of two. Thread-safe.

    Args:
        context: where they are allocated.
        kind: `MappedBlock` or `DeviceBlock`.
    """

    def __init__(self, context: Context, kind: Any) -> None:
        self._context = context
        self._kind = kind
        # Reentrant: a finalizer may call `give` while the same thread is in here.
        self._lock = threading.RLock()
        self._free: dict[int, list[Any]] = {}
        self._slab: Any = kind(context, _SLAB_BYTES)
        self._used = 0
        self._all = [self._slab]

    def take(self, size: int) -> Any:
        """Take a block of at least ``size`` bytes, with any content.

        Raises:
            OutOfMemory: the driver has none left.
        """
        rounded = max(_LEAST_BYTES, 1 << (size - 1).bit_length())
        with self._lock:
            free = self._free.get(rounded)
            if free:
                return free.pop()
            if self._used + rounded <= self._slab.size:
                self._used += rounded
                return self._slab.part(self._used - rounded, rounded)
        if rounded > _SLAB_BYTES // 8:
            block = self._kind(self._context, rounded)
            with self._lock:
                self._all.append(block)
            return block
        slab = self._kind(self._context, _SLAB_BYTES)
        with self._lock:
            self._all.append(slab)
            self._slab, self._used = slab, rounded
        return slab.part(0, rounded)

    def give(self, block: Any) -> None:
        """Return a block from `take`; no kernel uses it any more."""
        with self._lock:
            self._free.setdefault(block.size, []).append(block)

    def close(self) -> None:
        """Return all memory to the driver."""
        with self._lock:
            blocks, self._all, self._free = self._all, [], {}
        for block in blocks:
            block.free()
