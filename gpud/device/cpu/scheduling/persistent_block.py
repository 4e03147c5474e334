"""Persistent blocks: their memory, pooled and reused by one run after another."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

import numpy as np

from gpud.compiler.abi import control_words as cw
from gpud.device.cpu.abi.layout import HEADER, align_up
from gpud.device.cpu.abi.records import BLOCK, BLOCK_BYTES, CONTROL
from gpud.device.cpu.program import printf
from gpud.device.cpu.scheduling.layout import SequenceLayout
from gpud.device.cpu.sm.virtual_sm import VirtualSM
from gpud.device.printf import PrintfOutput
from gpud.device.readable import ReadableRanges

__all__ = ["STAYS", "BlockPool", "PersistentBlock", "word_of"]


def word_of(name: str) -> int:
    """Return the index in `PersistentBlock.words` of a field of the block's record or header."""
    if name in BLOCK:
        return BLOCK[name][0] // 4
    return (BLOCK_BYTES + HEADER[name][0]) // 4


_IDLE_BYTES = 32 << 20
"""With this much memory in idle blocks, other owners' blocks are reused before new ones are
allocated."""

_MAX_IDLE_BYTES = 256 << 20
"""Most memory in idle blocks; the rest is freed: kernels may have much local memory."""

STAYS = (CONTROL + cw.STAYS) // 4
"""The index in `PersistentBlock.words` of the word that the kernel polls: 0 releases the block."""


class Occupant(Protocol):
    """What a persistent block needs of the run that has it."""

    printed: PrintfOutput
    layout: SequenceLayout


class PersistentBlock:
    """The memory of one persistent block: its record, its header, and what its threads use.

    Attributes:
        address: of the header; what identifies the block in native code.
        words: 32-bit words from the record on; see `word_of`.
        index: its number in the run, `NONE` once it is released.
        counted: whether it takes room on its SM; not while it is on standby.
        owner: the owner of the data in its memory, see
            `gpud.device.cpu.scheduling.layout.SequenceLayout.owner`.
        size: bytes from `address` on.
    """

    __slots__ = ("_memory", "address", "counted", "index", "owner", "run", "size", "sm", "words")

    def __init__(self, size: int) -> None:
        self.size = size
        self._memory = np.zeros(BLOCK_BYTES + size + 256, np.uint8)
        first = self._memory.ctypes.data
        self.address: int = align_up(first + BLOCK_BYTES, 256)
        start = self.address - BLOCK_BYTES - first
        end = start + (BLOCK_BYTES + size) // 4 * 4
        self.words = self._memory.data[start:end].cast("I")
        self.run: Occupant | None = None
        self.sm: VirtualSM | None = None
        self.index = 0
        self.counted = True
        self.owner: object = None
        printf.register(self.address, self)

    def clear(self) -> None:
        """Zero all of its memory; nothing runs in it."""
        self._memory[:] = 0

    # -- its output, on the SM's thread

    @property
    def accepting(self) -> bool:
        """Whether its output is kept now."""
        return self.run is not None and self.run.printed.accepting

    def print(self, text: bytes) -> None:
        """Add output of its threads."""
        if self.run is not None:
            self.run.printed.add(text)

    def reach(self) -> ReadableRanges:
        """Return the memory that may be read through its threads' pointers."""
        if self.run is None:
            return ReadableRanges(())
        return ReadableRanges(self.run.layout.reach(self.words[word_of("launch")], self.address))


class BlockPool:
    """Idle blocks, by size and by the owner of the data in them. The caller holds a lock.

    One owner's blocks must not see what another's left in memory. Zeroing blocks at each change of
    owner would delay jobs of sessions that run in turn, so each owner gets its own blocks back;
    only when many are idle are others' zeroed and reused, and the largest freed.

    Attributes:
        by_address: all blocks, in use or not.
    """

    def __init__(self) -> None:
        # By size, then by owner, the most recently used owner last.
        self._free: dict[int, OrderedDict[int, list[PersistentBlock]]] = {}
        self._free_bytes = 0
        self.by_address: dict[int, PersistentBlock] = {}

    def acquire(self, size: int, owner: object) -> PersistentBlock:
        """Return a block with ``size`` bytes from its address on.

        Its memory is zero, except for data of the same owner.
        """
        owners = self._free.get(size)
        if owners and id(owner) in owners:
            return self._pop(owners, id(owner))
        if owners and self._free_bytes >= _IDLE_BYTES:
            block = self._pop(owners, next(iter(owners)))
            block.clear()
        else:
            block = PersistentBlock(size)
            self.by_address[block.address] = block
        block.owner = owner
        return block

    def release(self, block: PersistentBlock) -> None:
        """Take back a block that has left its SM."""
        block.run = block.sm = None
        # The block keeps its owner alive, so its id stays unique.
        owners, key = self._free.get(block.size), id(block.owner)
        if owners is None:
            owners = self._free[block.size] = OrderedDict()
        if key in owners:
            owners[key].append(block)
            owners.move_to_end(key)
        else:
            owners[key] = [block]
        self._free_bytes += block.size
        while self._free_bytes > _MAX_IDLE_BYTES:
            largest = self._free[max(size for size, owners in self._free.items() if owners)]
            gone = self._pop(largest, next(iter(largest)))
            del self.by_address[gone.address]
            printf.unregister(gone.address)

    def _pop(self, owners: OrderedDict[int, list[PersistentBlock]], key: int) -> PersistentBlock:
        blocks = owners[key]
        block = blocks.pop()
        if not blocks:
            del owners[key]
        self._free_bytes -= block.size
        return block
