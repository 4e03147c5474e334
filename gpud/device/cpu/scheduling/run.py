"""A run: the persistent blocks that execute one job's sequence of launches.

Problem: the core scheduler decides how many slices a job has; the number of its blocks must change
with them at any time, no task block may be lost or run twice, and what a job occupies must be known
exactly.

Approach: a job with n slices of 1/M has ``n * max_occupancy // M`` blocks, where *max_occupancy*
is the largest M of its launches; in a launch with M_k those with an index below ``n * M_k // M``
run. A released block loses its index; the SM loop removes it at its next task block. The blocks
to release are chosen so that whole SMs come free. Blocks for which there is no room yet are only a
number, so that reducing it is free.

Terms: a block is *present* from when it is added to an SM until Python has processed that it left;
*kept*: present and not released; *missing*: to be added as soon as there is room; *moving*:
released because the run must vacate its SM, to be replaced once it has left.

Properties:
* present and missing blocks are never more than allotted, apart from those released;
* a released block that has left is replaced if the run has been given its slice again meanwhile;
* a run whose blocks all spin in vain fails (`gpud.device.cpu.sm.stillness`);
* a run is over when no block is present and every task block of its last launch is claimed, or
  it was ended or failed.

The block scheduler's lock guards all state: see the sections of the class.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Protocol

from gpud.compiler.abi import control_words as cw
from gpud.device.cpu.abi.records import (
    LAUNCH,
    LAUNCH_BYTES,
    NONE,
    RUN,
    RUN_BYTES,
    SHARE,
    SHARE_BYTES,
    BlockState,
    ExitReason,
)
from gpud.device.cpu.occupancy import SM_CAPACITY
from gpud.device.cpu.scheduling.failure import failure_of, spinning_error
from gpud.device.cpu.scheduling.findings import check_result
from gpud.device.cpu.scheduling.persistent_block import STAYS, PersistentBlock, word_of
from gpud.device.cpu.scheduling.sequence import CPUSequence
from gpud.device.cpu.sm.quotas import WHOLE
from gpud.device.cpu.sm.virtual_sm import VirtualSM
from gpud.device.printf import PrintfOutput
from gpud.errors import GpudError

__all__ = ["CPURun", "RunScheduler"]

_CURRENT, _SLICES, _STOP, _KILL, _FIRST, _GRID_ID = (
    RUN[name][0] // 4 for name in ("current", "slices", "stop", "kill", "first_ns", "grid_id")
)
_NEXT, _DONE = (LAUNCH[name][0] // 4 for name in ("next", "done"))
_LAUNCH_WORDS = LAUNCH_BYTES // 4
_RATE = SHARE["rate"][0] // 4
_OCCUPANCY = LAUNCH["occupancy"][0] // 4
_INDEX, _LAUNCH, _STATE, _REASON = map(word_of, ("index", "launch", "state", "reason"))
_STILL, _SEEN = map(word_of, ("still_ns", "seen_ns"))

SPIN_LIMIT_NS = 30_000_000_000
"""For how long all blocks of a run may repeat themselves in loops that wait while others have not
begun. Nothing of the run can change that; a host that writes what they wait for has so long."""


class RunScheduler(Protocol):
    """What a run needs of the scheduler that places its blocks.

    Attributes:
        lock: guards all runs.
    """

    lock: threading.RLock
    sms: list[VirtualSM]

    def check_open(self) -> None:
        """Raise RuntimeError once the device is closed."""

    def settle(self) -> None:
        """Take note of what lanes have taken back, before anything changes."""

    def update(self, runs: Collection[CPURun]) -> None:
        """Place missing blocks after these runs changed, and find those that are over."""

    def notify_over(self) -> None:
        """Call ``on_over`` of runs that are over. Without the lock."""


class CPURun:
    """One execution of a sequence on the device.

    Args:
        scheduler: places its blocks.
        priority: runs of larger priority get room first.
        number: value of ``%gridid`` in the first launch.
        on_left: called after blocks have left, unless the run is over.
        on_over: called once when it is over.
        exclusive: number of whole SMs reserved for it; it has blocks on no others. 0: none.

    Both callbacks are called on an SM's thread or in `resize` and `end`, without any lock.

    Attributes:
        address: address of its `RUN` record.
        kept: blocks that are not released, by index.
        present: number of blocks on SMs.
        blocks_by_sm: how many of them each SM has.
        slices: slices allotted to it.
        quota: slices whose work it may do at most; 0: as much as it can.
        error: what it failed with, or ``None``.
        over: whether it is over: no block is left, and none will start.
        cost: capacity that a block takes of its SM, in units of `SM_CAPACITY`.
        cleared: indices of SMs where it must have no blocks.
        ways: nothing; see `gpud.device.interface.Run`.
        owner: who has its partition, if others share it; None: itself.
        taken: slices that lanes have taken back, and the job's owner has not heard of: they stay
            away from all that it is resized to.
    """

    ways: Mapping[str, int] = MappingProxyType({})

    __slots__ = (
        "__weakref__", "_allotted", "_began_ns", "_ended", "_final", "_first_block_ns", "_launches",
        "_moving", "_records", "_released", "_released_ns", "_scheduler", "_words", "address",
        "blocks_by_sm", "cleared", "cost", "error", "exclusive", "kept", "layout", "number",
        "on_left", "on_over", "over", "owner", "present", "printed", "priority", "quota",
        "release_ns", "sequence", "slices", "taken",
    )  # fmt: skip

    def __init__(
        self,
        scheduler: RunScheduler,
        sequence: CPUSequence,
        priority: int,
        number: int,
        on_left: Callable[[], None],
        on_over: Callable[[], None],
        exclusive: int = 0,
    ) -> None:
        self._scheduler = scheduler
        self.sequence = sequence
        self.layout = layout = sequence.layout
        self.number = number
        self.priority = priority
        self.on_left = on_left
        self.on_over = on_over
        self.slices = self.quota = 0
        self.kept: dict[int, PersistentBlock] = {}
        self.present = 0
        self.blocks_by_sm: dict[VirtualSM, int] = {}
        self.printed = PrintfOutput()
        self.error: GpudError | None = None
        self.over = False
        self._first_block_ns = 0
        self.release_ns = 0
        self.cost = SM_CAPACITY // layout.max_occupancy
        self.exclusive = exclusive
        self.owner: object = None
        self.taken = 0
        self.cleared: frozenset[int] = _NOWHERE
        self._ended = False
        self._final = (0, 0, layout.total)
        self._allotted = 0
        self._released: dict[int, PersistentBlock] = {}
        self._moving: set[int] = set()  # released blocks that are to be replaced, by address
        self._released_ns = 0
        self._began_ns = 0
        self._records = records = sequence.acquire_records()
        self.address = records.address
        self._words = words = records.words
        words[_GRID_ID] = number & NONE
        words[_GRID_ID + 1] = number >> 32
        self._launches = layout.launches_at // 4

    # -- the interface of `gpud.device.interface.Run`

    def resize(self, slices: int) -> None:
        """Set the number of slices; returns at once.

        Raises:
            RuntimeError: the device is closed.
        """
        with self._scheduler.lock:
            self._scheduler.settle()
            if not self.over and not self._ended:
                self._scheduler.check_open()
                self._resize(max(0, slices - self.taken))
            self._scheduler.update([self])
        self._scheduler.notify_over()

    def limit(self, quota: int) -> None:
        """Let it do no more work than so many slices can; 0: as much as it can."""
        with self._scheduler.lock:
            if not self.over:
                self.quota = quota
                self._set_rates()

    def _set_rates(self) -> None:
        """Set its part of the time of each of its SMs: where it has most blocks it may do most."""
        for sm, blocks in self.blocks_by_sm.items():
            rate = self.quota * WHOLE * blocks // (self.layout.occupancy * self.present)
            at = (RUN_BYTES + SHARE_BYTES * sm.index) // 4 + _RATE
            self._words[at] = 0 if rate >= WHOLE or not self.quota else max(1, rate)

    def clear(self, sms: Collection[int]) -> None:
        """Vacate these SMs and keep off them; the blocks there leave and are replaced elsewhere.

        The blocks of a launch in form whole that has begun stay on their SMs.

        Raises:
            ValueError: there is no such SM.
        """
        with self._scheduler.lock:
            self._scheduler.settle()
            if not all(0 <= number < len(self._scheduler.sms) for number in sms):
                raise ValueError(
                    f"there are SMs 0 to {len(self._scheduler.sms) - 1}, not {sorted(sms)}"
                )
            if not self.over and not self._ended:
                self.cleared = frozenset(sms)
                self.leave(self.cleared)
            self._scheduler.update([self])
        self._scheduler.notify_over()

    def end(self) -> None:
        """Release all blocks and start none; the run is over when the last block has left."""
        with self._scheduler.lock:
            self._scheduler.settle()
            self._ended = True
            if not self.over:
                self._stop()
            self._scheduler.update([self])
        self._scheduler.notify_over()

    def kill(self) -> None:
        """Do `end`, and have blocks with kill polls leave in the middle of their task block."""
        with self._scheduler.lock:
            if not self.over:
                self._words[_KILL] = 1
                # The word that kernels poll, one for each launch.
                for launch in range(len(self.layout.totals)):
                    self._words[self._launches + launch * _LAUNCH_WORDS + cw.KILL // 4] = 1
        self.end()

    @property
    def progress(self) -> tuple[int, int, int]:
        """(claimed, done, total) task blocks of all launches."""
        if self.over:  # it does not change any more: the lock would be for nothing
            return self._final
        with self._scheduler.lock:
            return self._progress()

    @property
    def complete(self) -> bool:
        """Whether every task block is done."""
        return self.progress[1] == self.layout.total

    @property
    def first_block_ns(self) -> int:
        """Time from the first `resize` to the first task block; 0: none has begun."""
        if self.over:
            return self._first_block_ns
        with self._scheduler.lock:
            return self._until_first_block()

    @property
    def exhausted(self) -> bool:
        """Whether `held` can only fall: the last launch is all claimed, or the run has ended."""
        with self._scheduler.lock:
            return self.over or self._is_exhausted()

    @property
    def held(self) -> int:
        """Slices that its blocks occupy or will occupy, rounded up."""
        with self._scheduler.lock:
            blocks = self.present + self.missing
        return -(-blocks * self.layout.occupancy // self.layout.max_occupancy)

    @property
    def output(self) -> bytes:
        """What its blocks have printed so far; a notice stands for what exceeds the limit."""
        return self.printed.text

    # -- for the block scheduler, with its lock

    @property
    def missing(self) -> int:
        """How many blocks it would add if there were room."""
        # A moving block counts until it has left, so that no run holds more than its slices.
        blocks, kept = self._allotted, len(self.kept) + len(self._moving)
        if kept >= blocks or self.over or self._words[_STOP]:
            return 0
        layout, launch = self.layout, self._words[_CURRENT]
        if not self.slices and not layout.fixed_launches[launch]:
            return 0
        if launch + 1 == len(layout.totals):
            return min(blocks - kept, layout.totals[launch] - self._claimed(launch))
        # Only low indices count: a launch with a small M runs on few blocks.
        useful = min(blocks, layout.largest[launch])
        return min(blocks - kept, useful - sum(index < useful for index in self.kept))

    def _claimed(self, launch: int) -> int:
        at = self._launches + launch * _LAUNCH_WORDS
        return min(self._words[at + _NEXT], self.layout.totals[launch])

    def _progress(self) -> tuple[int, int, int]:
        if self.over:
            return self._final
        layout, words = self.layout, self._words
        launch = words[_CURRENT]
        # Read done before claimed, so that done never exceeds it.
        done = words[self._launches + launch * _LAUNCH_WORDS + _DONE]
        claimed = self._claimed(launch)
        before = layout.blocks_before[launch]
        return before + claimed, before + min(done, claimed), layout.total

    def _until_first_block(self) -> int:
        if self.over:
            return self._first_block_ns
        first = self._words[_FIRST] | self._words[_FIRST + 1] << 32
        return max(0, first - self._began_ns)  # 0 also while only half of it is written

    def _is_exhausted(self) -> bool:
        words, totals = self._words, self.layout.totals
        if words[_STOP]:
            return True
        last = len(totals) - 1
        return words[_CURRENT] == last and self._claimed(last) == totals[last]

    def _resize(self, slices: int) -> None:
        if not self._began_ns:
            self._began_ns = time.monotonic_ns()
        layout = self.layout
        self.slices = slices
        self._words[_SLICES] = slices
        self._allotted = self.blocks_of(slices)
        if len(self.kept) > self._allotted:
            self._release(len(self.kept) - self._allotted)
        elif self._released and len(self.kept) < self._allotted:
            self._keep_released()
        if layout.max_occupancy != layout.occupancy:
            self._set_limits()

    def blocks_of(self, slices: int) -> int:
        """Return how many blocks it has with so many slices."""
        layout, blocks = self.layout, 0
        if slices:
            blocks = max(slices * layout.max_occupancy // layout.occupancy, layout.fixed)
        elif self._is_fixed():
            # A launch in form whole runs to its end; its blocks leave by themselves after it.
            blocks = layout.fixed
        return min(blocks, layout.largest[0])

    def leaving_with(self, slices: int) -> list[PersistentBlock]:
        """Return the blocks that a resize to so many slices would release, in order."""
        count = len(self.kept) - self.blocks_of(slices)
        return self._in_order()[:count] if count > 0 and not self._words[_STOP] else []

    @property
    def releasable(self) -> bool:
        """Whether native code may release its blocks: no launch needs all of them."""
        return not self.layout.fixed

    def note_taken(self, blocks: Collection[PersistentBlock], slices: int) -> None:
        """Take note that native code has released blocks, because a lane took slices back."""
        self.taken += slices
        if not self._released:
            self._released_ns = time.monotonic_ns()
        for block in blocks:
            if self.kept.get(block.index) is block:
                del self.kept[block.index]
                self._released[block.address] = block
                block.index = NONE
        if not self.over and not self._ended:
            self._resize(max(0, self.slices - slices))
            self._renumber()

    def forget_taken(self, slices: int) -> None:
        """Let a lane's slices no longer stay away: the job's owner has heard of them."""
        with self._scheduler.lock:
            self.taken -= slices

    def _is_fixed(self) -> bool:
        """Return whether a launch in form whole has begun."""
        launch = self._words[_CURRENT]
        return self.layout.fixed_launches[launch] and self._claimed(launch) > 0

    def _stop(self) -> None:
        self._words[_STOP] = 1
        for block in (*self.kept.values(), *self._released.values()):
            block.words[STAYS] = 0

    def _release(self, count: int) -> None:
        """Release ``count`` blocks, first those on the SMs where the run has fewest."""
        if not self._released:
            self._released_ns = time.monotonic_ns()
        self._release_blocks(self._in_order()[:count])
        self._renumber()

    def _renumber(self) -> None:
        """Give kept blocks the lowest indices: the launches rely on that."""
        free = iter([i for i in range(self._allotted) if i not in self.kept])
        for index in [i for i in self.kept if i >= self._allotted]:
            block = self.kept.pop(index)
            self._give_index(block, next(free))

    def _in_order(self) -> list[PersistentBlock]:
        """Return the kept blocks in the order in which they are to be released."""
        blocks_by_sm: dict[VirtualSM, int] = {}
        for block in self.kept.values():
            assert block.sm is not None
            blocks_by_sm[block.sm] = blocks_by_sm.get(block.sm, 0) + 1

        def order(block: PersistentBlock) -> tuple[int, int, bool, int]:
            assert block.sm is not None
            # Among equals idle blocks come first: they leave at once.
            return (
                blocks_by_sm[block.sm],
                -block.sm.index,
                block.words[_STATE] != BlockState.IDLE,
                -block.index,
            )

        return sorted(self.kept.values(), key=order)

    def leave(self, sms: Collection[int]) -> None:
        """Release the blocks on these SMs; others replace them elsewhere as there is room."""
        if self.over or self._is_fixed():
            return
        blocks = [block for block in self.kept.values() if block.sm and block.sm.index in sms]
        if blocks:
            if not self._released:
                self._released_ns = time.monotonic_ns()
            self._release_blocks(blocks)
            self._moving.update(block.address for block in blocks)

    def _release_blocks(self, blocks: list[PersistentBlock]) -> None:
        """Release these blocks: take their index, and let the SM loop remove them."""
        for block in blocks:
            del self.kept[block.index]
            self._released[block.address] = block
            block.index = NONE
            # The SM loop relies on this order.
            block.words[_INDEX] = NONE
            block.words[STAYS] = 0

    def vacate(self, block: PersistentBlock) -> None:
        """Release a block; another one replaces it where there is room, once it has left."""
        self._release_blocks([block])
        self._moving.add(block.address)

    def _keep_released(self) -> None:
        """Keep released blocks again that have not left yet, except moving ones."""
        free = self.free_indices()
        for address, block in list(self._released.items()):
            if len(self.kept) + len(self._moving) >= self._allotted:
                return
            if address in self._moving:
                continue
            del self._released[address]
            self._give_index(block, next(free))
            block.words[STAYS] = 1

    def _give_index(self, block: PersistentBlock, index: int) -> None:
        block.index = index
        block.words[_INDEX] = index
        self.kept[index] = block

    def _set_limits(self) -> None:
        """Set for each block whether its launch has room for it, where launches differ in M."""
        layout, words = self.layout, self._words
        for block in self.kept.values():
            launch = block.words[_LAUNCH]
            if launch == NONE:
                continue
            mine = words[self._launches + launch * _LAUNCH_WORDS + _OCCUPANCY]
            within = (block.index + 1) * layout.occupancy <= self.slices * mine
            block.words[STAYS] = 1 if within else 0

    def free_indices(self) -> Iterator[int]:
        """Return the indices that no kept block has, ascending; blocks may be added meanwhile."""
        indices = range(self._allotted)
        return (
            (index for index in indices if index not in self.kept) if self.kept else iter(indices)
        )

    def block_added(self, block: PersistentBlock, sm: VirtualSM, index: int) -> None:
        """Record a new block, which the caller adds to ``sm``."""
        block.run = self
        block.sm = sm
        block.index = index
        self.kept[index] = block
        self.present += 1
        self.blocks_by_sm[sm] = self.blocks_by_sm.get(sm, 0) + 1
        if self.quota:
            self._set_rates()

    def block_left(self, block: PersistentBlock) -> None:
        """Record that a block has left its SM."""
        assert block.sm is not None
        self.present -= 1
        self.blocks_by_sm[block.sm] -= 1
        if not self.blocks_by_sm[block.sm]:
            del self.blocks_by_sm[block.sm]
        if self.quota:
            self._set_rates()
        if block.index != NONE:
            del self.kept[block.index]
        else:
            self._released.pop(block.address)
            self._moving.discard(block.address)
            if not self._released:
                took = time.monotonic_ns() - self._released_ns
                self.release_ns = max(self.release_ns, took)
        if block.words[_REASON] == ExitReason.FAILED:
            self._fail(block)

    def notify_over(self) -> None:
        """Call ``on_over``, the last callback. Without the lock."""
        on_over = self.on_over
        # The callbacks refer to this run: break the cycle, or only the collector would free it.
        self.on_left = self.on_over = _nothing
        on_over()

    def check_finished(self) -> bool:
        """Mark the run as over if it is; return whether it has become so with this call."""
        if self.over or self.present or not self._is_exhausted():
            return False
        self._first_block_ns = self._until_first_block()
        self._final = self._progress()
        self.over = True
        if self.layout.checked:
            given = [
                self.layout.parameter_buffer(self._records, launch)
                for launch in range(len(self.layout.launches))
            ]
            self.error = check_result(self.layout, self.number, given, self.error)
        self.sequence.release_records(self._records)
        return True

    # -- failures

    def fail_if_it_spins(self) -> None:
        """Fail if all its blocks spin, without a change, while other task blocks have not begun."""
        launch = self._words[_CURRENT]
        left = self.layout.totals[launch] - self._claimed(launch)
        if left and self._spins():
            self._end_spinning(spinning_error(self.layout, launch, len(self.kept), left))

    def _spins(self) -> bool:
        if self.over or self.error or self._words[_STOP]:
            return False
        blocks = list(self.kept.values())
        if self.missing or not blocks or len(blocks) < self.present:
            return False
        still = [block.words[_STILL] | block.words[_STILL + 1] << 32 for block in blocks]
        seen = [block.words[_SEEN] | block.words[_SEEN + 1] << 32 for block in blocks]
        return all(still) and min(seen) - max(still) > SPIN_LIMIT_NS

    def _end_spinning(self, error: GpudError) -> None:
        self.error = error
        self._words[_KILL] = 1
        self._ended = True
        self._stop()

    def _fail(self, block: PersistentBlock) -> None:
        if self.error is None:
            self.error = failure_of(block, self.layout)
        self._stop()


_NOWHERE: frozenset[int] = frozenset()


def _nothing() -> None:
    """Do nothing: the callback of a run that is over."""
