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

__all__ = ["SLICES", "THREADS", "errors", "errors_alone"]

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
_FIRST_S, _TURN_S, _LEAST_S, _MOST_S = 0.2, 0.3, 1.0, 20.0
_MANY = 1 << 30


def errors(
    device: Any, slices: Sequence[int], form: Form, rounds: int, *, quotas: bool = False
) -> list[float]:
    """Return for each job the error of its part of the work: 0 if that is its part of the slices.

    They are looked at after a second, and again until all are within 5 % or 20 s have passed.

    Args:
        device: with exactly as many SMs as the slices fill, unless they are quotas.
        slices: of each job, in 1/`SLICES` of an SM.
        form: of the kernel.
        rounds: of a task block's loop.
        quotas: whether a job may do no more work than its slices can.
    """
    jobs = []
    try:
        for count in slices:
            jobs.append(_spinning(device, form, rounds))
            jobs[-1].limit(count if quotas else 0)
            jobs[-1].resize(count)
        time.sleep(_FIRST_S)
        before = [job.progress[0] for job in jobs]
        began = time.monotonic()
        while True:
            time.sleep(_LEAST_S)
            done = [job.progress[0] - first for job, first in zip(jobs, before, strict=True)]
            parts = _errors(done, slices)
            if max(map(abs, parts)) <= _TOLERANCE or time.monotonic() - began > _MOST_S:
                return parts
    finally:
        for job in jobs:
            job.end()


def errors_alone(
    device: Any, quotas: Sequence[int], form: Form, rounds: int, *, spread: bool
) -> list[float]:
    """Return the same for one job that is alone, and has each of these quotas in turn.

    In short turns, so that what a core does in a second drifts for all quotas. A quota of the whole
    device counts by the processor time that it got, as the others need not all of a core.

    Args:
        device: with nothing else to do.
        quotas: in 1/`SLICES` of an SM.
        form: of the kernel.
        rounds: of a task block's loop.
        spread: whether it has blocks for the whole device all the time, and so uses all SMs.
    """
    job = _spinning(device, form, rounds)
    work, spent = [0.0] * len(quotas), [0.0] * len(quotas)
    began = time.monotonic()
    try:
        while True:
            for place, quota in enumerate(quotas):
                whole = quota == device.sms * SLICES
                job.limit(0 if whole else quota)
                job.resize(device.sms * SLICES if spread else quota)
                time.sleep(_FIRST_S)
                clock = time.process_time if whole else time.monotonic
                before, since = job.progress[0], clock()
                time.sleep(_TURN_S)
                work[place] += job.progress[0] - before
                spent[place] += (clock() - since) / (device.sms if whole else 1)
            parts = _errors([had / took for had, took in zip(work, spent, strict=True)], quotas)
            if max(map(abs, parts)) <= 2 * _TOLERANCE or time.monotonic() - began > _MOST_S:
                return parts
    finally:
        job.end()


def _spinning(device: Any, form: Form, rounds: int) -> ResizableRun:
    kernel = device.load(rewritten(SOURCE, form).ptx).kernel("spin")
    arguments = [pointer(device.allocate(4 * THREADS)), np.int32(rounds).tobytes()]
    return ResizableRun(device, [LaunchSpec.of(kernel, form, _MANY, THREADS, arguments)])


def _errors(work: Sequence[float], shares: Sequence[int]) -> list[float]:
    total, whole = sum(work), sum(shares)
    return [one / total / (share / whole) - 1 for one, share in zip(work, shares, strict=True)]
