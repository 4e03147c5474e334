"""Fixtures of bounds check tests: an arena between two guard areas, and kernels that run in it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from gpud.compiler.pipeline import Program, compile_program
from gpud.device.cpu.device import CPUDevice
from gpud.device.cpu.program.module import CPUModule
from gpud.device.interface import Form, LaunchSpec
from gpud.errors import GpudError
from tests.support.resizable_run import ResizableRun
from tests.unit.cpu.device_helpers import TIMEOUT_S, Array

HEAD = ".version 8.6\n.target sm_90\n.address_size 64\n"
PARTED = """and.b32 %r9, %r3, 1; setp.eq.u32 %p7, %r9, 1; @%p7 bra ODD;
    bar.warp.sync 0x55; ODD:"""
"""Lanes 0, 2, 4 and 6 of eight wait for each other: from here the threads have diverged."""
ARENA_BYTES = 1 << 20
_BESIDE = 1 << 16
_MARK = 0xA5


@cache
def ptx(text: str, form: str | None, bounds_checks: bool = True) -> Program:
    """Compile a PTX program or CUDA C++, and rewrite it."""
    return compile_program(text, form=form, bounds_checks=bounds_checks)


class Arena:
    """Memory that programs may access, with a guard area on each side that must not change.

    Attributes:
        base: the first address.
        end: the address after the last byte.
        bytes: the memory, uint8.
    """

    def __init__(self, device: CPUDevice) -> None:
        self.device = device
        self._loaded: dict[tuple[str, Form], CPUModule] = {}
        self._memory = device.allocate(ARENA_BYTES + 2 * _BESIDE)
        self._memory.view[:] = _MARK
        self.base = self._memory.address + _BESIDE
        self.end = self.base + ARENA_BYTES
        self.bytes: Array = self._memory.view[_BESIDE : _BESIDE + ARENA_BYTES]
        self.bytes[:] = 0

    def run(
        self,
        program: str,
        *values: Any,
        name: str = "k",
        form: Form = "sliced",
        grid: int | tuple[int, ...] = 1,
        block: int | tuple[int, ...] = 8,
        shared: int = 0,
    ) -> GpudError | None:
        """Run a kernel and return its error, if any. Python ints are passed as pointers."""
        key = (program, form)
        if key not in self._loaded:
            text = ptx(program, form).ptx
            self._loaded[key] = self.device.load(text, (self.base, ARENA_BYTES))
        kernel = self._loaded[key].kernel(name)
        raw = [
            (value % 2**64).to_bytes(8, "little") if isinstance(value, int) else value.tobytes()
            for value in values
        ]
        spec = LaunchSpec.of(kernel, form, grid, block, raw, shared=shared)
        job = ResizableRun(self.device, [spec])
        job.resize(1)
        assert job.wait(TIMEOUT_S)
        assert not outside_of(self), "a neighbour's bytes have changed"
        return job.error

    def words(self, kind: Any = np.uint32) -> Array:
        """The memory as words."""
        return self.bytes.view(kind)

    @property
    def neighbours(self) -> Array:
        """The bytes of both guard areas."""
        view = self._memory.view
        return np.concatenate((view[:_BESIDE], view[_BESIDE + ARENA_BYTES :]))


def outside_of(one: Arena) -> bool:
    """Whether anything outside of the arena was written."""
    return bool((one.neighbours != _MARK).any())
