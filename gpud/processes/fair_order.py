"""The order in which the waiting items of several parties are begun: the parties take turns.

Problem: where work is done one piece at a time, a party that asks for a thousand pieces must not
delay another's one piece by all of them.

Approach: each party's items wait in a line of their own, and parties take turns. A party has at
most one item *under way*; what is done with it, and on which thread, is the caller's concern.

Properties:
    in_order: a party's items are begun in the order in which they were put;
    one_at_a_time: a party's next item is begun after the one under way is done;
    fair: between two turns of a party, each other party that waits has one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["FairOrder"]

Party = TypeVar("Party", bound=Hashable)
Item = TypeVar("Item", bound=Hashable)


class FairOrder(Generic[Party, Item]):
    """The waiting items of any number of parties. Not thread-safe."""

    def __init__(self) -> None:
        # The lines, also of those without waiting items that have one under way.
        self._lines: dict[Party, OrderedDict[Item, None]] = {}
        self._turns: OrderedDict[Party, None] = OrderedDict()  # parties that can begin an item

    def __len__(self) -> int:
        """How many parties have an item that waits or is under way."""
        return len(self._lines)

    def waiting(self, party: Party) -> list[Item]:
        """Return a party's waiting items, the next one first."""
        return list(self._lines.get(party, ()))

    def all_waiting(self) -> list[Item]:
        """Return the waiting items of all parties."""
        return [item for line in self._lines.values() for item in line]

    def put(self, party: Party, item: Item) -> None:
        """Append an item to a party's line, unless it waits there already."""
        line = self._lines.get(party)
        if line is None:
            line = self._lines[party] = OrderedDict()
            self._turns[party] = None
        line[item] = None

    def take(self) -> tuple[Party, Item] | None:
        """Begin the first item of the next party; None if no party can begin one.

        The party has no other turn until `done` or `put_back`.
        """
        if not self._turns:
            return None
        party, _ = self._turns.popitem(last=False)
        item, _ = self._lines[party].popitem(last=False)
        return party, item

    def done(self, party: Party, *, keeps_turn: bool = False) -> None:
        """End the item that a party has under way.

        Args:
            party: the party.
            keeps_turn: whether its next turn comes before those of the others, and not after them.
        """
        if not self._lines[party]:
            del self._lines[party]
            return
        self._turns[party] = None
        if keeps_turn:
            self._turns.move_to_end(party, last=False)

    def put_back(self, party: Party, item: Item, *, keeps_turn: bool = False) -> None:
        """Let the item that is under way wait again, as its party's first; otherwise as `done`."""
        line = self._lines[party]
        line[item] = None
        line.move_to_end(item, last=False)
        self.done(party, keeps_turn=keeps_turn)

    def remove(self, item: Item, party: Party) -> None:
        """Drop an item, if it waits in the party's line."""
        line = self._lines.get(party)
        if line is None or item not in line:
            return
        del line[item]
        if not line and party in self._turns:
            del self._turns[party], self._lines[party]

    def remove_all(self, item: Item) -> None:
        """Drop an item from each line in which it waits."""
        for party in list(self._lines):
            self.remove(item, party)
