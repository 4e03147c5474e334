"""Resizes in flight: a share stepped under one long kernel, commanded against observed SMs.

    python bench/gpu/resize.py [--seconds S]

One kernel of about a second; its job is given 100, 50, 10 and again 100 % of the GPU, a step every
5 ms. Its task blocks record when and where they ran (`bench.gpu.instrumentation.timestamps`), so
its actual share at each moment is known from the blocks: how many ran, as SMs, and on how many SMs
at least one ran.

Terms: a step is *settled* at the first moment from which on, until the next step, the number of
blocks is within one SM's worth of the command.

Prints a table and writes bench/results/gpu_resize.json. A short run on the CPU device is part of
the tests.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu.instrumentation.clock_sync import Clock, GpuClock, between
from bench.gpu.instrumentation.driver import Gpu
from bench.gpu.instrumentation.timestamps import NotedKernel, Notes, quantiles_us
from bench.gpu.instrumentation.warm_up import warm_up
from bench.gpu.record import cuda_device, keep, need_gpu
from tests.support.resizable_run import ResizableRun

SHARES = (1.0, 0.5, 0.1, 1.0)
STEP_S = 5e-3
BLOCK_US = 100.0
THREADS = 1024
SAMPLE_NS = 100_000
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Step:
    """One command.

    Attributes:
        at_ns: when it was given, in device time; ``until_ns``: when the next one was.
        share: of the device; ``slots``: the same in resident blocks.
        settled_ns: after how long the step was settled; None: not before the next one.
    """

    at_ns: int
    until_ns: int
    share: float
    slots: int
    settled_ns: int | None


def main() -> int:
    """Measure, print and save the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    need_gpu()
    gpu = Gpu()
    warm_up(gpu)
    with cuda_device() as device:
        found = measure(device, GpuClock(gpu), options.seconds, BLOCK_US, STEP_S)
    report(found)
    print(f"wrote {keep('resize', gpu, found).name}")
    return 1 if found["lost"] else 0


def measure(
    device: Any, clock: Clock, seconds: float, block_us: float, step_s: float
) -> dict[str, Any]:
    """Step the share under one kernel of ``seconds`` of work, and evaluate its notes."""
    trial = NotedKernel(device, THREADS, 1)
    each, slots = trial.occupancy, device.sms * trial.occupancy
    trial.close()
    mean = sum(SHARES) / len(SHARES)
    blocks = max(8, round(seconds * mean * 1e6 / block_us)) * slots
    kernel = NotedKernel(device, THREADS, blocks)

    def run(loops: int) -> Notes:
        count = min(blocks, 4 * slots)
        kernel.clear()
        job = ResizableRun(device, [kernel.spec(count, loops)])
        job.resize(slots)
        job.result(TIMEOUT_S)
        return kernel.notes(count)

    loops = kernel.loops_for(block_us, run)
    kernel.clear()
    before = clock()
    job = ResizableRun(device, [kernel.spec(blocks, loops)])
    commands = step_through(job, slots, step_s)
    job.resize(slots)
    job.result(TIMEOUT_S)
    after = clock()
    notes = kernel.notes()
    kernel.close()
    moments = [(between(before, after, at), share, given) for at, share, given in commands]
    bridged = notes.bridged()
    steps = steps_of(bridged, moments, each)
    return {
        "block_us": quantiles_us(notes.block_ns().tolist()),
        "clock_uncertainty_us": max(before.uncertainty_ns, after.uncertainty_ns) / 1e3,
        "sms": device.sms,
        "task_blocks": blocks,
        "lost": blocks - len(notes),
        "steps": len(steps),
        "never_settled": sum(step.settled_ns is None for step in steps),
        "settled_us": {
            f"{before:g}->{after:g}": quantiles_us(
                [
                    now.settled_ns
                    for last, now in pairwise(steps)
                    if (last.share, now.share) == (before, after) and now.settled_ns is not None
                ]
            )
            for before, after in sorted({*zip(SHARES, (*SHARES[1:], SHARES[0]), strict=True)})
            if before != after
        },
        "trace": trace(bridged, moments, each),
    }


def step_through(job: ResizableRun, slots: int, step_s: float) -> list[tuple[int, float, int]]:
    """Step the job's share until it is done; (host time in ns, share, slots) of each command."""
    commands: list[tuple[int, float, int]] = []
    due = time.perf_counter()
    while not job.done and job.progress[0] < job.total:
        share = SHARES[len(commands) % len(SHARES)]
        given = max(1, round(share * slots))
        commands.append((time.perf_counter_ns(), share, given))
        job.resize(given)
        due += step_s
        time.sleep(max(0.0, due - time.perf_counter() - 2e-4))
        while time.perf_counter() < due:
            pass  # sleeping is too coarse for steps of 5 ms
    return commands


def steps_of(notes: Notes, commands: list[tuple[int, float, int]], each: int) -> list[Step]:
    """Return the result of every command but the last, which the job's end interrupts."""
    found = []
    for (at, share, slots), (until, _, _) in pairwise(commands):
        moments = np.arange(at, until, max(1, (until - at) // 500), dtype=np.int64)
        off = np.abs(notes.busy(moments) - slots) > each
        wrong = np.flatnonzero(off)
        settled: int | None = 0
        if wrong.size:
            last = int(wrong[-1])
            settled = None if last == len(moments) - 1 else int(moments[last + 1]) - at
        found.append(Step(at, until, share, slots, settled))
    return found


def trace(notes: Notes, commands: list[tuple[int, float, int]], each: int) -> dict[str, Any]:
    """Commanded and observed SMs over the first 100 ms, for the figure; times in milliseconds."""
    begin = commands[0][0]
    end = min(begin + 100_000_000, int(notes.ended.max()))
    moments = np.arange(begin, end, SAMPLE_NS, dtype=np.int64)
    times = np.array([at for at, _, _ in commands])
    given = np.array([slots for _, _, slots in commands])
    commanded = given[np.searchsorted(times, moments, side="right") - 1] / each
    return {
        "ms": ((moments - begin) / 1e6).tolist(),
        "commanded_sms": commanded.tolist(),
        "observed_sms": (notes.busy(moments) / each).tolist(),
        "sms_with_a_block": notes.sms_busy(moments).tolist(),
    }


def report(found: dict[str, Any]) -> None:
    """Print the table."""
    print(f"{found['steps']} steps, {found['never_settled']} never settled, {found['lost']} lost")
    for name, times in found["settled_us"].items():
        if times["count"]:
            print(f"{name:<12} settled in p50 {times['p50']:.0f} us, p99 {times['p99']:.0f} us")


if __name__ == "__main__":
    raise SystemExit(main())
