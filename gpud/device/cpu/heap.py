"""What device code's ``malloc`` hands out in a program whose accesses are checked.

Problem: memory from the C library lies anywhere in this process, with the library's own records
beside it: neither can accesses to it be told from stray ones, nor may a program write past its end.

Approach: each such program has a heap of its own, one range of memory that its fences allow, as
large as CUDA's is by default. What is free and what is not is kept outside of it.

Properties:
* whatever addresses are freed, and however often, nothing happens but to blocks that are taken;
* a program that asks for more than there is gets a null pointer, as on a GPU.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from functools import cache

import numpy as np

from gpud.device.cpu import jit

__all__ = ["HEAP_BYTES", "Heap", "install"]

HEAP_BYTES = 8 << 20
_ALIGNMENT = 16

_heaps: weakref.WeakValueDictionary[int, Heap] = weakref.WeakValueDictionary()


class Heap:
    """The heap of one loaded program.

    Attributes:
        address: of its first byte; generated code names the heap by it.
        size: in bytes.
    """

    def __init__(self, size: int = HEAP_BYTES) -> None:
        self._memory = np.zeros(size + _ALIGNMENT, np.uint8)
        first = self._memory.ctypes.data
        self.address: int = first + -first % _ALIGNMENT
        self.size = size
        self._lock = threading.Lock()
        self._unused = 0
        self._taken: dict[int, int] = {}
        self._free: dict[int, list[int]] = {}
        _heaps[self.address] = self

    @property
    def range(self) -> tuple[int, int]:
        """(address, size)."""
        return self.address, self.size

    def take(self, size: int) -> int:
        """The address of ``size`` bytes, 0 if there are none left."""
        if not 0 < size <= self.size:
            return 0
        # Few sizes, so that what was freed can be used again.
        step = max(_ALIGNMENT, 1 << max(0, size.bit_length() - 3))
        rounded = -(-size // step) * step
        with self._lock:
            free = self._free.get(rounded)
            if free:
                address = free.pop()
            elif self._unused + rounded <= self.size:
                address = self.address + self._unused
                self._unused += rounded
            else:
                return 0
            self._taken[address] = rounded
            return address

    def give(self, address: int) -> None:
        """Take back what `take` gave; anything else is ignored."""
        with self._lock:
            size = self._taken.pop(address, None)
            if size is not None:
                self._free.setdefault(size, []).append(address)


# -- what generated code calls -----------------------------------------------------------------

_TAKE = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
_GIVE = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64)


def _on_take(heap: int, size: int) -> int:
    found = _heaps.get(heap)
    return 0 if found is None else found.take(size)


def _on_give(heap: int, address: int) -> None:
    found = _heaps.get(heap)
    if found is not None:
        found.give(address)


_callbacks = (_TAKE(_on_take), _GIVE(_on_give))


@cache
def install() -> None:
    """Let generated code call ``gpud_heap_take`` and ``gpud_heap_give``."""
    jit.add_symbols(
        {
            "gpud_heap_take": jit.callback_address(_callbacks[0]),
            "gpud_heap_give": jit.callback_address(_callbacks[1]),
        }
    )
