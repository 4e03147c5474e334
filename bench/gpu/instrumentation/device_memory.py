"""Memory of a CUDA or CPU device outside of any session, with one interface."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpud.device.cpu.device import CPUDevice, CPUMemory
from gpud.device.cuda.driver.context import Context
from gpud.device.cuda.memory.pool import DeviceBlock

__all__ = ["DeviceMemory"]


class DeviceMemory:
    """Zeroed memory, for measurements and tests; sessions have arenas.

    What is written is there for every later launch.

    Args:
        device: a `CUDADevice`, or a `CPUDevice`, whose memory is the host's.
        size: in bytes.

    Raises:
        OutOfMemory: the device has none left.

    Attributes:
        address: on the device.
        size: in bytes.
    """

    def __init__(self, device: Any, size: int) -> None:
        self._memory: CPUMemory | DeviceBlock
        if isinstance(device, CPUDevice):
            self._memory = device.allocate(size)
        else:
            self._context: Context = device.context
            self._memory = DeviceBlock(self._context, size)
        self.address = int(self._memory.address)
        self.size = size
        self.clear()

    def clear(self) -> None:
        """Set all to 0."""
        if isinstance(self._memory, DeviceBlock):
            self._context.fill(self.address, 0, self.size)
        else:
            self._memory.view[:] = 0

    def write(self, data: bytes | npt.NDArray[np.uint8], offset: int = 0) -> None:
        """Copy bytes to ``offset``."""
        source = np.frombuffer(data, np.uint8)
        self._check(offset, source.size)
        if isinstance(self._memory, DeviceBlock):
            self._context.copy_in(self.address + offset, source.ctypes.data, source.size)
        else:
            self._memory.view[offset : offset + source.size] = source

    def read(self, size: int | None = None, offset: int = 0) -> bytes:
        """Return a copy of ``size`` bytes from ``offset`` on; None: of all the rest."""
        count = self.size - offset if size is None else size
        self._check(offset, count)
        if isinstance(self._memory, DeviceBlock):
            copy = np.empty(count, np.uint8)
            self._context.copy_out(copy.ctypes.data, self.address + offset, count)
            return copy.tobytes()
        return self._memory.view[offset : offset + count].tobytes()

    def close(self) -> None:
        """Free it; on a GPU this waits for everything that runs there."""
        if isinstance(self._memory, DeviceBlock):
            self._memory.free()

    def _check(self, offset: int, size: int) -> None:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise ValueError(f"{size} bytes at {offset} are not all within {self.size}")
