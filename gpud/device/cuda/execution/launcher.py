"""Puts the launches of one run on the GPU, and takes blocks away from them.

Problem: the number of blocks follows what the run is given, while they run; some SMs may be barred.

Approach: stages in persistent form are queued on the run's stream, `_WINDOW` of them at most, with
gates between (`gpud.device.cuda.launch.gate`). To shrink, blocks are told to release. To grow, one
more launch on the same job record is begun on a stream of its own: a *helper*; where there are
many, it replaces the smallest. Limits are never raised, so nobody has to know whether a block that
was told to release has seen it yet. Stages in other forms are launched one by one, in sub-grids if
they are sliced: the next has another size.

Some SMs may be *barred*: they were to be cleared, or left for an online launch
(`gpud.device.cuda.placement.compaction`), or are other jobs' alone. They are named in the run's
bitmap, and every launch that could be there is pointed to it. Blocks that are there are told to
release; when they have left, helpers take their place. What of a launch begins there later, and
leaves, nobody is told: so as many of it count as staying as are there and not told to release. What
is launched while there are partitions runs on the SMs of none. With SMs that are barred besides, a
run does not grow: nothing would keep its new blocks from them.

Terms: *launch*, *begun* and *due* are those of `gpud.device.cuda.execution.tracker`; a stage's
*share* is the number of its blocks for the slices that the run is given.

Properties:
* a stage is begun after all of the stage before is done, and every block of it that could still
  write has left or is waited for by the stream;
* the limits of a stage's launches are never more than its share in all.

The device's lock guards it all. Nothing here has run on a GPU yet.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from gpud.device.cuda.driver.calls import DriverError
from gpud.device.cuda.execution.tracker import RunTracker
from gpud.device.cuda.launch.chain import Chain
from gpud.device.cuda.launch.run_records import RunRecords
from gpud.device.cuda.placement.compaction import PendingBlocks
from gpud.device.cuda.placement.partitioner import GreenContext
from gpud.errors import GpudError

if TYPE_CHECKING:
    from gpud.device.cuda.device import CUDADevice

__all__ = ["Launcher"]

_WINDOW: Final = 16
"""Stages that are queued at most: those that follow a growth were launched before it."""

_TOP_UP: Final = _WINDOW // 2
_SOON_NS: Final = 50_000
"""The watcher looks again so soon, or in twice the time that nothing has changed."""

_MOST_HELPERS: Final = 6
"""Helpers that claim, at most: each has a stream, and streams beyond the driver's connections (see
`gpud.device.cuda.driver.calls.ENVIRONMENT`) wait for each other."""


class Launcher:
    """Launches what a run has on the device. Under the device's lock.

    What it raises is a `GpudError` or a `DriverError`; what was launched before stays.

    Args:
        device: where.
        chain: what runs.
        tracker: where it keeps what it launches.
        urgent: whether blocks get room before those of others.
        partition: the SMs that are the run's own; None: it has none.

    Attributes:
        cleared: SMs that it was told to leave.
    """

    def __init__(
        self,
        device: CUDADevice,
        chain: Chain,
        tracker: RunTracker,
        urgent: bool,
        partition: GreenContext | None,
    ) -> None:
        self._device = device
        self._launches = device.launches
        self._chain = chain
        self._tracker = tracker
        self._urgent = urgent
        self._partition = partition
        self._next = 0  # the stage that is queued next
        self.cleared: frozenset[int] = frozenset()

    # -- more blocks

    def begin(self, slices: int) -> None:
        """Nothing is on the device: begin with the due stage."""
        tracker = self._tracker
        if tracker.run is None:
            tracker.run = RunRecords(self._device, self._chain, self._urgent, self._place)
            tracker.run.name(self._barred)
        self._next = tracker.due
        began_ns = time.monotonic_ns()
        if self._chain.stages[tracker.due].form == "persistent":
            self._queue(slices)
        else:
            self._launch_hosted(slices)
        tracker.began(began_ns)

    def follow(self, slices: int) -> None:
        """Something is on the device: queue what is to follow, and `adjust`."""
        tracker = self._tracker
        more = not self._device.context.watchdog.stuck
        if more and len(tracker.main) <= _TOP_UP and not tracker.stalled and tracker.main:
            self._queue_more(slices)
        self.adjust(slices)

    def adjust(self, slices: int) -> None:
        """Lower limits, or add a helper."""
        tracker, chain = self._tracker, self._chain
        now = tracker.on_device.current
        if any(launch.order is None for launch in tracker.launches):
            return  # the next sub-grid has another size
        rest: dict[int, int] = {}
        lowered = False
        for launch in tracker.launches:
            share = rest.setdefault(launch.stage, chain.blocks(launch.stage, slices))
            staying = self._launches.staying(launch)
            if share < staying:
                self._launches.set_limit(launch, share)
                lowered = True
            rest[launch.stage] = share - min(staying + self._launches.moving(launch), share)
        if lowered:
            tracker.released()
        waits = self._astray or self._device.context.watchdog.stuck
        missing = 0 if waits else rest.get(now, 0)
        if missing and not tracker.all_claimed(now):
            self._help(now, missing + self._folded())

    # -- fewer

    def name(self) -> None:
        """Have blocks leave the SMs that are barred."""
        barred, run = self._barred, self._tracker.run
        if run is not None:
            run.name(barred)
            for launch in self._tracker.launches:
                self._launches.name(launch, run.named if barred else 0, barred)

    def stop(self) -> None:
        """Open nothing more and release everything."""
        if self._tracker.run is not None:
            self._tracker.run.stop()
        for launch in self._tracker.launches:
            if launch.order is not None and launch.limit:
                self._launches.set_limit(launch, 0)

    def kill(self) -> None:
        """Tell blocks that poll to leave."""
        if self._tracker.run is not None:
            self._tracker.run.kill({launch.stage for launch in self._tracker.launches})

    # -- what it comes to

    @property
    def has_room(self) -> bool:
        """Whether there is an SM that is not barred, and the partition, if it has one, is made.

        Nothing keeps the blocks of other than persistent form from SMs that others are to find.
        """
        made = self._partition is None or self._partition.made
        stages, due = self._chain.stages, self._tracker.due
        hosted = due < len(stages) and stages[due].form != "persistent"
        kept_out = hosted and not self._urgent and bool(self._device.watcher.compaction.barred)
        return made and not kept_out and len(self._barred) < self._device.sms

    @property
    def pending(self) -> PendingBlocks | None:
        """What the stage that runs lacks; None if that is nothing, or is not known."""
        tracker = self._tracker
        if not tracker.launches:
            return None
        now = tracker.on_device.current
        here = tuple(launch for launch in tracker.of(now) if launch.order)
        blocks = sum(launch.order.coming for launch in here if launch.order)
        if not blocks or tracker.all_claimed(now):
            return None
        place, occupancy = here[0].place, self._chain.stages[now].occupancy
        sms, count = (None, self._device.sms) if place is None else (place.numbers, place.sms)
        return PendingBlocks(blocks, occupancy, here, sms, count * occupancy)

    def held(self, slices: int, *, stopping: bool) -> int:
        """Slices that blocks occupy or will occupy, rounded up.

        Args:
            slices: what the run is given.
            stopping: whether nothing more will be begun.
        """
        tracker, chain = self._tracker, self._chain
        launches = tracker.launches
        if not launches:
            return 0
        now = tracker.on_device.current
        blocks: dict[int, int] = {}
        for launch in launches:
            live = self._launches.live(launch)
            if launch.stage > now:
                live = min(live, launch.limit)
            blocks[launch.stage] = blocks.get(launch.stage, 0) + live
        if any(launch.named or launch.cleared for launch in launches):
            # Helpers take the place of those that leave their SM.
            if not self._astray and not tracker.all_claimed(now):
                again = chain.blocks(now, slices)
                blocks[now] = max(blocks.get(now, 0), again)
        held = max(chain.slices_of(stage, live) for stage, live in blocks.items())
        return held if stopping else max(held, chain.later(now, slices))

    # -- the run's stream

    def _queue(self, slices: int) -> None:
        """Put stages in persistent form on the stream, as many as may be."""
        tracker, queued = self._tracker, 0
        run = tracker.on_device
        run.move(self._place)
        try:
            while len(tracker.main) < _WINDOW and self._more:
                stage = self._next
                if stage != tracker.due or not tracker.opened:
                    run.gate(stage, always=stage == tracker.due)
                self._add_main(self._chain.blocks(stage, slices))
                self._next += 1
                queued += 1
                # Not behind every stage: what is behind a host function waits for it.
                if self._outlasts(stage, slices):
                    self._launches.notify(run.stream)
        finally:
            if queued and not self._more:
                self._launches.notify(run.stream)

    @property
    def _more(self) -> bool:
        """Whether another stage is to be queued."""
        stages = self._chain.stages
        return self._next < len(stages) and stages[self._next].form == "persistent"

    def _outlasts(self, stage: int, slices: int) -> bool:
        """Whether the rest of the window may be over before the watcher looks again.

        The longer nothing changes, the longer it sleeps, up to about as long as the stage takes.
        """
        chain, end = self._chain, stage + _WINDOW
        took_ns = chain.takes_ns(stage, slices)
        if end >= len(chain.stages) or took_ns <= _SOON_NS:
            return False
        return took_ns > sum(chain.takes_ns(other, slices) for other in range(stage + 1, end))

    def _queue_more(self, slices: int) -> None:
        if self._chain.stages[self._tracker.main[-1].stage].form == "persistent":
            self._queue(slices)

    def _launch_hosted(self, slices: int) -> None:
        """Launch a stage, or the next sub-grid of one, that is not in persistent form."""
        tracker = self._tracker
        run, stage = tracker.on_device, self._chain.stages[tracker.due]
        run.move(self._place)
        run.begin(tracker.due)
        count = stage.total
        if stage.form == "sliced":
            count = min(self._chain.blocks(tracker.due, slices), stage.total - tracker.sliced)
        self._add_main(count, base=tracker.sliced)
        tracker.sliced += count
        self._launches.notify(run.stream)

    def _add_main(self, count: int, *, base: int = 0) -> None:
        run, stage = self._tracker.on_device, self._next
        launch = self._launches.begin(
            self._chain, stage, count, run.stream,
            job=run.job(stage), place=run.place, base=base, named=self._named,
        )  # fmt: skip
        self._tracker.main.append(launch)
        run.loose = False

    # -- helpers

    def _folded(self) -> int:
        """Release the smallest of too many helpers: how many blocks the next is to make up for."""
        claiming = [launch for launch in self._tracker.helpers if launch.limit]
        if len(claiming) < _MOST_HELPERS:
            return 0
        least = min(claiming, key=self._launches.staying)
        count = self._launches.staying(least)
        self._launches.set_limit(least, 0)
        return count

    def _help(self, stage: int, count: int) -> None:
        """Add ``count`` blocks to a stage that runs."""
        run, place = self._tracker.on_device, self._place
        stream = self._launches.take_stream(self._urgent, place)
        # Before the launch: the gate behind the stage must see it.
        run.help(stage)
        try:
            run.wait_on(stream)  # the copy that sets up the records may be behind a long one
            launch = self._launches.begin(
                self._chain, stage, count, stream,
                job=run.job(stage), place=place, named=self._named,
            )  # fmt: skip
        except (GpudError, DriverError):
            self._launches.give_stream(stream, self._urgent, place)
            raise
        launch.stream = stream
        self._tracker.helped(launch)
        self._launches.notify(stream)

    # -- where

    @property
    def _place(self) -> GreenContext | None:
        """Where launches run from now on; None: anywhere."""
        return self._device.partitioner.rest if self._partition is None else self._partition

    @property
    def _left_free(self) -> frozenset[int]:
        """The SMs that it leaves though its launches could go there."""
        return (
            self.cleared if self._urgent else self.cleared | self._device.watcher.compaction.barred
        )

    @property
    def _barred(self) -> frozenset[int]:
        """The SMs on which it is to have no blocks."""
        others = frozenset[int]() if self._partition else self._device.partitioner.numbers
        return self._left_free | others

    @property
    def _astray(self) -> bool:
        """Whether blocks that are launched now could be on a barred SM."""
        return bool(self._left_free) or (self._place is None and bool(self._barred))

    @property
    def _named(self) -> int:
        """What a launch that is begun now is pointed to."""
        return self._tracker.on_device.named if self._astray else 0
