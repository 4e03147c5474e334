"""A gang: one run of a chain on the GPU, with as many resident blocks as it is given.

Problem: the scheduler decides how many slices a job has; its blocks must follow while they run, no
task block may be lost or run twice, and what the job occupies must be known.

Approach: what is on the device is kept and looked at by `gpud.device.cuda.execution.tracker`;
launches are put there and shrunk by `gpud.device.cuda.execution.launcher`. The gang says when: at
each `Gang.resize`, and when the watcher sees that something is over. When everything that was
launched is over, the job record says what is left, and the rest is begun anew.

Properties:
* the run is over when no launch is left and nothing is left to do, or it was ended or has failed;
* whatever call fails, the run ends with an error, or the device is lost.

The device's lock guards it all. Nothing here has run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from gpud.compiler.abi import control_words as cw
from gpud.device.cuda.driver.calls import DriverError
from gpud.device.cuda.execution.failure import failure_of
from gpud.device.cuda.execution.launcher import Launcher
from gpud.device.cuda.execution.tracker import RunTracker
from gpud.device.cuda.launch.chain import Chain
from gpud.device.cuda.launch.output import printed_text
from gpud.device.cuda.placement.compaction import NOBODY, PendingBlocks, Shares
from gpud.device.cuda.placement.partitioner import GreenContext
from gpud.errors import GpudError, InternalError

if TYPE_CHECKING:
    from gpud.device.cuda.device import CUDADevice

__all__ = ["Gang"]


class Gang:
    """One run of a chain; see `gpud.device.interface.Gang`.

    Args:
        device: where.
        chain: what.
        priority: more than 0: its blocks get room before those of others.
        on_left: called after blocks have left, unless the gang is over.
        on_over: called once when it is over.
        partition: the SMs that are its own, and the only ones where it has blocks; None: it has
            none of its own.

    Attributes:
        urgent: whether its blocks get room before those of others.
        refused: why it can have no SMs of its own, so that it fails where it would begin.

    Both are called without any lock, on the watcher's thread or in `resize`, `end` and `kill`.
    """

    def __init__(
        self,
        device: CUDADevice,
        chain: Chain,
        priority: int,
        on_left: Callable[[], None],
        on_over: Callable[[], None],
        partition: GreenContext | None = None,
    ) -> None:
        self._device = device
        self.chain = chain
        self._on_left = on_left
        self._on_over = on_over
        self._partition = partition
        self.urgent = priority > 0
        self._tracker = RunTracker(device.launches, chain, self.urgent)
        self._launcher = Launcher(device, chain, self._tracker, self.urgent, partition)
        self.slices = 0
        self.error: GpudError | None = None
        self.refused: GpudError | None = None
        self.over = False
        self._ended = False
        self._final = (0, 0, chain.total)
        self._printed = (b"", b"")

    # -- for everybody

    def resize(self, slices: int) -> None:
        """Have ``slices`` slices from now on; returns at once.

        Raises:
            RuntimeError: the device is closed.
            DeviceLost: the context is dead.
        """
        with self._device.lock:
            if not self.over and not self._ended:
                self._device.check_open()
                self.slices = slices
                self._tracker.asked()
                self._attempt(self._settle)
        self._device.wake()

    def clear(self, sms: Collection[int]) -> None:
        """Have no blocks on these SMs from now on; and grow only when none is cleared any more.

        Raises:
            ValueError: an SM of such a number cannot be named.
        """
        cw.named_sms(sms)
        with self._device.lock:
            if not self.over and not self._ended:
                self._launcher.cleared = frozenset(sms)
                self._attempt(self._name)
        self._device.wake()

    def end(self) -> None:
        """Release everything and run nothing more; it is over when the last block has left."""
        with self._device.lock:
            if not self.over:
                self._ended = True
                self._attempt(self._stop)
        self._device.wake()

    def kill(self) -> None:
        """`end`, and have blocks that poll leave in the middle of their task block."""
        with self._device.lock:
            if not self.over:
                self._ended = True
                self._attempt(self._stop)
                self._attempt(self._kill)
        self._device.wake()

    @property
    def output(self) -> bytes:
        """What its blocks printed so far; made anew at each call.

        Plain launches print to this process's standard output instead.
        """
        with self._device.lock:
            run = self._tracker.run
            printed = self._printed if self.over or run is None else run.printed
        return printed_text(*printed)

    @property
    def progress(self) -> tuple[int, int, int]:
        """(claimed, done, total) task blocks of all launches."""
        with self._device.lock:
            return self._final if self.over else self._tracker.progress

    @property
    def complete(self) -> bool:
        """Whether every task block is done."""
        return self.progress[1] == self.chain.total

    @property
    def held(self) -> int:
        """Slices that its blocks occupy or will occupy, rounded up."""
        with self._device.lock:
            if self.over:
                return 0
            if self._device.watcher.holds(self) and self._launcher.has_room:
                return self.slices
            return self._launcher.held(self.slices, stopping=self._stopping)

    @property
    def exhausted(self) -> bool:
        """Whether `held` can only fall: the last launch is all claimed, or it was ended."""
        with self._device.lock:
            if self.over or self._stopping:
                return True
            if self._tracker.run is None:
                return False
            now = self._tracker.run.current
            return now == len(self.chain.stages) - 1 and self._tracker.all_claimed(now)

    @property
    def first_block_ns(self) -> int:
        """From the first `resize` to the first task block; 0: none has begun."""
        return self._tracker.first_block_ns

    @property
    def release_ns(self) -> int:
        """The longest time from a release to its last block gone so far."""
        return self._tracker.release_ns

    # -- for the device and the watcher, with the lock

    @property
    def pending(self) -> PendingBlocks | None:
        """Blocks of the stage that runs which are to come and have not; None: there are none."""
        if self.over or self._stopping or self._device.context.watchdog.stuck:
            return None  # the driver could not be called for it
        return self._launcher.pending

    @property
    def leaving(self) -> bool:
        """Whether blocks are there that leave: they were told to, or find nothing to claim."""
        return not self.over and self._tracker.leaving(exhausted=self.exhausted)

    @property
    def sm_usage(self) -> Shares:
        """What its blocks take of each SM that do not leave."""
        return NOBODY if self.exhausted else self._tracker.sm_usage

    def update_placement(self) -> None:
        """There is another partition, or one less; or what was held back may begin."""
        if not self._stopping and not self.over:
            self._attempt(self._name)

    def follow(self) -> None:
        """What kept it from the device does so no more, or something does: see `Quiescer`."""
        if not self._stopping and not self.over:
            self._attempt(self._settle)

    def poll(self) -> bool:
        """See which launches are over and which blocks have left; whether anything changed."""
        if self.over:
            self._device.watcher.remove(self)
            return False
        changed = self._attempt(self._poll)
        return True if changed is None else bool(changed)

    def lose(self, error: GpudError) -> None:
        """The device is lost; whatever was on it is gone."""
        if not self.over:
            self.error = error
            self.over = True
            if self._tracker.run is not None:
                self._printed = self._tracker.run.printed
            self._device.defer(self._tell_over)

    # -- running

    @property
    def _stopping(self) -> bool:
        return self._ended or self.error is not None

    def _attempt(self, what: Callable[[], Any]) -> Any:
        """Do it; what fails, ends the run. None if it failed."""
        try:
            return what()
        except GpudError as error:
            if error.code == "device-lost":
                raise
            self._fail(error)
        except DriverError as error:
            self._fail(InternalError(str(error), stage="device host, CUDA"))
        return None

    def _fail(self, error: GpudError) -> None:
        if self.error is None:
            self.error = error
        self._stop()

    @property
    def _usable(self) -> int:
        """Slices that it may use now: none while its session is to stand still."""
        return 0 if self._device.quiescer.holds(self.chain) else self.slices

    @property
    def _may_begin(self) -> bool:
        """Whether nothing keeps it from the device; else the watcher asks again."""
        stuck = self._device.context.watchdog.stuck
        return bool(self._usable) and not stuck and self._launcher.has_room

    def _settle(self) -> None:
        """Have what runs follow ``slices``."""
        if self._tracker.launches:
            self._launcher.adjust(self._usable)
        elif self.slices and self.refused is not None:
            raise self.refused
        elif self.slices and not self._may_begin:
            self._device.watcher.hold(self)
        elif self.slices:
            self._device.watcher.add(self)
            self._launcher.begin(self.slices)

    def _name(self) -> None:
        """Have blocks leave the SMs that are barred."""
        self._launcher.name()
        if self.slices:
            self._settle()

    def _stop(self) -> None:
        """Open nothing more and release everything."""
        self._launcher.stop()
        if not self._tracker.launches:
            self._finish()

    def _kill(self) -> None:
        """Tell blocks that poll to leave."""
        if not self.over:
            self._launcher.kill()

    # -- what has happened

    def _poll(self) -> bool:
        tracker = self._tracker
        tracker.poll()
        changed = tracker.reap()
        if not tracker.launches:
            self._device.watcher.remove(self)
            self._drained()
        elif not self._stopping and self._usable:
            self._launcher.follow(self._usable)
        changed |= tracker.count()
        if changed and not self.over:
            self._device.defer(self._left)
        return changed

    def _drained(self) -> None:
        """Nothing is on the device: what the job record says is final."""
        tracker = self._tracker
        tracker.stalled = False
        run = tracker.on_device
        now, record = run.current, run.record(run.current)
        if self.error is None:
            self.error = failure_of(record, self, now)
        tracker.drained(record, stopping=self._stopping)
        if self._stopping or tracker.due == len(self.chain.stages):
            self._finish()
        else:
            self._settle()

    def _finish(self) -> None:
        """Nothing is on the device and nothing will be."""
        if self.over:
            return
        tracker = self._tracker
        try:
            self._final = tracker.progress
            if not self._final[0]:
                tracker.first_block_ns = 0  # blocks that began were told to release at once
        except DriverError as error:
            self.error = self.error or InternalError(str(error), stage="device host, CUDA")
        tracker.ended()
        self._device.watcher.remove(self)
        if tracker.run is not None:
            run, tracker.run = tracker.run, None
            self._printed = run.printed
            run.close()
        self._be_over()

    def _be_over(self) -> None:
        self.over = True
        if self._partition is not None:
            self._device.give_partition(self._partition)
        self._device.defer(self._tell_over)

    def _tell_over(self) -> None:
        """Call ``on_over``, the last that is called."""
        on_over = self._on_over
        # Whoever is called has this gang: a ring of each job would be left to the collector.
        self._on_left = self._on_over = _nothing
        on_over()

    def _left(self) -> None:
        if not self.over:
            self._on_left()


def _nothing() -> None:
    """Nobody is to hear of it any more."""
