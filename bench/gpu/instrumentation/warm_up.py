"""Brings the GPU to the clocks that it has under load, before anything is measured.

A GPU lowers its clocks when it is idle and raises them over a second or so; lengths that are
calibrated meanwhile are wrong, and so is whatever is compared. ``GPUD_WARM_UP_S`` is for trials.
"""

from __future__ import annotations

import os
import time

import numpy as np

from bench.gpu.instrumentation.driver import Gpu
from gpud.compiler.pipeline import compile_program
from gpud.device.interface import pack_parameters

__all__ = ["SECONDS", "warm_up"]

SECONDS = 2.0
_THREADS = 256
_SOURCE = r"""
extern "C" __global__ void warm(float* out, int loops) {
    float x = (float)threadIdx.x;
    for (int k = 0; k < loops; k++) x = x * 0.999f + 0.5f;
    out[threadIdx.x] = x;
}
"""


def warm_up(gpu: Gpu, seconds: float | None = None) -> float:
    """Keep all SMs busy with arithmetic for some seconds; returns how many it took."""
    wanted = float(os.environ.get("GPUD_WARM_UP_S", SECONDS)) if seconds is None else seconds
    function = gpu.load(compile_program(_SOURCE, kill=False).original_ptx).function("warm")
    out, stream = gpu.buffer(np.zeros(_THREADS, np.float32)), gpu.stream()
    blocks = gpu.sms * function.occupancy(_THREADS)
    began, loops = time.monotonic(), 1000
    while (now := time.monotonic() - began) < wanted:
        values = [out.address.to_bytes(8, "little"), loops.to_bytes(4, "little")]
        buffer = pack_parameters(function.parameters, values)
        function.launch((blocks, 1, 1), (_THREADS, 1, 1), buffer, stream=stream)
        gpu.synchronise(stream)
        if time.monotonic() - began - now < 0.01:  # launches of some ten milliseconds
            loops = min(2 * loops, 1 << 26)
    return time.monotonic() - began
