"""A gang: the workers (resident blocks) that run one job's chain of launches.

Problem: the core scheduler decides how many slices a job has; the number of its workers must change
with them at any time, no task block may be lost or run twice, and what a job occupies must be known
exactly.

Approach: a job with n slices of 1/M has ``n * max_occupancy // M`` workers, where *max_occupancy*
is the largest M of its launches; in a launch with M_k those with an index below ``n * M_k // M``
run. A released worker loses its index; the SM loop removes it at its next task block. The workers
to release are chosen so that whole SMs come free. Workers for which there is no room yet are only a
number, so that reducing it is free.

Terms: a worker is *present* from when it is added to an SM until Python has processed that it left;
*kept*: present and not released; *missing*: to be added as soon as there is room; *moving*:
released because the gang must vacate its SM, to be replaced once it has left.

Properties:
* present and missing workers are never more than allotted, apart from those released;
* a released worker that has left is replaced if the gang has been given its slice again meanwhile;
* a gang is over when no worker is present and every task block of its last launch is claimed, or
  it was ended or failed.

The block scheduler's lock guards all state: see the sections of the class.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from gpud.compiler.abi import control_words as cw
from gpud.device.cpu.abi.records import (
    CHAIN,
    NONE,
    STAGE,
    STAGE_BYTES,
    ExitReason,
    WorkerState,
)
from gpud.device.cpu.scheduling.chain import Chain
from gpud.device.cpu.scheduling.failure import failure_of
from gpud.device.cpu.scheduling.worker import STAYS, Worker, word_of
from gpud.device.printf import PrintfOutput
from gpud.errors import GpudError

if TYPE_CHECKING:
    from gpud.device.cpu.scheduling.block_scheduler import BlockScheduler
    from gpud.device.cpu.sm.virtual_sm import VirtualSM

__all__ = ["Gang"]

_CURRENT, _SLICES, _STOP, _KILL, _FIRST, _GRID_ID = (
    CHAIN[name][0] // 4 for name in ("current", "slices", "stop", "kill", "first_ns", "grid_id")
)
_NEXT, _DONE = (STAGE[name][0] // 4 for name in ("next", "done"))
_STAGE_WORDS = STAGE_BYTES // 4
_INDEX, _STAGE, _STATE, _REASON = map(word_of, ("index", "stage", "state", "reason"))


class Gang:
    """One run of a chain on the device.

    Args:
        scheduler: places its workers.
        chain: the launches to run.
        priority: gangs of larger priority get room first.
        number: value of ``%gridid`` in the first launch.
        on_left: called after workers have left, unless the gang is over.
        on_over: called once when it is over.
        exclusive: number of whole SMs reserved for it; it has workers on no others. 0: none.

    Both callbacks are called on an SM's thread or in `resize` and `end`, without any lock.

    Attributes:
        kept: workers that are not released, by index.
        present: number of workers on SMs.
        workers_by_sm: how many of them each SM has.
        slices: slices allotted to it.
        printed: the output of its blocks.
        error: what it failed with, or ``None``.
        over: whether it is over: no worker is left, and none will start.
        release_ns: the longest release so far.
        cost: capacity that a worker takes of its SM, see
            `gpud.device.cpu.scheduling.block_scheduler`.
        cleared: indices of SMs where it must have no workers.
    """

    def __init__(
        self,
        scheduler: BlockScheduler,
        chain: Chain,
        priority: int,
        number: int,
        on_left: Callable[[], None],
        on_over: Callable[[], None],
        exclusive: int = 0,
    ) -> None:
        self._scheduler = scheduler
        self.chain = chain
        self.number = number
        self.priority = priority
        self.on_left = on_left
        self.on_over = on_over
        self.slices = 0
        self.kept: dict[int, Worker] = {}
        self.present = 0
        self.workers_by_sm: dict[VirtualSM, int] = {}
        self.printed = PrintfOutput()
        self.error: GpudError | None = None
        self.over = False
        self._first_block_ns = 0
        self.release_ns = 0
        self.cost = scheduler.cost(chain)
        self.exclusive = exclusive
        self.cleared: frozenset[int] = frozenset()
        self._ended = False
        self._final = (0, 0, chain.total)
        self._workers = 0
        self._released: dict[int, Worker] = {}
        self._moving: set[int] = set()  # released workers that are to be replaced, by block
        self._released_ns = 0
        self._began_ns = 0
        self._run = chain.acquire_run()
        self.address = self._run.address
        self._words = self._run.words
        self._words[_GRID_ID] = number & NONE
        self._words[_GRID_ID + 1] = number >> 32
        self._stages = chain.stages_at // 4

    # -- the interface of `gpud.device.interface.Gang`

    def resize(self, slices: int) -> None:
        """Set the number of slices; returns at once.

        Raises:
            RuntimeError: the device is closed.
        """
        with self._scheduler.lock:
            if not self.over and not self._ended:
                self._scheduler.check_open()
                self._resize(slices)
            self._scheduler.update([self])
        self._scheduler.notify_over()

    def clear(self, sms: Collection[int]) -> None:
        """Vacate these SMs and keep off them; the workers there leave and are replaced elsewhere.

        The workers of a launch in form whole that has begun stay on their SMs.

        Raises:
            ValueError: there is no such SM.
        """
        with self._scheduler.lock:
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
        """Release all workers and start none; the gang is over when the last worker has left."""
        with self._scheduler.lock:
            self._ended = True
            if not self.over:
                self._stop()
            self._scheduler.update([self])
        self._scheduler.notify_over()

    def kill(self) -> None:
        """`end`; blocks with kill polls leave in the middle of their task block."""
        with self._scheduler.lock:
            if not self.over:
                self._words[_KILL] = 1
                # The word that kernels poll, one for each launch.
                for stage in range(len(self.chain.totals)):
                    self._words[self._stages + stage * _STAGE_WORDS + cw.KILL // 4] = 1
        self.end()

    @property
    def progress(self) -> tuple[int, int, int]:
        """(claimed, done, total) task blocks of all launches."""
        with self._scheduler.lock:
            if self.over:
                return self._final
            chain, stage = self.chain, self._words[_CURRENT]
            # Read done before claimed, so that done never exceeds it.
            done = self._words[self._stages + stage * _STAGE_WORDS + _DONE]
            claimed = self._claimed(stage)
            before = chain.blocks_before[stage]
            return before + claimed, before + min(done, claimed), chain.total

    @property
    def complete(self) -> bool:
        """Whether every task block is done."""
        return self.progress[1] == self.chain.total

    @property
    def first_block_ns(self) -> int:
        """Time from the first `resize` to the first task block; 0: none has begun."""
        with self._scheduler.lock:
            if self.over:
                return self._first_block_ns
            first = self._words[_FIRST] | self._words[_FIRST + 1] << 32
            return max(0, first - self._began_ns)  # 0 also while only half of it is written

    @property
    def exhausted(self) -> bool:
        """Whether `held` can only fall: the last launch is all claimed, or the gang has ended."""
        with self._scheduler.lock:
            if self.over or self._words[_STOP]:
                return True
            last = len(self.chain.totals) - 1
            return self._words[_CURRENT] == last and self._claimed(last) == self.chain.totals[last]

    @property
    def held(self) -> int:
        """Slices that its workers occupy or will occupy, rounded up."""
        with self._scheduler.lock:
            workers = self.present + self.missing
        return -(-workers * self.chain.occupancy // self.chain.max_occupancy)

    @property
    def output(self) -> bytes:
        """What its blocks have printed so far; a notice stands for what exceeds the limit."""
        return self.printed.text

    # -- for the block scheduler, with its lock

    @property
    def missing(self) -> int:
        """How many workers it would add if there were room."""
        # A moving worker counts until it has left, so that no gang holds more than its slices.
        workers, kept = self._workers, len(self.kept) + len(self._moving)
        if kept >= workers or self.over or self._words[_STOP]:
            return 0
        chain, stage = self.chain, self._words[_CURRENT]
        if not self.slices and not chain.fixed_stages[stage]:
            return 0
        if stage + 1 == len(chain.totals):
            return min(workers - kept, chain.totals[stage] - self._claimed(stage))
        # Only low indices count: a launch with a small M runs on few workers.
        useful = min(workers, chain.largest[stage])
        return min(workers - kept, useful - sum(index < useful for index in self.kept))

    def _claimed(self, stage: int) -> int:
        at = self._stages + stage * _STAGE_WORDS
        return min(self._words[at + _NEXT], self.chain.totals[stage])

    def _resize(self, slices: int) -> None:
        if not self._began_ns:
            self._began_ns = time.monotonic_ns()
        chain = self.chain
        self.slices = slices
        workers = max(slices * chain.max_occupancy // chain.occupancy, chain.fixed) if slices else 0
        if slices == 0 and self._is_fixed():
            # A launch in form whole runs to its end; its workers leave by themselves after it.
            workers = chain.fixed
        self._words[_SLICES] = slices
        self._workers = min(workers, chain.largest[0])
        if len(self.kept) > self._workers:
            self._release(len(self.kept) - self._workers)
        elif self._released and len(self.kept) < self._workers:
            self._keep_released()
        if chain.max_occupancy != chain.occupancy:
            self._set_limits()

    def _is_fixed(self) -> bool:
        """Whether a launch in form whole has begun."""
        stage = self._words[_CURRENT]
        return self.chain.fixed_stages[stage] and self._claimed(stage) > 0

    def _stop(self) -> None:
        self._words[_STOP] = 1
        for worker in (*self.kept.values(), *self._released.values()):
            worker.words[STAYS] = 0

    def _release(self, count: int) -> None:
        """Release ``count`` workers, first those on the SMs where the gang has fewest."""
        if not self._released:
            self._released_ns = time.monotonic_ns()
        workers_by_sm: dict[VirtualSM, int] = {}
        for worker in self.kept.values():
            assert worker.sm is not None
            workers_by_sm[worker.sm] = workers_by_sm.get(worker.sm, 0) + 1

        def order(worker: Worker) -> tuple[int, int, bool, int]:
            assert worker.sm is not None
            # Among equals idle workers come first: they leave at once.
            return (
                workers_by_sm[worker.sm],
                -worker.sm.index,
                worker.words[_STATE] != WorkerState.IDLE,
                -worker.index,
            )

        self._release_workers(sorted(self.kept.values(), key=order)[:count])
        # Kept workers must have the lowest indices: the launches rely on that.
        free = iter([i for i in range(self._workers) if i not in self.kept])
        for index in [i for i in self.kept if i >= self._workers]:
            worker = self.kept.pop(index)
            self._give_index(worker, next(free))

    def leave(self, sms: Collection[int]) -> None:
        """Release the workers on these SMs; others replace them elsewhere as there is room."""
        if self.over or self._is_fixed():
            return
        workers = [worker for worker in self.kept.values() if worker.sm and worker.sm.index in sms]
        if workers:
            if not self._released:
                self._released_ns = time.monotonic_ns()
            self._release_workers(workers)
            self._moving.update(worker.block for worker in workers)

    def _release_workers(self, workers: list[Worker]) -> None:
        """Release these workers: take their index, and let the SM loop remove them."""
        for worker in workers:
            del self.kept[worker.index]
            self._released[worker.block] = worker
            worker.index = NONE
            # The SM loop relies on this order.
            worker.words[_INDEX] = NONE
            worker.words[STAYS] = 0

    def _keep_released(self) -> None:
        """Keep released workers again that have not left yet, except moving ones."""
        free = self.free_indices()
        for block, worker in list(self._released.items()):
            if len(self.kept) + len(self._moving) >= self._workers:
                return
            if block in self._moving:
                continue
            del self._released[block]
            self._give_index(worker, next(free))
            worker.words[STAYS] = 1

    def _give_index(self, worker: Worker, index: int) -> None:
        worker.index = index
        worker.words[_INDEX] = index
        self.kept[index] = worker

    def _set_limits(self) -> None:
        """Where launches differ in M: set for each worker whether its launch has room for it."""
        chain, words = self.chain, self._words
        occupancy_at = STAGE["occupancy"][0] // 4
        for worker in self.kept.values():
            stage = worker.words[_STAGE]
            if stage == NONE:
                continue
            mine = words[self._stages + stage * _STAGE_WORDS + occupancy_at]
            within = (worker.index + 1) * chain.occupancy <= self.slices * mine
            worker.words[STAYS] = 1 if within else 0

    def free_indices(self) -> Iterator[int]:
        """Indices that no kept worker has, in ascending order; workers may be added meanwhile."""
        indices = range(self._workers)
        return (
            (index for index in indices if index not in self.kept) if self.kept else iter(indices)
        )

    def worker_added(self, worker: Worker, sm: VirtualSM, index: int) -> None:
        """Record a new worker, which the caller adds to ``sm``."""
        worker.gang = self
        worker.sm = sm
        worker.index = index
        self.kept[index] = worker
        self.present += 1
        self.workers_by_sm[sm] = self.workers_by_sm.get(sm, 0) + 1

    def worker_left(self, worker: Worker) -> None:
        """Record that a worker has left its SM."""
        assert worker.sm is not None
        self.present -= 1
        self.workers_by_sm[worker.sm] -= 1
        if not self.workers_by_sm[worker.sm]:
            del self.workers_by_sm[worker.sm]
        if worker.index != NONE:
            del self.kept[worker.index]
        else:
            self._released.pop(worker.block)
            self._moving.discard(worker.block)
            if not self._released:
                took = time.monotonic_ns() - self._released_ns
                self.release_ns = max(self.release_ns, took)
        if worker.words[_REASON] == ExitReason.FAILED:
            self._fail(worker)

    def notify_over(self) -> None:
        """Call ``on_over``, the last callback. Without the lock."""
        on_over = self.on_over
        # The callbacks refer to this gang: break the cycle, or only the collector would free it.
        self.on_left = self.on_over = _nothing
        on_over()

    def check_finished(self) -> bool:
        """Mark the gang as over if it is; returns whether it has become so with this call."""
        if self.over or self.present:
            return False
        if not self.exhausted:
            return False
        self._first_block_ns = self.first_block_ns
        self._final = self.progress
        self.over = True
        self.chain.release_run(self._run)
        return True

    # -- failures

    def _fail(self, worker: Worker) -> None:
        if self.error is None:
            self.error = failure_of(worker, self.chain)
        self._stop()


def _nothing() -> None:
    """The callback of a gang that is over."""
