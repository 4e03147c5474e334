"""One device's zones and turns as the workload manager has them, and the moves of its regions.

`gpud.core.workloads.moves` decides which regions move. Where they do, a turn lasts at least
`_LEAST_SLICES` times as long as moving took last, up to `_MOST_SLICES` usual slices, so that
moving, which takes processor time and the memory's bandwidth, is a small part of it.
"""

from __future__ import annotations

from gpud.core.memory.allocator import require
from gpud.core.workloads.messages import Command, Evict, Restore
from gpud.core.workloads.moves import holds, plan
from gpud.core.workloads.turns import Phase, Turns, TurnSettings
from gpud.core.workloads.window import Place
from gpud.core.workloads.zones import Zones

__all__ = ["WorkloadDevice"]

_LEAST_SLICES = 19
_MOST_SLICES = 10


class WorkloadDevice:
    """One device's zones and turns, and the moves of its regions.

    Attributes:
        other_bytes: its memory that is in use outside of the zones.
        zone_bytes: the size of what all workloads share that was announced last.
        paused: whether no iteration begins.
        target: the size that the window is to have, so that one that waits fits; None: its own.
    """

    def __init__(self, size: int, settings: TurnSettings) -> None:
        self.zones = Zones(size)
        self.turns = Turns(settings)
        self.other_bytes = 0
        self.zone_bytes = 0
        self.paused = False
        self.target: int | None = None
        self._began_ns: dict[int, int] = {}
        self._took_ns = {Place.LEAVING: 0, Place.RETURNING: 0}

    @property
    def shared_bytes(self) -> int:
        """What all workloads share: the temporary zone and the window."""
        return self.zones.temporary_bytes + self.zones.window.size

    @property
    def limit(self) -> int:
        """The end of the window, or the one that it is to have."""
        return self.zones.window.size if self.target is None else self.target

    def timer_ns(self) -> int | None:
        """Return when a `Tick` is due; None: not before another event.

        On a paused device jobs wait, so nobody overstays, and no turn follows another.
        """
        return None if self.paused else self.turns.timer_ns()

    def away_bytes(self, more: int = 0, window: int | None = None) -> int:
        """Return the host memory that may be needed: all movable regions, unless all of them stay.

        They stay if they are on the device, before the end of the window, and have room there
        together; then nothing moves.

        Args:
            more: bytes of another movable region.
            window: the size of the window; None: the one that it has, or is to have.
        """
        own, end = self.zones.window, self.limit if window is None else window
        there = len(own.at(Place.HERE)) == len(own) and own.occupied_end <= end
        fits = own.total + more <= end and (not more or own.find(more, end) is not None)
        return 0 if there and fits else own.total + more

    def ready(self, workload: int) -> bool:
        """Return whether a workload's region is on the device."""
        window = self.zones.window
        return workload not in window or window[workload].place is Place.HERE

    def move(self, now_ns: int, commands: list[Command]) -> None:
        """Have regions move."""
        window = self.zones.window
        leaves, returns = plan(window, self.turns, self.limit)
        if returns is not None:
            workload, start = returns
            window.come_back(workload, start)
            self._began_ns[workload] = now_ns
            region = self.zones.region(workload)
            assert region is not None
            commands.append(Restore(workload, region))
        if leaves is not None:
            window.leave(leaves)
            self._began_ns[leaves] = now_ns
            commands.append(Evict(leaves))
        self.press()

    def press(self) -> None:
        """Tell the turns how long the one under way is to be."""
        window, turns = self.zones.window, self.turns
        turns.held = holds(window, turns, self.limit)
        holder = turns.holder
        one = None if holder is None or holder not in window else window[holder]
        behind = one is not None and one.start is not None and one.start + one.total > self.limit
        turns.pressed = behind and self.target is not None

    def moved(self, workload: int, place: Place, now_ns: int) -> None:
        """Note how long a move took, from which the least time slice follows."""
        self._took_ns[place] = now_ns - self._began_ns.pop(workload)
        least_ns = _LEAST_SLICES * sum(self._took_ns.values())
        self.turns.least_slice_ns = min(least_ns, _MOST_SLICES * self.turns.settings.slice_ns)

    def validate_moves(self) -> None:
        """Check what regions and turns have to do with each other.

        Raises:
            InternalError: a property is violated.
        """
        turns, window = self.turns, self.zones.window
        uses = turns.phase in (Phase.ITERATING, Phase.BETWEEN)
        there = not uses or turns.holder is None or self.ready(turns.holder)
        require(there, "the region of the workload that has the turn is not there")
        moving = bool(window.at(Place.LEAVING) or window.at(Place.RETURNING))
        require(moving or not turns.held, "a turn goes on for a region that does not move")
        following = turns.following()
        if turns.phase is Phase.BETWEEN and turns.waiting and not self.paused:
            require(following is not None or turns.pressed, "a workload waits for itself")
        if turns.phase is Phase.FREE and following is not None:
            there = self.ready(following)
            require(self.paused or not there, "a workload waits while the turn is free")
            require(there or moving, "a workload waits for its region, and none is moving")

    def left(self, workload: int) -> None:
        """Note that a workload has gone."""
        self._began_ns.pop(workload, None)
        if not self.away_bytes():
            self.turns.least_slice_ns = 0
