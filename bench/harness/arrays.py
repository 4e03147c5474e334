"""A launch's arrays, in memory that all sides of a comparison share.

With separate arrays one side may get better pages than the other, which makes tens of percent
(transparent huge pages, cache sets).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bench.kernel_pairs.pair import Problem
from gpud.device.cpu.device import CPUMemory

__all__ = ["Arrays"]


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
