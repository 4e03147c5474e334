"""Batch jobs on a daemon share the device by their weights, whenever they came."""

from __future__ import annotations

import time
from fractions import Fraction

import numpy as np
import pytest

import gpud_client as gc

pytestmark = pytest.mark.ci

# Task blocks of about a millisecond, and far more of them than the test lasts.
SPIN = r"""
extern "C" __global__ void spin(float* out, int n) {
    float a = threadIdx.x;
    for (int i = 0; i < n; ++i) a = a * 0.999f + 1.0f;
    if (a < 0) out[threadIdx.x] = a;
}"""
PARTS = {
    (1, 1): (Fraction(2), Fraction(2)),
    (1, 3): (Fraction(1), Fraction(3)),
}


@pytest.mark.parametrize("weights", PARTS)
def test_a_second_batch_job_gets_its_part(weights: tuple[int, int]) -> None:
    with gc.local("cpu:4") as gpu:
        kernel, out = gpu.kernel(SPIN, "spin"), gpu.zeros(1024, "float32")
        jobs = []
        for weight in weights:
            stream = gpu.stream()
            args = (out, np.int32(20_000))
            jobs.append(kernel.submit(1 << 22, 1024, args, stream=stream, weight=weight))
            time.sleep(0.5)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if tuple(job.allocation for job in jobs) == PARTS[weights]:
                break
            time.sleep(0.05)
        assert tuple(job.allocation for job in jobs) == PARTS[weights]
        before = jobs[1].progress[0]
        time.sleep(0.5)
        assert jobs[1].progress[0] > before
        for job in jobs:
            job.cancel()
