"""Workers: the memory of resident blocks, pooled and reused by one gang after another."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from gpud.compiler.abi import control_words as cw
from gpud.device.cpu.abi.layout import HEADER, align_up
from gpud.device.cpu.abi.records import CONTROL, WORKER, WORKER_BYTES
from gpud.device.cpu.program import printf
from gpud.device.readable import ReadableRanges

if TYPE_CHECKING:
    from gpud.device.cpu.scheduling.gang import Gang
    from gpud.device.cpu.sm.virtual_sm import VirtualSM

__all__ = ["STAYS", "Worker", "WorkerPool", "word_of"]


def word_of(name: str) -> int:
    """The index in `Worker.words` of a field of the worker record or of the block's header."""
    if name in WORKER:
        return WORKER[name][0] // 4
    return (WORKER_BYTES + HEADER[name][0]) // 4


_IDLE_BYTES = 32 << 20
"""With this much memory in idle workers, other owners' workers are reused before new ones are
allocated."""

_MAX_IDLE_BYTES = 256 << 20
"""Most memory in idle workers; the rest is freed: kernels may have much local memory."""

STAYS = (CONTROL + cw.STAYS) // 4
"""The index in `Worker.words` of the word that the kernel polls: 0 releases its block."""


class Worker:
    """The memory of one resident block: worker record, header, and the block's memories.

    Attributes:
        block: the address of the header.
        words: 32-bit words from the worker record on; see `word_of`.
        gang: the gang that has it now.
        sm: the SM that has it now.
        index: its number in the gang, `NONE` once it is released.
        owner: the owner of the data in its memory, see
            `gpud.device.cpu.scheduling.chain.Chain.owner`.
        size: bytes from `block` on.
    """

    __slots__ = ("_memory", "block", "gang", "index", "owner", "size", "sm", "words")

    def __init__(self, size: int) -> None:
        self.size = size
        self._memory = np.zeros(WORKER_BYTES + size + 256, np.uint8)
        first = self._memory.ctypes.data
        self.block: int = align_up(first + WORKER_BYTES, 256)
        start = self.block - WORKER_BYTES - first
        end = start + (WORKER_BYTES + size) // 4 * 4
        self.words = self._memory.data[start:end].cast("I")
        self.gang: Gang | None = None
        self.sm: VirtualSM | None = None
        self.index = 0
        self.owner: object = None
        printf.register(self.block, self)

    def clear(self) -> None:
        """Zero all of its memory; nothing runs in it."""
        self._memory[:] = 0

    # -- output of its block, on the SM's thread

    @property
    def accepting(self) -> bool:
        """Whether the output of its block is kept now."""
        return self.gang is not None and self.gang.printed.accepting

    def print(self, text: bytes) -> None:
        """Add output of its block."""
        if self.gang is not None:
            self.gang.printed.add(text)

    def reach(self) -> ReadableRanges:
        """The memory that may be read through its block's pointers: see `gpud.device.readable`."""
        if self.gang is None:
            return ReadableRanges(())
        return ReadableRanges(self.gang.chain.reach(self.words[word_of("stage")], self.block))


class WorkerPool:
    """Idle workers, by size and by the owner of the data in them. The caller holds a lock.

    One owner's blocks must not see what another's left in memory. Zeroing workers at each change of
    owner would delay jobs of sessions that run in turn, so each owner gets its own workers back;
    only when many are idle are others' zeroed and reused, and the largest freed.

    Attributes:
        by_block: all workers, in use or not, by the address of their block.
    """

    def __init__(self) -> None:
        # By size, then by owner, the most recently used owner last.
        self._free: dict[int, OrderedDict[int, list[Worker]]] = {}
        self._free_bytes = 0
        self.by_block: dict[int, Worker] = {}

    def acquire(self, size: int, owner: object) -> Worker:
        """A worker with at least ``size`` bytes from its block's address on.

        Its memory is zero, except for data of the same owner.
        """
        # Rounded to few sizes, so that jobs can share workers: at most a fifth is wasted.
        step = 1 << max(10, size.bit_length() - 3)
        rounded = align_up(size, step)
        owners = self._free.get(rounded)
        if owners and id(owner) in owners:
            return self._pop(owners, id(owner))
        if owners and self._free_bytes >= _IDLE_BYTES:
            worker = self._pop(owners, next(iter(owners)))
            worker.clear()
        else:
            worker = Worker(rounded)
            self.by_block[worker.block] = worker
        worker.owner = owner
        return worker

    def release(self, worker: Worker) -> None:
        """Take back a worker that has left its SM."""
        worker.gang = worker.sm = None
        # The worker keeps its owner alive, so its id stays unique.
        owners, key = self._free.get(worker.size), id(worker.owner)
        if owners is None:
            owners = self._free[worker.size] = OrderedDict()
        if key in owners:
            owners[key].append(worker)
            owners.move_to_end(key)
        else:
            owners[key] = [worker]
        self._free_bytes += worker.size
        while self._free_bytes > _MAX_IDLE_BYTES:
            largest = self._free[max(size for size, owners in self._free.items() if owners)]
            gone = self._pop(largest, next(iter(largest)))
            del self.by_block[gone.block]
            printf.unregister(gone.block)

    def _pop(self, owners: OrderedDict[int, list[Worker]], key: int) -> Worker:
        workers = owners[key]
        worker = workers.pop()
        if not workers:
            del owners[key]
        self._free_bytes -= worker.size
        return worker
