"""All arenas of the CUDA device: shared state, and reclaiming memory when it is short.

Problem: memory that a session does not need stays mapped in its arena, and a closed arena takes a
while to be freed; a session that lacks memory must get both, without disturbing others.

Approach: when an allocation fails, memory is looked for in this order: closed arenas that are
being freed (`gpud.device.cuda.driver.serial_executor`); spare pieces in arenas without running
kernels; spare pieces in arenas whose kernels may be interrupted for it
(`gpud.device.cuda.memory.quiescer`). Only as much is freed as is needed; if nothing is on the
device and little is left, all spare pieces are.

Properties:
* memory is refused only if free and spare memory do not suffice, or spare memory is kept by kernels
  that are online, or do not leave in time; the error says so;
* the addresses of a closed arena stay reserved until all of it is freed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Final

from gpud.device.cuda.driver.context import Context
from gpud.device.cuda.driver.serial_executor import SerialExecutor
from gpud.device.cuda.memory.arena import CUDAArena
from gpud.device.cuda.memory.quiescer import Quiescer, no_runs, offline_runs
from gpud.device.cuda.memory.staging import Staging
from gpud.device.cuda.memory.temporary_zone import TemporaryZone
from gpud.device.cuda.program.module import CUDAModule
from gpud.errors import InvalidArgument

__all__ = ["CUDAArenas"]

_SHORT: Final = 8
"""Memory is short when less than 1 / `_SHORT` of it is left."""

_TIMEOUT_S: Final = 10.0
"""How long an allocation waits for arenas that are being freed; others' memory requests and copies
wait as well."""

_AT_ONCE: Final = 64
"""Most pieces that are freed while a session is quiesced: 2 GiB."""

Range = tuple[int, int]
"""Address and size."""


class CUDAArenas:
    """The arenas of one device. For one thread, but for `find`, `ranges` and `attach`.

    Args:
        quiescer: keeps a session's kernels off the device while mappings change.
        idle: whether nothing is on the device.
        threaded: whether closed arenas are freed on a thread of their own, see `SerialExecutor`.

    Attributes:
        zone: the memory that programs map in their turns.

    Raises:
        InvalidArgument: the GPU has no virtual memory management.
    """

    def __init__(
        self,
        context: Context,
        quiescer: Quiescer,
        idle: Callable[[], bool],
        *,
        threaded: bool,
    ) -> None:
        if not context.attribute("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"):
            raise InvalidArgument(
                f"the driver has no virtual memory management for {context.name}, without which no "
                "session can have memory there"
            )
        self.context = context
        self.staging = Staging(context)
        self.zone = TemporaryZone(context, self, self.staging)
        self.quiescer = quiescer
        self._idle = idle
        self._executor = SerialExecutor("free arenas", threaded=threaded)
        self._arenas: weakref.WeakValueDictionary[int, CUDAArena] = weakref.WeakValueDictionary()

    def open(self, descriptor: int, size: int, base: int = 0) -> CUDAArena:
        """Reserve a session's range of addresses. See `CUDAArena`."""
        self._executor.check()
        arena = CUDAArena(self, descriptor, size, base)
        self._arenas[arena.address] = arena
        return arena

    def find(self, reach: Range | None) -> CUDAArena | None:
        """Return the open arena with this range, or None."""
        return None if reach is None else self._arenas.get(reach[0])

    def ranges(self, reach: Range | None) -> tuple[Range, ...]:
        """Return (address, size) of the backed part of the arena with this range."""
        opened = self.find(reach)
        return () if opened is None else opened.ranges()

    def attach(self, module: CUDAModule) -> None:
        """Have a program's bounds checks follow its arena's prefix."""
        opened = self.find(module.arena)
        if opened is not None:
            opened.attach(module)

    def close(self) -> None:
        """Finish freeing closed arenas. All arenas are closed, and nothing runs."""
        self.zone.free()
        self._executor.close()
        self.staging.close()

    # -- for arenas

    def retire(self, address: int, free: Callable[[], None]) -> None:
        """Have the closed arena at ``address`` freed in the background, by calling ``free``."""
        self._arenas.pop(address, None)
        self._executor.put(free)

    @property
    def freed(self) -> int:
        """How many arenas have been freed: for `wait_freed` and `find_memory`."""
        return self._executor.done

    def wait_freed(self, freed: int) -> bool:
        """Wait until more than ``freed`` arenas were freed; False: none will be soon."""
        return self._executor.wait(freed, _TIMEOUT_S)

    def find_memory(self, freed: int) -> bool:
        """Reclaim memory; whether there may be more than after ``freed`` arenas were freed."""
        return self.wait_freed(freed) or any(
            arena.reclaim(_AT_ONCE, interrupt)
            for interrupt in (no_runs, offline_runs)
            for arena in list(self._arenas.values())
        )

    def refusal_limit(self) -> str:
        """Return the limit to name when memory is refused, see `gpud.errors.OutOfMemory`."""
        kept = self._executor.pending or any(
            arena.has_spare for arena in list(self._arenas.values())
        )
        return "kernels" if kept else "device"

    def trim(self) -> None:
        """Free all spare pieces, if memory is short and nothing is on the device."""
        context = self.context
        if self._idle() and context.free_bytes() < context.memory_bytes // _SHORT:
            for arena in list(self._arenas.values()):
                while arena.reclaim(_AT_ONCE, no_runs):
                    pass
