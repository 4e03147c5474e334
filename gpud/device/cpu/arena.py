"""Arenas of the CPU device: maps a session's memory file at a given address.

Kernels address arrays by host virtual addresses of this process, and a device host that replaces
another must map every arena at the same address as before, so the front chooses the address.
Python's ``mmap`` module cannot map at an address; this module calls the C library's ``mmap``.
"""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache
from types import SimpleNamespace
from typing import Any

from gpud.errors import GpudError, InvalidArgument, OutOfMemory

__all__ = ["CPUArena"]

_READ_WRITE = 1 | 2  # PROT_READ, PROT_WRITE
_SHARED = 1  # MAP_SHARED
_NO_RESERVE = 0x4000  # MAP_NORESERVE: the file is sparse, its size says nothing about its use
_FIXED_NO_REPLACE = 0x100000  # MAP_FIXED_NOREPLACE: fail if something is mapped there
_FAILED = ctypes.c_void_p(-1).value
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class CPUArena:
    """A shared mapping of a session's memory file.

    Args:
        descriptor: the file's descriptor; it may be closed afterwards.
        size: bytes, a multiple of the page size.
        base: address of the first byte; 0: the operating system chooses.

    Attributes:
        address: address of the first byte.
        size: in bytes.

    Raises:
        InvalidArgument: the file is smaller than ``size``, or it cannot be mapped at ``base``.
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
            # Linux before 4.17 takes the address as a hint.
            self.close()
            raise _refused(errno.EEXIST, size, base)

    def close(self) -> None:
        """Unmap the file. A kernel that still used it would crash the process."""
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
