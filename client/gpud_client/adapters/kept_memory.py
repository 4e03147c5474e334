"""What a framework keeps from iteration to iteration: on the GPU, or in the machine's memory.

Two ranges have it: that of the profile, where what persists of the profiled iterations stays, and
the persistent one, for what comes later. What a movable workload keeps goes to the machine's memory
when the daemon asks for that, and comes back to the same addresses before the next turn.

Properties:
    whole: the GPU's memory is given back only when all that the framework has there was copied;
        what cannot come back as a whole stays in the machine's memory;
    between_turns: the daemon asks only when the program has no turn, and the lock keeps a move
        apart from what this process does at the end of its turn.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from gpud.errors import GpudError
from gpud_client.adapters.host_memory import HostMemory
from gpud_client.adapters.mapped import MappedRange, ProcessGpu
from gpud_client.adapters.mapped_workload import MappedWorkload

__all__ = ["KeptMemory", "Parts"]

_LOG = logging.getLogger("gpud_client")

Parts = Callable[[MappedRange], Iterable[tuple[int, int]]]
"""Returns what the framework has of a range, as (offset, bytes). Called on any thread."""


class KeptMemory:
    """The two ranges.

    Args:
        gpu: has the memory.
        workload: is asked to move what it keeps.
        parts: what the framework has of them.

    Attributes:
        persistent, profile: the ranges.
        lock: held while memory behind them comes or goes.
        away: whether it is in the machine's memory.
    """

    def __init__(self, gpu: ProcessGpu, workload: MappedWorkload, parts: Parts) -> None:
        self._workload = workload
        self._parts = parts
        self._host = HostMemory(gpu)
        self._stays = False  # nobody asks for it any more
        self.persistent = MappedRange(gpu)
        self.profile = MappedRange(gpu)
        self.lock = threading.RLock()
        self.away = False
        workload.on_move = self._asked

    def rescue(self) -> None:
        """Have it on the GPU if there is room, as no daemon asks for that any more."""
        with self.lock:
            self._stays = True
            try:
                self._come_back()
            except Exception as error:  # noqa: BLE001 - that the daemon is gone is what is raised
                _LOG.error("what the program keeps stays in the machine's memory: %s", error)

    def close(self) -> None:
        """Give it up, wherever it is."""
        with self.lock:
            self._stays = True
            self._host.close()
            self.persistent.close()
            self.profile.close()

    # -- moves

    def _asked(self, away: bool) -> None:
        # Not on this thread, which reads what else the daemon says.
        threading.Thread(target=self._move, args=(away,), name="gpud move", daemon=True).start()

    def _move(self, away: bool) -> None:
        with self.lock:
            if self._stays:
                return
            try:
                said = (self._leave() if away else self._come_back()), ""
            except Exception as error:  # noqa: BLE001 - whatever it is, the daemon is told
                _LOG.exception("what %s keeps cannot be moved", self._workload.id)
                said = 0, error.message if isinstance(error, GpudError) else str(error)
        self._workload.moved(*said)

    def _leave(self) -> int:
        ranges = self.persistent, self.profile
        spans = [
            (one.address + start, end - start)
            for one in ranges
            for start, end in one.backed_pieces(self._parts(one))
        ]
        copied = self._host.store(spans)
        self.away = True
        try:
            for one in ranges:
                one.unmap()
        except BaseException:
            self._come_back()
            raise
        return copied

    def _come_back(self) -> int:
        if not self.away:
            return 0
        done: list[MappedRange] = []
        try:
            for one in (self.persistent, self.profile):
                one.map_again()
                done.append(one)
            copied = self._host.load()
        except BaseException:
            for one in done:
                one.unmap()
            raise
        self.away = False
        return copied
