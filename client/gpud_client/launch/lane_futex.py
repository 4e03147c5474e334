"""Futexes in memory that is shared with a lane's device."""

from __future__ import annotations

import ctypes
import mmap
import platform

from gpud.errors import InvalidArgument

__all__ = ["ALL", "Futex", "check_machine"]

_FUTEX = {"x86_64": 202}
_WAIT, _WAKE = 0, 1
ALL = 1 << 30


class Futex:
    """A word of a ring on which threads sleep.

    Args:
        shared: the ring, which stays mapped as long as this.
        at: where the word is, in bytes.
    """

    __slots__ = ("_address", "_word")

    def __init__(self, shared: mmap.mmap, at: int) -> None:
        self._word = ctypes.c_uint32.from_buffer(shared, at)
        self._address = ctypes.addressof(self._word)

    def sleep(self, seen: int, timeout_s: float) -> None:
        """Sleep while the word is ``seen``, until it is woken, or for a time."""
        seconds = int(timeout_s)
        limit = (ctypes.c_long * 2)(seconds, int((timeout_s - seconds) * 1e9))
        _syscall(_FUTEX_NUMBER, self._address, _WAIT, seen, ctypes.byref(limit), None, 0)

    def wake(self, count: int = 1) -> None:
        """Wake so many of those who sleep."""
        _syscall(_FUTEX_NUMBER, self._address, _WAKE, count, None, None, 0)


_FUTEX_NUMBER = _FUTEX.get(platform.machine(), 0)
_syscall = ctypes.CDLL(None).syscall
_syscall.argtypes = (
    ctypes.c_long, ctypes.c_void_p, ctypes.c_long, ctypes.c_ulong, ctypes.c_void_p,
    ctypes.c_void_p, ctypes.c_long,
)  # fmt: skip


def check_machine() -> None:
    """Refuse lanes on machines where stores may overtake each other.

    Raises:
        InvalidArgument: this is one.
    """
    if not _FUTEX_NUMBER:
        raise InvalidArgument(
            f"lanes need a processor of the x86-64 family, not {platform.machine()}: submit to a "
            "stream of gpu.stream()"
        )
