"""Lanes as ``with`` blocks, whose methods block."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from gpud_client.connection.faces import Blocking
from gpud_client.launch.lane_base import LaneBase
from gpud_client.launch.lane_jobs import LaneJob

__all__ = ["Lane"]


class Lane(LaneBase, Blocking):
    """A stream with a share of its own; made by `Session.lane`.

    Give it as ``stream=`` to `Kernel.submit` or `Session.sequence`. Its jobs run in order, in the
    lane's share, and start without the daemon's scheduler. Leaving a ``with`` block waits for them
    and closes the lane. Thread-safe.
    """

    _job_class = LaneJob

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(wait=error is None)
