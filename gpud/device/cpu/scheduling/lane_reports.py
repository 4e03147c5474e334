"""What is told of a lane: launches that did not simply run to their end, and what was wrong."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gpud.device.cpu.abi.records import RingError
from gpud.device.cpu.scheduling.lane_run import LaneRecord
from gpud.errors import GpudError, ProtocolError
from gpud.wire import lane_ring as ring

__all__ = ["EndedLaunch", "LaneObserver", "ring_error"]

_WRONG = {
    RingError.HEAD: "{wrong} slots are said to be written, and there are {slots}",
    RingError.NUMBER: "launch {number} was to come, not {wrong}",
    RingError.SITE: "there is no launch site {wrong}; it has {sites}",
    RingError.SIZE: "the parameters of launch {number} are said to have {wrong} bytes, which are "
    "not the kernel's",
    RingError.GRID: "the grid of launch {number} has {wrong} in a dimension, or too many task "
    "blocks in all",
    RingError.CUT: "launch {number} takes {wrong} slots, and fewer are written",
}


class EndedLaunch(NamedTuple):
    """A launch whose end is reported with more than a completion.

    Attributes:
        site: its launch site.
        state: ``done``, ``failed`` or ``cancelled``.
        progress: task blocks done, and their total.
    """

    number: int
    site: int
    state: str
    error: GpudError | None
    output: bytes
    progress: tuple[int, int]


class LaneObserver(Protocol):
    """Whoever is told what happens to a lane; on any thread."""

    def launch_ended(self, launch: EndedLaunch) -> None:
        """Take notice of a launch that did not simply run to its end."""

    def on_left(self) -> None:
        """Take notice that blocks have left."""

    def on_over(self) -> None:
        """Take notice that the lane has ended; the last call."""


def ring_error(lane: LaneRecord) -> ProtocolError:
    """Return the error of a lane whose ring holds what is no launch."""
    problem = _WRONG[lane["error"]].format(
        wrong=lane["wrong"], number=lane["number"], slots=ring.SLOTS, sites=lane["site_count"]
    )
    return ProtocolError(f"the lane's ring holds what is no launch: {problem}")
