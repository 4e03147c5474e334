"""Kernels that load their job record's address once: their PTX, as text, assembled, and run."""

from __future__ import annotations

import numpy as np
import pytest

from gpud.compiler.abi import control_words as cw
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.pipeline import compile_program
from gpud.compiler.ptx.model import Address, Instruction, Label
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module
from gpud.compiler.toolchain.ptxas import assemble, find_ptxas
from gpud.device.cpu.device import CPUDevice
from gpud.device.cuda.program.hoist_job import hoist_job_address
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


def test_the_record_is_asked_once_and_the_kernel_runs_as_before() -> None:
    changed = hoist_job_address(flatten_module(parse(compile_program(SOURCE).ptx)))
    body = changed.entries()["k"].body or []
    head = next(n for n, s in enumerate(body) if isinstance(s, Label) and "head" in s.name)
    loads = [
        n
        for n, s in enumerate(body)
        if isinstance(s, Instruction)
        and s.opcode.text == "ld.global.nc.u64"
        and any(isinstance(o, Address) and o.offset == cw.JOB for o in s.operands)
    ]
    assert len(loads) == 1
    assert loads[0] < head
    with CPUDevice(2) as device:
        kernel = device.load(print_module(changed)).kernel("k")
        words, data = device.allocate(256), device.allocate(4 * 12)
        record = words.address + cw.JOB_BYTES
        status = cw.JOB_BYTES + cw.launch_bytes(2)
        both = cw.job_record(GRID) + cw.launch_record(words.address, words.address + status, 2)
        both += cw.status_record(2)
        words.view[: len(both)] = np.frombuffer(both, np.uint8)
        values = data.address.to_bytes(8, "little") + record.to_bytes(8, "little")
        device.launch(kernel, (2, 1, 1), (THREADS, 1, 1), values).result(TIMEOUT_S)
        expected = [sum(range(THREADS)) + THREADS * (n // 3) + n % 3 for n in range(12)]
        assert data.view[:48].view(np.uint32).tolist() == expected
        done, live = words.view[cw.DONE], words.view[status + cw.LIVE]
        assert (int(done), int(live)) == (12, 0)


@pytest.mark.parametrize("form", ["sliced", "whole"])
def test_kernels_of_other_forms_stay(form: str) -> None:
    plain = flatten_module(parse(compile_program(SOURCE, form=form).ptx))
    assert hoist_job_address(plain) is plain


@pytest.mark.skipif(find_ptxas() is None, reason="there is no ptxas")
@pytest.mark.parametrize("arch", ["sm_75", "sm_100"])
def test_it_assembles(arch: str) -> None:
    changed = print_module(hoist_job_address(flatten_module(parse(compile_program(SOURCE).ptx))))
    assert assemble(changed, arch)["k"].spill_bytes == 0
