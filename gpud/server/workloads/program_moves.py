"""The regions of movable workloads whose programs map their memory themselves.

Only a program can unmap its memory, so it moves what it keeps when it is asked to (`MoveRegion`),
and says when that is done.

Properties:
    asked: a program says that it has moved what it keeps only when it was asked to;
    named: one that takes long is named, once for each move; it can be ended as any workload.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from gpud.errors import GpudError, InternalError, InvalidArgument
from gpud.server.workloads.region_mover import OnMoved
from gpud.server.workloads.workload import Workload, workload_name
from gpud.wire import messages as wm

__all__ = ["ProgramMoves"]


@dataclass(slots=True)
class _Move:
    """A move under way; ``done`` is called when it is over."""

    workload: Workload
    away: bool
    done: OnMoved
    began_ns: int
    named: bool = False


class ProgramMoves:
    """All such regions that are away, and those that move, each by the number of its workload.

    Attributes:
        moved_bytes: how much the programs have copied so far, in both directions.
        moving_ns: how long that took.
    """

    def __init__(self) -> None:
        self._away: dict[int, int] = {}  # bytes in host memory
        self._moving: dict[int, _Move] = {}
        self.moved_bytes = 0
        self.moving_ns = 0

    @property
    def away_bytes(self) -> int:
        """Return the host memory that regions occupy, as their programs say."""
        return sum(self._away.values())

    def leave(self, workload: Workload, done: OnMoved) -> None:
        """Have a program move what it keeps to host memory, then call ``done``."""
        self._ask(workload, done, away=True)

    def come_back(self, workload: Workload, done: OnMoved) -> None:
        """Have a program move what it keeps back, then call ``done``."""
        self._ask(workload, done, away=False)

    def _ask(self, workload: Workload, done: OnMoved, *, away: bool) -> None:
        self._moving[workload.number] = _Move(workload, away, done, time.monotonic_ns())
        workload.owner.send(wm.MoveRegion(workload.number, away))

    def moved(self, workload: Workload, message: wm.RegionMoved) -> None:
        """Note that a program has moved what it keeps, or could not.

        Raises:
            InvalidArgument: it was not asked to, or says that it copied more than it may keep.
        """
        name = workload_name(workload.number)
        if workload.number not in self._moving:
            raise InvalidArgument(
                f"what workload {name} keeps is not to be moved: wait to be asked"
            )
        if message.size > workload.region_bytes:
            raise InvalidArgument(
                f"workload {name} keeps at most {workload.region_bytes} bytes, and says that it "
                f"has copied {message.size}"
            )
        move = self._moving.pop(workload.number)
        error: GpudError | None = None
        if message.error:
            error = InternalError(f"its program says: {message.error}", stage="program")
        else:
            self.moved_bytes += message.size
            self.moving_ns += time.monotonic_ns() - move.began_ns
            if move.away:
                self._away[workload.number] = message.size
            else:
                self._away.pop(workload.number, None)
        move.done(error)

    def forget(self, number: int) -> None:
        """Note that a workload has ended."""
        self._away.pop(number, None)
        self._moving.pop(number, None)

    def late(self, device: int, now_ns: int, after_ns: int) -> list[tuple[Workload, int]]:
        """Return whose move on a device has lasted longer than ``after_ns``, and how long, once."""
        late = [
            move
            for move in self._moving.values()
            if move.workload.device == device
            and not move.named
            and now_ns - move.began_ns > after_ns
        ]
        for move in late:
            move.named = True
        return [(move.workload, now_ns - move.began_ns) for move in late]
