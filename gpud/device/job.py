"""A job on a device: a sequence of launches whose number of resident blocks can change as it runs.

Problem: a job's owner decides how much of the device it has. The job must apply each change while
it runs, lose no task block, run none twice, and report its progress and what it occupies at any
time.

Approach: the device implements this close to where the blocks run (`gpud.device.interface.Run`),
and the device host uses that alone. A `Job` adds what tests, benchmarks and other owners in the
same process need: checked sizes, waiting, the result.

Terms: a job has n *slices* of 1/M CapSM. M is the least occupancy of its launches; launch k, with
an occupancy of M_k, has ``n * M_k // M`` blocks. For one launch that is n.

Properties:
* every task block of every launch is claimed once, whenever the job is resized;
* the task blocks of a launch begin after all task blocks of the previous launch have ended;
* after `stop` exactly the unclaimed task blocks are left, and `resize` runs them;
* `progress` never decreases, and ends at (total, total) for a job that ran to its end.

Thread-safe: a scheduler may resize from one thread while blocks leave on others.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable, Collection, Sequence
from typing import Any

from gpud.device.interface import Device, Form, LaunchSequence, LaunchSpec, Run
from gpud.errors import GpudError

__all__ = ["Form", "Job", "LaunchSpec", "Progress"]

Progress = tuple[int, int, int]
"""(task blocks claimed, task blocks done, task blocks in all)."""


class Job:
    """A sequence of launches, run one after the other by a variable number of resident blocks.

    No block starts before the first `resize`.

    Args:
        device: the device on which it runs.
        launches: its launches, or a sequence from `Device.prepare`, which starts quicker.
        occupancy: M of the job; default: the least occupancy of its launches.
        priority: larger is more urgent.
        exclusive: number of whole SMs reserved for the job until it is done; it runs on no others.
            `gpud.units.Partitions` says how many the device allows.
        on_left: called with the job after blocks of it have left, unless it is over; on a thread
            of the device, without any lock. Must be cheap.
        on_done: called once with the job when it is over; on a thread of the device or in `resize`
            or `end`, without any lock.

    Raises:
        LaunchConfigError: a grid or block is malformed or too large for the device.
        KernelRejected: a kernel uses something that the device does not support.
        ValueError: the size of a parameter buffer is not the kernel's.
        InvalidArgument: the device cannot reserve this many SMs for the job.
    """

    __slots__ = ("_done", "_finished", "_left", "_run", "device", "sequence")

    def __init__(
        self,
        device: Device,
        launches: Sequence[LaunchSpec] | LaunchSequence,
        *,
        occupancy: int | None = None,
        priority: int = 0,
        exclusive: int = 0,
        on_left: Callable[[Job], None] | None = None,
        on_done: Callable[[Job], None] | None = None,
    ) -> None:
        if isinstance(launches, list | tuple):
            sequence: Any = device.prepare(launches, occupancy)
        else:
            sequence = launches
        self.device = device
        self.sequence = sequence
        self._left = on_left
        self._done = on_done
        # Held until the job is over: cheaper than an Event, which few jobs need.
        self._finished = _thread.allocate_lock()
        self._finished.acquire()
        self._run: Run = device.new_run(
            sequence, priority, self._blocks_left, self._over, exclusive
        )

    # -- for the scheduler

    @property
    def slices(self) -> int:
        """Slices allotted to the job by the last `resize`."""
        return self._run.slices

    @property
    def held(self) -> int:
        """Slices that its blocks occupy, or will occupy when there is room; rounded up.

        Released blocks count until they have left.
        """
        return self._run.held

    @property
    def exhausted(self) -> bool:
        """Whether `held` can only fall: the last launch is all claimed, or the job was ended."""
        return self._run.exhausted

    @property
    def progress(self) -> Progress:
        """(claimed, done, total) task blocks, readable at any moment."""
        return self._run.progress

    def resize(self, slices: int) -> None:
        """Set the job's number of slices; 0 stops it until the next call.

        Returns at once: blocks leave at their next task block, new ones start as there is room.
        Once the job is over it does nothing.

        Raises:
            ValueError: a negative number.
        """
        if slices < 0:
            raise ValueError(f"a job has 0 or more slices, not {slices}")
        self._run.resize(slices)

    def stop(self) -> None:
        """`resize` to 0: running task blocks end, unclaimed ones stay in the job."""
        self._run.resize(0)

    def clear(self, sms: Collection[int]) -> None:
        """Vacate these SMs and keep off them; see `gpud.device.interface.Run.clear`.

        Raises:
            ValueError: there is no such SM.
        """
        self._run.clear(sms)

    def end(self) -> None:
        """Release all blocks and start none; the job is done when the last one has left."""
        self._run.end()

    def kill(self) -> None:
        """`end`, and have running blocks leave in the middle of a task block, if they can."""
        self._run.kill()

    # -- its result

    @property
    def done(self) -> bool:
        """Whether the job is over: it ran to its end, failed, or was ended."""
        return not self._finished.locked()

    @property
    def complete(self) -> bool:
        """Whether every task block ran to its end."""
        return self._run.complete

    @property
    def error(self) -> GpudError | None:
        """What the job failed with, or ``None``."""
        error: GpudError | None = self._run.error
        return error

    @property
    def output(self) -> bytes:
        """What its kernels have printed so far."""
        return self._run.output

    @property
    def total(self) -> int:
        """Task blocks in all."""
        total: int = self.sequence.total
        return total

    @property
    def first_block_ns(self) -> int:
        """Time from the first `resize` to the first task block; 0: none has begun."""
        return self._run.first_block_ns

    @property
    def release_ns(self) -> int:
        """The longest release: from the request until the last released block had left; 0: none."""
        return self._run.release_ns

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the job is done, at most ``timeout`` seconds; returns whether it is."""
        finished = self._finished
        if finished.acquire(timeout=-1 if timeout is None else timeout):
            finished.release()
            return True
        return False

    def result(self, timeout: float | None = None) -> None:
        """`wait`, then raise what the job failed with.

        Raises:
            TimeoutError: not done after ``timeout`` seconds.
            JobError: the job failed.
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
        done = self._done
        self._left = self._done = None  # the callbacks mostly refer to this job: break the cycle
        self._finished.release()
        if done is not None:
            done(self)
