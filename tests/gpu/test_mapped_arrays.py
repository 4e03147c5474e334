"""Frameworks in this process and jobs in the daemon's use the same memory of a GPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpud_client as gc
from tests.support.daemon_process import DaemonProcess

N = 1 << 22
DOUBLE = r"""
extern "C" __global__ void twice(float* x) { x[blockIdx.x * blockDim.x + threadIdx.x] *= 2; }
"""


def with_cupy(array: Any) -> float:
    """Add 1 to an array; its last value before."""
    import cupy

    mine = cupy.asarray(array)
    last = float(mine[-1])
    mine += 1
    cupy.cuda.get_current_stream().synchronize()
    return last


def with_pytorch(array: Any) -> float:
    import torch

    mine = torch.as_tensor(array, device="cuda")
    last = float(mine[-1])
    mine += 1
    torch.cuda.synchronize()
    return last


def with_numba(array: Any) -> float:
    from numba import cuda

    @cuda.jit  # type: ignore[untyped-decorator, unused-ignore]
    def add(x: Any) -> None:
        at = cuda.grid(1)
        if at < x.size:
            x[at] += 1

    mine = cuda.as_cuda_array(array)
    last = float(mine[-1])
    add[N // 256, 256](mine)
    cuda.synchronize()
    return last


FRAMEWORKS = {"cupy": with_cupy, "torch": with_pytorch, "numba": with_numba}


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_and_jobs_use_the_same_memory(gpu: Any, name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    add: Callable[[Any], float] = FRAMEWORKS[name]
    values = np.linspace(0, 1, N, dtype=np.float32)
    with DaemonProcess() as daemon:
        daemon.serve("--device", "cuda:0")
        with gc.connect(daemon.path) as session:
            kernel = session.kernel(DOUBLE, "twice")
            x = session.array(values)
            expected = values.copy()
            for _ in range(3):
                kernel.submit(N // 256, 256, (x,)).result(60)
                expected *= 2
                assert add(x) == expected[-1]
                expected += 1
                assert np.array_equal(x.get(), expected)
            del x
        assert not daemon.bugs()
