"""A device with copied arrays, for tests that were written for arrays in host memory.

Problem: the conformance runner accesses arrays and module variables through ``view``, bytes that
the CPU device shares with it. Approach: `OnDevice` wraps a CUDA device and gives memory whose
``view`` copies at each access, from one arena that every program is loaded with, like a session's.

`captured` captures what kernels print: a GPU prints to the process's standard output.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.gpu.instrumentation.device_memory import DeviceMemory

_ARENA_BYTES = 1 << 28
_ALIGNMENT = 256

Bytes = npt.NDArray[np.uint8]


class CopiedBytes:
    """Bytes on a device that look like an array of uint8: reading and writing a slice copies.

    Args:
        size: how many.
        read: ``(offset, size)`` to bytes.
        write: ``(offset, bytes)``.
    """

    def __init__(
        self, size: int, read: Callable[[int, int], bytes], write: Callable[[int, bytes], object]
    ) -> None:
        self.size = size
        self._read = read
        self._write = write

    def __getitem__(self, part: slice) -> Bytes:
        start, stop = self._range(part)
        return np.frombuffer(self._read(start, stop - start), np.uint8)

    def __setitem__(self, part: slice, values: Any) -> None:
        start, stop = self._range(part)
        data = np.broadcast_to(np.asarray(values, np.uint8), (stop - start,)).tobytes()
        if data:
            self._write(start, data)

    def __len__(self) -> int:
        return self.size

    def tobytes(self) -> bytes:
        """A copy of all bytes."""
        return self._read(0, self.size)

    def _range(self, part: slice) -> tuple[int, int]:
        start, stop, step = part.indices(self.size)
        assert step == 1
        return start, max(start, stop)


class _Array:
    """Zeroed memory of the arena."""

    def __init__(self, memory: DeviceMemory, base: int, offset: int, size: int) -> None:
        def read(at: int, count: int) -> bytes:
            return memory.read(count, offset + at)

        def write(at: int, data: bytes) -> None:
            memory.write(data, offset + at)

        self.address = base + offset
        self.view = CopiedBytes(size, read, write)
        self.view[:] = 0


class _Module:
    """A loaded program whose variables look like arrays."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def symbol(self, name: str) -> CopiedBytes:
        found = self._module.symbol(name)

        def write(at: int, data: bytes) -> None:
            found[at : at + len(data)] = np.frombuffer(data, np.uint8)
            found[at : at + 1].tobytes()  # waits for the copy

        def read(at: int, count: int) -> bytes:
            raw: bytes = found[at : at + count].tobytes() if count else b""
            return raw

        return CopiedBytes(found.size, read, write)


class OnDevice:
    """Wraps ``device``: allocates from one arena in device memory, which programs may access.

    Args:
        device: a `CUDADevice`, or a `CPUDevice` to try this without a GPU.
        checked: whether programs are loaded with the arena; without, they may access everything.
        size: of the arena, in bytes.
    """

    def __init__(self, device: Any, *, checked: bool = True, size: int = _ARENA_BYTES) -> None:
        self.device = device
        self._memory = DeviceMemory(device, size)
        self.arena = (self._memory.address, size)
        self._checked = checked
        self._taken: list[tuple[int, int, weakref.ref[_Array]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)

    def allocate(self, size: int) -> _Array:
        """Zeroed memory, aligned to 256 bytes, in the first gap between live arrays."""
        base, most = self.arena
        self._taken = [one for one in self._taken if one[2]() is not None]
        start = 0
        for first, end, _ in self._taken:
            if start + size <= first:
                break
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
        if start + size > most:
            raise MemoryError(f"the tests' arena of {most} bytes is full")
        array = _Array(self._memory, base, start, size)
        self._taken.append((start, start + size, weakref.ref(array)))
        self._taken.sort(key=lambda one: one[0])
        return array

    def synchronize(self) -> None:
        """Wait for the device, which also has the driver print what kernels printed."""
        self.device.context.enter().call("cuCtxSynchronize")

    def load(self, text: str, arena: tuple[int, int] | None = None) -> _Module:
        """Load a program that may access the arena and its own variables."""
        reach = (arena or self.arena) if self._checked else None
        return _Module(self.device.load(text, reach))


@contextmanager
def captured(flush: Callable[[], object]) -> Iterator[list[str]]:
    """Capture everything that is written to this process's standard output.

    Args:
        flush: called before the end: has the device write its buffered output.
    """
    found: list[str] = []
    sys.stdout.flush()
    kept = os.dup(1)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        try:
            yield found
            flush()
            # The driver prints through the C library, which buffers output to a file.
            ctypes.CDLL(None).fflush(None)
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        file.seek(0)
        found.append(file.read().decode(errors="replace"))
