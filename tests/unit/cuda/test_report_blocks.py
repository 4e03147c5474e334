"""Kernels that report their start: their PTX, as text, assembled, and run on the CPU device."""

from __future__ import annotations

import numpy as np
import pytest

from gpud.compiler.abi import control_words as cw
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.pipeline import compile_program
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module
from gpud.compiler.toolchain.ptxas import assemble, find_ptxas
from gpud.device.cpu.device import CPUDevice
from gpud.device.cuda.program.report_blocks import report_blocks
from tests.unit.cpu.device_helpers import TIMEOUT_S

SOURCE = r"""
__device__ __noinline__ int twice(int x) { return 2 * x; }
extern "C" __global__ void k(int* p, int n) { p[blockIdx.x] = twice(p[blockIdx.x]) + n; }
"""


@pytest.mark.parametrize("form", ["persistent", "sliced", "whole"])
def test_every_rewritten_form_reports(form: str) -> None:
    plain = flatten_module(parse(compile_program(SOURCE, form=form, bounds_checks=False).ptx))
    told = report_blocks(plain)
    text = print_module(told)
    assert text.count("st.volatile.global.u16") == (form == "persistent")
    assert [f.body for f in told.functions() if f.kind == "func"] == [
        f.body for f in plain.functions() if f.kind == "func"
    ]
    with CPUDevice(2) as device:
        kernel = device.load(text).kernel("k")
        launch, status = device.allocate(cw.launch_bytes(2)), device.allocate(cw.status_bytes(2))
        job = device.allocate(cw.JOB_BYTES)
        data = device.allocate(16)
        job.view[: cw.JOB_BYTES] = np.frombuffer(cw.job_record((2, 1, 1)), np.uint8)
        record = cw.launch_record(job.address, status.address, 2)
        launch.view[: len(record)] = np.frombuffer(record, np.uint8)
        values = b"".join(one.to_bytes(8, "little") for one in (data.address, 5, launch.address))
        device.launch(kernel, (2, 1, 1), (1, 1, 1), values).result(TIMEOUT_S)
        assert data.view[:8].view(np.uint32).tolist() == [5, 5]
        begun, where = int(status.view[cw.BEGUN]), status.view[cw.SM :][:4].view(np.uint16)
        if form == "persistent":
            assert begun == 0
            assert set(where.tolist()) <= {1, 2}
        else:
            assert begun == 1
            assert where.tolist() == [0, 0]


def test_an_unmodified_kernel_reports_nothing() -> None:
    plain = flatten_module(parse(compile_program(SOURCE).original_ptx))
    assert report_blocks(plain) is plain


@pytest.mark.skipif(find_ptxas() is None, reason="there is no ptxas")
@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_100"])
def test_it_assembles_and_takes_few_registers(arch: str) -> None:
    for bounds_checks in (True, False):
        plain = compile_program(SOURCE, bounds_checks=bounds_checks).ptx
        told = print_module(report_blocks(flatten_module(parse(plain))))
        assert assemble(told, arch)["k"].registers <= assemble(plain, arch)["k"].registers + 4
