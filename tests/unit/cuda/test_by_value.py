"""Kernels that are given what does not change by value: their PTX, assembled, and run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpud.compiler.abi import control_words as cw
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.pipeline import compile_program
from gpud.compiler.ptx.model import Instruction, Module
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module
from gpud.compiler.toolchain.ptxas import assemble, find_ptxas
from gpud.device.cpu.device import CPUDevice
from gpud.device.cuda.program.by_value import (
    VALUE_BYTES,
    encode_addresses,
    job_values,
    pass_by_value,
)
from gpud.device.cuda.program.report_blocks import report_blocks
from tests.unit.cpu.device_helpers import TIMEOUT_S

SOURCE = r"""
extern "C" __global__ void k(unsigned* p) {
    __shared__ unsigned sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, threadIdx.x + blockIdx.y);
    __syncthreads();
    if (threadIdx.x == 0) p[blockIdx.y * gridDim.x + blockIdx.x] += sum + blockIdx.x;
}
"""
GRID, THREADS = (3, 4, 1), 40


FORMS = ("persistent", "sliced", "whole")


def changed(form: Any = "persistent", **options: Any) -> Module:
    plain = flatten_module(parse(compile_program(SOURCE, form=form, **options).ptx))
    return pass_by_value(report_blocks(plain))


def reads(program: Module) -> list[Instruction]:
    """The reads of words that do not change."""
    return [
        one
        for one in program.entries()["k"].body or ()
        if isinstance(one, Instruction)
        and one.opcode.text.startswith("ld.global.nc.")
        and "%gpud" in repr(one.operands[1])
    ]


@pytest.mark.parametrize("form", FORMS)
def test_no_reads(form: str) -> None:
    plain = flatten_module(parse(compile_program(SOURCE, form=form).ptx))
    assert reads(plain) or form == "whole"
    made = changed(form)
    assert not reads(made)
    assert made.entries()["k"].parameters[-1] == plain.entries()["k"].parameters[-1]
    assert [f.body for f in made.functions() if f.kind == "func"] == [
        f.body for f in plain.functions() if f.kind == "func"
    ]


@pytest.mark.parametrize("form", FORMS)
def test_the_kernel_runs_as_before(form: str) -> None:
    with CPUDevice(2) as device:
        kernel = device.load(print_module(changed(form))).kernel("k")
        words, data = device.allocate(512), device.allocate(4 * 12)
        record, status = words.address + cw.JOB_BYTES, words.address + 256
        job = cw.job_record(GRID, cw.Claims(2, 1))
        # Of the records only what changes and the status record's address may be read.
        words.view[: cw.TOTAL] = np.frombuffer(job[: cw.TOTAL], np.uint8)
        launch = cw.launch_record(0, 0, 2)
        words.view[cw.JOB_BYTES :][: len(launch)] = np.frombuffer(launch, np.uint8)
        structure = encode_addresses(words.address, status, 0) + job_values(job)
        assert len(structure) == VALUE_BYTES
        values = data.address.to_bytes(8, "little") + structure + record.to_bytes(8, "little")
        grid = (2, 1, 1) if form == "persistent" else (12, 1, 1) if form == "sliced" else GRID
        device.launch(kernel, grid, (THREADS, 1, 1), values).result(TIMEOUT_S)
        expected = [sum(range(THREADS)) + THREADS * (n // 3) + n % 3 for n in range(12)]
        assert data.view[:48].view(np.uint32).tolist() == expected
        if form == "persistent":
            assert int(words.view[cw.DONE]) == 12
            assert words.view[256 + cw.left_at(2) :][:2].tolist() == [1, 1]


def test_a_kernel_with_too_many_parameters_is_unchanged() -> None:
    most = 4096 - VALUE_BYTES - 16  # beside a pointer and the hidden parameter
    for size, fits in ((most, True), (most + 8, False)):
        source = f"struct Many {{ long long a[{size // 8}]; }};" + SOURCE.replace(
            "unsigned* p)", "unsigned* p, Many m)"
        )
        plain = report_blocks(flatten_module(parse(compile_program(source).ptx)))
        assert (len(pass_by_value(plain).entries()["k"].parameters) == 4) == fits


def test_an_unmodified_kernel_is_unchanged() -> None:
    plain = flatten_module(parse(compile_program(SOURCE).original_ptx))
    assert pass_by_value(plain) is plain


@pytest.mark.skipif(find_ptxas() is None, reason="there is no ptxas")
@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_100"])
def test_it_assembles(arch: str) -> None:
    plain = assemble(compile_program(SOURCE).ptx, arch)["k"]
    made = assemble(print_module(changed()), arch)["k"]
    assert made.spill_bytes == 0
    assert made.registers <= plain.registers + 2
