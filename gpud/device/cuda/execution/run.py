"""A run: one execution of a sequence on the GPU, by as many resident blocks as it has slices.

Problem: the scheduler decides how many slices a job has; its resident blocks must follow while they
run, no task block may be lost or run twice, and the slices that the job occupies must be known.

Approach: `gpud.device.cuda.execution.tracker` tracks what is on the device;
`gpud.device.cuda.execution.launcher` begins and shrinks launches. The run decides when: at each
`CUDARun.resize`, and when the watcher sees that a launch has finished. When all launches have
finished, the job record says which task blocks are left, and the run begins the launch again for
those.

Properties:
* ``at once``: a smaller number of slices reaches the blocks before the device's lock is waited for,
  where the release path makes no driver call;
* the run is over when no launch is left and nothing is left to do, or it was ended or has failed;
* whatever call fails, the run ends with an error, or the device is lost.

The device's lock guards all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from gpud.compiler.abi import control_words as cw
from gpud.device.cuda.driver.calls import DriverError
from gpud.device.cuda.execution.failure import failure_of
from gpud.device.cuda.execution.launcher import Launcher
from gpud.device.cuda.execution.run_context import RunContext
from gpud.device.cuda.execution.tracker import RunTracker
from gpud.device.cuda.launch.output import printed_text
from gpud.device.cuda.launch.sequence import CUDASequence
from gpud.device.cuda.placement.compaction import NO_USAGE, PendingBlocks, SMUsage
from gpud.device.cuda.placement.green_context import GreenContext
from gpud.errors import GpudError, InternalError

__all__ = ["CUDARun"]


class CUDARun:
    """One execution of a sequence; see `gpud.device.interface.Run`.

    Args:
        device: what it knows of the device that it runs on.
        priority: more than 0: its streams have the highest priority.
        on_left: called after blocks have left, unless the run is over.
        on_over: called once when it is over.
        partition: the SMs that it has exclusively, and the only ones that it uses; None: it shares
            SMs with others.
        keeps: whether somebody else gives these SMs back.

    Attributes:
        urgent: whether its streams have the highest priority.
        refused: why it can have no partition; it fails with this where it would begin.

    Both callbacks are called without any lock, on the watcher's thread or in `resize`, `end` and
    `kill`.
    """

    def __init__(
        self,
        device: RunContext,
        sequence: CUDASequence,
        priority: int,
        on_left: Callable[[], None],
        on_over: Callable[[], None],
        partition: GreenContext | None = None,
        *,
        keeps: bool = False,
    ) -> None:
        self._device = device
        self.sequence = sequence
        self._on_left = on_left
        self._on_over = on_over
        self._partition = partition
        self._keeps = keeps
        self.urgent = priority > 0
        self._tracker = RunTracker(device.resources.launches, sequence, self.urgent)
        self._launcher = Launcher(device, sequence, self._tracker, self.urgent, partition)
        self.slices = 0
        self.error: GpudError | None = None
        self.refused: GpudError | None = None
        self.over = False
        self._ended = self._retired = False
        self._failed_at: int | None = None
        self._final = (0, 0, sequence.total)
        self._printed = (b"", b"")

    # -- the interface

    def limit(self, quota: int) -> None:
        """Do nothing: a GPU's blocks run side by side, and a quota is how many there are."""

    def resize(self, slices: int) -> None:
        """Set the number of slices; returns at once.

        Raises:
            RuntimeError: the device is closed.
            DeviceLost: the context is dead.
        """
        lowered = False
        if slices < self.slices and not self.over and not self._ended:
            self.slices = slices  # so that nobody grows it again meanwhile
            lowered = self._launcher.lower_at_once(slices)
        with self._device.lock:
            if not self.over and not self._ended:
                self._device.check_open()
                self.slices = slices
                self._tracker.requested()
                if lowered:
                    self._tracker.released()
                self._attempt(self._apply_slices)
        self._device.watcher.notify()

    def clear(self, sms: Collection[int]) -> None:
        """Keep blocks off these SMs from now on; while any SM is cleared the run does not grow.

        Raises:
            ValueError: the bitmap has no bit for such an SM.
        """
        cw.named_sms(sms)
        with self._device.lock:
            if not self.over and not self._ended:
                self._launcher.cleared = frozenset(sms)
                self._attempt(self._update_bars)
        self._device.watcher.notify()

    def end(self) -> None:
        """Release all blocks and begin nothing more; it is over when the last block has left."""
        with self._device.lock:
            if not self.over:
                self._ended = True
                self._attempt(self._stop)
        self._device.watcher.notify()

    def kill(self) -> None:
        """Do `end`, and have blocks with kill polls leave in the middle of their task block."""
        with self._device.lock:
            if not self.over:
                self._ended = True
                self._attempt(self._stop)
                self._attempt(self._kill)
        self._device.watcher.notify()

    def retire(self) -> None:
        """Begin none of the launches that have not begun; it is over when the present one is."""
        with self._device.lock:
            if not self.over and not self._ended:
                self._retired = True
                tracker = self._tracker
                # Without slices the present launch may be half done, with nothing on the device.
                if tracker.launches or (tracker.records is not None and tracker.opened):
                    tracker.on_device.stop()
                else:
                    self._ended = True
                    self._attempt(self._stop)
        self._device.watcher.notify()

    @property
    def current(self) -> int:
        """The number of the launch that runs, or ran last; those before it are done."""
        with self._device.lock:
            tracker = self._tracker
            if self.over or tracker.records is None:
                return min(self.launches_done, len(self.sequence.prepared) - 1)
            return max(tracker.due, tracker.records.current)

    @property
    def launches_done(self) -> int:
        """How many launches, from the first on, are done; call when it is over."""
        return self._tracker.due if self._failed_at is None else self._failed_at

    @property
    def output(self) -> bytes:
        """What its blocks printed so far; formatted at each call.

        Plain launches print to this process's standard output instead.
        """
        with self._device.lock:
            records = self._tracker.records
            printed = self._printed if self.over or records is None else records.printed
        return printed_text(*printed)

    @property
    def progress(self) -> tuple[int, int, int]:
        """(claimed, done, total) task blocks of all launches."""
        with self._device.lock:
            return self._final if self.over else self._tracker.progress

    @property
    def complete(self) -> bool:
        """Whether every task block is done."""
        return self.progress[1] == self.sequence.total

    @property
    def held(self) -> int:
        """Slices that its blocks occupy or will occupy, rounded up."""
        with self._device.lock:
            if self.over:
                return 0
            if self._device.watcher.is_waiting(self) and self._launcher.has_room:
                return self.slices
            return self._launcher.occupied_slices(self.slices, stopping=self._stopping)

    @property
    def exhausted(self) -> bool:
        """Whether `held` can only fall: the last launch is all claimed, or it was ended."""
        with self._device.lock:
            if self.over or self._stopping:
                return True
            if self._tracker.records is None:
                return False
            now = self._tracker.records.current
            return now == len(self.sequence.prepared) - 1 and self._tracker.all_claimed(now)

    @property
    def first_block_ns(self) -> int:
        """From the first `resize` to the first task block; 0: none has begun."""
        return self._tracker.first_block_ns

    @property
    def release_ns(self) -> int:
        """The longest time from a release to its last block gone so far."""
        return self._tracker.release_ns

    @property
    def ways(self) -> dict[str, int]:
        """How its launches were queued: see `gpud.device.interface.Run`."""
        return dict(self._launcher.ways)

    # -- for the device and the watcher, with the lock

    @property
    def pending(self) -> PendingBlocks | None:
        """Blocks of the current launch that have not begun; None: there are none."""
        if self.over or self._stopping or self._device.resources.context.watchdog.stuck:
            return None  # the driver could not be called for it
        return self._launcher.pending

    @property
    def leaving(self) -> bool:
        """Whether resident blocks are about to leave: released, or with nothing to claim."""
        return not self.over and self._tracker.leaving(exhausted=self.exhausted)

    @property
    def sm_usage(self) -> SMUsage:
        """What its blocks that are to stay take of each SM."""
        return NO_USAGE if self.exhausted else self._tracker.sm_usage

    def update_placement(self) -> None:
        """React to a change of partitions or barred SMs, or begin after waiting."""
        if not self._stopping and not self.over:
            self._attempt(self._update_bars)

    def reconsider(self) -> None:
        """Apply `slices` again after the session was quiesced or resumed: see `Quiescer`."""
        if not self._stopping and not self.over:
            self._attempt(self._apply_slices)

    def poll(self) -> bool:
        """Detect finished launches and blocks that have left; whether anything changed."""
        if self.over:
            self._device.watcher.remove(self)
            return False
        changed = self._attempt(self._poll)
        return True if changed is None else bool(changed)

    def lose(self, error: GpudError) -> None:
        """Be over with this error: the device is lost, with all launches."""
        if not self.over:
            self.error = error
            self.over = True
            if self._tracker.records is not None:
                self._printed = self._tracker.records.printed
            self._device.watcher.defer(self._notify_over)

    # -- running

    @property
    def _stopping(self) -> bool:
        return self._ended or self.error is not None

    def _attempt(self, what: Callable[[], Any]) -> Any:
        """Call ``what``, ending the run if it fails. None if it failed."""
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
        """Slices that it may use now: none while its session is quiesced."""
        return 0 if self._device.quiescer.is_quiesced(self.sequence) else self.slices

    @property
    def _may_begin(self) -> bool:
        """Whether it may begin now; if not, the watcher tries again."""
        stuck = self._device.resources.context.watchdog.stuck
        return bool(self._usable) and not stuck and self._launcher.has_room

    def _apply_slices(self) -> None:
        """Grow or shrink what runs to ``slices``, or begin."""
        if self._tracker.launches:
            self._launcher.adjust(self._usable)
        elif self.slices and self.refused is not None:
            raise self.refused
        elif self.slices and not self._may_begin:
            self._device.watcher.add_waiting(self)
        elif self.slices:
            self._device.watcher.add(self)
            self._launcher.begin(self.slices)

    def _update_bars(self) -> None:
        """Have blocks leave the SMs that are barred."""
        self._launcher.bar()
        if self.slices:
            self._apply_slices()

    def _stop(self) -> None:
        """Open no more launches and release all blocks."""
        self._launcher.stop()
        if not self._tracker.launches:
            self._finish()

    def _kill(self) -> None:
        """Have blocks with kill polls leave."""
        if not self.over:
            self._launcher.kill()

    # -- polling

    def _poll(self) -> bool:
        tracker = self._tracker
        tracker.poll()
        changed = tracker.reap()
        if not tracker.launches:
            self._device.watcher.remove(self)
            self._drained()
        elif not self._stopping and self._usable:
            self._launcher.advance(self._usable)
        changed |= tracker.count()
        if changed and not self.over:
            self._device.watcher.defer(self._notify_left)
        return changed

    def _drained(self) -> None:
        """Finish, or begin the rest: nothing is on the device, and the job record is final."""
        tracker = self._tracker
        tracker.stalled = False
        records = tracker.on_device
        now, record = records.current, records.final_record(records.current)
        if self.error is None:
            context, arenas = self._device.resources.context, self._device.arenas
            self.error = failure_of(record, self.sequence, now, context, arenas)
            if self.error is not None:
                self._failed_at = now
        tracker.drained(record, stopping=self._stopping)
        retired = self._retired and not tracker.opened
        if self._stopping or retired or tracker.due == len(self.sequence.prepared):
            self._finish()
        else:
            self._apply_slices()

    def _finish(self) -> None:
        """Keep the results and be over: nothing is on the device and nothing will be."""
        if self.over:
            return
        tracker = self._tracker
        try:
            self._final = tracker.progress
            if not self._final[0]:
                tracker.first_block_ns = 0  # blocks that began were released before any claim
        except DriverError as error:
            self.error = self.error or InternalError(str(error), stage="device host, CUDA")
        tracker.ended()
        self._device.watcher.remove(self)
        if tracker.records is not None:
            records, tracker.records = tracker.records, None
            self._printed = records.printed
            records.close()
        self._mark_over()

    def _mark_over(self) -> None:
        self.over = True
        if self._partition is not None and not self._keeps:
            self._device.give_partition(self._partition)
        self._device.watcher.defer(self._notify_over)

    def _notify_over(self) -> None:
        """Call ``on_over``, the last callback."""
        on_over = self._on_over
        # The callbacks reference this run: break the reference cycle.
        self._on_left = self._on_over = _no_callback
        on_over()

    def _notify_left(self) -> None:
        if not self.over:
            self._on_left()


def _no_callback() -> None:
    """Do nothing: the callback of a run that is over."""
