"""The kernels of the rewrite measurement leave the same bytes in all forms, on the CPU device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from bench.gpu.workloads.kernels import KERNELS
from bench.gpu.workloads.programs import PROGRAMS, Launch, OneProgram
from gpud.compiler.pipeline import compile_program
from gpud.compiler.toolchain.ptxas import assemble, find_ptxas
from gpud.device.cpu.device import CPUDevice
from gpud.device.interface import Form, LaunchSpec
from tests.support.resizable_run import ResizableRun

NEW = [program for program in PROGRAMS if program.name in {one.name for one in KERNELS}]
SHORT = [
    program if number % 6 == 0 else pytest.param(program, marks=pytest.mark.slow)
    for number, program in enumerate(NEW)
]
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def device() -> Iterator[CPUDevice]:
    with CPUDevice(2) as one:
        yield one


def run(
    device: CPUDevice, ptx: str, program: OneProgram, form: Form, launch: Launch
) -> list[bytes]:
    kernel = device.load(ptx).kernel(program.entry)
    memories, values = [], []
    for argument in launch.arguments:
        if isinstance(argument, np.ndarray):
            memory = device.allocate(argument.nbytes)
            memory.view[:] = np.frombuffer(argument.tobytes(), np.uint8)
            memories.append(memory)
            values.append(memory.address.to_bytes(8, "little"))
        else:
            values.append(argument.tobytes())
    job = ResizableRun(device, [LaunchSpec.of(kernel, form, launch.grid, program.block, values)])
    job.resize(4)
    job.result(TIMEOUT_S)
    return [memory.view.tobytes() for memory in memories]


def test_there_are_many_of_different_names() -> None:
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS) >= 25


@pytest.mark.parametrize("program", SHORT, ids=lambda program: program.name)
def test_forms_leave_the_same_bytes(device: CPUDevice, program: OneProgram) -> None:
    compiled = compile_program(program.cuda, form="persistent", bounds_checks=False, kill=False)
    launch = program.make(True)
    plain = run(device, compiled.original_ptx, program, "unmodified", launch)
    assert run(device, compiled.ptx, program, "persistent", launch) == plain
    (output,) = launch.outputs
    before = launch.arguments[output].tobytes()
    assert plain[output] != before
    assert plain[0] == launch.arguments[0].tobytes()


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not on PATH")
def test_they_assemble() -> None:
    text = "".join(one.source.replace("row_sum", f"row_sum_{one.name}") for one in KERNELS)
    compiled = compile_program(text, form="persistent", bounds_checks=False, kill=False)
    found = assemble(compiled.ptx, "sm_90")
    assert {one.name for one in KERNELS} <= set(found)
    assert max(usage.spill_bytes for usage in found.values()) == 0
