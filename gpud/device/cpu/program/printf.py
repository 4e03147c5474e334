"""``printf`` of running kernels: the callback of generated code, on the SM's thread.

A call from a kernel passes the address of its block; `register` sets the listener that gets the
block's output. Pointers are read through the block's `gpud.device.readable.ReadableRanges`, while
the thread waits; `gpud.device.printf` formats the text.

Properties:
* nothing is read that the block could not read itself; a notice stands for unreadable strings.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Protocol

from gpud.device import jit
from gpud.device.printf import conversions, format_printf
from gpud.device.readable import ReadableRanges

__all__ = ["OutputListener", "PackedArguments", "install", "register", "unregister"]


class OutputListener(Protocol):
    """Receives a block's output: `gpud.device.cpu.scheduling.persistent_block.PersistentBlock`."""

    @property
    def accepting(self) -> bool:
        """Whether output is kept now."""

    def reach(self) -> ReadableRanges:
        """Return the memory that the block may read now."""

    def print(self, text: bytes) -> None:
        """Add output of the block."""


_listeners: dict[int, OutputListener] = {}


def register(block: int, listener: OutputListener) -> None:
    """Send the output of the block at address ``block`` to ``listener``."""
    _listeners[block] = listener


def unregister(block: int) -> None:
    """Remove a block's listener; the block's memory is about to be freed."""
    _listeners.pop(block, None)


class PackedArguments:
    """A call's arguments in the block's memory; a `gpud.device.printf.PrintfArguments`.

    Args:
        address: address of the first argument.
    """

    def __init__(self, address: int, reach: ReadableRanges) -> None:
        self._address = address
        self._reach = reach

    def value(self, offset: int, size: int) -> bytes | None:
        """Return ``size`` bytes of the arguments."""
        return self._reach.bytes_at(self._address + offset, size)

    def text(self, offset: int, address: int, most: int | None) -> bytes | None:
        """Return the text at ``address``."""
        if most is None:
            return self._reach.text_at(address)
        return self._reach.start_at(address, most)


# -- called from generated code ----------------------------------------------------------------

_PRINT = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)


def _on_print(block: int, text: int, values: int) -> int:
    listener = _listeners.get(block)
    if listener is None:
        return -1
    reach = listener.reach()
    template = reach.text_at(text)
    if template is None:
        return -1
    if listener.accepting:
        listener.print(format_printf(template, PackedArguments(values, reach)))
    return conversions(template)


_callback = _PRINT(_on_print)


@cache
def install() -> None:
    """Make ``gpud_print`` available to generated code."""
    jit.add_symbols({"gpud_print": jit.callback_address(_callback)})
