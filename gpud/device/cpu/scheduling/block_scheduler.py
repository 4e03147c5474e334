"""The block scheduler: places the persistent blocks of runs on virtual SMs.

Problem: several runs want persistent blocks at once, capacity comes free in fragments, and the more
urgent run must have it first.

Approach: capacity is counted in CapSM: a block takes 1/M of an SM. That is the core scheduler's
own arithmetic, and M such blocks fit an SM's limits of threads, blocks and shared memory, so any
mixture does too. Runs with missing blocks wait in a queue; whenever a block has left or a run has
changed, the first runs of the queue get the free capacity.

Some SMs can be reserved for one run, its *partition*: the blocks of other runs there move
elsewhere, none are added there, and the run has none elsewhere.

A run with slices for k SMs has its blocks on k of them if it can, as many on each: it then shares
an SM with as few others as possible, and when it shrinks by a whole SM, an SM comes free.

Properties:
* the blocks on an SM never exceed its limits, unless the free capacity lies in fragments on
  several SMs; the blocks of all SMs together never take more capacity than these have;
* capacity goes to the runs of the highest priority first, in order of arrival; but a run that
  waits for its partition does not keep others from their SMs;
* no SM is in two partitions, and a partition ends when its run is over, or its lane;
* a run's ``on_over`` is called after its last block has left, without any lock;
* the memory of a block is reused only after it has left its SM.
"""

from __future__ import annotations

import threading
from bisect import insort
from collections import deque
from collections.abc import Collection
from itertools import islice
from operator import attrgetter

from gpud.device.cpu.abi.records import MAX_SLOTS
from gpud.device.cpu.occupancy import SM_CAPACITY
from gpud.device.cpu.scheduling.lane_take_back import TakeBack, arm
from gpud.device.cpu.scheduling.persistent_block import BlockPool
from gpud.device.cpu.scheduling.run import CPURun
from gpud.device.cpu.sm.virtual_sm import VirtualSM
from gpud.errors import InvalidArgument

__all__ = ["BlockScheduler"]


