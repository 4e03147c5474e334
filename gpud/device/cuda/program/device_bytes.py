"""Bytes in device memory, as a variable of a program: read and written by slices."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpud.device.cuda.driver.context import Context

__all__ = ["DeviceBytes"]


class DeviceBytes:
    """Bytes in device memory: slices without a step, read and written by copies that wait.

    Attributes:
        size: in bytes.
    """

    __slots__ = ("_context", "address", "size")

    def __init__(self, context: Context, address: int, size: int) -> None:
        self._context = context
        self.address = address
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> DeviceBytes:
        start, size = self._part(part)
        return DeviceBytes(self._context, self.address + start, size)

    def __setitem__(self, part: slice, data: Any) -> None:
        start, size = self._part(part)
        raw = np.frombuffer(memoryview(data).cast("B"), np.uint8)
        if raw.size != size:
            raise ValueError(f"{raw.size} bytes do not fill {size}")
        self._context.copy_in(self.address + start, raw.ctypes.data, size)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("what lies in device memory is always copied")
        values = np.empty(self.size, np.uint8)
        self._context.copy_out(values.ctypes.data, self.address, self.size)
        return values if dtype is None else values.astype(dtype)

    def tobytes(self) -> bytes:
        """Return a copy."""
        return self.__array__().tobytes()

    def _part(self, part: slice) -> tuple[int, int]:
        start, stop, step = part.indices(self.size)
        if step != 1:
            raise ValueError("device memory is read and written without steps")
        return start, max(0, stop - start)
