"""A pair's CUDA C++ on the CPU device: compiled by NVRTC, run unmodified or as a resizable job."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from bench.harness.arrays import Arrays
from bench.kernel_pairs.pair import Dim3, Pair
from gpud.compiler.pipeline import compile_program
from gpud.device.cpu.device import CPUDevice
from gpud.device.cpu.program.module import CPUKernel
from gpud.device.interface import LaunchSpec, pack_parameters
from tests.support.resizable_run import ResizableRun

__all__ = ["CPUSide", "Ready"]

_TIMEOUT_S = 300.0


class Ready:
    """A kernel of a loaded module, compiled, with its arguments."""

    def __init__(self, device: CPUDevice, kernel: CPUKernel, block: Dim3, arrays: Arrays) -> None:
        kernel.compiled(block)
        self.device = device
        self.kernel = kernel
        self.block = block
        self.grid = arrays.problem.grid
        self._arrays = arrays  # kept alive: the values below are addresses
        self.values = [
            arrays.memory[index].address.to_bytes(8, "little")
            if isinstance(value, np.ndarray)
            else value.tobytes()
            for index, value in enumerate(arrays.problem.arguments)
        ]

    def launch(self) -> None:
        """Run the whole grid as one plain launch; for a kernel that is not rewritten."""
        parameters = pack_parameters(self.kernel.parameters, self.values)
        handle = self.device.launch(self.kernel, self.grid, self.block, parameters)
        handle.result(_TIMEOUT_S)

    def job(self, blocks: int) -> None:
        """Run the grid as a job with ``blocks`` persistent blocks; for the persistent form."""
        launch = LaunchSpec.of(self.kernel, "persistent", self.grid, self.block, self.values)
        job = ResizableRun(self.device, [launch])
        job.resize(blocks)
        job.result(_TIMEOUT_S)


class CPUSide:
    """A pair on the CPU device.

    Attributes:
        compile_s: CUDA C++ to PTX, rewriting included, in seconds.
        load_s: PTX to machine code for the pair's block shape, in seconds.
    """

    def __init__(
        self, device: CPUDevice, pair: Pair, arrays: Arrays, options: Sequence[str] = ()
    ) -> None:
        began = time.perf_counter()
        program = compile_program(pair.cuda, options=options)
        compiled = time.perf_counter()
        self.compile_s = compiled - began
        kernel = device.load(program.original_ptx).kernel(pair.name)
        self._ready = Ready(device, kernel, pair.block, arrays)
        self.load_s = time.perf_counter() - compiled

    def run(self) -> None:
        """One launch; returns when its last block has left."""
        self._ready.launch()
