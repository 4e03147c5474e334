"""Tracks one run: what of it is on the GPU, and what the host sees of it.

Problem: nobody tells the host what blocks do. How many are there, whether anything is left to
claim, how long a release took and which stage runs next must be known without waiting for the
device.

Approach: keep the launches of the run, in the order in which they end, and look at what they have
in
host memory: how many of their blocks have not left, whether the first has begun, the stage that
runs. Job records, which lie in device memory, are read when nothing else tells.

Terms: a stage is *begun* when it has been opened, that is, up
to ``CURRENT``; *due*: the stage that runs next when nothing is on the device.

Properties:
* a look changes nothing on the device;
* what is said to be claimed is; it may be said late.

The device's lock guards it all. Nothing here has run on a GPU yet.
"""

from __future__ import annotations

import time
from collections import deque

import numpy as np

from gpud.compiler.abi import control_words as cw
from gpud.device.cuda.execution.block_timer import BlockTimer
from gpud.device.cuda.launch.active_launches import ActiveLaunch, ActiveLaunches
from gpud.device.cuda.launch.chain import Chain
from gpud.device.cuda.launch.run_records import RunRecords
from gpud.device.cuda.placement.compaction import NOBODY, Shares
from gpud.errors import InternalError

__all__ = ["RunTracker"]

_NEXT, _DONE = cw.NEXT // 4, cw.DONE // 4


