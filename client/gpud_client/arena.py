"""Maps a session's arena on a device into this process, so that arrays need no copy.

The daemon creates the file and seals its size, so accesses to the mapping cannot fail; pages that
are not allocated cost nothing. The file is mapped once per device, when an array is first accessed.
Views keep the mapping alive, even after the session has ended. NumPy is imported then, too: gpuctl
needs none.
"""

from __future__ import annotations

import mmap
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gpud.errors import GpudError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["ArenaMemory"]


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
        self._mapped: npt.NDArray[np.uint8] | None = None
        self._lock = threading.Lock()

    def __contains__(self, address: int) -> bool:
        return self.base <= address < self.base + self.size

    def view(self, address: int, size: int, keep: object) -> npt.NDArray[np.uint8]:
        """Return a view of an array's bytes; it and all views of it keep ``keep`` alive.

        Raises:
            GpudError: this process cannot map the device's memory; the message says why.
        """
        import numpy as np

        start = address - self.base
        mapped = self._map()
        return np.asarray(_Window(mapped, mapped.ctypes.data + start, size, keep))

    def close(self) -> None:
        """Close the descriptor; an existing mapping lives as long as views of it."""
        with self._lock:
            self._close_descriptor()

    def _map(self) -> npt.NDArray[np.uint8]:
        with self._lock:
            if self._mapped is None:
                self._mapped = self._new_mapping()
                self._close_descriptor()
            return self._mapped

    def _new_mapping(self) -> npt.NDArray[np.uint8]:
        import numpy as np

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
    """Exposes memory to NumPy arrays, which keep this object and so ``keep`` alive."""

    __slots__ = ("__array_interface__", "_kept")

    def __init__(
        self, mapped: npt.NDArray[np.uint8], address: int, size: int, keep: object
    ) -> None:
        self._kept: Any = (mapped, keep)
        self.__array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
        }
