"""Rewritten kernels launched by the driver alone, many in a row: nothing of gpud's but the PTX.

Problem: what the persistent form costs a kernel must be told apart from what gpud costs a job.
Approach: control words are laid out here for a whole batch of launches and put back by one copy
before each batch, so that a batch of persistent launches is as plain as one of native launches.

Terms: a *batch* is some launches in a row on one stream, between two events of the device.

Has not run on a GPU yet; the layout of the words is `gpud.compiler.control_words`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bench.gpu.driver import Buffer, Function, Gpu, check
from bench.gpu.programs import Launch, OneProgram
from gpud.compiler import control_words as cw
from gpud.compiler.names import ARENA
from gpud.compiler.pipeline import compile_program
from gpud.device.interface import pack_parameters

__all__ = ["Arrays", "Native", "Persistent", "records", "records_bytes"]


def records_bytes(blocks: int) -> int:
    """Of a job record, a launch record and a status record, one behind the other."""
    return cw.JOB_BYTES + cw.launch_bytes(blocks) + cw.status_bytes(blocks)


_EVERYTHING = (0).to_bytes(8, "little") + (2**64 - 1).to_bytes(8, "little")


def records(
    address: int,
    count: int,
    grid: tuple[int, int, int],
    blocks: int,
    claims: cw.Claims = cw.ONE_AT_A_TIME,
) -> bytes:
    """The control words of ``count`` fresh launches, to be put at ``address``."""
    found = bytearray()
    status = cw.JOB_BYTES + cw.launch_bytes(blocks)
    for _ in range(count):
        job = address + len(found)
        found += cw.job_record(grid, claims) + cw.launch_record(job, job + status, blocks)
        found += cw.status_record(blocks)
    return bytes(found)


class Arrays:
    """The arrays of a launch in device memory, for all sides.

    Attributes:
        values: what is passed, as the bytes of each parameter.
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
        """Puts the first contents of what is written back."""
        for index in self.launch.outputs:
            first = self.launch.arguments[index]
            assert isinstance(first, np.ndarray)
            self._buffers[index].set(first)

    def outputs(self) -> list[bytes]:
        """What is there now."""
        return [self._buffers[index].get().tobytes() for index in self.launch.outputs]


class Native:
    """The kernel as it is."""

    def __init__(self, gpu: Gpu, program: OneProgram, arrays: Arrays) -> None:
        ptx = compile_program(program.cuda, form="persistent", kill=False).original_ptx
        self._block = program.block
        self._arrays = arrays
        self.function: Function = gpu.load(ptx).function(program.entry)
        self._buffer = pack_parameters(self.function.parameters, arrays.values)

    def prepare(self, count: int, stream: object) -> None:
        """Nothing has to be made ready."""

    def launch(self, number: int, stream: object) -> None:
        """One launch."""
        self.function.launch(self._arrays.launch.grid, self._block, self._buffer, stream=stream)


class Persistent:
    """The kernel in persistent form, with as many blocks as the GPU holds.

    Attributes:
        blocks: how many those are.
    """

    def __init__(
        self, gpu: Gpu, program: OneProgram, arrays: Arrays, most: int, *, fence: bool
    ) -> None:
        ptx = compile_program(program.cuda, form="persistent", fence=fence, kill=False).ptx
        module = gpu.load(ptx)
        if fence and ARENA in ptx:
            address, size = module.symbol(ARENA)
            given = np.frombuffer(_EVERYTHING, np.uint8)
            check(gpu.cu.cuMemcpyHtoD(address, given.ctypes.data, min(size, given.size)))
            gpu.synchronise()
        self.function: Function = module.function(program.entry)
        self._block = program.block
        grid = arrays.launch.grid
        each = self.function.occupancy(math.prod(program.block))
        self.blocks = min(gpu.sms * each, math.prod(grid))
        self._size = size = records_bytes(self.blocks)
        self._words = gpu.buffer(np.zeros(most * size, np.uint8))
        self._gpu, self._grid, self._most = gpu, grid, most
        self.claim(cw.ONE_AT_A_TIME)
        hidden = self.function.parameters[-1]
        self._buffers = []
        for number in range(most):
            control = self._words.address + number * size + cw.JOB_BYTES
            values = [*arrays.values, control.to_bytes(hidden.size, "little")]
            self._buffers.append(pack_parameters(self.function.parameters, values))

    def claim(self, claims: cw.Claims) -> None:
        """Has the blocks of later batches claim so."""
        fresh = records(self._words.address, self._most, self._grid, self.blocks, claims)
        self._fresh = self._gpu.buffer(np.frombuffer(fresh, np.uint8))

    def prepare(self, count: int, stream: object) -> None:
        """Puts the control words back, in stream order."""
        self._words.copy_from(self._fresh, stream)

    def launch(self, number: int, stream: object) -> None:
        """The launch with the control words of that number."""
        buffer = self._buffers[number]
        self.function.launch((self.blocks, 1, 1), self._block, buffer, stream=stream)

    def done(self) -> Sequence[int]:
        """Task blocks that each launch of the batch has finished."""
        words = self._words.get().view(np.uint32).reshape(-1, self._size // 4)
        found: list[int] = words[:, cw.DONE // 4].tolist()
        return found
