"""A run that a test waits for: sizes, progress and the result of one execution on a device.

The device host drives `gpud.device.interface.Run` with callbacks. Tests and benchmarks in the same
process want to wait, to raise what the run failed with, and to start from a list of launches.

Thread-safe, as the run is.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable, Collection, Sequence
from typing import Any

from gpud.device.interface import Device, LaunchSequence, LaunchSpec, Run
from gpud.errors import GpudError

Progress = tuple[int, int, int]
"""(task blocks claimed, task blocks done, task blocks in all)."""


class ResizableRun:
    """One execution of a sequence. No block starts before the first `resize`.

    Args:
        device: where it runs.
        launches: the launches, or a sequence from `Device.prepare`, which starts quicker.
        occupancy: M of the sequence; None: the least occupancy of its launches.
        priority: larger is more urgent.
        exclusive: number of whole SMs that are this run's alone until it is over.
        on_left: called with this object after blocks have left, unless the run is over; on a thread
            of the device, without any lock. Must be cheap.
        on_done: called once with this object when the run is over; on a thread of the device or in
            `resize` or `end`, without any lock.

    Raises:
        LaunchConfigError, KernelRejected, ValueError: as `Device.prepare`.
        InvalidArgument: the device cannot reserve this many SMs for the run.
    """

    __slots__ = ("_finished", "_left", "_on_done", "_run", "device", "sequence")

    def __init__(
        self,
        device: Device,
        launches: Sequence[LaunchSpec] | LaunchSequence,
        *,
        occupancy: int | None = None,
        priority: int = 0,
        exclusive: int = 0,
        on_left: Callable[[ResizableRun], None] | None = None,
        on_done: Callable[[ResizableRun], None] | None = None,
    ) -> None:
        if isinstance(launches, list | tuple):
            sequence: Any = device.prepare(launches, occupancy)
        else:
            sequence = launches
        self.device = device
        self.sequence = sequence
        self._left = on_left
        self._on_done = on_done
        # Held until the run is over: cheaper than an Event, which few need.
        self._finished = _thread.allocate_lock()
        self._finished.acquire()
        self._run: Run = device.new_run(
            sequence, priority, self._blocks_left, self._over, exclusive
        )

    # -- the run's own

    @property
    def slices(self) -> int:
        """Slices allotted by the last `resize`."""
        return self._run.slices

    @property
    def held(self) -> int:
        """Slices that its blocks occupy or will occupy, rounded up."""
        return self._run.held

    @property
    def exhausted(self) -> bool:
        """Whether `held` can only fall."""
        return self._run.exhausted

    @property
    def progress(self) -> Progress:
        """(claimed, done, total) task blocks."""
        return self._run.progress

    @property
    def complete(self) -> bool:
        """Whether every task block ran to its end."""
        return self._run.complete

    @property
    def error(self) -> GpudError | None:
        """What it failed with, or ``None``."""
        error: GpudError | None = self._run.error
        return error

    @property
    def output(self) -> bytes:
        """What its kernels have printed so far."""
        return self._run.output

    @property
    def first_block_ns(self) -> int:
        """Time from the first `resize` to the first task block; 0: none has begun."""
        return self._run.first_block_ns

    @property
    def release_ns(self) -> int:
        """The longest release; 0: none."""
        return self._run.release_ns

    def resize(self, slices: int) -> None:
        """Set the number of slices; returns at once."""
        self._run.resize(slices)

    def limit(self, quota: int) -> None:
        """Let it do no more work than so many slices can; returns at once."""
        self._run.limit(quota)

    def stop(self) -> None:
        """`resize` to 0: running task blocks end, unclaimed ones are left."""
        self._run.resize(0)

    def clear(self, sms: Collection[int]) -> None:
        """Vacate these SMs and keep off them."""
        self._run.clear(sms)

    def end(self) -> None:
        """Release all blocks and start none."""
        self._run.end()

    def kill(self) -> None:
        """`end`, and have running blocks leave in the middle of a task block, if they can."""
        self._run.kill()

    # -- what it adds

    @property
    def total(self) -> int:
        """Task blocks in all."""
        total: int = self.sequence.total
        return total

    @property
    def done(self) -> bool:
        """Whether the run is over: it ran to its end, failed, or was ended."""
        return not self._finished.locked()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run is over, at most ``timeout`` seconds; returns whether it is."""
        finished = self._finished
        if finished.acquire(timeout=-1 if timeout is None else timeout):
            finished.release()
            return True
        return False

    def result(self, timeout: float | None = None) -> None:
        """`wait`, then raise what the run failed with.

        Raises:
            TimeoutError: not over after ``timeout`` seconds.
            JobError: the run failed.
        """
        if not self.wait(timeout):
            claimed, done, total = self.progress
            raise TimeoutError(
                f"{self.sequence.launches[0].name} is not done after {timeout} s: {claimed} of "
                f"{total} task blocks claimed, {done} done, {self.slices} slices allotted"
            )
        if self._run.error is not None:
            raise self._run.error

    def _blocks_left(self) -> None:
        left = self._left
        if left is not None:
            left(self)

    def _over(self) -> None:
        on_done = self._on_done
        self._left = self._on_done = None  # the callbacks mostly refer to this: break the cycle
        self._finished.release()
        if on_done is not None:
            on_done(self)
