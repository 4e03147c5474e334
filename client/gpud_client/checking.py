"""Tells the checking mode about a session's arrays: `gpud.checked_memory` has the layout.

A session that checks has a board in each of its arenas. Here its table of arrays is kept: an array
is added when it is made, marked as written when the client writes it, and as freed once it is freed
and the jobs that were submitted before have ended. The memory of freed arrays is given back late,
so that kernels which still use it are found out.

Properties:
* ``deferred``: finalizers only note that an array was freed, since they may run anywhere;
* an array's row is complete before the array is returned to the caller.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpud.checked_memory import (
    BOARD_BYTES,
    CURRENT,
    LABEL_BYTES,
    MAGIC,
    MOST_ARRAYS,
    ROW,
    ROW_BYTES,
    ROWS_AT,
    STARTS_AT,
    TABLE_BYTES,
    allocation_bytes,
    padded,
)
from gpud.errors import GpudError, InvalidArgument, LimitExceeded
from gpud.wire.messages import Allocate
from gpud_client.connection.pending import Operation, Request
from gpud_client.connection.protocol_state import ProtocolState

if TYPE_CHECKING:
    from gpud_client.arena import ArenaMemory
    from gpud_client.devices import Device

__all__ = ["Board", "Checking"]

_KEPT_BYTES = 256 << 20
"""Most memory of freed arrays that is not given back yet, shadows included."""
_NEEDS_CPU = (
    "kernels are checked on a CPU device, and this daemon has none: use "
    'gc.local("cpu", check=True), or NVIDIA\'s compute-sanitizer with a program of your own'
)


@dataclass(slots=True, order=True)
class _Row:
    start: int
    size: int
    itemsize: int
    label: bytes
    freed: bool = False


class Board:
    """The table of arrays in one arena.

    Args:
        memory: the arena, in which nothing was written yet.
    """

    def __init__(self, memory: ArenaMemory) -> None:
        import numpy as np

        self.memory = memory
        self.bytes = memory.view(memory.base, BOARD_BYTES, None)
        self.rows: list[_Row] = []
        self._table = 0
        self.publish()
        self.bytes[:8].view(np.uint64)[0] = MAGIC

    def add(self, address: int, size: int, itemsize: int, label: str) -> None:
        """Add an array, which nobody has written.

        Raises:
            LimitExceeded: there are too many.
        """
        if len(self.rows) >= MOST_ARRAYS:
            raise LimitExceeded(
                f"a session that checks has {MOST_ARRAYS} arrays at most, freed ones that are "
                "still watched included; free some, or use fewer and larger ones",
                limit="arrays",
                value=MOST_ARRAYS,
            )
        text = label.encode()
        cut = text if len(text) <= LABEL_BYTES else text[: LABEL_BYTES - 3] + b"..."
        insort(self.rows, _Row(address, size, itemsize, cut))
        self.publish()

    def write(self, address: int, size: int) -> None:
        """Mark a whole array as written."""
        self.memory.view(address + padded(size), size, None)[:] = 1

    def publish(self) -> None:
        """Write the table that kernels do not use now, and have them use it."""
        import numpy as np

        rows, table = self.rows, 1 - self._table
        starts = np.array([row.start for row in rows], np.uint64)
        at = STARTS_AT + table * TABLE_BYTES
        self.bytes[at : at + starts.nbytes] = starts.view(np.uint8)
        packed = b"".join(_packed(row) for row in rows)
        at = ROWS_AT + table * MOST_ARRAYS * ROW_BYTES
        self.bytes[at : at + len(packed)] = np.frombuffer(packed, np.uint8)
        self.bytes[CURRENT : CURRENT + 8].view(np.uint64)[0] = len(rows) << 32 | table
        self._table = table


def _packed(row: _Row) -> bytes:
    head = (row.start + row.size).to_bytes(8, "little") + row.itemsize.to_bytes(4, "little")
    assert len(head) == ROW["freed"][0]
    return head + row.freed.to_bytes(4, "little") + row.label.ljust(LABEL_BYTES, b"\0")


class Checking:
    """The arrays of a session that checks. Thread-safe.

    Args:
        core: the session's state.
    """

    def __init__(self, core: ProtocolState) -> None:
        self._core = core
        self._boards: dict[int, Board] = {}
        self._lock = threading.Lock()
        self._dropped: deque[tuple[int, int]] = deque()
        self._waiting: list[tuple[int, int, frozenset[int]]] = []
        self._kept: deque[tuple[int, int]] = deque()
        self._kept_bytes = 0

    def open(self, devices: Iterable[Device]) -> Operation[None]:
        """Make a board on each device that checks.

        Raises:
            InvalidArgument: there is none.
        """
        for device in devices:
            if device.kind != "cpu":
                continue
            answer = yield Request(_asking(device.index, BOARD_BYTES))
            memory = self._core.arenas[device.index]
            if answer.address != memory.base:
                raise GpudError("the session's first array is not where its memory begins")
            self._boards[device.index] = Board(memory)
        if not self._boards:
            raise InvalidArgument(_NEEDS_CPU)

    def bytes_for(self, device: int, size: int) -> int:
        """Return what to allocate for an array of ``size`` bytes."""
        return allocation_bytes(size) if device in self._boards else size

    def added(self, device: int, address: int, size: int, dtype: Any, shape: Any) -> None:
        """Note a new array, which nobody has written.

        Raises:
            LimitExceeded: there are too many.
        """
        board = self._boards.get(device)
        if board is None:
            return
        with self._lock:
            board.add(address, size, dtype.itemsize, f"{dtype} {tuple(shape)}")

    def written(self, device: int, address: int, size: int) -> None:
        """Note that the client writes the whole of an array, or can do so from now on."""
        board = self._boards.get(device)
        if board is not None:
            board.write(address, size)

    def dropped(self, device: int, address: int) -> bool:
        """Note that an array was freed; whether its memory is given back here. For finalizers."""
        if device not in self._boards:
            return False
        self._dropped.append((device, address))
        return True

    def settle(self, *, give_back: bool = False) -> None:
        """Mark what was freed and what no job can use any more; to be called before a job begins.

        Args:
            give_back: free the memory of all of it, too.
        """
        with self._lock:
            running = frozenset(self._core.jobs)
            while self._dropped:
                self._waiting.append((*self._dropped.popleft(), running))
            changed = set()
            still = []
            for device, address, jobs in self._waiting:
                if jobs & running:
                    still.append((device, address, jobs))
                    continue
                row = self._row(device, address)
                row.freed = True
                self._kept.append((device, address))
                self._kept_bytes += allocation_bytes(row.size)
                changed.add(device)
            self._waiting = still
            while self._kept and (give_back or self._kept_bytes > _KEPT_BYTES):
                device, address = self._kept.popleft()
                row = self._row(device, address)
                self._boards[device].rows.remove(row)
                self._kept_bytes -= allocation_bytes(row.size)
                self._core.free(device, address)
                changed.add(device)
            for device in changed:
                self._boards[device].publish()

    def _row(self, device: int, address: int) -> _Row:
        rows = self._boards[device].rows
        return rows[bisect_left(rows, address, key=lambda row: row.start)]


def _asking(device: int, size: int) -> Any:
    return lambda number: Allocate(number, device, size)
