"""Tracks one run: its launches on the GPU, and the progress that the host can see.

Problem: the device does not notify the host of what blocks do. How many are resident, whether task
blocks are left to claim, how long a release took and which launch runs next must be known without
waiting for the device.

Approach: keep the run's launches, in the order in which they end, and poll their words in host
memory: how many blocks have not left, whether the first has begun, which launch runs. Job records,
which lie in device memory, are read only where these words do not suffice.

Terms: a launch is *begun* when its gate has opened it, that is, up to ``CURRENT``; the *due* launch
is the one to launch next when nothing is on the device.

Properties:
* polling changes nothing on the device;
* whatever is reported as claimed is claimed; it may be reported late.

The device's lock guards all of it.
"""

from __future__ import annotations

import time
from collections import deque

import numpy as np

from gpud.compiler.abi import control_words as cw
from gpud.device.cuda.execution.block_timer import BlockTimer
from gpud.device.cuda.launch.active_launch import ActiveLaunch
from gpud.device.cuda.launch.active_launches import ActiveLaunches
from gpud.device.cuda.launch.run_records import CUDARunRecords
from gpud.device.cuda.launch.sequence import CUDASequence
from gpud.device.cuda.placement.compaction import NO_USAGE, SMUsage
from gpud.errors import InternalError

__all__ = ["RunTracker"]

_NEXT, _DONE = cw.NEXT // 4, cw.DONE // 4


