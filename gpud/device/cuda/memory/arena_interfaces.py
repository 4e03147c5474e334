"""What an arena of the CUDA device needs of programs, and of what it shares with other arenas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gpud.device.cuda.driver.context import Context
from gpud.device.cuda.memory.quiescer import Quiescer
from gpud.device.cuda.memory.staging import Staging
from gpud.device.cuda.memory.virtual_memory import Reserve

__all__ = ["LoadedProgram", "SharedByArenas"]


class LoadedProgram(Protocol):
    """The part of `gpud.device.cuda.program.module.CUDAModule` that an arena uses."""

    def widen(self, size: int) -> None:
        """Have its checks pass the first ``size`` bytes of its arena from the next launch on."""


class SharedByArenas(Reserve, Protocol):
    """What the arenas of a device share: see `gpud.device.cuda.memory.arenas.CUDAArenas`."""

    context: Context
    quiescer: Quiescer
    staging: Staging

    def wait_freed(self, freed: int) -> bool:
        """Wait until more than ``freed`` arenas were freed; False: none will be soon."""

    def retire(self, address: int, free: Callable[[], None]) -> None:
        """Have the closed arena at ``address`` freed in the background, by calling ``free``."""

    def trim(self) -> None:
        """Free all spare pieces, if memory is short and nothing is on the device."""
