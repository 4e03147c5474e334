"""Arenas of the CPU device: one session's memory file, mapped where the front wants it.

Kernels address arrays by host virtual addresses of this process, and a device host that replaces
another must have every arena where it was before, so the place of a mapping is given. The one door
to what Python's ``mmap`` cannot do: mapping at an address.
"""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache
from types import SimpleNamespace
from typing import Any

from gpud.errors import GpudError, InvalidArgument, OutOfMemory

__all__ = ["Arena"]

_READ_WRITE = 1 | 2  # PROT_READ, PROT_WRITE
_SHARED = 1  # MAP_SHARED
_NO_RESERVE = 0x4000  # MAP_NORESERVE: the file is sparse, its size says nothing about its use
_FIXED_NO_REPLACE = 0x100000  # MAP_FIXED_NOREPLACE: there, or not at all
_FAILED = ctypes.c_void_p(-1).value
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Arena:
    """A mapping of a memory file, shared with everybody who maps it.

    Args:
        descriptor: of the file; it may be closed afterwards.
        size: bytes, a multiple of the page size.
        base: the address that the first byte shall have; 0: the kernel chooses.

    Attributes:
        address: of the first byte.
        size: in bytes.

    Raises:
        InvalidArgument: the file is smaller than ``size``, or ``base`` is no possible place.
        OutOfMemory: there is no address range left.
    """

    def __init__(self, descriptor: int, size: int, base: int = 0) -> None:
        if size < 1 or size % _PAGE_BYTES or base % _PAGE_BYTES:
            raise InvalidArgument(
                f"an arena is a number of whole pages of {_PAGE_BYTES} bytes, not {size} bytes at "
                f"{base:#x}"
            )
        try:
            there = os.fstat(descriptor).st_size
        except OSError as error:
            raise InvalidArgument(f"the arena's descriptor is of no use: {error}") from error
        if there < size:
            # Touching what lies beyond the file's end would kill the process.
            raise InvalidArgument(f"the arena's file has {there} bytes, its mapping {size}")
        flags = _SHARED | _NO_RESERVE | (_FIXED_NO_REPLACE if base else 0)
        address = _libc().mmap(base or None, size, _READ_WRITE, flags, descriptor, 0)
        if address == _FAILED:
            raise _refused(ctypes.get_errno(), size, base)
        self.address: int = address
        self.size = size
        if base and address != base:
            # A kernel before 4.17 takes the address as a hint.
            self.close()
            raise _refused(errno.EEXIST, size, base)

    def close(self) -> None:
        """Take the mapping away. A kernel that still uses it would end the process."""
        address, self.address = self.address, 0
        if address and _libc().munmap(address, self.size):
            number = ctypes.get_errno()
            raise OSError(number, f"munmap: {os.strerror(number)}")


def _refused(number: int, size: int, base: int) -> GpudError:
    if number == errno.ENOMEM:
        return OutOfMemory(size, 0)
    reason = "something else is mapped there" if number == errno.EEXIST else os.strerror(number)
    return InvalidArgument(f"{size} bytes cannot be mapped at {base:#x}: {reason}")


@cache
def _libc() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    mmap, munmap = library.mmap, library.munmap
    mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int64,
    )
    mmap.restype = ctypes.c_void_p
    munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    munmap.restype = ctypes.c_int
    return SimpleNamespace(mmap=mmap, munmap=munmap)
