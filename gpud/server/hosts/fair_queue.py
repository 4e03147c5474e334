"""A fair queue: runs the tasks of each party one after the other, independently of other parties.

Problem: a device host compiles one kernel at a time, in the order of the requests. A user who
requests a thousand large kernels would delay everybody else by all of them.

Approach: each party has at most one task under way; its others wait here. So the host's own queue
holds at most one task of each party, and no party waits for more than that.

Properties:
    in_order: a party's tasks run in the order in which they were submitted;
    one_at_a_time: a party's next task begins when the one before is done, whether or not it failed;
    parties_independent: a party without a task under way never waits here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

__all__ = ["FairQueue"]

OnTurn = Callable[[Callable[[], None]], None]
"""Starts a task; its argument must be called once when the task is done."""


class FairQueue:
    """The tasks of any number of parties."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[OnTurn]] = {}  # by party with a task under way

    def __len__(self) -> int:
        """How many parties have a task under way."""
        return len(self._waiting)

    def submit(self, party: Hashable, on_turn: OnTurn) -> None:
        """Queue a task; ``on_turn`` is called when it is its turn, maybe before this returns."""
        waiting = self._waiting.get(party)
        if waiting is None:
            self._waiting[party] = deque()
            self._run(party, on_turn)
        else:
            waiting.append(on_turn)

    def _run(self, party: Hashable, on_turn: OnTurn) -> None:
        """Start a task, and the following ones for as long as each is done before it returns."""
        following: OnTurn | None = on_turn
        while following is not None and self._begin(party, following):
            following = self._next(party)

    def _begin(self, party: Hashable, on_turn: OnTurn) -> bool:
        """Start a task; returns whether it is done already."""
        begun = ended = False

        def done() -> None:
            nonlocal ended
            ended = True
            if begun:
                following = self._next(party)
                if following is not None:
                    self._run(party, following)

        on_turn(done)
        begun = True
        return ended

    def _next(self, party: Hashable) -> OnTurn | None:
        waiting = self._waiting[party]
        if waiting:
            return waiting.popleft()
        del self._waiting[party]
        return None
