"""Helpers of tests that run kernels on the CPU device: arrays on the device, gates, waiting."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from gpud.compiler.pipeline import Program, compile_program
from gpud.compiler.toolchain.nvrtc import compile_cuda
from gpud.device.interface import Device, Memory

Array = np.ndarray[Any, np.dtype[Any]]

OPEN = 2**32 - 1
"""The value of a gate at which no block waits."""

TIMEOUT_S = 100.0
"""Of one wait: what a busy machine may take, and less than a test may."""


def words(device: Device, count: int, value: int = 0) -> tuple[Memory, Array]:
    """``count`` 32-bit words on the device, and the host's view of them."""
    memory = device.allocate(4 * count)
    view = memory.view.view(np.uint32)
    view[:] = value
    return memory, view


def pointer(memory: Memory) -> bytes:
    """A pointer argument."""
    return int(memory.address).to_bytes(8, "little")


@cache
def cuda(source: str) -> str:
    """The PTX of CUDA C++."""
    return compile_cuda(source).ptx


@cache
def rewritten(source: str, form: str | None = None) -> Program:
    """CUDA C++ or PTX as gpud rewrites it."""
    return compile_program(source, form=form)
