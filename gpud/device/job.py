"""A kernel whose number of resident blocks can change while it runs, on any device.

Problem: the scheduler decides how many persistent blocks a job has; the job must follow at any
moment, lose no task block, run none twice, and tell at any time how far it is.

Approach: one job record in device memory holds the claim counter that all launches of the job
share. Growing is another launch on that record. Shrinking lowers the ``limit`` words of launches,
newest first; each persistent block whose index is no longer below its launch's limit leaves before
it claims again. A job in sliced form is a chain of sub-grids, each sized to the blocks that the job
has when it begins.

Terms: see `gpud.compiler.control_words`; *blocks* are persistent blocks (allocation times M).

Properties:
* every task block is claimed once, whatever is resized when;
* after `stop` exactly the unclaimed task blocks are left, and `resize` runs them;
* `progress` never goes back, and ends at (total, total) for a job that was not failed.

Thread-safe: a scheduler may resize from one thread while launches end on others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from gpud.compiler import control_words as cw
from gpud.device.interface import Device, LaunchHandle, as_dim3, pack_parameters
from gpud.errors import GpudError, KernelTrap, LaunchConfigError

__all__ = ["Form", "Job", "Progress"]

Form = Literal["persistent", "sliced", "whole", "unmodified"]
Progress = tuple[int, int, int]
"""(task blocks claimed, task blocks done, task blocks in the grid)."""


class _Run:
    """One launch of a job and its launch record."""

    def __init__(self, blocks: int, base: int = 0) -> None:
        self.blocks = blocks
        self.base = base
        self.limit = blocks
        self.memory: Any = None
        self.record: Any = None
        self.handle: LaunchHandle | None = None
        self.ended = False

    def set_limit(self, limit: int) -> None:
        self.limit = limit
        self.record["limit"] = limit


class Job:
    """One grid of task blocks, run by as many blocks as it is given.

    Nothing runs before the first `resize`.

    Args:
        device: where it runs.
        kernel: a rewritten kernel of a module that is loaded there.
        form: what the rewriter made of it. ``unmodified`` is a plain launch of the whole grid, for
            tests and as a baseline; like ``whole`` it cannot be resized once it runs.
        grid: task blocks, an int or up to three.
        block: threads of a block, likewise.
        values: one ``bytes`` for each parameter of the kernel as it was before rewriting.
        shared: dynamic shared memory of a block, in bytes.
        priority: larger is more urgent.
        on_done: called once, on a thread of the device, when no more will happen.

    Raises:
        LaunchConfigError: the grid or block is malformed or too large.
        ValueError: the number of values, or the size of one, is not the kernel's.
    """

    def __init__(
        self,
        device: Device,
        kernel: Any,
        form: Form,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        values: list[bytes],
        *,
        shared: int = 0,
        priority: int = 0,
        on_done: Callable[[Job], None] | None = None,
    ) -> None:
        self.device = device
        self.kernel = kernel
        self.form: Form = form
        self.grid = as_dim3("grid", grid)
        self.block = as_dim3("block", block)
        self.shared = shared
        self.priority = priority
        self.total = self.grid[0] * self.grid[1] * self.grid[2]
        if self.total > cw.MAX_TASK_BLOCKS:
            raise LaunchConfigError(
                "grid",
                self.grid,
                f"{self.total} task blocks are over {cw.MAX_TASK_BLOCKS}; split the work into jobs",
                limit=cw.MAX_TASK_BLOCKS,
            )
        self._values = list(values)
        self._rewritten = form in ("persistent", "sliced")
        # Fail on bad arguments now, not at the first launch.
        self._pack(0)
        self._on_done = on_done
        self._lock = threading.RLock()
        self._finished = threading.Event()
        self._runs: list[_Run] = []
        self._wanted = 0
        self._base = 0
        self._error: GpudError | None = None
        self.output = b""
        self._memory = device.allocate(cw.JOB_BYTES)
        self._memory.view[:] = np.frombuffer(cw.job_record(self.grid), np.uint8)
        self._record = self._memory.view.view(np.dtype(cw.JOB_RECORD))[0:1][0]

    # -- what a scheduler does with it

    @property
    def blocks(self) -> int:
        """Persistent blocks that the job is to have now."""
        return self._wanted

    @property
    def live(self) -> int:
        """Persistent blocks that have not left yet, those told to release included."""
        with self._lock:
            if self.form != "persistent":
                return sum(run.blocks for run in self._runs)
            return sum(int(run.record["live"]) for run in self._runs)

    @property
    def progress(self) -> Progress:
        """(claimed, done, total) task blocks, readable at any moment."""
        with self._lock:
            if self.form == "persistent":
                done = int(self._record["done"])
                claimed = min(int(self._record["next"]), self.total)
                return claimed, min(done, claimed), self.total
            if self.form == "sliced":
                running = sum(run.blocks for run in self._runs)
                return self._base, self._base - running, self.total
            started = self.total if self._runs or self.done else 0
            return started, self.total if self.done else 0, self.total

    def resize(self, blocks: int) -> None:
        """Give the job ``blocks`` persistent blocks from now on; 0 stops it where it is.

        Returns at once: blocks leave at their next task block, new ones start as there is room.

        Raises:
            ValueError: a negative number.
        """
        if blocks < 0:
            raise ValueError(f"a job has 0 or more blocks, not {blocks}")
        with self._lock:
            if self._finished.is_set():
                return
            before, self._wanted = self._wanted, blocks
            try:
                if self.form == "persistent":
                    self._resize_persistent(blocks)
                elif self.form == "sliced":
                    self._next_slice()
                elif blocks and not self._base:
                    self._launch(_Run(self.total), self.grid)
                    self._base = self.total
            except Exception:
                self._wanted = before
                raise
            ended = self._check_done()
        if ended:
            self._tell()

    def stop(self) -> None:
        """`resize` to 0: running task blocks end, unclaimed ones stay in the job."""
        self.resize(0)

    @property
    def done(self) -> bool:
        """Whether nothing more will happen: all task blocks are done, or the job failed."""
        return self._finished.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block up to ``timeout`` seconds until the job is done; whether it is."""
        return self._finished.wait(timeout)

    def result(self, timeout: float | None = None) -> None:
        """`wait`, then raise what the job failed with.

        Raises:
            TimeoutError: not done after ``timeout`` seconds.
            JobError: the job failed.
        """
        if not self._finished.wait(timeout):
            claimed, done, total = self.progress
            raise TimeoutError(
                f"{self.kernel.name} is not done after {timeout} s: {claimed} of {total} task "
                f"blocks claimed, {done} done, {self._wanted} blocks allotted"
            )
        if self._error is not None:
            raise self._error

    # -- persistent form

    def _resize_persistent(self, blocks: int) -> None:
        present = sum(run.limit for run in self._runs)
        for run in reversed(self._runs):
            if present <= blocks:
                break
            kept = max(0, run.limit - (present - blocks))
            present -= run.limit - kept
            run.set_limit(kept)
        left = self.total - min(int(self._record["next"]), self.total)
        more = min(blocks - present, left)
        if more > 0:
            self._launch(_Run(more), (more, 1, 1))

    # -- sliced form

    def _next_slice(self) -> None:
        if self._runs or self._base >= self.total or not self._wanted or self._error:
            return
        size = min(self._wanted, self.total - self._base)
        self._launch(_Run(size, self._base), (size, 1, 1))
        self._base += size

    # -- launches

    def _launch(self, run: _Run, grid: tuple[int, int, int]) -> None:
        run.memory = self.device.allocate(cw.LAUNCH_BYTES)
        run.memory.view[:] = np.frombuffer(
            cw.launch_record(self._memory.address, run.blocks, base=run.base), np.uint8
        )
        run.record = run.memory.view.view(np.dtype(cw.LAUNCH_RECORD))[0:1][0]
        self._runs.append(run)
        try:
            run.handle = self.device.launch(
                self.kernel,
                grid,
                self.block,
                self._pack(run.memory.address),
                shared=self.shared,
                priority=self.priority,
                on_done=lambda handle: self._ended(run, handle),
            )
        except Exception:
            self._runs.remove(run)
            raise

    def _pack(self, control: int) -> bytes:
        values = self._values
        if self._rewritten:
            values = [*values, control.to_bytes(8, "little")]
        try:
            return pack_parameters(self.kernel.parameters, values)
        except ValueError as error:
            if not self._rewritten or len(values) == len(self.kernel.parameters):
                raise
            expected = len(self.kernel.parameters) - 1
            raise ValueError(
                f"{self.kernel.name} takes {expected} arguments, not {len(self._values)}"
            ) from error

    def _ended(self, run: _Run, handle: Any) -> None:
        """A launch's last block has left. On a thread of the device."""
        with self._lock:
            run.ended = True
            self._runs.remove(run)
            self.output += handle.output
            if handle.error is not None and self._error is None:
                self._error = self._located(run, handle.error)
                for other in self._runs:
                    if self.form == "persistent":
                        other.set_limit(0)
            if self.form == "sliced":
                self._next_slice()
            ended = self._check_done()
        if ended:
            self._tell()

    def _located(self, run: _Run, error: GpudError) -> GpudError:
        """``error`` with the task block in place of the launch's raw block."""
        if not self._rewritten or not isinstance(error, KernelTrap):
            return error
        place = None  # which task block a persistent block was running is not recorded
        if self.form == "sliced" and error.task_block is not None:
            place = cw.coordinates(run.base + error.task_block[0], self.grid)
        return KernelTrap(error.cause, kernel=error.kernel, line=error.line, task_block=place)

    def _check_done(self) -> bool:
        """Whether the job has just ended; `_tell` is the caller's then, without the lock."""
        if self._runs or self._finished.is_set():
            return False
        if self._error is None:
            if self.form == "persistent":
                complete = int(self._record["next"]) >= self.total
            else:
                complete = self._base >= self.total
            if not complete:
                if self.form == "persistent" and self._wanted > 0:
                    # Released blocks left task blocks behind that nobody present will claim.
                    self._resize_persistent(self._wanted)
                return False
        self._finished.set()
        return True

    def _tell(self) -> None:
        if self._on_done is not None:
            self._on_done(self)
