"""A gang: the seats that run one job's chain of launches, as many as it is given.

Problem: the scheduler decides how many slices a job has; its seats must follow at any moment, no
task block may be lost or run twice, and what a job occupies must be known exactly.

Approach: a job with n slices of 1/M has ``n * most // M`` seats, where *most* is the largest M of
its launches; in a launch with M_k those with an index below ``n * M_k // M`` run. Released seats
lose their index; the SM loop lets them go at their next task block. Which ones are released is
chosen so that whole SMs come free. Seats that have no room yet are only a number: giving them back
is no work for anybody.

Terms: a seat is *present* from the moment that an SM has it until Python has heard that it left;
*kept*: present and not released; *missing*: to be present as soon as there is room; *moving*:
released because of the SM that it is on, and to be missing when it has left.

Properties:
* present and missing seats are never more than allotted, apart from those released;
* a seat that left because it was released, and is wanted again meanwhile, gets a successor;
* a gang is over when no seat is present and every task block of its last launch is claimed, or
  it was ended or failed.

The room's lock guards it all: see the sections of the class.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from gpud.compiler import control_words as cw
from gpud.device.cpu.chain import Chain
from gpud.device.cpu.failure import failure_of
from gpud.device.cpu.records import CHAIN, NONE, STAGE, STAGE_BYTES, Begun, Reason, stages_at
from gpud.device.cpu.seat import STAYS, Seat, word_of
from gpud.device.output import Printed
from gpud.errors import GpudError

if TYPE_CHECKING:
    from gpud.device.cpu.room import Room
    from gpud.device.cpu.sm import VirtualSM

__all__ = ["Gang"]

_CURRENT, _SLICES, _STOP, _KILL, _FIRST, _GRID_ID = (
    CHAIN[name][0] // 4 for name in ("current", "slices", "stop", "kill", "first_ns", "grid_id")
)
_NEXT, _DONE = (STAGE[name][0] // 4 for name in ("next", "done"))
_STAGE_WORDS = STAGE_BYTES // 4
_INDEX, _STAGE, _BEGUN, _REASON = map(word_of, ("index", "stage", "begun", "reason"))


class Gang:
    """One run of a chain on the device.

    Args:
        room: where.
        chain: what.
        priority: larger gets room first.
        number: what ``%gridid`` reads in the first launch.
        on_left: called after seats have left, unless the gang is over.
        on_over: called once when it is over.

    Both are called on an SM's thread or in `resize` and `end`, without any lock.

    Attributes:
        kept: seats by index.
        present: how many seats are on SMs.
        homes: how many of them each SM has.
        slices: what it has been given.
        printed: what its blocks print.
        error: what it failed with, or ``None``.
        over: whether nothing more will happen.
        cost: what a seat takes from its SM, see `gpud.device.cpu.room`.
        exclusive: how many whole SMs are its own, and the only ones where it has seats; 0: none.
        cleared: numbers of SMs where it is to have no seats.
    """

    def __init__(
        self,
        room: Room,
        chain: Chain,
        priority: int,
        number: int,
        on_left: Callable[[], None],
        on_over: Callable[[], None],
        exclusive: int = 0,
    ) -> None:
        self._room = room
        self.chain = chain
        self.number = number
        self.priority = priority
        self.on_left = on_left
        self.on_over = on_over
        self.slices = 0
        self.kept: dict[int, Seat] = {}
        self.present = 0
        self.homes: dict[VirtualSM, int] = {}
        self.printed = Printed()
        self.error: GpudError | None = None
        self.over = False
        self._first_block_ns = 0
        self.release_ns = 0
        self.cost = room.cost(chain)
        self.exclusive = exclusive
        self.cleared: frozenset[int] = frozenset()
        self._ended = False
        self._final = (0, 0, chain.total)
        self._seats = 0
        self._released: dict[int, Seat] = {}
        self._moving: set[int] = set()  # those of the released that have moved
        self._released_ns = 0
        self._began_ns = 0
        self._run = chain.take()
        self.address = self._run.address
        self._words = self._run.words
        self._words[_GRID_ID] = number & NONE
        self._words[_GRID_ID + 1] = number >> 32
        self._stages = stages_at(len(room.sms)) // 4

    # -- for everybody

    def resize(self, slices: int) -> None:
        """Have ``slices`` slices from now on; returns at once.

        Raises:
            RuntimeError: the device is closed.
        """
        with self._room.lock:
            if not self.over and not self._ended:
                self._room.check_open()
                self._resize(slices)
            self._room.settle([self])
        self._room.tell()

    def clear(self, sms: Collection[int]) -> None:
        """Have no seats on these SMs from now on; those there leave and come back elsewhere.

        The seats of a launch in form whole that has begun stay where they are.

        Raises:
            ValueError: there is no such SM.
        """
        with self._room.lock:
            if not all(0 <= number < len(self._room.sms) for number in sms):
                raise ValueError(f"there are SMs 0 to {len(self._room.sms) - 1}, not {sorted(sms)}")
            if not self.over and not self._ended:
                self.cleared = frozenset(sms)
                self.leave(self.cleared)
            self._room.settle([self])
        self._room.tell()

    def end(self) -> None:
        """Release everything and run nothing more; it is over when the last seat has left."""
        with self._room.lock:
            self._ended = True
            if not self.over:
                self._stop()
            self._room.settle([self])
        self._room.tell()

    def kill(self) -> None:
        """`end`, and have blocks that poll leave in the middle of their task block."""
        with self._room.lock:
            if not self.over:
                self._words[_KILL] = 1
                # The kernels' own word; blocks of another launch than the current one read none.
                for stage in range(len(self.chain.totals)):
                    self._words[self._stages + stage * _STAGE_WORDS + cw.KILL // 4] = 1
        self.end()

    @property
    def progress(self) -> tuple[int, int, int]:
        """(claimed, done, total) task blocks of all launches."""
        with self._room.lock:
            if self.over:
                return self._final
            chain, stage = self.chain, self._words[_CURRENT]
            # In this order: done must not overtake claimed.
            done = self._words[self._stages + stage * _STAGE_WORDS + _DONE]
            claimed = self._claimed(stage)
            before = chain.before[stage]
            return before + claimed, before + min(done, claimed), chain.total

    @property
    def complete(self) -> bool:
        """Whether every task block is done."""
        return self.progress[1] == self.chain.total

    @property
    def first_block_ns(self) -> int:
        """From the first `resize` to the first task block; 0: none has begun."""
        with self._room.lock:
            if self.over:
                return self._first_block_ns
            first = self._words[_FIRST] | self._words[_FIRST + 1] << 32
            return max(0, first - self._began_ns)  # 0, too, if half of it is written

    @property
    def exhausted(self) -> bool:
        """Whether `held` can only fall: the last launch is all claimed, or the gang has ended."""
        with self._room.lock:
            if self.over or self._words[_STOP]:
                return True
            last = len(self.chain.totals) - 1
            return self._words[_CURRENT] == last and self._claimed(last) == self.chain.totals[last]

    @property
    def held(self) -> int:
        """Slices that its seats occupy or will occupy, rounded up."""
        with self._room.lock:
            seats = self.present + self.missing
        return -(-seats * self.chain.occupancy // self.chain.most)

    @property
    def output(self) -> bytes:
        """What its blocks printed so far; what is over the limit is replaced by a word of that."""
        return self.printed.text

    # -- for the room, with its lock

    @property
    def missing(self) -> int:
        """Seats that it would have if there were room."""
        # A seat that moves has its place until it has left: no gang holds more than it was given.
        seats, kept = self._seats, len(self.kept) + len(self._moving)
        if kept >= seats or self.over or self._words[_STOP]:
            return 0
        chain, stage = self.chain, self._words[_CURRENT]
        if not self.slices and not chain.fixed_stages[stage]:
            return 0
        if stage + 1 == len(chain.totals):
            return min(seats - kept, chain.totals[stage] - self._claimed(stage))
        # Seats with higher indices do not stand in for these: launches with a small M run in few.
        useful = min(seats, chain.largest[stage])
        return min(seats - kept, useful - sum(index < useful for index in self.kept))

    def _claimed(self, stage: int) -> int:
        at = self._stages + stage * _STAGE_WORDS
        return min(self._words[at + _NEXT], self.chain.totals[stage])

    def _resize(self, slices: int) -> None:
        if not self._began_ns:
            self._began_ns = time.monotonic_ns()
        chain = self.chain
        self.slices = slices
        seats = max(slices * chain.most // chain.occupancy, chain.fixed) if slices else 0
        if slices == 0 and self._is_fixed():
            # A launch in form whole goes on to its end; its seats leave by themselves after it.
            seats = chain.fixed
        self._words[_SLICES] = slices
        self._seats = min(seats, chain.largest[0])
        if len(self.kept) > self._seats:
            self._release(len(self.kept) - self._seats)
        elif self._released and len(self.kept) < self._seats:
            self._call_back()
        if chain.most != chain.occupancy:
            self._set_limits()

    def _is_fixed(self) -> bool:
        """Whether a launch in form whole has begun."""
        stage = self._words[_CURRENT]
        return self.chain.fixed_stages[stage] and self._claimed(stage) > 0

    def _stop(self) -> None:
        self._words[_STOP] = 1
        for seat in (*self.kept.values(), *self._released.values()):
            seat.words[STAYS] = 0

    def _release(self, count: int) -> None:
        """Take their index from seats: first those on the SMs where the gang has fewest."""
        if not self._released:
            self._released_ns = time.monotonic_ns()
        homes: dict[VirtualSM, int] = {}
        for seat in self.kept.values():
            assert seat.sm is not None
            homes[seat.sm] = homes.get(seat.sm, 0) + 1

        def order(seat: Seat) -> tuple[int, int, bool, int]:
            assert seat.sm is not None
            # A seat between two blocks leaves at once.
            return homes[seat.sm], -seat.sm.index, seat.words[_BEGUN] != Begun.NO, -seat.index

        self._let_go(sorted(self.kept.values(), key=order)[:count])
        # Indices are the lowest ones: which seats run in a launch depends on it.
        free = iter([i for i in range(self._seats) if i not in self.kept])
        for index in [i for i in self.kept if i >= self._seats]:
            seat = self.kept.pop(index)
            self._enlist(seat, next(free))

    def leave(self, sms: Collection[int]) -> None:
        """Have the seats on these SMs move to others, where there is room. With the room's lock."""
        if self.over or self._is_fixed():
            return
        seats = [seat for seat in self.kept.values() if seat.sm and seat.sm.index in sms]
        if seats:
            if not self._released:
                self._released_ns = time.monotonic_ns()
            self._let_go(seats)
            self._moving.update(seat.block for seat in seats)

    def _let_go(self, seats: list[Seat]) -> None:
        """Take their index from seats."""
        for seat in seats:
            del self.kept[seat.index]
            self._released[seat.block] = seat
            seat.index = NONE
            # The SM loop relies on this order.
            seat.words[_INDEX] = NONE
            seat.words[STAYS] = 0

    def _call_back(self) -> None:
        """Keep released seats that have not left yet, but for those that move."""
        free = self.free_indices()
        for block, seat in list(self._released.items()):
            if len(self.kept) + len(self._moving) >= self._seats:
                return
            if block in self._moving:
                continue
            del self._released[block]
            self._enlist(seat, next(free))
            seat.words[STAYS] = 1

    def _enlist(self, seat: Seat, index: int) -> None:
        seat.index = index
        seat.words[_INDEX] = index
        self.kept[index] = seat

    def _set_limits(self) -> None:
        """Launches differ in M: tell seats whose block runs whether their launch has room."""
        chain, words = self.chain, self._words
        occupancy_at = STAGE["occupancy"][0] // 4
        for seat in self.kept.values():
            stage = seat.words[_STAGE]
            if stage == NONE:
                continue
            mine = words[self._stages + stage * _STAGE_WORDS + occupancy_at]
            within = (seat.index + 1) * chain.occupancy <= self.slices * mine
            seat.words[STAYS] = 1 if within else 0

    def free_indices(self) -> Iterator[int]:
        """Indices that no kept seat has, from the lowest on; for seats that are added meanwhile."""
        return (index for index in range(self._seats) if index not in self.kept)

    def seated(self, seat: Seat, sm: VirtualSM, index: int) -> None:
        """``sm`` is about to have a new seat of this gang."""
        seat.gang = self
        seat.sm = sm
        seat.index = index
        self.kept[index] = seat
        self.present += 1
        self.homes[sm] = self.homes.get(sm, 0) + 1

    def left(self, seat: Seat) -> None:
        """A seat has left its SM."""
        assert seat.sm is not None
        self.present -= 1
        self.homes[seat.sm] -= 1
        if not self.homes[seat.sm]:
            del self.homes[seat.sm]
        if seat.index != NONE:
            del self.kept[seat.index]
        else:
            self._released.pop(seat.block)
            self._moving.discard(seat.block)
            if not self._released:
                took = time.monotonic_ns() - self._released_ns
                self.release_ns = max(self.release_ns, took)
        if seat.words[_REASON] == Reason.FAILED:
            self._fail(seat)

    def tell_over(self) -> None:
        """Call ``on_over``, the last that is called. Without the lock."""
        on_over = self.on_over
        # Whoever is called has this gang: a ring of each job would be left to the collector.
        self.on_left = self.on_over = _nothing
        on_over()

    def check_over(self) -> bool:
        """Whether it is over since now."""
        if self.over or self.present:
            return False
        if not self.exhausted:
            return False
        self._first_block_ns = self.first_block_ns
        self._final = self.progress
        self.over = True
        self.chain.give(self._run)
        return True

    # -- failures

    def _fail(self, seat: Seat) -> None:
        if self.error is None:
            self.error = failure_of(seat, self.chain)
        self._stop()


def _nothing() -> None:
    """What a gang calls that is over."""