class BlockScheduler:
    """Places the persistent blocks of runs on the SMs of a device.

    Args:
        sms: number of SMs.

    Attributes:
        lock: guards all state here and in the runs.
        closed: whether the device is closed.
        take_backs: of the lanes that lend their shares.
    """

    def __init__(self, sms: int) -> None:
        self.lock = threading.RLock()
        self.closed = False
        self._waiting: list[CPURun] = []
        self._over: deque[CPURun] = deque()
        self._pool = BlockPool()
        self.take_backs: list[TakeBack] = []
        self._owners: dict[VirtualSM, object] = {}
        self.sms = [VirtualSM(index, self._left, self._spinning) for index in range(sms)]

    def close(self) -> None:
        """End the SM threads. Blocks that still run are dropped."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
        for sm in self.sms:
            sm.close()

    # -- with the lock

    def check_open(self) -> None:
        """Raise RuntimeError once the device is closed."""
        if self.closed:
            raise RuntimeError("the device is closed")

    def settle(self) -> None:
        """Take note of what lanes have taken back; `update` follows.

        To be called before anything of runs and their blocks changes: until `update`, no lane takes
        anything back.
        """
        for one in self.take_backs:
            one.disarm()

    def update(self, runs: Collection[CPURun]) -> None:
        """Place missing blocks after these runs changed, and find those that are over.

        The caller then calls `notify_over`, without the lock.
        """
        self._update(runs)
        if self.take_backs:
            arm(self, self.take_backs)

    def _update(self, runs: Collection[CPURun]) -> None:
        waiting = self._waiting
        for run in runs:
            if run.check_finished():
                self._over.append(run)
                if run.exclusive and run.owner is None:
                    self._release_partition(run)
            elif run not in waiting:
                if not waiting and len(runs) == 1:  # no run waits before it
                    if not self._place(run):
                        waiting.append(run)
                    return
                if run.missing:
                    insort(waiting, run, key=lambda one: (-one.priority, one.number))
        self._place_waiting()

    def assign_partition(self, owner: object, count: int) -> None:
        """Reserve SMs for a run, or for the runs of a lane: those with the least capacity in use.

        Args:
            owner: the run, or the `CPURun.owner` of several; a run's own ends with it.
            count: how many.

        Raises:
            InvalidArgument: too many SMs are in partitions.
        """
        free = [sm for sm in self.sms if sm not in self._owners]
        if len(free) < count:
            raise InvalidArgument(
                f"{count} SMs cannot be one job's alone: {len(free)} of {len(self.sms)} "
                "are no other job's alone"
            )
        self.settle()
        chosen = sorted(free, key=_used)[:count]
        self._owners |= dict.fromkeys(chosen, owner)
        numbers = {sm.index for sm in chosen}
        occupants = {block.run for block in self._pool.by_address.values() if block.sm in chosen}
        for other in occupants:
            if isinstance(other, CPURun):
                other.leave(numbers)
        self.update(())

    def release_partition(self, owner: object) -> None:
        """End the partition of a lane. Without the lock."""
        with self.lock:
            self.settle()
            self._release_partition(owner)
            self.update(())
        self.notify_over()

    def _release_partition(self, owner: object) -> None:
        self._owners = {sm: one for sm, one in self._owners.items() if one is not owner}

    def may_use(self, sm: VirtualSM, run: CPURun) -> bool:
        """Return whether a run may have blocks on an SM."""
        owner = self._owners.get(sm)
        if run.exclusive:
            return owner is (run.owner or run)
        return owner is None and sm.index not in run.cleared

    def _place_waiting(self) -> None:
        """Give free capacity to the waiting runs, in order."""
        if not self._waiting:
            return
        waits = dict.fromkeys((True, False), False)
        for run in list(self._waiting):
            # Later runs must not overtake one that waits for the same room.
            if waits[run.exclusive > 0]:
                continue
            if self._place(run):
                self._waiting.remove(run)
            elif any(self.may_use(sm, run) for sm in self.sms):
                waits[run.exclusive > 0] = True

    def notify_over(self) -> None:
        """Call ``on_over`` of runs that are over. Without the lock: it may call back."""
        while self._over:
            try:
                run = self._over.popleft()
            except IndexError:
                return  # another thread took the last one
            run.notify_over()

    def _place(self, run: CPURun) -> bool:
        """Add a run's missing blocks; returns whether there was capacity for all."""
        missing = run.missing
        if not missing:
            return True
        cost, blocks_by_sm, layout = run.cost, run.blocks_by_sm, run.layout
        some = self._owners or run.exclusive or run.cleared
        if missing == 1 and not run.present and not some:
            sm = min(self.sms, key=_used)
            if sm.used + cost <= SM_CAPACITY and sm.blocks < MAX_SLOTS:
                self._add(run, sm, 0)  # the usual case for a small job
                return True
        room = {}
        for sm in self.sms:
            if some and not self.may_use(sm, run):
                continue
            fit = min((SM_CAPACITY - sm.used) // cost, MAX_SLOTS - sm.blocks)
            if fit > 0:
                room[sm] = fit
        wanted = len(self.sms) if layout.fixed else -(-run.slices // layout.occupancy)
        uneven = layout.max_occupancy != layout.occupancy and wanted > 1
        free = deque(islice(run.free_indices(), missing))
        while free:
            if room:
                # Use few SMs for a run, with equally many blocks on each.
                settled = len(blocks_by_sm) >= wanted
                fitting = [sm for sm in room if (sm in blocks_by_sm) == settled]
                if settled and fitting:
                    sm = min(fitting, key=blocks_by_sm.__getitem__)
                else:
                    sm = min(fitting or room, key=_used)
                room[sm] -= 1
                if not room[sm]:
                    del room[sm]
            else:
                fragmented = self._fragmented_sm(run)
                if fragmented is None:
                    return False
                sm = fragmented
            index = _take_index(free, sm, blocks_by_sm, wanted) if uneven else free.popleft()
            self._add(run, sm, index)
        return True

    def add_on_standby(self, run: CPURun, sm: VirtualSM, index: int) -> None:
        """Add a block of a lane's run to an SM without taking room there."""
        self._add(run, sm, index, counted=False)

    def _add(self, run: CPURun, sm: VirtualSM, index: int, *, counted: bool = True) -> None:
        """Add a block of a run to an SM."""
        block = self._pool.acquire(run.layout.block_bytes, run.layout.owner)
        block.counted = counted
        sm.blocks += 1
        if counted:
            sm.used += run.cost
        run.block_added(block, sm, index)
        sm.add(block.address, run.address, index)

    def _fragmented_sm(self, run: CPURun) -> VirtualSM | None:
        """Return an SM for a block that fits on none, if all SMs' free capacity is enough.

        That SM then exceeds its capacity; None if there is not enough.
        """
        sms = [sm for sm in self.sms if self.may_use(sm, run)]
        if sum(sm.used for sm in sms) + run.cost > len(sms) * SM_CAPACITY:
            return None
        return min((sm for sm in sms if sm.blocks < MAX_SLOTS), key=_used, default=None)

    # -- events from the SMs

    def _left(self, sm: VirtualSM, addresses: list[int]) -> None:
        """Handle that blocks have left. On the SM's thread."""
        runs: dict[CPURun, None] = {}
        with self.lock:
            self.settle()
            for address in addresses:
                block = self._pool.by_address[address]
                run = block.run
                assert isinstance(run, CPURun)
                if block.counted:
                    sm.used -= run.cost
                sm.blocks -= 1
                run.block_left(block)
                self._pool.release(block)
                runs[run] = None
            self.update(runs)
        try:
            for run in runs:
                if not run.over:
                    run.on_left()
        finally:
            self.notify_over()

    def _spinning(self, sm: VirtualSM) -> None:
        """End runs that spin in vain; a block on ``sm`` does. On the SM's thread."""
        with self.lock:
            self.settle()
            blocks = self._pool.by_address.values()
            runs = dict.fromkeys(block.run for block in blocks if block.run is not None)
            for run in runs:
                assert isinstance(run, CPURun)
                # Another one of the same owner may be about to write what it waits for.
                alone = sum(one.layout.owner is run.layout.owner for one in runs) == 1
                if alone and sm in run.blocks_by_sm:
                    run.fail_if_it_spins()
            self.update(())
        self.notify_over()


_used = attrgetter("used")


def _take_index(
    free: deque[int], sm: VirtualSM, blocks_by_sm: dict[VirtualSM, int], wanted: int
) -> int:
    """Take an index for a block on ``sm`` of a run whose launches differ in M.

    The lowest indices run a launch with a small M. They must be spread over all of the run's SMs,
    though capacity came free on one after the other: the k-th of n SMs gets k, k + n, k + 2 n ...
    """
    place = list(blocks_by_sm).index(sm) if sm in blocks_by_sm else len(blocks_by_sm)
    index = next((one for one in free if one % wanted == place), free[0])
    free.remove(index)
    return index
