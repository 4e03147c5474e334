"""A pair's OpenCL C on PoCL, the peer that the CPU device is measured against.

PoCL uses the arrays in place (`bench.harness.arrays`). Compilation is cold: PoCL's and PyOpenCL's
caches are off.
"""

from __future__ import annotations

import importlib
import os
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.harness.arrays import Arrays
from bench.kernel_pairs.pair import Pair

__all__ = ["OpenCLSide", "PoCL", "missing_pocl"]


class PoCL:
    """PoCL's device for this machine's cores, with one queue.

    Raises:
        RuntimeError: PyOpenCL or PoCL is not installed; the message says how to get it.
    """

    def __init__(self) -> None:
        why = missing_pocl()
        if why:
            raise RuntimeError(why)
        self.cl: Any = importlib.import_module("pyopencl")
        self.device = _devices(self.cl)[0]
        self.context = self.cl.Context([self.device])
        self.queue = self.cl.CommandQueue(self.context)

    def describe(self) -> dict[str, Any]:
        """Versions, and PoCL's name of its device; no paths."""
        return {
            "platform": self.device.platform.version,
            "device": self.device.name,
            "driver": self.device.driver_version,
            "compute_units": self.device.max_compute_units,
            "pyopencl": self.cl.VERSION_TEXT,
        }


class OpenCLSide:
    """A pair on PoCL.

    PoCL finishes compiling at the first launch, when it knows the block shape; `load_s` is the time
    of that launch and so counts one run of the kernel too.

    Attributes:
        compile_s: building the program, in seconds.
        load_s: the first launch, in seconds.
    """

    def __init__(self, pocl: PoCL, pair: Pair, arrays: Arrays, options: Sequence[str] = ()) -> None:
        cl = pocl.cl
        self._pocl = pocl
        self._local = pair.block
        grid = arrays.problem.grid
        self._global = tuple(g * b for g, b in zip(grid, pair.block, strict=True))
        began = time.perf_counter()
        program = cl.Program(pocl.context, pair.opencl)
        with warnings.catch_warnings():
            # Clang's diagnostics arrive as Python warnings.
            warnings.simplefilter("ignore", cl.CompilerWarning)
            program.build(options=list(options), cache_dir=False)
        self.compile_s = time.perf_counter() - began
        self._kernel = cl.Kernel(program, pair.name)
        self._buffers: list[Any] = []
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        for index, value in enumerate(arrays.problem.arguments):
            if isinstance(value, np.ndarray):
                buffer = cl.Buffer(pocl.context, flags, hostbuf=arrays.memory[index].view)
                self._buffers.append(buffer)
                self._kernel.set_arg(index, buffer)
            else:
                self._kernel.set_arg(index, value)
        began = time.perf_counter()
        self.run()
        self.load_s = time.perf_counter() - began

    def run(self) -> None:
        """One launch; returns when it is done."""
        queue = self._pocl.queue
        self._pocl.cl.enqueue_nd_range_kernel(queue, self._kernel, self._global, self._local)
        queue.finish()


def missing_pocl() -> str:
    """Return the packages missing for `PoCL`; empty if none."""
    # PoCL reads its environment when it is loaded, so this must come before the first import.
    os.environ.setdefault("POCL_KERNEL_CACHE", "0")
    os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
    try:
        cl = importlib.import_module("pyopencl")
    except ImportError:
        return "PyOpenCL is not installed; `make bench` installs it (extra `bench`)"
    if not _devices(cl):
        return "PoCL is not installed; on Debian or Ubuntu: apt install pocl-opencl-icd"
    return ""


def _devices(cl: Any) -> list[Any]:
    """Return the CPU devices of PoCL; none without an ICD loader or without PoCL."""
    try:
        platforms = cl.get_platforms()
    except cl.Error:  # the loader knows no platform at all
        return []
    return [
        device
        for platform in platforms
        if platform.name == "Portable Computing Language"
        for device in platform.get_devices(cl.device_type.CPU)
    ]
