"""A chain of launches whose number of resident blocks can change while it runs, on any device.

Problem: the scheduler decides how much of the device a job has; the job must follow at any moment,
lose no task block, run none twice, and tell at any time how far it is and what it occupies.

Approach: the device does it, close to where the blocks run (`gpud.device.interface.Gang`). A `Job`
adds what its owner needs: waiting, one callback when it is over, the result.

Terms: a job has n *slices* of 1/M CapSM. M is the least occupancy of its launches; launch k, with
an occupancy of M_k, has ``n * M_k // M`` blocks. For one launch that is n.

Properties:
* every task block of every launch is claimed once, whatever is resized when;
* a launch's task blocks begin after all of the launch before have ended;
* after `stop` exactly the unclaimed task blocks are left, and `resize` runs them;
* `progress` never goes back, and ends at (total, total) for a job that ran to its end.

Thread-safe: a scheduler may resize from one thread while blocks leave on others.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable, Collection, Sequence
from typing import Any

from gpud.device.interface import Chain, Device, Form, Gang, LaunchSpec
from gpud.errors import GpudError

__all__ = ["Form", "Job", "LaunchSpec", "Progress"]

Progress = tuple[int, int, int]
"""(task blocks claimed, task blocks done, task blocks in all)."""


class Job:
    """Launches, run one after the other by as many blocks as the job is given.

    Nothing runs before the first `resize`.

    Args:
        device: where it runs.
        launches: what it runs; or what `Device.prepare` made of that, which starts quicker.
        occupancy: M of the job; default: the least of its launches'.
        priority: larger is more urgent.
        exclusive: so many whole SMs are the job's alone until it is done, and it runs on no others;
            what `gpud.device.interface.Partitions` allows.
        on_left: called with the job after blocks of it have left, unless it is over; on a thread
            of the device, without any lock. Must be cheap.
        on_done: called once with the job when nothing more will happen, likewise.

    Raises:
        LaunchConfigError: a grid or block is malformed or too large for the device.
        KernelRejected: a kernel uses something that the device does not run.
        ValueError: the size of a parameter buffer is not the kernel's.
        InvalidArgument: so many SMs cannot be the job's alone.
    """

    __slots__ = ("_done", "_finished", "_gang", "_left", "chain", "device")

    def __init__(
        self,
        device: Device,
        launches: Sequence[LaunchSpec] | Chain,
        *,
        occupancy: int | None = None,
        priority: int = 0,
        exclusive: int = 0,
        on_left: Callable[[Job], None] | None = None,
        on_done: Callable[[Job], None] | None = None,
    ) -> None:
        if isinstance(launches, list | tuple):
            chain: Any = device.prepare(launches, occupancy)
        else:
            chain = launches
        self.device = device
        self.chain = chain
        self._left = on_left
        self._done = on_done
        # Held until the job is over: cheaper than an Event, which few jobs need.
        self._finished = _thread.allocate_lock()
        self._finished.acquire()
        self._gang: Gang = device.gang(chain, priority, self._blocks_left, self._over, exclusive)

    # -- what a scheduler does with it

    @property
    def slices(self) -> int:
        """Slices that the job is to have now."""
        return self._gang.slices

    @property
    def held(self) -> int:
        """Slices that its blocks occupy, or will occupy when there is room; rounded up.

        Blocks that were told to release count until they have left.
        """
        return self._gang.held

    @property
    def exhausted(self) -> bool:
        """Whether `held` can only fall: all of the last launch is claimed, or the job was ended."""
        return self._gang.exhausted

    @property
    def progress(self) -> Progress:
        """(claimed, done, total) task blocks, readable at any moment."""
        return self._gang.progress

    def resize(self, slices: int) -> None:
        """Give the job ``slices`` slices from now on; 0 stops it where it is.

        Returns at once: blocks leave at their next task block, new ones start as there is room.
        After the end of the job it does nothing.

        Raises:
            ValueError: a negative number.
        """
        if slices < 0:
            raise ValueError(f"a job has 0 or more slices, not {slices}")
        self._gang.resize(slices)

    def stop(self) -> None:
        """`resize` to 0: running task blocks end, unclaimed ones stay in the job."""
        self._gang.resize(0)

    def clear(self, sms: Collection[int]) -> None:
        """Have no blocks on these SMs from now on; see `gpud.device.interface.Gang.clear`.

        Raises:
            ValueError: there is no such SM.
        """
        self._gang.clear(sms)

    def end(self) -> None:
        """Release all blocks and run no more; the job is done when the last has left."""
        self._gang.end()

    def kill(self) -> None:
        """`end`, and have running blocks leave in the middle of a task block, if they can."""
        self._gang.kill()

    # -- what came of it

    @property
    def done(self) -> bool:
        """Whether nothing more will happen: it ran to its end, failed, or was ended."""
        return not self._finished.locked()

    @property
    def complete(self) -> bool:
        """Whether every task block ran to its end."""
        return self._gang.complete

    @property
    def error(self) -> GpudError | None:
        """What the job failed with, or ``None``."""
        error: GpudError | None = self._gang.error
        return error

    @property
    def output(self) -> bytes:
        """What its kernels printed so far."""
        return self._gang.output

    @property
    def total(self) -> int:
        """Task blocks in all."""
        total: int = self.chain.total
        return total

    @property
    def first_block_ns(self) -> int:
        """From the first `resize` to the first task block; 0: none has begun."""
        return self._gang.first_block_ns

    @property
    def release_ns(self) -> int:
        """The longest time from a release to its last block gone; 0 without a release."""
        return self._gang.release_ns

    def wait(self, timeout: float | None = None) -> bool:
        """Block up to ``timeout`` seconds until the job is done; whether it is."""
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
                f"{self.chain.launches[0].name} is not done after {timeout} s: {claimed} of "
                f"{total} task blocks claimed, {done} done, {self.slices} slices allotted"
            )
        if self._gang.error is not None:
            raise self._gang.error

    def _blocks_left(self) -> None:
        left = self._left
        if left is not None:
            left(self)

    def _over(self) -> None:
        done = self._done
        self._left = self._done = None  # whoever is called mostly has this job
        self._finished.release()
        if done is not None:
            done(self)
