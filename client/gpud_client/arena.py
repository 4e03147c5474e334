"""A session's memory on a device, mapped into this process: arrays without a copy.

The daemon creates the file and seals its size, so touching the mapping can never fail; what was not
allocated costs nothing. It is mapped once per device, when the first array is made there. Views
that are handed out keep the mapping alive, also after the session has ended.
"""

from __future__ import annotations

import mmap
import os
import threading
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from gpud.errors import GpudError

__all__ = ["ArenaMemory", "Bytes"]

Bytes = npt.NDArray[np.uint8]


class ArenaMemory:
    """The arena of a session on one device.

    Args:
        base: device address of byte 0 of the file.
        size: of the file, in bytes.
        descriptor: of the file; owned from now on. None: the memory cannot be mapped here.
    """

    def __init__(self, base: int, size: int, descriptor: int | None) -> None:
        self.base = base
        self.size = size
        self._descriptor = descriptor
        self._mapped: Bytes | None = None
        self._lock = threading.Lock()

    def __contains__(self, address: int) -> bool:
        return self.base <= address < self.base + self.size

    def view(self, address: int, size: int, keep: object) -> Bytes:
        """The bytes of an array; the view keeps ``keep`` alive, however it is viewed again.

        Raises:
            GpudError: this process cannot map the device's memory; says why.
        """
        start = address - self.base
        mapped = self._map()
        return np.asarray(_Window(mapped, mapped.ctypes.data + start, size, keep))

    def close(self) -> None:
        """Map nothing any more; what is mapped stays for as long as views of it live."""
        with self._lock:
            self._close_descriptor()

    def _map(self) -> Bytes:
        with self._lock:
            if self._mapped is None:
                self._mapped = self._new_mapping()
                self._close_descriptor()
            return self._mapped

    def _new_mapping(self) -> Bytes:
        if self._descriptor is None:
            raise GpudError(
                "the arrays of this device cannot be reached from this process; the session has "
                "ended, or the device's memory is not mapped"
            )
        try:
            mapping = mmap.mmap(self._descriptor, self.size)
        except (OSError, ValueError) as error:
            raise GpudError(
                f"the {self.size} bytes of the session's memory cannot be mapped: {error}; is "
                "there a limit on virtual memory (ulimit -v)?"
            ) from error
        with suppress(OSError):
            mapping.madvise(mmap.MADV_DONTDUMP)
        return np.frombuffer(mapping, np.uint8)

    def _close_descriptor(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self._close_descriptor()


class _Window:
    """Memory that NumPy may use for as long as it holds this object."""

    __slots__ = ("__array_interface__", "_kept")

    def __init__(self, mapped: Bytes, address: int, size: int, keep: object) -> None:
        self._kept: Any = (mapped, keep)
        self.__array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
        }
