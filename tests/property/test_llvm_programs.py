"""Random programs in LLVM IR, compiled by LLVM for NVIDIA GPUs, compute what exact arithmetic says.

``GPUD_LLVM_PROGRAMS`` sets how many are drawn; 1024 threads run each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from gpud.compiler.pipeline import compile_program
from gpud.device.cpu.device import CPUDevice
from gpud.device.interface import LaunchSpec
from tests.property.llvm_programs import Drawn, draw, ptx_of
from tests.support.resizable_run import ResizableRun

ROWS = 1024
PROGRAMS = int(os.environ.get("GPUD_LLVM_PROGRAMS", "12"))


@pytest.fixture(scope="module")
def device() -> Iterator[CPUDevice]:
    with CPUDevice(2) as one:
        yield one


def words(seed: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint64]]:
    """Rows of inputs: a third of them zeros, ones and other edges."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, 1 << 64, (ROWS, 2), dtype=np.uint64)
    edges = np.array([0, 1, 2**64 - 1, 2**63, 2**32, 2**31, 255], np.uint64)
    return np.where(rng.random((ROWS, 2)) < 0.3, rng.choice(edges, (ROWS, 2)), drawn)


def computed(device: CPUDevice, program: Drawn, level: int, seed: int) -> list[int]:
    """What each thread wrote."""
    rows = words(seed)
    taken, made = device.allocate(rows.nbytes), device.allocate(8 * ROWS)
    taken.view[:] = rows.reshape(-1).view(np.uint8)
    kernel = device.load(compile_program(ptx_of(program.ir, level)).ptx).kernel("k")
    block = (1, 8, 64, 256)[seed % 4]
    values = [memory.address.to_bytes(8, "little") for memory in (taken, made)]
    launch = LaunchSpec.of(kernel, "persistent", (ROWS // block,), (block,), values)
    job = ResizableRun(device, [launch])
    job.resize(2)
    job.result(60)
    return [int(word) for word in made.view[:].view(np.uint64)]


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_programs_compute_what_exact_arithmetic_says(device: CPUDevice, seed: int) -> None:
    program = draw(seed)
    expected = [program.evaluate(int(a), int(b)) for a, b in words(seed)]
    assert computed(device, program, (0, 2)[seed % 2], seed) == expected, program.ir
