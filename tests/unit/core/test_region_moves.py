"""When movable regions come back, of programs that always want their next turn."""

from __future__ import annotations

import itertools

import pytest

from gpud.core.memory.allocator import PAGE_BYTES
from gpud.core.workloads import messages as m
from gpud.core.workloads.manager import WorkloadManager
from gpud.core.workloads.turns import TurnSettings
from gpud.core.workloads.window import Place
from gpud.core.workloads.zones import Need

SLICE_NS = 1000
ROUNDS = 40


class Loops:
    """Programs that iterate for ever; their regions move at once.

    Attributes:
        absent: the turns that ended before the next one's region was on the device, by number.
    """

    def __init__(self, pages: tuple[int, ...]) -> None:
        largest = sorted(pages)[-2:]
        self.manager = WorkloadManager(
            [(sum(largest) + 1) * PAGE_BYTES], TurnSettings(SLICE_NS, 10), 1 << 40
        )
        self.now_ns = 0
        self.turns = 0
        self.absent: list[int] = []
        for number, size in enumerate(pages, 1):
            need = Need(size * PAGE_BYTES, PAGE_BYTES, 0)
            self.feed(m.Opened(self.now_ns, number, need, 1, 0, movable=True))
        for number in range(1, len(pages) + 1):
            self.feed(m.Asked(self.now_ns, number))

    def feed(self, event: m.Event) -> None:
        """Have the manager handle an event, and do what it says."""
        for command in self.manager.handle(event):
            match command:
                case m.Evict(number):
                    self.feed(m.Evicted(self.now_ns, number))
                case m.Restore(number):
                    self.feed(m.Restored(self.now_ns, number))
                case m.Recall(number):
                    self.feed(m.Ended(self.now_ns, number))
                case m.Clear(number):
                    self.turns += 1
                    following = self.manager.turns(0).following()
                    window = self.manager.zones(0).window
                    if following is not None and window[following].place is not Place.HERE:
                        self.absent.append(self.turns)
                    self.feed(m.Cleared(self.now_ns, number))
                    self.feed(m.Asked(self.now_ns, number))
        self.manager.validate()

    def run(self) -> None:
        """Go on until some turns have ended, or nothing happens any more."""
        while self.turns < ROUNDS:
            at_ns = self.manager.timer_ns()
            assert at_ns is not None, "somebody waits, and nothing is to happen"
            self.now_ns = max(at_ns, self.now_ns + 1)
            self.feed(m.Tick(self.now_ns))


@pytest.mark.parametrize("pages", [*itertools.permutations((60, 61, 63))])
def test_three_of_which_two_fit_are_there_before_their_turns(pages: tuple[int, ...]) -> None:
    loops = Loops(pages)
    loops.run()
    # At first they lie one behind the other, as they came.
    assert [turn for turn in loops.absent if turn > len(pages)] == []
