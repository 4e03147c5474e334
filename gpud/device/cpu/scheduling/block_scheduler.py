"""The block scheduler: places the workers of gangs on virtual SMs.

Problem: several gangs want workers at once, capacity comes free in fragments, and the more urgent
gang must have it first.

Approach: capacity is counted in CapSM: a worker takes 1/M of an SM. That is the core scheduler's
own arithmetic, and M such blocks fit an SM's limits of threads, blocks and shared memory, so any
mixture does too. Gangs with missing workers wait in a queue; whenever a worker has left or a gang
has changed, the first gangs of the queue get the free capacity.

Some SMs can be reserved for one gang, its *partition*: the workers of other gangs there move
elsewhere, none are added there, and the gang has none elsewhere.

A gang with slices for k SMs has its workers on k of them if it can, as many on each: it then shares
an SM with as few others as possible, and when it shrinks by a whole SM, an SM comes free.

Properties:
* the workers on an SM never exceed its limits, unless the free capacity lies in fragments on
  several SMs; the workers of all SMs together never take more capacity than these have;
* capacity goes to the gangs of the highest priority first, in order of arrival; but a gang that
  waits for its partition does not keep others from their SMs;
* no SM is in two partitions, and a partition ends when its gang is over;
* a gang's ``on_over`` is called after its last worker has left, without any lock;
* the memory of a worker is reused only after it has left its SM.
"""

from __future__ import annotations

import threading
from bisect import insort
from collections import deque
from collections.abc import Collection
from itertools import islice
from math import lcm
from operator import attrgetter

from gpud.device.cpu.abi.records import MAX_SLOTS
from gpud.device.cpu.scheduling.chain import Chain
from gpud.device.cpu.scheduling.gang import Gang
from gpud.device.cpu.scheduling.worker import WorkerPool
from gpud.device.cpu.sm.virtual_sm import VirtualSM
from gpud.errors import InvalidArgument

__all__ = ["SM_CAPACITY", "BlockScheduler"]

SM_CAPACITY = lcm(*range(1, 33))
"""Capacity of an SM, in units such that 1/M of it is a whole number for every M."""


