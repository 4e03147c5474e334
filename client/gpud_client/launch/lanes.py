"""Lanes whose methods block."""

from __future__ import annotations

from typing import Self

from gpud_client.connection.contexts import BlockingContext
from gpud_client.launch.lane_base import LaneBase
from gpud_client.launch.lane_jobs import LaneJob

__all__ = ["Lane"]


class Lane(LaneBase, BlockingContext):
    """A stream with a share of its own; made by `Session.lane`.

    Give it as ``stream=`` to `Kernel.submit` or `Session.sequence`. Its jobs run in order, in the
    lane's share, and start without the daemon's scheduler. Leaving a ``with`` block waits for them
    and closes the lane. Thread-safe.
    """

    _job_class = LaneJob

    def _made(self) -> Self:
        self._channel.run(self._enter())
        return self
