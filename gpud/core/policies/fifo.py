"""Run to completion: a baseline. First come, first served, and nobody is ever resized.

Online and offline jobs wait in one line. The first one starts when all that it may have is free:
an online job's reservation, an offline job's quota as far as its grids can use it. Those behind it
wait until then, even if they would fit.
"""

from __future__ import annotations

from typing import ClassVar

from gpud.core import admission
from gpud.core.board import Board
from gpud.core.job import JobRecord
from gpud.errors import GpudError, InvalidArgument

__all__ = ["Fifo"]


class Fifo:
    """See the module."""

    name: ClassVar[str] = "fifo"
    online_apart: ClassVar[bool] = False
    keeps_reservations: ClassVar[bool] = True

    def size(self, job: JobRecord, board: Board) -> GpudError | None:
        """As `gpud.core.policies.interface.Policy.size`."""
        assert board.sms is not None, "sizes are worked out for a device that was up"
        error = admission.size(job, board.sms, board.floor_sms, board.partitions)
        job.least = job.most
        return error

    def resized(self, board: Board, job: JobRecord) -> GpudError | None:
        """As `gpud.core.policies.interface.Policy.resized`: refused."""
        return InvalidArgument(
            f"job {job.name} runs under the policy {self.name}, which resizes nobody"
        )

    def settle(self, board: Board) -> None:
        """As `gpud.core.policies.interface.Policy.settle`."""
        waiting = board.waiting
        while waiting:
            job = waiting[0][2]
            if job.least * job.slice > board.physically_free or not board.can_part(job):
                return
            board.start(job, job.least)