class RunTracker:
    """The launches of one run, and what is known of its stages. Under the device's lock.

    Args:
        launches: those of the device.
        chain: what runs.
        urgent: whether its streams are of the highest priority.

    Attributes:
        run: its words and records; None before anything of it was begun, and when it is over.
        main: launches on the run's stream, in order.
        helpers: launches on streams of their own, of stages that are among those of `main`.
        due: the stage.
        opened: whether the due stage is: the image has the first one open.
        stalled: whether a gate stayed closed, so that all behind it do.
        sliced: task blocks of the hosted stage that were launched.
        first_block_ns, release_ns: see `gpud.device.interface.Gang`.
    """

    def __init__(self, launches: ActiveLaunches, chain: Chain, urgent: bool) -> None:
        self._launches = launches
        self._chain = chain
        self._urgent = urgent
        self.run: RunRecords | None = None
        self.main: deque[ActiveLaunch] = deque()
        self.helpers: list[ActiveLaunch] = []
        self.due = 0
        self.opened = True
        self.stalled = False
        self.sliced = 0
        self.first_block_ns = 0
        self.release_ns = 0
        self._sliced_done = 0
        self._claimed = -1  # the last stage of which everything is known to be claimed
        self._lives = 0
        self._releasing_ns = 0
        self._asked_ns = 0
        self._block_timer = BlockTimer(chain)

    @property
    def launches(self) -> tuple[ActiveLaunch, ...]:
        """All of the run's."""
        return (*self.main, *self.helpers)

    @property
    def on_device(self) -> RunRecords:
        """The run's words and records, which are there as long as anything of it is."""
        assert self.run is not None
        return self.run

    # -- what was done

    def asked(self) -> None:
        """Somebody wants blocks of the run."""
        self._asked_ns = self._asked_ns or time.monotonic_ns()

    def began(self, began_ns: int) -> None:
        """At ``began_ns`` nothing was on the device, and now launches of the due stage are."""
        self._lives = self._count_lives()
        self._block_timer.begin(began_ns, self.due, sum(one.count for one in self.of(self.due)))

    def helped(self, launch: ActiveLaunch) -> None:
        """A helper was begun."""
        self.helpers.append(launch)
        self._lives += launch.count

    def released(self) -> None:
        """Limits were lowered."""
        self._releasing_ns = self._releasing_ns or time.monotonic_ns()

    def ended(self) -> None:
        """Nothing is on the device and nothing will be."""
        self._releasing_ns = 0

    # -- looks

    def poll(self) -> None:
        """See whether the first block has begun, and how long blocks have been there."""
        if not self.first_block_ns and self.main and self._launches.has_begun(self.main[0]):
            self.first_block_ns = time.monotonic_ns() - self._asked_ns
        now = max(self.on_device.current, self.due)  # what is begun anew its gate is yet to open
        here = self.of(now)
        if not self._urgent:
            self._launches.find(here)
        lives, launched = sum(map(self._launches.live, here)), sum(one.count for one in here)
        self._block_timer.poll(time.monotonic_ns(), now, lives, launched)

    def reap(self) -> bool:
        """Take out the launches that are over; whether there were any."""
        changed = False
        while self.main and self._launches.is_over(self.main[0]):
            self._end_launch(self.main.popleft())
            changed = True
        for launch in [one for one in self.helpers if self._launches.is_over(one)]:
            self.helpers.remove(launch)
            self._end_launch(launch)
            changed = True
        return changed

    def count(self) -> bool:
        """Count the blocks that are there; whether some have left."""
        lives = self._count_lives()
        left = lives < self._lives
        self._lives = lives
        self._see_release()
        return left

    def drained(self, record: bytes, *, stopping: bool) -> None:
        """Nothing is on the device: find which stage is due.

        Args:
            record: the job record of the current stage, which is final.
            stopping: whether nothing more will be begun.

        Raises:
            InternalError: not everything is done, and everything is claimed.
        """
        now = self.on_device.current
        if now < self.due:  # its gate was told to stay closed
            self._block_timer.drained(time.monotonic_ns(), self.due, done=False)
            return
        stage = self._chain.stages[now]
        if stage.form == "persistent":
            words = np.frombuffer(record, np.uint32)
            done = int(words[_DONE]) == stage.total
            if not done and not stopping and int(words[_NEXT]) >= stage.total:
                raise InternalError(
                    f"{int(words[_DONE])} of {stage.total} task blocks are done, and nobody runs "
                    "the rest",
                    stage="device host, CUDA",
                )
        else:
            done = self._sliced_done == stage.total
        self._block_timer.drained(time.monotonic_ns(), now, done=done)
        if done:
            self.due, self.opened = now + 1, False
            self.sliced = self._sliced_done = 0
        else:
            self.due, self.opened = now, True

    # -- what is known

    @property
    def progress(self) -> tuple[int, int, int]:
        """(claimed, done, total) task blocks of all launches."""
        chain = self._chain
        run = self.run
        if run is None:
            return 0, 0, chain.total
        if self.due == len(chain.stages):
            return chain.total, chain.total, chain.total
        now = run.current
        before, total = chain.before[now], chain.stages[now].total
        if now < self.due:  # all of it is done, and the next is not begun
            return before + total, before + total, chain.total
        if chain.stages[now].form != "persistent":
            return before + self.sliced, before + self._sliced_done, chain.total
        if not run.is_ready:
            return 0, 0, chain.total
        words = np.frombuffer(run.record(now, cw.FAULT), np.uint32)
        claimed = min(int(words[_NEXT]), total)
        return before + claimed, before + min(int(words[_DONE]), claimed), chain.total

    def all_claimed(self, stage: int) -> bool:
        """Whether blocks of a begun stage have left that were not told to; may be late to say so.

        A block leaves by itself only if it finds nothing to claim; or it was on an SM that was
        named, so that of such a launch only the job record tells.
        """
        if self._chain.stages[stage].form != "persistent":
            return self.sliced == self._chain.stages[stage].total
        if self._claimed < stage:
            left = [
                launch.named
                for launch in self.launches
                if launch.stage == stage and self._launches.live(launch) < launch.limit
            ]
            if not left or (all(left) and not self._nothing_left(stage)):
                return False
            self._claimed = stage
        return True

    def of(self, stage: int) -> list[ActiveLaunch]:
        """The launches of a stage."""
        return [one for one in self.launches if one.stage == stage]

    def leaving(self, *, exhausted: bool) -> bool:
        """Whether blocks of begun stages are there that were told to leave.

        Not those that have not begun: who waits for room must not be waited for.

        Args:
            exhausted: whether all leave, told or not.
        """
        there = self._still_there(exhausted=exhausted)
        if not there:
            return False
        now = self.on_device.current
        begun = [one.order for one in self.launches if one.stage <= now and one.order]
        return there > sum(one.absent + (one.coming if exhausted else 0) for one in begun)

    @property
    def sm_usage(self) -> Shares:
        """What blocks of the stage that runs take of each SM, of those that are to stay."""
        shares = NOBODY.copy()
        if self.run is not None:
            now = self.run.current
            for order in (launch.order for launch in self.of(now)):
                if order is not None:
                    shares += np.bincount(
                        order.resident_sms.clip(max=cw.MOST_SMS), None, len(shares)
                    )
            shares /= self._chain.stages[now].occupancy
        return shares

    # -- helpers

    def _count_lives(self) -> int:
        return sum(self._launches.live(launch) for launch in self.launches)

    def _end_launch(self, launch: ActiveLaunch) -> None:
        if self._chain.stages[launch.stage].form != "persistent":
            self._sliced_done = self.sliced
        elif self.on_device.current < launch.stage:
            self.stalled = True  # its gate was closed, and so are all behind it
        elif launch.limit and not launch.named:
            self._claimed = max(self._claimed, launch.stage)  # it was over by itself
        self._launches.forget(launch, self._urgent)

    def _see_release(self) -> None:
        """Keep the longest time from a release to its last block gone."""
        if not self._releasing_ns:
            return
        if not self._still_there():
            took = time.monotonic_ns() - self._releasing_ns
            self.release_ns = max(self.release_ns, took)
            self._releasing_ns = 0

    def _still_there(self, *, exhausted: bool = False) -> int:
        """How many blocks of begun stages were told to leave and have not; or all that have not."""
        if self.run is None:
            return 0
        now = self.run.current
        return sum(
            max(0, self._launches.live(launch) - (not exhausted and self._launches.staying(launch)))
            for launch in self.launches
            if launch.stage <= now and launch.order is not None
        )

    def _nothing_left(self, stage: int) -> bool:
        run = self.on_device
        words = np.frombuffer(run.record(stage, cw.FAULT), np.uint32)
        return run.is_ready and int(words[_NEXT]) >= self._chain.stages[stage].total
