"""What is told of a lane: launches that did not simply run to their end, and what was wrong."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gpud.errors import GpudError, ProtocolError
from gpud.wire import lane_ring as ring

__all__ = ["EndedLaunch", "LaneObserver", "RingError", "ring_error"]


class RingError:
    """What was wrong with a lane's ring."""

    NONE = 0
    HEAD = 1
    """More slots are said to be written than there are."""
    NUMBER = 2
    """A launch is not numbered one more than the one before."""
    SITE = 3
    """There is no such launch site."""
    SIZE = 4
    """The size of the parameters is not the kernel's."""
    GRID = 5
    """A grid without task blocks, or with too many."""
    CUT = 6
    """The slots of a launch are not all there."""


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
        state: ``done``, ``failed`` or ``cancelled``.
        progress: task blocks done, and their total.
        behind: the launch that had failed before, because of which it has: it did not begin.
    """

    number: int
    site: int
    state: str
    error: GpudError | None
    output: bytes
    progress: tuple[int, int]
    behind: int | None = None


class LaneObserver(Protocol):
    """Whoever is told what happens to a lane; on any thread."""

    def launch_ended(self, launch: EndedLaunch) -> None:
        """Take notice of a launch that did not simply run to its end."""

    def on_left(self) -> None:
        """Take notice that blocks have left."""

    def on_over(self) -> None:
        """Take notice that the lane has ended; the last call."""


def ring_error(error: int, wrong: int, number: int, sites: int) -> ProtocolError:
    """Return the error of a lane whose ring holds what is no launch.

    Args:
        error: of `RingError`.
        wrong: the value that breaks the rule.
        number: of the launch that was to come.
        sites: how many launch sites the lane has.
    """
    problem = _WRONG[error].format(wrong=wrong, number=number, slots=ring.SLOTS, sites=sites)
    return ProtocolError(f"the lane's ring holds what is no launch: {problem}")
