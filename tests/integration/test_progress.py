"""What a program says of its blocks' progress, from the client to the job and back."""

from __future__ import annotations

import numpy as np
import pytest

import gpud_client as gc

pytestmark = pytest.mark.ci

TIMEOUT_S = 60.0

LATER = r"""
extern "C" __global__ void later(volatile int* flag, int blocks) {
    int b = blockIdx.x;
    if (threadIdx.x == 0 && b + 1 < blocks) while (flag[b + 1] == 0) {}
    __syncthreads();
    if (threadIdx.x == 0) flag[b] = 1 + (b + 1 < blocks ? flag[b + 1] : 0);
}
"""


def test_blocks_that_are_said_to_wait_for_one_another_are_all_resident() -> None:
    """Each block waits for the next one: with fewer blocks than the grid has, it never ends."""
    with gc.local("cpu:1") as gpu:
        kernel = gpu.kernel(LATER, "later", progress="blocks")
        assert kernel.form == "whole"
        assert "as its program says" in kernel.why[0]
        flag = gpu.zeros(6, np.int32)
        kernel.submit(6, 32, (flag, 6)).result(TIMEOUT_S)
        assert flag.get().tolist() == [6, 5, 4, 3, 2, 1]


def test_a_module_says_it_of_all_its_kernels() -> None:
    with gc.local("cpu:1") as gpu:
        module = gpu.module(LATER, progress="blocks")
        assert module.kernel("later").form == "whole"
        assert gpu.module(LATER, progress="independent").kernel("later").form == "persistent"
