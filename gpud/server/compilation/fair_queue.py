"""Fair queue: of all that several parties want done, each party's tasks one after the other.

Problem: a device host makes machine code for one kernel at a time, in the order in which it is
asked. A user who asks for a thousand large kernels would have everybody wait for all of them.

Approach: each party has one task under way at most; the others of that party wait here. Those of
different parties are then before the host together, so that nobody waits for more than one of each
other party.

Properties:
    in_order: a party's tasks are done in the order in which they came;
    one_at_a_time: the next begins when the one before is done, whatever became of it;
    no_party_waits_here_for_another: a first task is done at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

__all__ = ["FairQueue"]

OnTurn = Callable[[Callable[[], None]], None]
"""Called when it is its turn, with a function to call once when it is done."""


class FairQueue:
    """The tasks of any number of parties."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[OnTurn]] = {}  # of those with one under way

    def __len__(self) -> int:
        """How many parties have something under way."""
        return len(self._waiting)

    def submit(self, party: Hashable, on_turn: OnTurn) -> None:
        """Have ``on_turn`` called when it is the party's turn, maybe before this returns."""
        waiting = self._waiting.get(party)
        if waiting is None:
            self._waiting[party] = deque()
            self._run(party, on_turn)
        else:
            waiting.append(on_turn)

    def _run(self, party: Hashable, on_turn: OnTurn) -> None:
        """Do a task, and those behind it as long as each is done before it returns."""
        following: OnTurn | None = on_turn
        while following is not None and self._begin(party, following):
            following = self._next(party)

    def _begin(self, party: Hashable, on_turn: OnTurn) -> bool:
        """Whether the task was done before this returns."""
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
