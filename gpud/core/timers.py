"""What is to happen later: a queue of times, of which the server needs to know only the first."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from heapq import heapify, heappop, heappush

__all__ = ["Due", "Timer", "Timers"]

_FEW = 64  # entries that are not worth tidying up


class Timer(IntEnum):
    """What a time is for, and what the number beside it means."""

    TIMEOUT = 1  # a job
    GRACE = 2  # a job
    HOLD = 3  # a device
    DRAIN = 4  # nothing


Due = tuple[int, Timer, int]
"""When, what for, and the job or device."""


class Timers:
    """Times in order. What has become pointless stays until its time or until it is tidied away.

    Attributes:
        due: all of them, the first in front. For reading.
    """

    def __init__(self) -> None:
        self.due: list[Due] = []

    def add(self, at_ns: int, what: Timer, subject: int) -> None:
        """Adds a time."""
        heappush(self.due, (at_ns, what, subject))

    def pop(self, now_ns: int) -> Due | None:
        """Takes out the first time that has come, if one has."""
        if self.due and self.due[0][0] <= now_ns:
            return heappop(self.due)
        return None

    def first_ns(self, matters: Callable[[Due], bool]) -> int | None:
        """Returns the first time that still matters, and drops those before it."""
        while self.due and not matters(self.due[0]):
            heappop(self.due)
        return self.due[0][0] if self.due else None

    def prune(self, wanted: int, matters: Callable[[Due], bool]) -> None:
        """Drops what does not matter if that may be most; ``wanted`` is about what does."""
        if len(self.due) > _FEW + 4 * wanted:
            self.due = [due for due in self.due if matters(due)]
            heapify(self.due)
