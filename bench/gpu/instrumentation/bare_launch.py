"""Launches rewritten kernels through the driver alone, in batches, without jobs of gpud.

Problem: the cost of the persistent form for a kernel must be separated from the cost of gpud for a
job. Approach: programs are loaded by gpud's CUDA device, as a session's are; the control words of a
whole batch of launches are laid out here, in the same kinds of memory as that device uses, and
reset before each batch, so that a batch of persistent launches needs no more than one of native
launches.

Terms: a *batch* is some launches in a row on one stream, between two events of the device.

The layout of the words is that of `gpud.compiler.abi.control_words`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bench.gpu.instrumentation.driver import Buffer, Function, Gpu
from bench.gpu.workloads.programs import Launch, OneProgram
from gpud.compiler.abi import control_words as cw
from gpud.compiler.pipeline import compile_program
from gpud.device.cuda.program.by_value import encode_addresses, job_values
from gpud.device.interface import pack_parameters

__all__ = ["Arrays", "Native", "Persistent", "Words", "loaded"]


class Arrays:
    """The arrays of a launch in device memory, for all sides.

    Attributes:
        values: the bytes of each argument.
    """

    def __init__(self, gpu: Gpu, launch: Launch) -> None:
        self.launch = launch
        self._buffers: dict[int, Buffer] = {}
        self.values: list[bytes] = []
        for index, argument in enumerate(launch.arguments):
            if isinstance(argument, np.ndarray):
                self._buffers[index] = gpu.buffer(argument)
                self.values.append(self._buffers[index].address.to_bytes(8, "little"))
            else:
                self.values.append(argument.tobytes())

    def reset(self) -> None:
        """Restore the initial contents of the outputs."""
        for index in self.launch.outputs:
            first = self.launch.arguments[index]
            assert isinstance(first, np.ndarray)
            self._buffers[index].set(first)

    def outputs(self) -> list[bytes]:
        """Return the outputs' contents now."""
        return [self._buffers[index].get().tobytes() for index in self.launch.outputs]


