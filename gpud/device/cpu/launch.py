"""One launch on the CPU device: a raw grid, its parameters, and who waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpud.device.cpu.sm import LAUNCH_WORDS
from gpud.errors import GpudError

if TYPE_CHECKING:
    from gpud.device.cpu.module import CompiledKernel

__all__ = ["Launch"]


class Launch:
    """A grid of raw blocks on its way through the device.

    Attributes:
        grid: raw blocks in x, y, z.
        blocks: their product.
        priority: larger is served first when room comes free.
        number: what ``%gridid`` reads, unique on the device.
        active: slots that run it now.
        output: what its blocks printed so far.
        error: why it failed, or ``None``.
    """

    def __init__(
        self,
        compiled: CompiledKernel,
        grid: tuple[int, int, int],
        parameters: bytes,
        shared: int,
        priority: int,
        on_done: Callable[[Launch], None] | None,
    ) -> None:
        self.compiled = compiled
        self.grid = grid
        self.blocks = grid[0] * grid[1] * grid[2]
        self.shared = shared
        self.priority = priority
        self.number = 0
        self.active = 0
        self.started = 0
        self.output = b""
        self.error: GpudError | None = None
        self.failed_assertion: str | None = None
        self._on_done = on_done
        self._done = threading.Event()
        self._lock = threading.Lock()
        self.parameters: npt.NDArray[np.uint8] = np.frombuffer(
            bytearray(parameters.ljust(max(8, len(parameters)), b"\0")), np.uint8
        )
        self._words = np.zeros(5, np.uint32)
        self._words[LAUNCH_WORDS["total"] // 4] = self.blocks
        self._words[LAUNCH_WORDS["x"] // 4] = grid[0]
        self._words[LAUNCH_WORDS["y"] // 4] = grid[1]

    @property
    def address(self) -> int:
        """Host address of the record that the slots share."""
        return int(self._words.ctypes.data)

    @property
    def claimed(self) -> int:
        """Raw blocks that were started so far."""
        return min(int(self._words[0]), self.blocks)

    @property
    def wants(self) -> int:
        """How many more slots could be of use."""
        if self.error is not None or self._words[LAUNCH_WORDS["stop"] // 4]:
            return 0
        return max(0, self.blocks - max(self.claimed, self.started))

    def stop(self) -> None:
        """Start no further raw block; running ones go on to their end."""
        self._words[LAUNCH_WORDS["stop"] // 4] = 1

    def fail(self, error: GpudError) -> None:
        """Record the first failure and start nothing more."""
        with self._lock:
            if self.error is None:
                self.error = error
        self.stop()

    def print(self, text: bytes) -> None:
        """Add to `output`; called from SM threads."""
        with self._lock:
            self.output += text

    def finish(self) -> None:
        """All slots have left: wake those who wait. Called once, by the device."""
        self._done.set()
        if self._on_done is not None:
            self._on_done(self)

    @property
    def done(self) -> bool:
        """Whether the last block has left."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the last block has left, at most ``timeout`` seconds; whether it has."""
        return self._done.wait(timeout)

    def result(self, timeout: float | None = None) -> None:
        """`wait`, then raise what the launch failed with.

        Raises:
            TimeoutError: it is still running after ``timeout`` seconds.
            JobError: a block trapped, failed an assertion or can never go on.
        """
        if not self._done.wait(timeout):
            raise TimeoutError(f"{self.compiled.name} is still running after {timeout} s")
        if self.error is not None:
            raise self.error
