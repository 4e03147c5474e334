"""Compaction: offline blocks move together where online ones find no room.

Problem: capacity is counted in slices of any SMs. An online launch may have its share in sum, and
no SM on which one of its blocks fits: an offline job that has three quarters of the device has
three quarters of every SM, and jobs that gave up blocks may have given up others' neighbours.
Blocks of the online launch would wait until some offline kernel is over.

Approach: the watcher sees blocks that are to come and do not, though nobody is leaving any more. It
then bars so many SMs as these blocks need: offline blocks on them leave at their next task block,
and none begins there. When the online blocks are there, or their launch is over, the SMs are open
again: offline jobs begin on other SMs, or there, what they lack of their share. They have moved
together by that, so that it seldom has to be done again.

Terms: a launch *lacks* the blocks of it that are not told to leave and have not begun, as long as
something is left for them to claim.

Properties:
* SMs are barred only if a launch lacks blocks at two looks, with nobody leaving at either;
* those with the fewest offline blocks are, and first those without online ones; an SM whose number
  cannot be named is not;
* they are not barred longer than `_SECONDS` after the last has left for a launch that does not come
  all the same, and then not again for the same one: what it waits for is something else.

Nothing here has run on a GPU yet; how soon blocks come after others have left is a guess.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from gpud.compiler.control_words import MOST_SMS

if TYPE_CHECKING:
    from gpud.device.cuda.flights import Flight
    from gpud.device.cuda.gang import Gang

__all__ = ["Compaction", "Lack"]

_SECONDS: Final = 0.1
"""Twenty times as long as a long task block's 5 ms."""

_SETTLED_S: Final = 40e-6
"""How long a block takes at most to begin where there is room; looks are further apart."""


class Lack(NamedTuple):
    """What a run lacks.

    Attributes:
        blocks: how many.
        occupancy: M of their launch.
        launch: the flights of it.
        sms: where they may be; None: on any SM.
    """

    blocks: int
    occupancy: int
    launch: tuple[Flight, ...]
    sms: frozenset[int] | None


class Compaction:
    """Bars SMs. Under the device's lock.

    Attributes:
        barred: SMs on which no offline block is to be, by ``%smid``.
        clock: tells the time in seconds; tests have their own.
    """

    def __init__(self) -> None:
        self.barred: frozenset[int] = frozenset()
        self.clock: Callable[[], float] = time.monotonic
        self._lacking: dict[Flight, float] = {}  # since when, with nobody leaving
        self._hopeless: set[Flight] = set()
        self._until = 0.0

    def look(self, gangs: Iterable[Gang]) -> bool:
        """See who lacks what; whether other SMs are barred now, which every run is to be told."""
        gangs = tuple(gangs)
        lacks = [lack for gang in gangs if gang.urgent and (lack := gang.lack) is not None]
        flights = {flight for lack in lacks for flight in lack.launch}
        self._hopeless &= flights
        if not lacks:
            self._lacking.clear()
            return self._bar(frozenset())
        now = self.clock()
        if any(gang.leaving for gang in gangs):
            self._lacking.clear()
            self._until = now + _SECONDS
            return False
        if self.barred and now >= self._until:
            self._hopeless |= flights
            return self._bar(frozenset())
        self._lacking = {flight: self._lacking.get(flight, now) for flight in flights}
        wanted: frozenset[int] = self.barred
        for lack in lacks:
            since = max(self._lacking[flight] for flight in lack.launch)
            if now - since >= _SETTLED_S and not self._hopeless.issuperset(lack.launch):
                wanted |= self._chosen(lack, gangs)
        if wanted != self.barred and not self.barred:
            self._until = now + _SECONDS
        return self._bar(wanted)

    def _bar(self, sms: frozenset[int]) -> bool:
        changed = sms != self.barred
        self.barred = sms
        if changed:
            self._lacking.clear()
        return changed

    def _chosen(self, lack: Lack, gangs: Iterable[Gang]) -> frozenset[int]:
        """The SMs that are to be left for it."""
        offline: Counter[int] = Counter()
        online: Counter[int] = Counter()
        for gang in gangs:
            (online if gang.urgent else offline).update(gang.there)
        able = [sm for sm in offline if sm < MOST_SMS and (lack.sms is None or sm in lack.sms)]
        able.sort(key=lambda sm: (online[sm], offline[sm], sm))
        return frozenset(able[: -(-lack.blocks // lack.occupancy)])