class Words:
    """Control words of some launches: job records on the device, status records on the host.

    Args:
        gpu: that they are for.
        count: number of launches.
        grid: task blocks of each in x, y, z.
        blocks: persistent blocks of each.
        own: whether launch and status records are in device memory, not in host memory.

    Attributes:
        controls: the address of each launch record.
        values, job_values: what kernels are given of the records by value.
    """

    def __init__(
        self, gpu: Gpu, count: int, grid: tuple[int, int, int], blocks: int, *, own: bool
    ) -> None:
        self._grid, self._count = grid, count
        self._jobs = gpu.buffer(np.zeros(count * cw.JOB_BYTES, np.uint8))
        self.claim(cw.ONE_AT_A_TIME)
        status = cw.status_record(blocks)
        size = cw.launch_bytes(blocks)
        both = size + len(status)
        self._host = gpu.host_words(count * both // 4)
        first = self._host.address
        self._own: Buffer | None = None
        if own:
            self._own = gpu.buffer(np.zeros(count * both, np.uint8))
            first = self._own.address
        records = [
            cw.launch_record(self._jobs.address + n * cw.JOB_BYTES, first + n * both + size, blocks)
            for n in range(count)
        ]
        self.controls = [first + n * both for n in range(count)]
        self.values = [
            encode_addresses(self._jobs.address + n * cw.JOB_BYTES, control + size, 0)
            for n, control in enumerate(self.controls)
        ]
        fresh = b"".join(record + status for record in records)
        self._fresh = np.frombuffer(fresh, np.uint32)

    def claim(self, claims: cw.Claims) -> None:
        """Set how many task blocks the blocks of later batches claim at once."""
        record = cw.job_record(self._grid, claims)
        self._first = np.frombuffer(record * self._count, np.uint8)
        self.job_values = job_values(record)

    def reset(self) -> None:
        """Restore the initial words of all launches; none of them runs."""
        self._jobs.set(self._first)
        self._host.words[:] = self._fresh
        if self._own is not None:
            self._own.set(self._fresh.view(np.uint8))

    def done(self) -> list[int]:
        """How many task blocks each launch has finished."""
        words = self._jobs.get().view(np.uint32).reshape(self._count, -1)
        found: list[int] = words[:, cw.DONE // 4].tolist()
        return found


class Native:
    """The unmodified kernel, loaded by the driver without gpud."""

    def __init__(self, gpu: Gpu, program: OneProgram, arrays: Arrays) -> None:
        ptx = compile_program(program.cuda, form="persistent", kill=False).original_ptx
        self._block = program.block
        self._arrays = arrays
        self.function: Function = gpu.load(ptx).function(program.entry)
        self._buffer = pack_parameters(self.function.parameters, arrays.values)

    def prepare(self) -> None:
        """Do nothing."""

    def launch(self, number: int, stream: object) -> None:
        """Launch it once."""
        self.function.launch(self._arrays.launch.grid, self._block, self._buffer, stream=stream)


def loaded(
    cuda: Any, program: OneProgram, *, bounds_checks: bool = False, own_cache: bool = False,
    most_shared: bool = False,
) -> Any:  # fmt: skip
    """Load the kernel in persistent form, as a session's is.

    Args:
        cuda: gpud's CUDA device.
        program: whose kernel.
        bounds_checks: whether its accesses are checked; nothing is out of bounds for them.
        own_cache: whether it keeps the driver's default split of SM memory into cache and shared
            memory, instead of the one that gpud sets for kernels with shared memory.
        most_shared: whether it asks for the most shared memory of an SM in any case, as gpud has
            kernels do that use some.
    """
    ptx = compile_program(
        program.cuda, form="persistent", bounds_checks=bounds_checks, kill=False
    ).ptx
    kernel = cuda.load(ptx).kernel(program.entry)
    if most_shared:
        kernel.share_sms()
    if own_cache:
        default = cuda.driver.api.CUshared_carveout.CU_SHAREDMEM_CARVEOUT_DEFAULT
        kernel.set_attribute("PREFERRED_SHARED_MEMORY_CARVEOUT", int(default))
    return kernel


class Persistent:
    """The kernel in persistent form, with as many blocks as the GPU holds.

    Args:
        gpu: that it runs on.
        kernel: from `loaded`.
        program: whose kernel.
        arrays: its arguments.
        most: launches of a batch at most.
        own: whether its records are in device memory: the host counts nothing then.

    Attributes:
        blocks: persistent blocks of a launch.
        words: their control words.
    """

    def __init__(
        self, gpu: Gpu, kernel: Any, program: OneProgram, arrays: Arrays, most: int, *,
        own: bool = False,
    ) -> None:  # fmt: skip
        self._kernel = kernel  # which keeps the program loaded
        self.function = Function(gpu, kernel.handle, kernel.placed)
        self._by_value = kernel.by_value
        self._values = arrays.values
        self._buffers: list[bytes] = []
        self._block = program.block
        grid = arrays.launch.grid
        each = self.function.occupancy(math.prod(program.block))
        self.blocks = min(gpu.sms * each, math.prod(grid))
        self.words = Words(gpu, most, grid, self.blocks, own=own)

    def prepare(self) -> None:
        """Reset the control words; nothing runs."""
        words = self.words
        words.reset()
        self._buffers = [
            pack_parameters(
                self.function.parameters,
                [
                    *self._values,
                    *([addresses + words.job_values] if self._by_value else ()),
                    control.to_bytes(8, "little"),
                ],
            )
            for control, addresses in zip(words.controls, words.values, strict=True)
        ]

    def launch(self, number: int, stream: object) -> None:
        """Launch it with the control words of number ``number``."""
        buffer = self._buffers[number]
        self.function.launch((self.blocks, 1, 1), self._block, buffer, stream=stream)
