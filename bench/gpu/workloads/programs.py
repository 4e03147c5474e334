"""All programs that the cost of rewriting is measured on: `KERNELS` and two workloads.

Sizes are such that a launch takes 20 us and more on a GPU of an H100's class; programs that take
less are reported, and left out of the mean that the aim applies to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.gpu.workloads.kernels import ELEMENTS, KERNELS, OneKernel, inputs
from bench.harness.workloads import WORKLOADS, Dim3, Workload

__all__ = ["PROGRAMS", "Launch", "OneProgram"]


@dataclass(frozen=True)
class Launch:
    """One launch.

    Attributes:
        grid: blocks in x, y, z.
        arguments: an array is a buffer in device memory, a NumPy scalar is passed by value.
        outputs: the arguments whose bytes the forms must agree on.
    """

    grid: Dim3
    arguments: tuple[npt.NDArray[Any] | np.generic, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class OneProgram:
    """A kernel, its text, and its launch: ``make(True)`` is small enough for the CPU device."""

    name: str
    what: str
    cuda: str
    entry: str
    block: Dim3
    make: Callable[[bool], Launch]


_LARGE, _TINY = 1 << 24, 1 << 14
_BLOCKS = {"spin": 4096, "relay": 4096}
_STEPS = {"spin": 4096, "relay": 256}


def _of_kernel(one: OneKernel) -> OneProgram:
    def make(tiny: bool) -> Launch:
        n = _TINY if tiny else max(ELEMENTS, _LARGE // one.weight)
        side = 1 << (n.bit_length() - 1) // 2
        n = side * side  # pictures are square
        return Launch(one.grid(n), (*inputs(n), np.int32(n)), (2,))

    return OneProgram(one.name, one.what, one.source, one.name, one.block, make)


def _of_workload(workload: Workload) -> OneProgram:
    name = workload.name

    def make(tiny: bool) -> Launch:
        size = workload.step if tiny else _STEPS[name]
        problem = workload.make(size, 8 if tiny else _BLOCKS[name])
        return Launch(problem.grid, problem.arguments, (workload.output,))

    return OneProgram(name, workload.what, workload.cuda, name, workload.block, make)


PROGRAMS: tuple[OneProgram, ...] = (
    *(_of_kernel(one) for one in KERNELS),
    *(_of_workload(workload) for workload in WORKLOADS if workload.name in _BLOCKS),
)
