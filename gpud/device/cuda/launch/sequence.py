"""A sequence of launches prepared for the GPU, to be run any number of times.

Problem: a service submits the same hundred launches again and again. What does not change from run
to run (parameters, initial job records) is laid out once; what does is one block of device memory,
which one copy on the run's own stream initialises.

Terms: launches in persistent form follow each other on the
device (`gpud.device.cuda.launch.gate`); the others are *hosted*: the host starts each when all
before it is over, in sub-grids if it is sliced.

Properties:
* a sequence may run several times at once: each run has records of its own;
* a run begins with nothing claimed and nothing done; all launches but the first are closed;
* the number of task blocks per claim is what the launch asks for, or else follows from the block
  time in the kernel's last run (`gpud.device.claim_size`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np

from gpud.compiler.abi import control_words as cw
from gpud.compiler.abi.print_buffer import OUTPUT_RECORD_BYTES
from gpud.compiler.abi.reserved_names import kernel_of
from gpud.device.claim_size import choose_claims
from gpud.device.cuda.launch.gate import RUN_BYTES
from gpud.device.cuda.launch.launch_records import Slot
from gpud.device.cuda.launch.output import OutputBuffers
from gpud.device.cuda.launch.parameters import Parameters
from gpud.device.cuda.memory.pool import Pool
from gpud.device.cuda.program.module import CUDAKernel
from gpud.device.interface import REWRITTEN, Form, LaunchInfo, LaunchSpec, as_dim3
from gpud.device.launch_checks import (
    checked_grid,
    checked_occupancy,
    checked_parameters,
    own_parameters,
)

COPIES_AT: Final = 256
"""Offset in a run's host memory of the job records that the device copies there at the end."""

WINDOW: Final = 16
"""Launches queued at once: those behind the current one were launched before it grows."""

_SHORTEST_LOOK_NS: Final = 50_000
"""The watcher's shortest sleep; it doubles while nothing changes."""

assert COPIES_AT >= RUN_BYTES + OUTPUT_RECORD_BYTES

__all__ = ["COPIES_AT", "WINDOW", "CUDASequence", "Preparation", "PreparedLaunch"]

Dim3 = tuple[int, int, int]


class Preparation(NamedTuple):
    """What sequences of a device are prepared with.

    Attributes:
        sms: how many it has.
        host_blocks: memory for the initial records.
        output_buffers: for the output of kernels that print.
        occupancy: `gpud.device.cuda.device.CUDADevice.occupancy`.
    """

    sms: int
    host_blocks: Pool
    output_buffers: OutputBuffers
    occupancy: Callable[[CUDAKernel, Dim3, int], int]


class PreparedLaunch(NamedTuple):
    """A launch of the sequence.

    Attributes:
        form: how it is launched.
        block: threads in x, y, z.
        shared: dynamic shared memory of a block, in bytes.
        total: task blocks.
        occupancy: M of this launch.
        pointers: address of the array of pointers to its parameters.
        prints: whether it writes to the run's output buffer.
    """

    kernel: CUDAKernel
    form: Form
    grid: Dim3
    block: Dim3
    shared: int
    total: int
    occupancy: int
    pointers: int
    prints: bool


