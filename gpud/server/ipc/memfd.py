"""Sealed memory files (memfd) for arrays, and ``fallocate``, which Python's ``os`` lacks.

A memory file is created at its full size and sealed: no holder of its descriptor can grow it, or
shrink it, which would kill other processes that map it with SIGBUS. It is sparse, so a page costs
nothing until it is written, and `punch` frees pages.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
from collections.abc import Callable

__all__ = ["create", "punch", "written_bytes"]

_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
_PUNCH_HOLE = 2  # FALLOC_FL_PUNCH_HOLE


def create(name: str, size: int) -> int:
    """Create a sealed memory file of ``size`` bytes, all zero; returns its descriptor.

    Raises:
        OSError: the kernel refuses, as it does past the limit of open files.
    """
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def punch(descriptor: int, offset: int, size: int) -> None:
    """Free the pages of a range: it reads as zero from now on, in every mapping.

    Raises:
        OSError: the kernel refuses.
    """
    while _fallocate()(descriptor, _PUNCH_HOLE | _KEEP_SIZE, offset, size):
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, f"fallocate: {os.strerror(number)}")


def written_bytes(descriptor: int, offset: int, size: int) -> int:
    """Return how many bytes of a range the file has pages for."""
    total, at, end = 0, offset, offset + size
    while (first := _next(descriptor, at, end, os.SEEK_DATA)) < end:
        at = _next(descriptor, first, end, os.SEEK_HOLE)
        total += at - first
    return total


def _next(descriptor: int, at: int, end: int, what: int) -> int:
    try:
        return min(end, os.lseek(descriptor, at, what))
    except OSError as error:
        if error.errno == errno.ENXIO:  # there is no more
            return end
        raise


@functools.cache
def _fallocate() -> Callable[[int, int, int, int], int]:
    library = ctypes.CDLL(None, use_errno=True)
    function = library.fallocate
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    function.restype = ctypes.c_int
    call: Callable[[int, int, int, int], int] = function
    return call
