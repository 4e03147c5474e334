"""Memory whose address generated code learns when it is loaded: arena and heap.

Problem: both lie elsewhere in each session and each run of the daemon. With their addresses in it,
machine code could be used once only, and LLVM takes nine tenths of the time to a first result.

Approach: their first bytes are external symbols of the generated code, which the linker resolves
(`gpud.device.jit.link`): to LLVM and in the machine code they are constants like others. What a
bounds check needs to know beside that, a power of two that divides the address and the size, is
part of the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = [
    "ARENA_SYMBOL",
    "HEAP_SYMBOL",
    "MOST_ALIGN",
    "LinkedMemory",
    "arena_at",
    "heap_at",
    "symbols",
]

ARENA_SYMBOL = "gpud.arena"
HEAP_SYMBOL = "gpud.heap"
MOST_ALIGN = 4096
"""What all of it begins at: a page, as all that is mapped. More would differ between sessions."""


class LinkedMemory(NamedTuple):
    """What code that is compiled knows of such memory.

    Attributes:
        align: a power of two that divides its address.
        size: in bytes.
    """

    align: int
    size: int

    @classmethod
    def of(cls, memory: tuple[int, int] | None) -> LinkedMemory | None:
        """Return what is known of memory at ``(address, size)``, None if there is none."""
        if memory is None:
            return None
        address, size = memory
        return cls(min(address & -address, MOST_ALIGN) or MOST_ALIGN, size)

    def declaration(self, symbol: str) -> str:
        """Return LLVM's declaration of the first byte."""
        return f"@{symbol} = external global i8, align {self.align}"


def arena_at(offset: int = 0) -> str:
    """Return a constant i64: the address of a byte of the session's arena."""
    return _at(ARENA_SYMBOL, offset)


def heap_at(offset: int = 0) -> str:
    """Return a constant i64: the address of a byte of the program's heap."""
    return _at(HEAP_SYMBOL, offset)


def symbols(arena: tuple[int, int] | None, heap: tuple[int, int] | None) -> Mapping[str, int]:
    """Return the addresses by symbol, for the linker; of memory that is not there, none."""
    known = {ARENA_SYMBOL: arena, HEAP_SYMBOL: heap}
    return {symbol: memory[0] for symbol, memory in known.items() if memory is not None}


def _at(symbol: str, offset: int) -> str:
    if not offset:
        return f"ptrtoint (ptr @{symbol} to i64)"
    return f"ptrtoint (ptr getelementptr (i8, ptr @{symbol}, i64 {offset}) to i64)"