class RunTracker:
    """What of one run is on the device, and the progress of its launches. Under the device's lock.

    Args:
        launches: those of the device.
        urgent: whether its streams have the highest priority.

    Attributes:
        run: its words and records; None before its first launch, and when it is over.
        main: launches on the run's stream, in order.
        helpers: those on streams of their own, which help launches that are in `main`.
        opened: whether the due launch is open; the first one is open from the beginning.
        stalled: whether a gate stayed closed, so that all behind it do.
        sliced: how many task blocks of the hosted launch have been begun.
    """

    def __init__(self, launches: ActiveLaunches, sequence: CUDASequence, urgent: bool) -> None:
        self._launches = launches
        self._sequence = sequence
        self._urgent = urgent
        self.records: CUDARunRecords | None = None
        self.main: deque[ActiveLaunch] = deque()
        self.helpers: list[ActiveLaunch] = []
        self.due = 0
        self.opened = True
        self.stalled = False
        self.sliced = 0
        self.first_block_ns = 0
        self.release_ns = 0
        self._sliced_done = 0
        self._claimed = -1  # the last launch of which everything is known to be claimed
        self._live_blocks = 0
        self._releasing_ns = 0
        self._requested_ns = 0
        self._block_timer = BlockTimer(sequence)

    @property
    def launches(self) -> tuple[ActiveLaunch, ...]:
        """All launches of the run."""
        return (*self.main, *self.helpers)

    @property
    def on_device(self) -> CUDARunRecords:
        """The run's words and records; call only while it has some."""
        assert self.records is not None
        return self.records

    # -- recording

    def requested(self) -> None:
        """Start the time to the first task block: the scheduler wants blocks."""
        self._requested_ns = self._requested_ns or time.monotonic_ns()

    def began(self, began_ns: int) -> None:
        """Record that the due launch began, at ``began_ns`` or later, on an idle device."""
        self._live_blocks = self._count_live()
        self._block_timer.begin(began_ns, self.due, sum(one.count for one in self.of(self.due)))

    def add_helper(self, launch: ActiveLaunch) -> None:
        """Add a helper that was launched."""
        self.helpers.append(launch)
        self._live_blocks += launch.count

    def released(self) -> None:
        """Start the release time: limits were lowered."""
        self._releasing_ns = self._releasing_ns or time.monotonic_ns()

    def ended(self) -> None:
        """Stop the release time: nothing is on the device and nothing will be."""
        self._releasing_ns = 0

    # -- polling

    def poll(self) -> None:
        """Record when the first block has begun, and the time that blocks have been resident."""
        if not self.first_block_ns and self.main and self._launches.has_begun(self.main[0]):
            self.first_block_ns = time.monotonic_ns() - self._requested_ns
        now = max(self.on_device.current, self.due)  # the due launch's gate may be yet to open it
        here = self.of(now)
        if not self._urgent:
            self._launches.poll_placement(here)
        live, launched = sum(map(self._launches.live, here)), sum(one.count for one in here)
        self._block_timer.poll(time.monotonic_ns(), now, live, launched)

    def reap(self) -> bool:
        """Remove launches that are over; whether there were any."""
        changed = False
        for _ in range(self._over()):
            self._end_launch(self.main.popleft())
            changed = True
        for launch in [one for one in self.helpers if self._launches.is_over(one)]:
            self.helpers.remove(launch)
            self._end_launch(launch)
            changed = True
        return changed

    def count(self) -> bool:
        """Count the resident and coming blocks; whether some have left."""
        live = self._count_live()
        left = live < self._live_blocks
        self._live_blocks = live
        self._time_release()
        return left

    def drained(self, record: bytes, *, stopping: bool) -> None:
        """Find the due launch: nothing is on the device.

        Args:
            record: the job record of the current launch, which is final.
            stopping: whether nothing more will be begun.

        Raises:
            InternalError: everything is claimed, and not everything is done.
        """
        now = self.on_device.current
        if now < self.due:  # its gate stayed closed
            self._block_timer.drained(time.monotonic_ns(), self.due, done=False)
            return
        prepared = self._sequence.prepared[now]
        if prepared.form == "persistent":
            words = np.frombuffer(record, np.uint32)
            done = int(words[_DONE]) == prepared.total
            if not done and not stopping and int(words[_NEXT]) >= prepared.total:
                raise InternalError(
                    f"{int(words[_DONE])} of {prepared.total} task blocks are done, and the rest "
                    "is claimed and lost",
                    stage="device host, CUDA",
                )
        else:
            done = self._sliced_done == prepared.total
        self._block_timer.drained(time.monotonic_ns(), now, done=done)
        if done:
            self.due, self.opened = now + 1, False
            self.sliced = self._sliced_done = 0
        else:
            self.due, self.opened = now, True

    # -- state

    @property
    def progress(self) -> tuple[int, int, int]:
        """(claimed, done, total) task blocks of all launches."""
        sequence = self._sequence
        records = self.records
        if records is None:
            return 0, 0, sequence.total
        if self.due == len(sequence.prepared):
            return sequence.total, sequence.total, sequence.total
        now = records.current
        before, total = sequence.before[now], sequence.prepared[now].total
        if now < self.due:  # the current launch is done, and the next one not begun
            return before + total, before + total, sequence.total
        if sequence.prepared[now].form != "persistent":
            return before + self.sliced, before + self._sliced_done, sequence.total
        if not records.is_ready:
            return 0, 0, sequence.total
        words = np.frombuffer(records.record(now, cw.FAULT), np.uint32)
        claimed = min(int(words[_NEXT]), total)
        return before + claimed, before + min(int(words[_DONE]), claimed), sequence.total

    def all_claimed(self, number: int) -> bool:
        """Return whether all task blocks of a begun launch are claimed; may report it late.

        A block that was not told to release leaves only if it finds nothing to claim. A block that
        began on a barred SM leaves untold, too: for launches with such blocks the job record
        decides.
        """
        if self._sequence.prepared[number].form != "persistent":
            return self.sliced == self._sequence.prepared[number].total
        if self._claimed < number:
            left = [
                launch.untold_exits
                for launch in self.launches
                if launch.number == number and self._launches.live(launch) < launch.limit
            ]
            if not left or (all(left) and not self._counter_exhausted(number)):
                return False
            self._claimed = number
        return True

    def of(self, number: int) -> list[ActiveLaunch]:
        """Return what is on the device of launch ``number``: itself and its helpers."""
        return [one for one in self.launches if one.number == number]

    def leaving(self, *, exhausted: bool) -> bool:
        """Return whether blocks of begun launches are resident that were told to release.

        Blocks that have not begun do not count: they may be waiting for the room of others.

        Args:
            exhausted: whether all blocks are to leave, released or not.
        """
        there = self._still_leaving(exhausted=exhausted)
        if not there:
            return False
        now = self.on_device.current
        begun = [one.order for one in self.launches if one.number <= now and one.order]
        return there > sum(one.absent + (one.coming if exhausted else 0) for one in begun)

    @property
    def sm_usage(self) -> SMUsage:
        """What resident blocks of the current launch that are to stay take of each SM."""
        usage = NO_USAGE.copy()
        if self.records is not None:
            now = self.records.current
            for order in (launch.order for launch in self.of(now)):
                if order is not None:
                    usage += np.bincount(order.resident_sms.clip(max=cw.MOST_SMS), None, len(usage))
            usage /= self._sequence.prepared[now].occupancy
        return usage

    # -- helpers

    def _over(self) -> int:
        """Return how many launches of `main` are over, from the first on.

        Those before the current one are, and those before one that is over.
        """
        over, current = 0, self.on_device.current
        for index, launch in enumerate(self.main):
            if launch.event is None:
                if launch.number < current:
                    over = index + 1
            elif self._launches.is_over(launch):
                over = index + 1
            else:
                break
        return over

    def _count_live(self) -> int:
        return sum(self._launches.live(launch) for launch in self.launches)

    def _end_launch(self, launch: ActiveLaunch) -> None:
        if self._sequence.prepared[launch.number].form != "persistent":
            self._sliced_done = self.sliced
        elif self.on_device.current < launch.number:
            self.stalled = True  # its gate stayed closed, and so do all behind it
        elif launch.limit and not launch.untold_exits:
            self._claimed = max(self._claimed, launch.number)  # its blocks found nothing to claim
        self._launches.forget(launch, self._urgent)

    def _time_release(self) -> None:
        """Keep the longest time from a release to its last block gone."""
        if not self._releasing_ns:
            return
        if not self._still_leaving():
            took = time.monotonic_ns() - self._releasing_ns
            self.release_ns = max(self.release_ns, took)
            self._releasing_ns = 0

    def _still_leaving(self, *, exhausted: bool = False) -> int:
        """Return how many released blocks of begun launches are left; ``exhausted``: how many."""
        if self.records is None:
            return 0
        now = self.records.current
        return sum(
            max(0, self._launches.live(launch) - (not exhausted and self._launches.staying(launch)))
            for launch in self.launches
            if launch.number <= now and launch.order is not None
        )

    def _counter_exhausted(self, number: int) -> bool:
        records = self.on_device
        words = np.frombuffer(records.record(number, cw.FAULT), np.uint32)
        return records.is_ready and int(words[_NEXT]) >= self._sequence.prepared[number].total
