"""Futexes by system call: their numbers, and whether a thread can sleep on several words.

Linux has `futex_waitv` since 5.16; older kernels, and containers whose seccomp profile does not
know it, refuse it. Whoever would sleep on several words sleeps on one of them then, for a nap.
"""

from __future__ import annotations

import ctypes
import errno
import platform
from functools import cache

__all__ = [
    "FUTEX_WAITV",
    "FUTEX_WAKE",
    "NAP_NS",
    "PRIVATE",
    "PRIVATE_32",
    "SHARED_32",
    "futex",
    "sleeps_on_several",
]

_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221}
FUTEX_WAKE = 1
"""Of a word that other processes share."""

PRIVATE = 128  # flag: the word is this process's own
FUTEX_WAITV = 449  # the same on every machine
PRIVATE_32, SHARED_32 = 2 | PRIVATE, 2  # flags of futex_waitv

NAP_NS = 100_000
"""How long a thread sleeps on one word where it cannot sleep on several."""


def futex() -> int:
    """Return the number of the system call."""
    number = _FUTEX.get(platform.machine())
    if number is None:
        raise RuntimeError(f"gpud does not know the futexes of Linux on {platform.machine()}")
    return number


@cache
def sleeps_on_several() -> bool:
    """Whether the kernel has `futex_waitv`."""
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    nothing = ctypes.c_long(0)
    syscall(ctypes.c_long(FUTEX_WAITV), None, nothing, nothing, None, nothing)  # of no words
    return ctypes.get_errno() == errno.EINVAL
