"""Learns which of a framework's allocations persist: those that outlive the iteration they are of.

Problem: a framework asks for memory without saying for how long. What lives across iterations has
to lie in persistent memory, everything else in temporary memory, and where it lies is decided when
it is asked for.

Approach: training loops repeat themselves. The n-th allocation of a size in an iteration is
expected to do what the n-th allocation of that size did in the last iteration that had one. Nothing
is expected in the first iteration, which is *profiled*; what is asked for outside of iterations
persists.

Terms:
    survive: to be alive when the iteration ends in which it was allocated.

Properties:
    repeats: of a loop that does the same in each iteration, every kind is right after the profile;
    hindsight: `needed_sizes` simulates the placement that `MemoryRange` makes, so what it returns
        suffices for the same sequence, fragmentation included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from gpud_client.workloads.memory import MemoryRange

__all__ = [
    "Allocated",
    "Allocation",
    "Event",
    "Freed",
    "IterationEnded",
    "Kind",
    "KindLearner",
    "NeededSizes",
    "needed_sizes",
]

_ENDLESS_BYTES = 1 << 62


class Kind(Enum):
    """What is expected of an allocation."""

    PERSISTENT = "persistent"
    TEMPORARY = "temporary"
    UNKNOWN = "unknown"


class Allocation:
    """An allocation that is alive.

    Attributes:
        size: bytes.
        kind: what was expected of it.
        iteration: in which it was made; None: outside of iterations.
    """

    __slots__ = ("_ordinal", "iteration", "kind", "size")

    def __init__(self, size: int, kind: Kind, iteration: int | None, ordinal: int) -> None:
        self.size = size
        self.kind = kind
        self.iteration = iteration
        self._ordinal = ordinal


class KindLearner:
    """Expects kinds of allocations, and learns from what becomes of them. For one thread.

    Args:
        profiled_iterations: how many iterations nothing is expected of, 1 or more.

    Attributes:
        iteration: the number of the iteration under way, or of the next one.
    """

    def __init__(self, profiled_iterations: int = 1) -> None:
        self.iteration = 0
        self._profiled_iterations = profiled_iterations
        self._within = False
        self._counts: Counter[int] = Counter()
        self._born: dict[Allocation, None] = {}  # in this iteration, and alive
        self._survived: dict[tuple[int, int], bool] = {}  # by size and ordinal

    @property
    def profiling(self) -> bool:
        """Whether nothing is expected yet."""
        return self.iteration < self._profiled_iterations

    def begin_iteration(self) -> None:
        """Begin an iteration."""
        assert not self._within
        self._within = True
        self._counts.clear()

    def end_iteration(self) -> list[Allocation]:
        """End the iteration; returns what was allocated in it and survives."""
        assert self._within
        self._within = False
        self.iteration += 1
        survivors = list(self._born)
        for one in survivors:
            self._survived[one.size, one._ordinal] = True
        self._born.clear()
        return survivors

    def allocated(self, size: int) -> Allocation:
        """Note an allocation; what is expected of it is its ``kind``."""
        if not self._within:
            return Allocation(size, Kind.PERSISTENT, None, 0)
        ordinal = self._counts[size]
        self._counts[size] += 1
        if self.profiling:
            kind = Kind.UNKNOWN
        else:
            survives = self._survived.get((size, ordinal), False)
            kind = Kind.PERSISTENT if survives else Kind.TEMPORARY
        made = Allocation(size, kind, self.iteration, ordinal)
        self._born[made] = None
        return made

    def freed(self, one: Allocation) -> None:
        """Note that an allocation is freed."""
        if self._born.pop(one, 0) is None:  # else it is an older one
            self._survived[one.size, one._ordinal] = False


# -- from what was recorded ------------------------------------------------------------------------


class Allocated(NamedTuple):
    """A framework has got memory."""

    address: int
    size: int


class Freed(NamedTuple):
    """A framework has given memory back."""

    address: int


class IterationEnded(NamedTuple):
    """An iteration has ended, and the next begins."""


Event = Allocated | Freed | IterationEnded


class NeededSizes(NamedTuple):
    """What a loop needs, in bytes; as `gpud_client.Session.workload` takes it.

    Attributes:
        persistent: of memory for what outlives its iteration, as it is placed.
        temporary: of memory for the rest.
        persistent_alive: the most bytes of the first kind that were alive at once.
        temporary_alive: the same for the second kind.
        iterations: how many the recording has.
    """

    persistent: int
    temporary: int
    persistent_alive: int
    temporary_alive: int
    iterations: int


def needed_sizes(events: Iterable[Event]) -> NeededSizes:
    """Return what a recorded loop needs: a dry run before it takes turns with others.

    What comes before the end of the first iteration may be preparation, so all of it that is alive
    then persists.

    Args:
        events: in their order, of the loop and of what was allocated for it before.

    Raises:
        ValueError: the recording has no end of an iteration, frees what it never allocated, or
            allocates at an address that is taken; the message says which event.
    """
    recorded = list(events)
    survives = _survivors(recorded)
    ranges = {kept: MemoryRange(0, _ENDLESS_BYTES, ()) for kept in (True, False)}
    most = dict.fromkeys(ranges, 0)
    alive: dict[int, tuple[bool, int, int]] = {}
    for number, event in enumerate(recorded):
        if isinstance(event, Allocated):
            kept = survives[number]
            at = ranges[kept].take(event.size)
            assert at is not None
            alive[event.address] = kept, at, event.size
            most[kept] = max(most[kept], ranges[kept].used)
        elif isinstance(event, Freed):
            kept, at, size = alive.pop(event.address)
            ranges[kept].give_back(at, size)
    iterations = sum(isinstance(event, IterationEnded) for event in recorded)
    return NeededSizes(ranges[True].peak, ranges[False].peak, most[True], most[False], iterations)


def _survivors(events: list[Event]) -> dict[int, bool]:
    """Return, by its place among the events, whether each allocation outlives its iteration."""
    survives: dict[int, bool] = {}
    alive: dict[int, int] = {}
    ended = False
    for number, event in enumerate(events):
        if isinstance(event, Allocated):
            if event.address in alive:
                raise ValueError(
                    f"event {number} allocates at {event.address:#x}, where event "
                    f"{alive[event.address]} has allocated and nothing was freed: the recording "
                    "lacks events; record again, and keep all of them"
                )
            alive[event.address] = number
            survives[number] = False
        elif isinstance(event, Freed):
            if event.address not in alive:
                raise ValueError(
                    f"event {number} frees {event.address:#x}, which the recording never allocated:"
                    " begin to record before the first allocation"
                )
            del alive[event.address]
        else:
            ended = True
            survives.update(dict.fromkeys(alive.values(), True))
    if not ended:
        raise ValueError(
            "the recording has no end of an iteration: record one call of an optimizer's step() or "
            "more, or say where iterations end"
        )
    return survives
