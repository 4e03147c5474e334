"""A device whose programs are checked: all of its arrays lie in one arena, as a session's do.

Tests and measurements use it in place of the device that it wraps.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from gpud_client.workloads.memory import MemoryRange

_ARENA_BYTES = 1 << 28
_PAGE = 4096


class _Array:
    """Zeroed memory in the arena; ``view`` is its bytes."""

    def __init__(self, address: int, view: npt.NDArray[np.uint8]) -> None:
        self.address = address
        self.view = view
        view[:] = 0


class UncheckedDevice:
    """A `CheckedDevice` whose programs may reach everything all the same."""

    def __init__(self, checked: CheckedDevice) -> None:
        self._checked = checked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._checked, name)

    def load(self, text: str) -> Any:
        """Load a program that may reach everything."""
        return self._checked.device.load(text)


class CheckedDevice:
    """``device``, but `allocate` gives memory of one arena, which `load` tells every program."""

    def __init__(self, device: Any, size: int = _ARENA_BYTES) -> None:
        self.device = device
        self._memory = device.allocate(size + _PAGE)
        first = -self._memory.address % _PAGE  # as arenas of sessions lie
        self._view = self._memory.view[first : first + size]
        self.arena = (self._memory.address + first, size)
        self._parts = MemoryRange(*self.arena, ())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)

    def allocate(self, size: int) -> _Array:
        """Zeroed memory, aligned to 256 bytes."""
        base, most = self.arena
        address = self._parts.take(size)
        if address is None:
            raise MemoryError(f"the tests' arena of {most} bytes is full")
        array = _Array(address, self._view[address - base : address - base + size])
        weakref.finalize(array, self._parts.give_back, address, size)
        return array

    @property
    def unchecked(self) -> UncheckedDevice:
        """The same device and memory for programs that may reach everything."""
        return UncheckedDevice(self)

    def load(self, text: str) -> Any:
        """Load a program that may reach the arena and its own variables."""
        return self.device.load(text, self.arena)
