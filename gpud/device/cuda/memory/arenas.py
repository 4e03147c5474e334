"""All arenas of the CUDA device: what they share, and who gives memory back when it is short.

Problem: memory that a session does not need stays behind its addresses, and what a session had that
has gone is on its way back for a while; whoever lacks memory must get both, at nobody's cost.

Approach: memory that is lacked is looked for in this order: what is on its way back
(`gpud.device.cuda.driver.serial_executor`); what is spare in arenas of which no kernel runs; what
is spare in those whose kernels may be interrupted for it (`gpud.device.cuda.memory.quiescer`). Only
so much is taken as is lacked; if nothing is on the device and little is left, all of it.

Properties:
* memory is refused only if what is left and what is spare do not suffice, or is kept by kernels
  that are online, or do not leave in time; the error says so;
* an arena that was closed is nobody's: its addresses are reserved until all is given back.

Nothing here has run on a GPU yet.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Final

from gpud.device.cuda.driver.context import Context
from gpud.device.cuda.driver.serial_executor import SerialExecutor
from gpud.device.cuda.memory.arena import Arena
from gpud.device.cuda.memory.quiescer import Quiescer, no_runs, offline_runs
from gpud.device.cuda.memory.staging import Staging
from gpud.device.cuda.program.module import CUDAModule
from gpud.errors import InvalidArgument

__all__ = ["Arenas"]

_SHORT: Final = 8
"""Memory is short when less than one part in so many of it is left."""

_TIMEOUT_S: Final = 10.0
"""How long somebody waits for what is on its way back; others' memory and copies wait, too."""

_AT_ONCE: Final = 64
"""Pieces that are taken from an arena while it stands still: 2 GiB."""

Range = tuple[int, int]
"""Address and size."""


class Arenas:
    """Of one device. For one thread, but for `find`, `ranges` and `attach`.

    Args:
        context: of the device.
        quiescer: keeps a session's kernels away while memory is swapped.
        idle: whether nothing is on the device.
        threaded: whether memory is given back on a thread of its own, see `SerialExecutor`.

    Attributes:
        context, quiescer: as given.
        staging: what copies go through.

    Raises:
        InvalidArgument: the driver cannot put memory behind addresses on this GPU.
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
        self.quiescer = quiescer
        self._idle = idle
        self._executor = SerialExecutor("give back", threaded=threaded)
        self._arenas: weakref.WeakValueDictionary[int, Arena] = weakref.WeakValueDictionary()

    def open(self, descriptor: int, size: int, base: int = 0) -> Arena:
        """Reserve a session's range of addresses. See `Arena`."""
        self._executor.check()
        arena = Arena(self, descriptor, size, base)
        self._arenas[arena.address] = arena
        return arena

    def find(self, reach: Range | None) -> Arena | None:
        """The arena with this range, if it is open."""
        return None if reach is None else self._arenas.get(reach[0])

    def ranges(self, reach: Range | None) -> tuple[Range, ...]:
        """(address, size) of what there is memory behind in the arena with this range."""
        opened = self.find(reach)
        return () if opened is None else opened.ranges()

    def attach(self, module: CUDAModule) -> None:
        """Have a program's fences follow what its arena has memory behind."""
        opened = self.find(module.arena)
        if opened is not None:
            opened.attach(module)

    def close(self) -> None:
        """Wait for what is on its way back. All arenas are closed, and nothing runs."""
        self._executor.close()
        self.staging.close()

    # -- for arenas

    def left(self, arena: Arena, give_back: Callable[[], None]) -> None:
        """An arena is closed: have what it had given back."""
        self._arenas.pop(arena.address, None)
        self._executor.put(give_back)

    @property
    def returned(self) -> int:
        """How many arenas were given back: for `came_back` and `find_memory`."""
        return self._executor.done

    def came_back(self, returned: int) -> bool:
        """Wait until more than ``returned`` arenas were given back; False: none will be soon."""
        return self._executor.wait(returned, _TIMEOUT_S)

    def find_memory(self, returned: int) -> bool:
        """Whether there may be more of it than when ``returned`` arenas were given back."""
        return self.came_back(returned) or any(
            arena.reclaim(_AT_ONCE, interrupt)
            for interrupt in (no_runs, offline_runs)
            for arena in list(self._arenas.values())
        )

    def why_not(self) -> str:
        """The limit to name where memory is refused, see `gpud.errors.OutOfMemory`."""
        kept = self._executor.left or any(arena.has_spare for arena in list(self._arenas.values()))
        return "kernels" if kept else "device"

    def tidy(self) -> None:
        """Give back what is spare, if memory is short and nothing is on the device."""
        context = self.context
        if self._idle() and context.free_bytes() < context.memory_bytes // _SHORT:
            for arena in list(self._arenas.values()):
                while arena.reclaim(_AT_ONCE, no_runs):
                    pass
