"""The scheduler's timer queue; the server is told only the time of the first timer."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from heapq import heapify, heappop, heappush

__all__ = ["Due", "Timer", "Timers"]

_PRUNE_FROM = 64  # entries; fewer are not worth pruning


class Timer(IntEnum):
    """What a timer is for; the comments say what its subject is."""

    TIMEOUT = 1  # a job
    GRACE = 2  # a job
    HOLD = 3  # a device
    DRAIN = 4  # none: 0
    REBALANCE = 5  # a device


Due = tuple[int, Timer, int]
"""A timer: its time, its purpose, and its subject (a job or a device)."""


class Timers:
    """A priority queue of timers. Obsolete ones stay until their time or until they are pruned.

    Attributes:
        due: all timers, as a heap. Read-only.
    """

    def __init__(self) -> None:
        self.due: list[Due] = []

    def add(self, at_ns: int, what: Timer, subject: int) -> None:
        """Add a timer."""
        heappush(self.due, (at_ns, what, subject))

    def pop(self, now_ns: int) -> Due | None:
        """Remove and return the first timer if its time has been reached."""
        if self.due and self.due[0][0] <= now_ns:
            return heappop(self.due)
        return None

    def first_ns(self, is_relevant: Callable[[Due], bool]) -> int | None:
        """Return the time of the first timer that is still relevant, and drop those before it."""
        while self.due and not is_relevant(self.due[0]):
            heappop(self.due)
        return self.due[0][0] if self.due else None

    def prune(self, expected: int, is_relevant: Callable[[Due], bool]) -> None:
        """Drop obsolete timers if they may be most of all; about ``expected`` are relevant."""
        if len(self.due) > _PRUNE_FROM + 4 * expected:
            self.due = [due for due in self.due if is_relevant(due)]
            heapify(self.due)
