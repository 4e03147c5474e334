"""What only one generation of GPUs has: clusters are refused, and old programs keep their rules."""

from __future__ import annotations

import numpy as np
import pytest

from gpud.compiler.pipeline import compile_program
from gpud.compiler.toolchain.nvrtc import compile_cuda
from gpud.device.cpu.device import CPUDevice
from gpud.device.interface import LaunchSpec
from gpud.errors import KernelRejected
from tests.support.resizable_run import ResizableRun

CLUSTERED = """
extern "C" __global__ void __cluster_dims__(DIMS) clustered(unsigned* out) {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    out[blockIdx.x] = rank;
}
"""

OLD = """
.version 1.4
.target sm_13
.entry old (.param .u64 out) {
    .reg .f32 %f<5>; .reg .u64 %rd<3>;
    ld.param.u64 %rd1, [out];
    mov.f32 %f1, 0f40400000; mov.f32 %f4, 0fC0400000;
    mad.f32 %f2, %f1, %f1, %f1;
    mad.sat.f32 %f3, %f1, %f4, %f1;
    st.global.f32 [%rd1], %f2; st.global.f32 [%rd1+4], %f3;
    ret;
}
"""


def test_a_kernel_of_several_blocks_in_a_cluster_is_refused() -> None:
    ptx = compile_cuda(CLUSTERED.replace("DIMS", "2, 1, 1"), arch="compute_90").ptx
    with CPUDevice(1) as device:
        kernel = device.load(compile_program(ptx).ptx).kernel("clustered")
        with pytest.raises(KernelRejected, match="no thread block clusters") as caught:
            kernel.compiled((32, 1, 1))
    assert caught.value.instruction == ".reqnctapercluster 2, 1, 1"
    assert caught.value.line is None, "the rewritten program's lines are gpud's own"


def test_a_cluster_of_one_block_runs() -> None:
    ptx = compile_cuda(CLUSTERED.replace("DIMS", "1, 1, 1"), arch="compute_90").ptx
    with CPUDevice(1) as device:
        device.load(compile_program(ptx).ptx).kernel("clustered").compiled((32, 1, 1))


def test_old_programs_need_no_rounding_for_mad() -> None:
    with CPUDevice(1) as device:
        kernel = device.load(compile_program(OLD).ptx).kernel("old")
        out = device.allocate(8)
        values = [out.address.to_bytes(8, "little")]
        job = ResizableRun(device, [LaunchSpec.of(kernel, "persistent", (1,), (1,), values)])
        job.resize(1)
        job.result(30)
        assert out.view.view(np.float32).tolist() == [12.0, 0.0]
        with pytest.raises(KernelRejected, match=r"one of \.rn"):
            device.load(OLD.replace("1.4", "8.0").replace("sm_13", "sm_75")).kernel("old").compiled(
                (1, 1, 1)
            )
