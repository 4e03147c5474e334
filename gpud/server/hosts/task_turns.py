"""Starts the tasks of each party one after the other, independently of other parties.

Problem: a device host compiles one kernel at a time, in the order of the requests. A user who
requests a thousand large kernels would delay everybody else by all of them.

Approach: `gpud.processes.fair_order`, without a limit on how many parties have a task under way. So
the host's own queue holds at most one task of each party, and no party waits for more than that.

Properties:
    parties_independent: a party without a task under way never waits here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from gpud.processes.fair_order import FairOrder

__all__ = ["TaskTurns"]

OnTurn = Callable[[Callable[[], None]], None]
"""Starts a task; its argument must be called once when the task is done."""


class TaskTurns:
    """The tasks of any number of parties."""

    def __init__(self) -> None:
        self._order: FairOrder[Hashable, OnTurn] = FairOrder()
        self._starting = False

    def __len__(self) -> int:
        """How many parties have a task under way."""
        return len(self._order)

    def submit(self, party: Hashable, on_turn: OnTurn) -> None:
        """Queue a task; ``on_turn`` is called when it is its turn, maybe before this returns."""
        self._order.put(party, on_turn)
        self._start()

    def _start(self) -> None:
        if self._starting:
            return  # a task was done before its start returned: the loop below goes on
        self._starting = True
        try:
            while (turn := self._order.take()) is not None:
                party, on_turn = turn
                on_turn(lambda party=party: self._done(party))  # type: ignore[misc]
        finally:
            self._starting = False

    def _done(self, party: Hashable) -> None:
        self._order.done(party)
        self._start()