class CUDASequence:
    """Launches that run one after the other, as `gpud.device.interface.Device.prepare` says.

    Args:
        occupancy: M of the sequence; None: the least of its launches'.
        in_lane: whether the launches are a lane's, and no sequence to the user. M may be more than
            the least of theirs then, so that some slices are too few for a block.

    Attributes:
        launches: a description of each launch for messages.
        before: task blocks of all launches before each.
        total: task blocks in all.
        occupancy: M of the sequence.
        image: address of the initial records of a run, in page-locked memory.
        image_block: this memory.
        free_image: returns it when the sequence is garbage-collected.
        page_bytes: host memory that a run has of its own, from `COPIES_AT` on for its job records.
        record_bytes: size of these records: the job records, the output record if a kernel prints,
            and the bitmap of barred SMs.
        output: offset of the output record from the first job record; 0: no kernel prints.
        tunings: how often the number of task blocks per claim of a launch has changed.
        arenas: first addresses of the arenas that its kernels access.
        least_slices: with which each of its launches has a block.
    """

    def __init__(
        self,
        device: Preparation,
        specs: Sequence[LaunchSpec],
        occupancy: int | None = None,
        *,
        in_lane: bool = False,
    ) -> None:
        if not specs:
            raise ValueError("a job has one launch or more")
        self._sms = device.sms
        self.in_lane = in_lane
        self.parameter_table = Parameters(specs)
        self.prepared = [
            _prepared(device, spec, self.parameter_table.pointers(index))
            for index, spec in enumerate(specs)
        ]
        self.launches = tuple(
            LaunchInfo(kernel_of(prepared.kernel.name), prepared.form, prepared.grid)
            for prepared in self.prepared
        )
        measured = [prepared.occupancy for prepared in self.prepared]
        self.occupancy = (
            occupancy if in_lane and occupancy else checked_occupancy(measured, occupancy)
        )
        self.least_slices = max(-(-self.occupancy // one) for one in measured)
        totals = [prepared.total for prepared in self.prepared]
        self.arenas = frozenset(
            prepared.kernel.module.arena[0]
            for prepared in self.prepared
            if prepared.kernel.module.arena
        )
        self.before = [0, *accumulate(totals)]
        self.total = self.before.pop()
        # The most slices that the launches after each can use.
        slices = [self.slices_of(n, prepared.total) for n, prepared in enumerate(self.prepared)]
        self._later_slices = [*list(accumulate(reversed(slices), max))[::-1][1:], 0]
        jobs_bytes = cw.JOB_BYTES * len(self.prepared)
        self.output = jobs_bytes if any(prepared.prints for prepared in self.prepared) else 0
        fresh = b"".join(
            cw.job_record(
                prepared.grid,
                spec.claims or self._claims(n),
                output=self.output - cw.JOB_BYTES * n if prepared.prints else 0,
            )
            for n, (prepared, spec) in enumerate(zip(self.prepared, specs, strict=True))
        )
        fresh += bytes(OUTPUT_RECORD_BYTES if self.output else 0)
        fresh += cw.named_sms(())
        self.record_bytes = len(fresh)
        self.page_bytes = COPIES_AT + jobs_bytes
        if self.output:
            device.output_buffers.prepare()
        block = device.host_blocks.take(self.record_bytes)
        self.image_block = block
        self.free_image = weakref.finalize(self, device.host_blocks.give, block)
        block.view[: self.record_bytes] = np.frombuffer(fresh, np.uint8)
        words = block.words[: jobs_bytes // 4].reshape(-1, cw.JOB_BYTES // 4)
        words[1:, cw.NEXT // 4] = words[1:, cw.TOTAL // 4]
        self._words = words
        for number, record in enumerate(words):
            self.parameter_table.set_job(number, record.tobytes())
        self.tunings = 0
        self._tuned = [spec.claims is None for spec in specs]
        self.image: int = block.address

    def blocks(self, number: int, slices: int) -> int:
        """Return how many blocks a launch has with ``slices`` slices of the job."""
        return min(
            slices * self.prepared[number].occupancy // self.occupancy, self.prepared[number].total
        )

    def slices_of(self, number: int, blocks: int) -> int:
        """Return how many slices of the job ``blocks`` blocks of a launch occupy, rounded up."""
        return -(-blocks * self.occupancy // self.prepared[number].occupancy)

    def is_persistent(self, number: int) -> bool:
        """Return whether there is a launch of this number, in persistent form."""
        return number < len(self.prepared) and self.prepared[number].form == "persistent"

    def takes_ns(self, number: int, slices: int) -> float:
        """Estimate the duration of a launch with ``slices`` slices; 0: not known."""
        what = self.prepared[number]
        return (
            what.kernel.block_ns.get(what.block, 0)
            * what.total
            / max(1, self.blocks(number, slices))
        )

    def outlasts(self, number: int, slices: int) -> bool:
        """Return whether a launch takes longer than the rest of the window behind it.

        Then the rest may finish before the watcher polls again: its sleep doubles while nothing
        changes, up to about the time that the launch takes.
        """
        end = number + WINDOW
        took_ns = self.takes_ns(number, slices)
        if end >= len(self.prepared) or took_ns <= _SHORTEST_LOOK_NS:
            return False
        return took_ns > sum(self.takes_ns(other, slices) for other in range(number + 1, end))

    def later_slices(self, number: int, slices: int) -> int:
        """Return how many of ``slices`` the launches behind it can use."""
        return min(slices, self._later_slices[number])

    def tune(self, number: int) -> None:
        """Have later runs claim in launch ``number`` by its kernel's block time as known now.

        A run that is being set up gets each word old or new: both are valid.
        """
        if self._tuned[number]:
            chunk, ahead = self._claims(number)
            if (chunk, ahead) == tuple(self._words[number, cw.CHUNK // 4 : cw.AHEAD // 4 + 1]):
                return
            self.tunings += 1
            self._words[number, cw.CHUNK // 4] = chunk
            self._words[number, cw.AHEAD // 4] = ahead
            self.parameter_table.set_job(number, self._words[number].tobytes())

    def _claims(self, number: int) -> cw.Claims:
        prepared = self.prepared[number]
        block_ns = prepared.kernel.block_ns.get(prepared.block)
        if block_ns is None:
            return cw.ONE_AT_A_TIME
        most = self.blocks(number, self._sms * self.occupancy)
        return choose_claims(block_ns, prepared.total, most)

    def parameters(self, number: int, slot: Slot | None, job: int, base: int) -> int:
        """Return the address of the pointers to a launch's parameters.

        Only one launch at a time uses them: the driver copies the values.

        Args:
            number: of the launch.
            slot: its records; None: it is not rewritten.
            job: address of its job record.
            base: sliced form: its first task block.
        """
        if slot is not None:
            self.parameter_table.set_addresses(number, slot, job, base)
        return self.prepared[number].pointers


def _prepared(device: Preparation, spec: LaunchSpec, pointers: int) -> PreparedLaunch:
    """Check a launch and prepare it.

    Raises:
        LaunchConfigError: the device does not allow this grid, block or shared memory.
        ValueError: the parameters' size is not the kernel's, or the kernel has no hidden one.
    """
    kernel: CUDAKernel = spec.kernel
    grid, block = checked_grid(spec), as_dim3("block", spec.block)
    total = grid[0] * grid[1] * grid[2]
    own = own_parameters(kernel, spec.form)
    checked_parameters(spec, own[-1].offset + own[-1].size if own else 0)
    measured = device.occupancy(kernel, block, spec.shared)
    occupancy = spec.occupancy or measured
    prints = kernel.prints and spec.form in REWRITTEN
    return PreparedLaunch(
        kernel, spec.form, grid, block, spec.shared, total, occupancy, pointers, prints
    )
