"""A launch's arrays, in memory that all sides of a comparison share, and kernels ready for them.

With separate arrays one side may get better pages than the other, which makes tens of percent
(transparent huge pages, cache sets).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bench.harness.workloads import Dim3, Problem
from gpud.device.cpu.device import CPUDevice, CPUMemory
from gpud.device.cpu.program.module import CPUKernel
from gpud.device.interface import LaunchSpec, pack_parameters
from tests.support.resizable_run import ResizableRun

__all__ = ["Arrays", "Ready"]

_TIMEOUT_S = 300.0


class Arrays:
    """The array arguments of a problem, allocated as the CPU device allocates its own.

    Attributes:
        memory: by argument index.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._first: dict[int, npt.NDArray[Any]] = {
            index: np.ascontiguousarray(value)
            for index, value in enumerate(problem.arguments)
            if isinstance(value, np.ndarray)
        }
        self.memory = {index: CPUMemory(value.nbytes) for index, value in self._first.items()}
        self.reset()

    def reset(self) -> None:
        """Restore the initial contents."""
        for index, memory in self.memory.items():
            memory.view[:] = self._first[index].reshape(-1).view(np.uint8)

    def result(self, index: int) -> npt.NDArray[Any]:
        """Return the array of argument ``index``, with its shape and dtype; not a copy."""
        like = self._first[index]
        return self.memory[index].view.view(like.dtype).reshape(like.shape)


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
