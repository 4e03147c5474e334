"""Runs jobs with fixed numbers of slices side by side and compares their work with these shares.

Work is task blocks, all of one length. What counts is from one moment to another while all run: a
longer look takes chance out of it, and leaves what is wrong with the shares.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpud.device.interface import LaunchSpec
from tests.conformance.suite.case import Form
from tests.support.resizable_run import ResizableRun
from tests.unit.cpu.device_helpers import pointer, rewritten

__all__ = ["SLICES", "THREADS", "errors"]

SOURCE = r"""
extern "C" __global__ void spin(float* out, int rounds) {
    float value = threadIdx.x;
    for (int i = 0; i < rounds; ++i) value = value * 0.999f + 1.0f;
    if (value < 0) out[threadIdx.x] = value;
}"""

THREADS = 64
SLICES = 32
"""M: blocks of `THREADS` threads on an SM, of compute capability 9.0."""

_TOLERANCE = 0.05
_FIRST_S, _LEAST_S, _MOST_S = 0.2, 1.0, 20.0
_MANY = 1 << 30


def errors(device: Any, slices: Sequence[int], form: Form, rounds: int) -> list[float]:
    """Return for each job the error of its part of the work: 0 if that is its part of the slices.

    They are looked at after a second, and again until all are within 5 % or 20 s have passed.

    Args:
        device: with exactly as many SMs as the slices fill.
        slices: of each job, in 1/`SLICES` of an SM.
        form: of the kernel.
        rounds: of a task block's loop.
    """
    kernel = device.load(rewritten(SOURCE, form).ptx).kernel("spin")
    memory = device.allocate(4 * THREADS)
    arguments = [pointer(memory), np.int32(rounds).tobytes()]
    jobs = []
    try:
        for count in slices:
            spec = LaunchSpec.of(kernel, form, _MANY, THREADS, arguments)
            jobs.append(ResizableRun(device, [spec]))
            jobs[-1].resize(count)
        time.sleep(_FIRST_S)
        before = [job.progress[0] for job in jobs]
        began = time.monotonic()
        while True:
            time.sleep(_LEAST_S)
            done = [job.progress[0] - first for job, first in zip(jobs, before, strict=True)]
            parts = [
                work / sum(done) / (count / sum(slices)) - 1
                for work, count in zip(done, slices, strict=True)
            ]
            if max(map(abs, parts)) <= _TOLERANCE or time.monotonic() - began > _MOST_S:
                return parts
    finally:
        for job in jobs:
            job.end()
