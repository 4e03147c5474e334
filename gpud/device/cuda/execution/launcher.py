"""Begins and shrinks the launches of one run.

Problem: the number of resident blocks must follow the slices that the run is given, while they run;
some SMs may be barred to it.

Approach: launches in persistent form are queued on the run's stream until `WINDOW` are there, with
gates between (`gpud.device.cuda.launch.gate`). To shrink, blocks are told to release. To grow, one
more launch on the same job record, a *helper*, is begun on a stream of its own; where there are too
many helpers, it replaces the smallest. Limits are never raised, so it does not matter whether a
block that was told to release has seen it yet.
Launches in other forms are begun one by one, in sub-grids if they are sliced: a resize changes the
next sub-grid.

SMs may be *barred* to the run: it was told to clear them, they are kept free for an online launch
(`gpud.device.cuda.placement.compaction`), or they belong to other jobs' partitions. The run's
bitmap has a bit for each, and every launch that could reach them is given the bitmap's address.
Blocks that are on barred SMs are told to release; when they have left, helpers replace them.
Blocks that begin on a barred SM later leave by themselves, which the host is not told: so of such a
launch as many blocks count as staying as are resident and not released. While there are
partitions, new launches run on the SMs of none. If other SMs are barred as well, the run does not
grow: nothing would keep its new blocks off them.

Terms: *launch*, *begun* and *due* are those of `gpud.device.cuda.execution.tracker`; a launch's
*share* is the number of its blocks for the slices that the run is given.

Properties:
* a launch is begun after all of the launch before is done, and every block of it that could still
  write has left or is waited for by the stream;
* the sum of the limits of a launch and its helpers never exceeds its share.

The device's lock guards all of it.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from typing import Final

from gpud.device.cuda.driver.calls import DriverError
from gpud.device.cuda.execution.run_context import RunContext
from gpud.device.cuda.execution.tracker import RunTracker
from gpud.device.cuda.launch.run_records import CUDARunRecords
from gpud.device.cuda.launch.sequence import WINDOW, CUDASequence
from gpud.device.cuda.placement.compaction import PendingBlocks
from gpud.device.cuda.placement.green_context import GreenContext
from gpud.errors import GpudError

__all__ = ["Launcher"]

_TOP_UP: Final = WINDOW // 2
_MOST_HELPERS: Final = 6
"""Most helpers that claim: each has a stream, and streams beyond the driver's connections (see
`gpud.device.cuda.driver.calls.ENVIRONMENT`) wait for each other."""


class Launcher:
    """Begins and shrinks the launches of one run. Under the device's lock.

    Its methods raise `GpudError` or `DriverError`; earlier launches continue.

    Args:
        device: what the run knows of its device.
        urgent: whether its streams have the highest priority.
        partition: the SMs that the run has exclusively; None: it has none.

    Attributes:
        cleared: SMs that the run was told to clear.
    """

    def __init__(
        self,
        device: RunContext,
        sequence: CUDASequence,
        tracker: RunTracker,
        urgent: bool,
        partition: GreenContext | None,
    ) -> None:
        self._device = device
        self._launches = device.resources.launches
        self._sequence = sequence
        self._tracker = tracker
        self._urgent = urgent
        self._partition = partition
        self._next = 0  # the launch that is queued next
        self.cleared: frozenset[int] = frozenset()
        self.ways: Counter[str] = Counter()

    # -- growing

    def begin(self, slices: int) -> None:
        """Begin with the due launch; nothing of the run is on the device."""
        tracker = self._tracker
        if tracker.records is None:
            tracker.records = CUDARunRecords(
                self._device.resources, self._sequence, self._urgent, self._place
            )
            tracker.records.bar(self._barred)
        self._next = tracker.due
        began_ns = time.monotonic_ns()
        if self._sequence.prepared[tracker.due].form == "persistent":
            self._queue(slices)
        else:
            self._launch_hosted(slices)
        tracker.began(began_ns)

    def advance(self, slices: int) -> None:
        """Queue following launches if few are left, and `adjust`; something is on the device."""
        tracker = self._tracker
        more = not self._device.resources.context.watchdog.stuck
        if more and len(tracker.main) <= _TOP_UP and not tracker.stalled and tracker.main:
            self._queue_more(slices)
        self.adjust(slices)

    def adjust(self, slices: int) -> None:
        """Lower limits or add a helper, so that each launch has its share."""
        tracker = self._tracker
        now = tracker.on_device.current
        if any(launch.order is None for launch in tracker.launches):
            return  # the next sub-grid has another size
        rest, lowered = self._lowered(slices)
        if lowered:
            tracker.released()
        waits = self._can_reach_barred or self._device.resources.context.watchdog.stuck
        missing = 0 if waits else rest.get(now, 0)
        if missing and not tracker.all_claimed(now):
            self._help(now, missing + self._retire_smallest_helper())

    # -- shrinking

    def lower_at_once(self, slices: int) -> bool:
        """Release blocks beyond the shares of ``slices``, without the device's lock; if any.

        Launches that are begun meanwhile are left to `adjust`.
        """
        return self._lowered(slices)[1]

    def _lowered(self, slices: int) -> tuple[dict[int, int], bool]:
        """Lower limits to the shares; what is missing of each by launch, and whether any was."""
        sequence, launches = self._sequence, self._launches
        rest: dict[int, int] = {}
        lowered = False
        for launch in self._tracker.launches:
            if launch.order is None:
                continue
            share = rest.setdefault(launch.number, sequence.blocks(launch.number, slices))
            staying = launches.staying(launch)
            if share < staying and launches.set_limit(launch, share):
                lowered = True
            rest[launch.number] = share - min(staying + launches.relocating(launch), share)
        return rest, lowered

    def bar(self) -> None:
        """Bar SMs in the bitmap and have blocks leave them."""
        barred, records = self._barred, self._tracker.records
        if records is not None:
            records.bar(barred)
            for launch in self._tracker.launches:
                self._launches.bar(launch, records.bitmap if barred else 0, barred)

    def stop(self) -> None:
        """Open no more launches and release all blocks."""
        if self._tracker.records is not None:
            self._tracker.records.stop()
        for launch in self._tracker.launches:
            if launch.order is not None and launch.limit:
                self._launches.set_limit(launch, 0)

    def kill(self) -> None:
        """Have blocks with kill polls leave."""
        if self._tracker.records is not None:
            self._tracker.records.kill({launch.number for launch in self._tracker.launches})

    # -- state

    @property
    def has_room(self) -> bool:
        """Whether there is an SM that is not barred, and the partition, if it has one, is ready.

        A barred SM stops only blocks in persistent form: other forms wait while SMs are kept free.
        """
        made = self._partition is None or self._partition.made
        launches, due = self._sequence.prepared, self._tracker.due
        hosted = due < len(launches) and launches[due].form != "persistent"
        kept_out = hosted and not self._urgent and bool(self._device.watcher.compaction.barred)
        return made and not kept_out and len(self._barred) < self._device.resources.sms

    @property
    def pending(self) -> PendingBlocks | None:
        """Blocks of the current launch that have not begun; None: there are none, or not known."""
        tracker = self._tracker
        if not tracker.launches:
            return None
        now = tracker.on_device.current
        here = tuple(launch for launch in tracker.of(now) if launch.order)
        blocks = sum(launch.order.coming for launch in here if launch.order)
        if not blocks or tracker.all_claimed(now):
            return None
        place, occupancy = here[0].place, self._sequence.prepared[now].occupancy
        sms, count = (
            (None, self._device.resources.sms) if place is None else (place.numbers, place.sms)
        )
        return PendingBlocks(blocks, occupancy, here, sms, count * occupancy)

    def occupied_slices(self, slices: int, *, stopping: bool) -> int:
        """Return how many slices blocks occupy or will occupy, rounded up.

        Args:
            slices: what the run is given.
            stopping: whether nothing more will be begun.
        """
        tracker, sequence = self._tracker, self._sequence
        launches = tracker.launches
        if not launches:
            return 0
        now = tracker.on_device.current
        blocks: dict[int, int] = {}
        for launch in launches:
            live = self._launches.live(launch)
            if launch.number > now:
                live = min(live, launch.limit)
            blocks[launch.number] = blocks.get(launch.number, 0) + live
        if any(launch.untold_exits or launch.cleared for launch in launches):
            # Helpers will replace the blocks that leave barred SMs.
            if not self._can_reach_barred and not tracker.all_claimed(now):
                again = sequence.blocks(now, slices)
                blocks[now] = max(blocks.get(now, 0), again)
        occupied = max(sequence.slices_of(number, live) for number, live in blocks.items())
        return occupied if stopping else max(occupied, sequence.later_slices(now, slices))

    # -- the run's stream

    def _queue(self, slices: int) -> None:
        """Queue launches in persistent form on the stream, up to the window's size."""
        tracker, before, finished = self._tracker, len(self._tracker.main), False
        records = tracker.on_device
        records.move(self._place)
        try:
            while len(tracker.main) < WINDOW and self._more:
                number = self._next
                if self._queue_batch(slices):
                    finished = not self._more
                    continue
                always = number == tracker.due
                if not (always and tracker.opened):
                    records.gate(number, always=always)
                self._add_main(self._sequence.blocks(number, slices), followed=False)
                self._next += 1
                # Not behind every launch: later work on the stream waits for a host function.
                if self._sequence.outlasts(number, slices):
                    self._launches.follow(tracker.main[-1], records.stream)
                    self._launches.notify(records.stream)
        finally:
            queued = len(tracker.main) > before
            if queued and not self._more and not finished:
                self._finish_queue()
            elif queued and tracker.main[-1].event is None:
                self._launches.follow(tracker.main[-1], records.stream)

    def _queue_batch(self, slices: int) -> bool:
        """Queue launches that were prepared together; False: they have to be one by one."""
        tracker, number = self._tracker, self._next
        if number % WINDOW:
            return False
        records = tracker.on_device
        queued = records.queue(
            number, slices, self._why_no_batch, self.ways, copies=not tracker.helpers
        )
        if queued is None:
            return False
        tracker.main.extend(queued.launches)
        self._next += len(queued.launches)
        if queued.error is not None:
            raise queued.error
        return True

    @property
    def _why_no_batch(self) -> str:
        """Why the launches that are next cannot be queued as a batch; empty: they can."""
        tracker = self._tracker
        if self._next == tracker.due and (self._next or not tracker.opened):
            return "the run begins again"
        if self._place is not None:
            return "a partition"
        if self._can_reach_barred:
            return "barred SMs"
        return ""

    def _finish_queue(self) -> None:
        """Have the job records copied and the watcher woken behind the last launch."""
        tracker = self._tracker
        records = tracker.on_device
        if not tracker.helpers:
            with suppress(DriverError):  # then they are copied when the run is over
                records.copy_back(tracker.main[-1])
        if tracker.main[-1].event is None:
            self._launches.follow(tracker.main[-1], records.stream)
        self._launches.notify(records.stream)

    @property
    def _more(self) -> bool:
        """Whether another launch can be queued."""
        launches = self._sequence.prepared
        return self._next < len(launches) and launches[self._next].form == "persistent"

    def _queue_more(self, slices: int) -> None:
        if self._sequence.prepared[self._tracker.main[-1].number].form == "persistent":
            self._queue(slices)

    def _launch_hosted(self, slices: int) -> None:
        """Begin a launch, or the next sub-grid of one, that is not in persistent form."""
        tracker = self._tracker
        records, prepared = tracker.on_device, self._sequence.prepared[tracker.due]
        records.move(self._place)
        records.begin(tracker.due)
        count = prepared.total
        if prepared.form == "sliced":
            count = min(self._sequence.blocks(tracker.due, slices), prepared.total - tracker.sliced)
        self._add_main(count, base=tracker.sliced)
        tracker.sliced += count
        self._finish_queue()

    def _add_main(self, count: int, *, base: int = 0, followed: bool = True) -> None:
        records, number = self._tracker.on_device, self._next
        records.changing()
        launch = self._launches.begin(
            self._sequence, number, count, records.stream,
            job=records.job(number), place=records.place, base=base, bitmap=self._bitmap,
            followed=followed,
        )  # fmt: skip
        self._tracker.main.append(launch)
        records.unawaited = False

    # -- helpers

    def _retire_smallest_helper(self) -> int:
        """If there are too many helpers, release the smallest; how many blocks that takes away."""
        claiming = [launch for launch in self._tracker.helpers if launch.limit]
        if len(claiming) < _MOST_HELPERS:
            return 0
        least = min(claiming, key=self._launches.staying)
        count = self._launches.staying(least)
        self._launches.set_limit(least, 0)
        return count

    def _help(self, number: int, count: int) -> None:
        """Add ``count`` blocks to a launch that runs."""
        records, place = self._tracker.on_device, self._place
        stream = self._launches.streams.take_stream(self._urgent, place)
        # Before the helper begins, so that the gate behind the launch sees it.
        records.mark_helped(number)
        records.changing()
        try:
            records.wait_on(stream)  # the copy that sets up the records may still be queued
            launch = self._launches.begin(
                self._sequence, number, count, stream,
                job=records.job(number), place=place, bitmap=self._bitmap,
            )  # fmt: skip
        except (GpudError, DriverError):
            self._launches.streams.give_stream(stream, self._urgent, place)
            raise
        launch.stream = stream
        self._tracker.add_helper(launch)
        self._launches.notify(stream)

    # -- placement

    @property
    def _place(self) -> GreenContext | None:
        """Where new launches run; None: anywhere."""
        return self._device.partitioner.rest if self._partition is None else self._partition

    @property
    def _vacated(self) -> frozenset[int]:
        """SMs that the run keeps off although its launches could run there."""
        return (
            self.cleared if self._urgent else self.cleared | self._device.watcher.compaction.barred
        )

    @property
    def _barred(self) -> frozenset[int]:
        """SMs on which the run is to have no blocks."""
        others = frozenset[int]() if self._partition else self._device.partitioner.numbers
        return self._vacated | others

    @property
    def _can_reach_barred(self) -> bool:
        """Whether blocks of a new launch could begin on a barred SM."""
        return bool(self._vacated) or (self._place is None and bool(self._barred))

    @property
    def _bitmap(self) -> int:
        """The bitmap's address for a new launch; 0: it needs none."""
        return self._tracker.on_device.bitmap if self._can_reach_barred else 0
