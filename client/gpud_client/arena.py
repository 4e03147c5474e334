"""Maps a session's arena on a device into this process, so that arrays need no copy.

The daemon creates the file and seals its size, so accesses to the mapping cannot fail; pages that
are not allocated cost nothing. The file is mapped once per device, when an array is first accessed.
Views keep the mapping alive, even after the session has ended. NumPy is imported then, too: gpuctl
needs none.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gpud.errors import GpudError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["ArenaMemory"]

_MAP_FIXED = 0x10  # on all of Linux's architectures but Alpha, PA-RISC and MIPS
_COPIED_BYTES = 1 << 22


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
            return self._mapped

    def continue_from(self, old: ArenaMemory, arrays: Sequence[tuple[int, int]]) -> None:
        """Take the values of arrays from an arena with the same addresses, and its views.

        What other threads write to views meanwhile may be lost.

        Args:
            old: of a daemon that has ended.
            arrays: their addresses and sizes in bytes.

        Raises:
            GpudError: the memory cannot be mapped.
        """
        with old._lock, self._lock:
            if (old.base, old.size) != (self.base, self.size):
                raise GpudError("the daemon gives the session other addresses than before")
            if old._descriptor is None or self._descriptor is None:
                return
            for address, size in arrays:
                _copy_data(old._descriptor, self._descriptor, address - self.base, size)
            if old._mapped is not None:
                _map_over(old._mapped.ctypes.data, self.size, self._descriptor)
                self._mapped = old._mapped

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


def _copy_data(source: int, target: int, offset: int, size: int) -> None:
    """Copy a range of a sparse file to the same range of another, without its holes."""
    end = offset + size
    while offset < end:
        try:
            begin = os.lseek(source, offset, os.SEEK_DATA)
        except OSError:  # there is a hole up to the end
            return
        offset = min(os.lseek(source, begin, os.SEEK_HOLE), end)
        while begin < offset:
            piece = os.pread(source, min(_COPIED_BYTES, offset - begin), begin)
            begin += os.pwrite(target, piece, begin)


def _map_over(address: int, size: int, descriptor: int) -> None:
    """Have a mapping of this process show another file from now on."""
    mapped = _mmap()(
        address, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED, descriptor, 0
    )
    if mapped != address:
        number = ctypes.get_errno()
        raise GpudError(f"the session's memory cannot be mapped: {os.strerror(number)}")


@functools.cache
def _mmap() -> Callable[..., int]:
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64
    )  # fmt: skip
    function.restype = ctypes.c_void_p
    call: Callable[..., int] = function
    return call


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
