"""How a thread sleeps until a lane without blocks gets a record, or is not to sleep any more."""

from __future__ import annotations

import ctypes

from gpud.device.futex import (
    FUTEX_WAITV,
    FUTEX_WAKE,
    NAP_NS,
    PRIVATE,
    PRIVATE_32,
    SHARED_32,
    futex,
    sleeps_on_several,
)

__all__ = ["RecordWait", "wake_private", "wake_shared"]

_EVERYBODY = (1 << 31) - 1
_FUTEX_WAIT = 0
_syscall = ctypes.CDLL(None).syscall


class _Waiter(ctypes.Structure):
    """`struct futex_waitv` of Linux."""

    _fields_ = (
        ("value", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


class RecordWait:
    """Sleeps on a word of a ring; any thread can interrupt that, once and for all."""

    def __init__(self) -> None:
        self._bell = ctypes.c_uint32()

    @property
    def interrupted(self) -> bool:
        """Whether nobody is to wait any more."""
        return self._bell.value != 0

    def sleep(self, address: int, value: int) -> None:
        """Sleep while the word at ``address`` has this value; may return earlier."""
        if not sleeps_on_several():
            nap = (ctypes.c_long * 2)(0, NAP_NS)
            _syscall(
                ctypes.c_long(futex()), ctypes.c_void_p(address), ctypes.c_long(_FUTEX_WAIT),
                ctypes.c_long(value), ctypes.byref(nap), None, ctypes.c_long(0),
            )  # fmt: skip
            return
        words = (_Waiter * 2)(
            _Waiter(value, address, SHARED_32, 0),
            _Waiter(0, ctypes.addressof(self._bell), PRIVATE_32, 0),
        )
        _syscall(
            ctypes.c_long(FUTEX_WAITV), words, ctypes.c_long(2), ctypes.c_long(0), None,
            ctypes.c_long(0),
        )  # fmt: skip

    def interrupt(self) -> None:
        """End `sleep`, now and from now on."""
        self._bell.value = 1
        wake_private(ctypes.addressof(self._bell))


def wake_private(address: int) -> None:
    """Wake everybody in this process who sleeps on a word of it."""
    _wake(address, FUTEX_WAKE | PRIVATE)


def wake_shared(address: int) -> None:
    """Wake everybody who sleeps on a word that other processes share."""
    _wake(address, FUTEX_WAKE)


def _wake(address: int, how: int) -> None:
    _syscall(
        ctypes.c_long(futex()),
        ctypes.c_void_p(address),
        ctypes.c_long(how),
        ctypes.c_long(_EVERYBODY),
    )
