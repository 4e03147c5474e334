"""``printf`` of running kernels: generated code calls this, on the SM's thread.

A call from a kernel passes the address of its block; `register` says who hears of that block.
Pointers are read through that block's `gpud.device.readable.ReadableRanges`, while the thread
waits; the text is made by `gpud.device.printf`.

Properties:
* nothing is read that the block could not read itself; what is unreadable is said to be.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Protocol

from gpud.device.cpu.program import jit
from gpud.device.printf import conversions, format_printf
from gpud.device.readable import ReadableRanges

__all__ = ["Listener", "PackedArguments", "install", "register", "unregister"]


class Listener(Protocol):
    """Who hears what a block prints: `gpud.device.cpu.scheduling.worker.Worker`."""

    @property
    def hears(self) -> bool:
        """Whether what is printed now is kept."""

    def reach(self) -> ReadableRanges:
        """What the block may read now, for the thread that asks."""

    def print(self, text: bytes) -> None:
        """The block has printed this."""


_listeners: dict[int, Listener] = {}


def register(block: int, listener: Listener) -> None:
    """Tell ``listener`` what the block at address ``block`` prints."""
    _listeners[block] = listener


def unregister(block: int) -> None:
    """Nobody hears of that block any more: its memory goes."""
    _listeners.pop(block, None)


class PackedArguments:
    """Arguments that lie in memory still; see `gpud.device.printf.PrintfArguments`.

    Args:
        address: of the first.
        reach: what may be read.
    """

    def __init__(self, address: int, reach: ReadableRanges) -> None:
        self._address = address
        self._reach = reach

    def value(self, offset: int, size: int) -> bytes | None:
        """``size`` bytes of the arguments."""
        return self._reach.bytes_at(self._address + offset, size)

    def text(self, offset: int, address: int, most: int | None) -> bytes | None:
        """The text at ``address``."""
        if most is None:
            return self._reach.text_at(address)
        return self._reach.start_at(address, most)


# -- what generated code calls -----------------------------------------------------------------

_PRINT = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)


def _on_print(block: int, text: int, values: int) -> int:
    listener = _listeners.get(block)
    if listener is None:
        return -1
    reach = listener.reach()
    template = reach.text_at(text)
    if template is None:
        return -1
    if listener.hears:
        listener.print(format_printf(template, PackedArguments(values, reach)))
    return conversions(template)


_callback = _PRINT(_on_print)


@cache
def install() -> None:
    """Let generated code call ``gpud_print``."""
    jit.add_symbols({"gpud_print": jit.callback_address(_callback)})
