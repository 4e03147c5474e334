"""What a scheduling policy is."""

from __future__ import annotations

from typing import ClassVar, Protocol

from gpud.core.board import Board
from gpud.core.job import JobRecord
from gpud.errors import GpudError

__all__ = ["Policy"]


class Policy(Protocol):
    """Decides what each job of a device has. Holds no state: everything is on the board.

    Attributes:
        name: as in the configuration.
        online_apart: online jobs wait apart and give nothing up.
        keeps_reservations: an online job that was started never has less than its reservation.
    """

    name: ClassVar[str]
    online_apart: ClassVar[bool]
    keeps_reservations: ClassVar[bool]

    def size(self, job: JobRecord, board: Board) -> GpudError | None:
        """Works out the job's sizes, or returns why the device can never grant what it asks."""
        ...

    def resized(self, board: Board, job: JobRecord) -> GpudError | None:
        """Carries out new sizes of a job that was started, or returns why that cannot be."""
        ...

    def settle(self, board: Board) -> None:
        """Starts, grows and shrinks jobs after something has changed.

        Called again after every change, so it may leave for later what it cannot do now. What it
        leaves undone must be impossible until something changes.
        """
        ...
