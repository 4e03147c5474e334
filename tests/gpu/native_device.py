"""Runs conformance cases as plain launches on a GPU, without gpud."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.gpu.instrumentation.driver import Gpu, check
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module
from gpud.device.cuda.program.module import visible
from gpud.device.interface import as_dim3, pack_parameters
from tests.conformance.runner import LoadedCase, Run
from tests.conformance.suite import Case, Results
from tests.gpu.device_arrays import CopiedBytes, captured


class NativeDevice:
    """The part of a device that the conformance runner needs, by the driver alone."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def allocate(self, size: int) -> Any:
        """Zeroed device memory."""
        return _Memory(self._gpu, size)

    def load(self, text: str, arena: tuple[int, int] | None = None) -> _Module:
        """Load unmodified PTX; ``arena`` is ignored."""
        return _Module(self._gpu, text)

    def occupancy(self, kernel: Any, block: tuple[int, int, int], shared: int = 0) -> int:
        """Return 1: the runner only asks to have a kernel compiled, which the load has done."""
        return 1


class _Memory:
    def __init__(self, gpu: Gpu, size: int) -> None:
        self._gpu = gpu
        self.address = int(check(gpu.cu.cuMemAlloc(max(size, 1))))
        self.view = _bytes(gpu, self.address, size)
        self.view[:] = 0

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._gpu.cu.cuMemFree(self.address)


class _Module:
    def __init__(self, gpu: Gpu, text: str) -> None:
        self._gpu = gpu
        self._module = gpu.load(with_visible_variables(text))

    def kernel(self, name: str) -> Any:
        return self._module.function(name)

    def symbol(self, name: str) -> CopiedBytes:
        return _bytes(self._gpu, *self._module.symbol(name))


def with_visible_variables(text: str) -> str:
    """Make the program's variables visible: the driver gives the address of no others.

    Its code is unchanged.
    """
    return print_module(visible(parse(text)))


def _bytes(gpu: Gpu, address: int, size: int) -> CopiedBytes:
    def read(at: int, count: int) -> bytes:
        found = np.empty(count, np.uint8)
        if count:
            check(gpu.cu.cuMemcpyDtoH(found.ctypes.data, address + at, count))
        return found.tobytes()

    def write(at: int, data: bytes) -> None:
        given = np.frombuffer(data, np.uint8)
        check(gpu.cu.cuMemcpyHtoD(address + at, given.ctypes.data, len(data)))

    return CopiedBytes(size, read, write)


def run_native(gpu: Gpu, case: Case, seed: int = 0) -> Results:
    """The results of the case's own PTX, launched whole by the driver."""
    loaded = LoadedCase(NativeDevice(gpu), case, "unmodified")  # type: ignore[arg-type]
    run: Run = loaded.start(seed)
    function = loaded.kernel
    grid, block = as_dim3("grid", case.grid), as_dim3("block", case.block)
    buffer = pack_parameters(function.parameters, run.values)
    with captured(gpu.synchronise) as output:
        for _ in range(case.launches):
            function.launch(grid, block, buffer, stream=0, shared=case.shared)
            gpu.synchronise()
    found = run.results()
    return Results(found.buffers, found.runs, found.symbols, output[0])
