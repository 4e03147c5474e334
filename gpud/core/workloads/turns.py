"""Turns on one device: which workload has the temporary memory, and for how long.

Approach: weighted round robin. A turn lasts for a time slice, the setting times the workload's
weight, and holds as many iterations as begin in it. It ends with the last of these, or when the
workload has not begun another for a short time and others wait. Then its temporary memory is
cleared, and the workload that has waited longest since its own last turn follows. While nobody else
waits, a turn goes on; also while the next one is not `ready`, as its memory is being moved, if the
turn is to be held for that long.

A turn can be *leased*: its workload begins and ends iterations without saying so, until it is asked
for the turn back, as its time slice is over, or as it seems to do nothing, and others wait. It then
reports the end of the iteration under way, or at once if there is none.

Properties:
    one_holder: at most one workload has the turn;
    asked_back: no lease outlasts its time slice while another workload waits that is ready;
    cleared: a turn begins only after the temporary memory of the one before was cleared;
    bounded: while a workload waits, no other one begins two turns;
    awake: while a workload waits, another one has the turn, or the next one is not ready.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from gpud.core.memory.allocator import require

__all__ = ["Phase", "TurnSettings", "Turns"]


class TurnSettings(NamedTuple):
    """How turns are taken.

    Attributes:
        slice_ns: the time slice of a workload of weight 1.
        linger_ns: how long a turn waits for the next iteration while others wait.
        overstay_ns: how long an iteration may last while others wait, before it is reported.
    """

    slice_ns: int = 250_000_000
    linger_ns: int = 2_000_000
    overstay_ns: int = 60_000_000_000


class Phase(Enum):
    """What the workload that has the turn is doing."""

    FREE = "free"
    """Nobody has the turn."""
    ITERATING = "iterating"
    """It is in an iteration; where its turn is leased, or between two, as only itself knows."""
    BETWEEN = "between iterations"
    CLEARING = "clearing"
    """Its turn has ended; its temporary memory is being cleared."""


class Turns:
    """The turns of one device.

    Args:
        settings: see below.

    Attributes:
        settings: the lengths of time; may be changed at any time.
        holder: the workload that has the turn; None: nobody.
        phase: what it is doing.
        since_ns: when its current iteration began, at the latest, or its last one ended.
        turn_ns: when its turn began.
        leased: whether it goes on without asking; to be set when its iteration has begun.
        least_slice_ns: the least time slice of a turn.
        held: whether the turn goes on after its slice, as the next workload is not ready.
        pressed: whether the turn is to end although nobody waits for one.
    """

    def __init__(self, settings: TurnSettings) -> None:
        self.settings = settings
        self._weights: dict[int, int] = {}  # in the order of the turns, the next one first
        self._asked_ns: dict[int, int] = {}
        self._reported = False
        self.holder: int | None = None
        self.phase = Phase.FREE
        self.since_ns = 0
        self.turn_ns = 0
        self.leased = False
        self.least_slice_ns = 0
        self.held = False
        self.pressed = False

    # -- queries

    @property
    def waiting(self) -> dict[int, int]:
        """When each workload that waits for its turn asked for it, by workload."""
        return dict(self._asked_ns)

    @property
    def order(self) -> tuple[int, ...]:
        """All workloads, in the order in which they have turns when all ask."""
        return tuple(self._weights)

    def following(self) -> int | None:
        """Return the workload that waits and has the next turn."""
        return next(
            (one for one in self._weights if one in self._asked_ns and one != self.holder), None
        )

    def slice_ends_ns(self) -> int:
        """Return when the time slice of the turn ends. Somebody has the turn."""
        assert self.holder is not None
        slice_ns = max(self.settings.slice_ns, self.least_slice_ns)
        return self.turn_ns + slice_ns * self._weights[self.holder]

    def timer_ns(self) -> int | None:
        """Return when `tick` is to be called; None: not before the next event."""
        if not self._asked_ns and not self.pressed:
            return None
        if self.phase is Phase.BETWEEN:
            return self.since_ns + self.settings.linger_ns
        if self.leased:
            return self.slice_ends_ns() if self._is_to_end() and not self.held else None
        if self.phase is Phase.ITERATING and not self._reported and self._asked_ns:
            return self._overstays_ns()
        return None

    def _overstays_ns(self) -> int:
        """When the iteration will have lasted too long since somebody waits."""
        first_ns = min(self._asked_ns.values())
        return max(self.since_ns, first_ns) + self.settings.overstay_ns

    # -- changes; `tick` follows each of them

    def join(self, workload: int, weight: int) -> None:
        """Add a workload; its turn comes after those of all others."""
        require(workload not in self._weights, f"workload {workload} takes turns already")
        self._weights[workload] = weight

    def leave(self, workload: int) -> None:
        """Remove a workload, whose memory was cleared."""
        del self._weights[workload]
        self._asked_ns.pop(workload, None)
        if self.holder == workload:
            self._free()

    def ask(self, workload: int, now_ns: int) -> None:
        """Record that a workload wants to begin an iteration.

        `next_iteration` says whose it is then.
        """
        require(workload in self._weights, f"workload {workload} takes no turns")
        require(workload not in self._asked_ns, f"workload {workload} waits for its turn already")
        require(
            self.holder != workload or self.phase is not Phase.ITERATING,
            f"workload {workload} is in an iteration",
        )
        self._asked_ns[workload] = now_ns

    def end_iteration(self, workload: int, now_ns: int, idle_ns: int = 0) -> None:
        """Record that the iteration under way has ended, ``idle_ns`` ago; a lease ends with it."""
        require(
            self.holder == workload and self.phase is Phase.ITERATING,
            f"workload {workload} is in no iteration",
        )
        self.phase, self.leased = Phase.BETWEEN, False
        self.since_ns = max(self.since_ns, now_ns - idle_ns)

    def ask_back(self, now_ns: int, *, idle: int | None = None) -> int | None:
        """End a lease if others wait and the time slice is over.

        Args:
            now_ns: the time.
            idle: a workload that seems to do nothing: its lease ends before, too.

        Returns:
            The workload that is to report the end of its iteration.
        """
        if not self.leased or not self._is_to_end():
            return None
        over = now_ns >= self.slice_ends_ns() and not self.held
        if not over and not self.pressed and idle != self.holder:
            return None
        return self.revoke(now_ns)

    def revoke(self, now_ns: int) -> int | None:
        """End a lease; returns the workload that is to report the end of its iteration."""
        if not self.leased:
            return None
        # From now on it is in one iteration at most.
        self.leased, self.since_ns = False, max(self.since_ns, now_ns)
        return self.holder

    def tick(self, now_ns: int) -> int | None:
        """End the turn if others wait and it is over.

        Returns:
            The workload whose temporary memory is to be cleared then.
        """
        holder = self.holder
        if self.phase is not Phase.BETWEEN or not self._is_to_end():
            return None
        assert holder is not None
        over = now_ns >= self.slice_ends_ns() and not self.held
        if holder in self._asked_ns and not over:
            return None  # `next_iteration` gives it another one
        if not over and now_ns < self.since_ns + self.settings.linger_ns:
            return None
        self.phase, self.since_ns = Phase.CLEARING, now_ns
        return holder

    def cleared(self, workload: int) -> None:
        """Record that the memory of the turn that has ended is cleared."""
        require(
            self.holder == workload and self.phase is Phase.CLEARING,
            f"workload {workload} has nothing to be cleared",
        )
        self._weights[workload] = self._weights.pop(workload)  # to the end of the order
        self._free()

    def next_iteration(
        self, now_ns: int, ready: Callable[[int], bool] = lambda _: True
    ) -> int | None:
        """Begin the next iteration if there is one to begin; returns the workload whose it is.

        Args:
            now_ns: the time.
            ready: whether a workload's persistent memory is on the device; if the next one's is
                not, nobody begins a turn.
        """
        workload = self.holder
        if self.phase is Phase.BETWEEN and workload in self._asked_ns:
            if now_ns >= self.slice_ends_ns() and not self.held:
                self.turn_ns = now_ns  # nobody else waits: see `tick`
        elif self.phase is Phase.FREE:
            workload = self.following()
            if workload is None or not ready(workload):
                return None
            self.turn_ns = now_ns
        else:
            return None
        if workload is not None:
            del self._asked_ns[workload]
            self.holder, self.phase, self.since_ns = workload, Phase.ITERATING, now_ns
            self._reported = False
        return workload

    def overstays(self, now_ns: int) -> int | None:
        """Return the workload whose iteration lasts too long, once for each iteration."""
        if self.phase is not Phase.ITERATING or self._reported or not self._asked_ns:
            return None
        if self.leased:
            return None  # its iterations are not known
        if now_ns < self._overstays_ns():
            return None
        self._reported = True
        return self.holder

    def _is_to_end(self) -> bool:
        return self.pressed or any(workload != self.holder for workload in self._asked_ns)

    def _free(self) -> None:
        self.holder, self.phase, self.leased = None, Phase.FREE, False

    def validate(self) -> None:
        """Check every property that can be checked on one state.

        Raises:
            InternalError: one is violated.
        """
        require((self.holder is None) == (self.phase is Phase.FREE), "a turn without a workload")
        require(self.holder is None or self.holder in self._weights, "a turn of nobody")
        require(set(self._asked_ns) <= set(self._weights), "somebody unknown waits")
        require(not self.leased or self.phase is Phase.ITERATING, "a lease without a turn")