class BlockScheduler:
    """Places the workers of gangs on the SMs of a device.

    Args:
        sms: number of SMs.

    Attributes:
        lock: guards all state here and in the gangs.
        closed: whether the device is closed.
        sms: the SMs.
    """

    def __init__(self, sms: int) -> None:
        self.lock = threading.RLock()
        self.closed = False
        self._waiting: list[Gang] = []
        self._over: deque[Gang] = deque()
        self._pool = WorkerPool()
        self._owners: dict[VirtualSM, Gang] = {}
        self.sms = [VirtualSM(index, self._left) for index in range(sms)]

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
        """Raises RuntimeError once the device is closed."""
        if self.closed:
            raise RuntimeError("the device is closed")

    @staticmethod
    def cost(chain: Chain) -> int:
        """The capacity that a worker of a chain takes of its SM, in units of `SM_CAPACITY`."""
        return SM_CAPACITY // chain.max_occupancy

    def update(self, gangs: Collection[Gang]) -> None:
        """Place missing workers after these gangs changed, and find those that are over.

        The caller then calls `notify_over`, without the lock.
        """
        if self._waiting or len(gangs) > 1:
            for gang in gangs:
                if gang.missing and gang not in self._waiting:
                    insort(self._waiting, gang, key=lambda one: (-one.priority, one.number))
            self._place_waiting()
        else:  # no gang waits before it
            self._waiting = [gang for gang in gangs if not self._place(gang)]
        for gang in gangs:
            if gang.check_finished():
                self._over.append(gang)
                if gang.exclusive:
                    self._owners = {sm: one for sm, one in self._owners.items() if one is not gang}
                    self._place_waiting()

    def assign_partition(self, gang: Gang) -> None:
        """Give a gang its partition: the SMs with the least capacity in use.

        Raises:
            InvalidArgument: too many SMs are in partitions.
        """
        free = [sm for sm in self.sms if sm not in self._owners]
        if len(free) < gang.exclusive:
            raise InvalidArgument(
                f"{gang.exclusive} SMs cannot be one job's alone: {len(free)} of {len(self.sms)} "
                "are no other job's alone"
            )
        chosen = sorted(free, key=_used)[: gang.exclusive]
        self._owners |= dict.fromkeys(chosen, gang)
        numbers = {sm.index for sm in chosen}
        occupants = {worker.gang for worker in self._pool.by_block.values() if worker.sm in chosen}
        for other in occupants:
            if other is not None:
                other.leave(numbers)

    def _may_use(self, sm: VirtualSM, gang: Gang) -> bool:
        """Whether a gang may have workers on an SM."""
        owner = self._owners.get(sm)
        if gang.exclusive:
            return owner is gang
        return owner is None and sm.index not in gang.cleared

    def _place_waiting(self) -> None:
        """Give free capacity to the waiting gangs, in order."""
        if not self._waiting:
            return
        waits = dict.fromkeys((True, False), False)
        for gang in list(self._waiting):
            # Later gangs must not overtake one that waits for the same room.
            if waits[gang.exclusive > 0]:
                continue
            if self._place(gang):
                self._waiting.remove(gang)
            elif any(self._may_use(sm, gang) for sm in self.sms):
                waits[gang.exclusive > 0] = True

    def notify_over(self) -> None:
        """Call ``on_over`` of gangs that are over. Without the lock: it may call back."""
        while self._over:
            try:
                gang = self._over.popleft()
            except IndexError:
                return  # another thread took the last one
            gang.notify_over()

    def _place(self, gang: Gang) -> bool:
        """Add a gang's missing workers; returns whether there was capacity for all."""
        missing = gang.missing
        if not missing:
            return True
        cost, workers_by_sm = gang.cost, gang.workers_by_sm
        room = {}
        some = self._owners or gang.exclusive or gang.cleared
        for sm in self.sms:
            if some and not self._may_use(sm, gang):
                continue
            fit = min((SM_CAPACITY - sm.used) // cost, MAX_SLOTS - sm.workers)
            if fit > 0:
                room[sm] = fit
        wanted = len(self.sms) if gang.chain.fixed else -(-gang.slices // gang.chain.occupancy)
        uneven = gang.chain.max_occupancy != gang.chain.occupancy and wanted > 1
        free = deque(islice(gang.free_indices(), missing))
        while free:
            if room:
                # Use few SMs for a gang, with equally many workers on each.
                settled = len(workers_by_sm) >= wanted
                fitting = [sm for sm in room if (sm in workers_by_sm) == settled]
                if settled and fitting:
                    sm = min(fitting, key=workers_by_sm.__getitem__)
                else:
                    sm = min(fitting or room, key=_used)
                room[sm] -= 1
                if not room[sm]:
                    del room[sm]
            else:
                found = self._fragmented_sm(gang)
                if found is None:
                    return False
                sm = found
            index = _take_index(free, sm, workers_by_sm, wanted) if uneven else free.popleft()
            worker = self._pool.acquire(gang.chain.worker_bytes, gang.chain.owner)
            sm.used += cost
            sm.workers += 1
            gang.worker_added(worker, sm, index)
            sm.add(worker.block, gang.address, index)
        return True

    def _fragmented_sm(self, gang: Gang) -> VirtualSM | None:
        """An SM for a worker that fits on none, if the free capacity of all SMs together is enough.

        That SM then exceeds its capacity; None if there is not enough.
        """
        sms = [sm for sm in self.sms if self._may_use(sm, gang)]
        if sum(sm.used for sm in sms) + gang.cost > len(sms) * SM_CAPACITY:
            return None
        return min((sm for sm in sms if sm.workers < MAX_SLOTS), key=_used, default=None)

    # -- events from the SMs

    def _left(self, sm: VirtualSM, blocks: list[int]) -> None:
        """Handle that workers have left. On the SM's thread."""
        gangs: dict[Gang, None] = {}
        with self.lock:
            for block in blocks:
                worker = self._pool.by_block[block]
                gang = worker.gang
                assert gang is not None
                sm.used -= gang.cost
                sm.workers -= 1
                gang.worker_left(worker)
                self._pool.release(worker)
                gangs[gang] = None
            self.update(gangs)
        try:
            for gang in gangs:
                if not gang.over:
                    gang.on_left()
        finally:
            self.notify_over()


_used = attrgetter("used")


def _take_index(
    free: deque[int], sm: VirtualSM, workers_by_sm: dict[VirtualSM, int], wanted: int
) -> int:
    """Take an index for a worker on ``sm`` of a gang whose launches differ in M.

    The lowest indices run a launch with a small M. They must be spread over all of the gang's SMs,
    though capacity came free on one after the other: the k-th of n SMs gets k, k + n, k + 2 n ...
    """
    place = list(workers_by_sm).index(sm) if sm in workers_by_sm else len(workers_by_sm)
    index = next((one for one in free if one % wanted == place), free[0])
    free.remove(index)
    return index
