"""The CUDA device served from end to end, over a stand-in for the driver: arrays, jobs, losses.

Device memory is not the session's file there, and full of rubbish at first: a copy that is not
made shows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import gpud_client as gc
from tests.gpu.served import TIMEOUT_S, Served

SOURCE = r"""
extern "C" __global__ void add(int* x, int value) {
    x[blockIdx.x * blockDim.x + threadIdx.x] += value;
}
"""
N = 1024


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    one = Served()
    yield one
    one.close()


@pytest.fixture
def gpu(served: Served) -> Iterator[gc.Session]:
    with served.connect() as session:
        yield session


def add(gpu: gc.Session, x: gc.Array, value: int) -> gc.Job:
    kernel = gpu.kernel(SOURCE, "add")
    return kernel.submit(grid=N // 128, block=128, args=(x, np.int32(value)))


def test_what_is_set_is_what_a_job_finds_and_what_it_leaves_is_got(gpu: gc.Session) -> None:
    assert (gpu.device.kind, gpu.device.arrays) == ("cuda", "copied")
    values = np.arange(N, dtype=np.int32)
    x = gpu.array(values)
    job = add(gpu, x, 5)
    assert np.array_equal(x.get(), values + 5)
    job.result(timeout=TIMEOUT_S)
