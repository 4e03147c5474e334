"""A semaphore that C code posts and a Python thread waits for.

Problem: the driver calls a host function when a stream reaches it. A Python function there would
run on a thread of the driver's; and a waiting thread must not use a core while nothing happens.

Approach: POSIX ``sem_post`` can be that function: it takes one pointer and never blocks. The thread
waits in ``sem_clockwait``, which lets other Python threads run.

Decided against: a thread that waits for an event per launch (one thread for each launch on the
device, because several events cannot be waited for together), and an eventfd (its write takes two
arguments, so it would need Python or C code of ours on the driver's thread). ``cuda.bindings``
takes the GIL around the call; no other Python code runs there.
"""

from __future__ import annotations

import ctypes
import time

__all__ = ["Semaphore"]

_SEM_BYTES = 64  # sizeof(sem_t) is 32 with glibc on 64-bit machines
_CLOCK_MONOTONIC = 1
_NS = 1_000_000_000


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("ns", ctypes.c_long))


class Semaphore:
    """A semaphore of this process with the initial value 0.

    Attributes:
        address: of the ``sem_t``, the argument for `post_function`.
        post_function: address of ``sem_post``.
    """

    def __init__(self) -> None:
        self._memory = (ctypes.c_uint64 * (_SEM_BYTES // 8))()
        self.address: int = ctypes.addressof(self._memory)
        library = ctypes.CDLL(None)
        self._post, self._wait = library.sem_post, library.sem_clockwait
        self._take = library.sem_trywait
        for function in (self._post, self._take):
            function.argtypes = (ctypes.c_void_p,)
        self._wait.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(_Time))
        library.sem_init.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)
        library.sem_init(self.address, 0, 0)
        self.post_function: int = ctypes.cast(self._post, ctypes.c_void_p).value or 0

    def post(self) -> None:
        """Post once, which ends one wait."""
        self._post(self.address)

    def wait(self, seconds: float | None) -> bool:
        """Wait for a post for at most ``seconds``; whether there was one. Consumes all posts."""
        # sem_clockwait is in glibc from 2.30 on. "Forever" is a day; the caller waits again.
        ends = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + int(
            (86400 if seconds is None else seconds) * _NS
        )
        at = _Time(ends // _NS, ends % _NS)
        posted: bool = self._wait(self.address, _CLOCK_MONOTONIC, ctypes.byref(at)) == 0
        while self._take(self.address) == 0:
            posted = True
        return posted
