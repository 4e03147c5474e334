"""How exactly reservations and quotas are kept: three reserved and five quota jobs at once.

    python bench/gpu/shares.py [--seconds S]

Through a daemon, like a user: three online jobs reserve 20 % of the GPU each, five offline jobs
have quotas of 8 %. All run the noting kernel (`bench.gpu.instrumentation.timestamps`); the share of
each is read from its blocks in windows of 10 ms of the device's time: the average number of running
blocks, as SMs, beside the daemon's allocation. A window's error is observed / allotted - 1.

Prints a table and writes bench/results/gpu_shares.json. A short run on the CPU device is part of
the tests.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import gpud_client as gc
from bench.gpu.instrumentation.driver import Gpu
from bench.gpu.instrumentation.timestamps import ENTRY, NOTE_BYTES, OUT_BLOCKS, SOURCE, Notes
from bench.gpu.instrumentation.warm_up import warm_up
from bench.gpu.record import keep, need_gpu
from gpud.demo.metrics import percentile

RESERVED = ("20%",) * 3
QUOTAS = ("8%",) * 5
BLOCK_US = 100.0
THREADS = 1024
WINDOW_NS = 10_000_000
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class JobShare:
    """The share that a job had.

    Attributes:
        kind: "reserved" or "quota"; ``share``: as asked for.
        allotted: the daemon's allocation, in CapSM.
        observed: on average in each window, in CapSM.
    """

    kind: str
    share: str
    allotted: float
    observed: list[float]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        errors = [abs(one / self.allotted - 1) for one in self.observed]
        return {
            **vars(self),
            "error_p50": percentile(errors, 50),
            "error_p99": percentile(errors, 99),
            "error_most": max(errors),
        }


class Side:
    """A job and its notes."""

    def __init__(self, gpu: gc.Session, kernel: gc.Kernel, share: float, blocks: int) -> None:
        self.share = share
        self.blocks = max(1, blocks)
        self._kernel = kernel
        self._notes = gpu.zeros(NOTE_BYTES * self.blocks, np.uint8)
        self._out = gpu.zeros(THREADS * OUT_BLOCKS, np.float32)
        self._stream = gpu.stream()

    def submit(self, loops: int, **share: Any) -> gc.Job:
        """Start it."""
        arguments = (self._notes, self._out, np.int32(loops))
        return self._kernel.submit(self.blocks, THREADS, arguments, stream=self._stream, **share)

    def notes(self) -> Notes:
        """Return the notes of the task blocks that have run."""
        return Notes.of(self._notes.get().tobytes())


def main() -> int:
    """Measure, print and save the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    need_gpu()
    gpu = Gpu()
    warm_up(gpu)
    shares = measure("cuda", RESERVED, QUOTAS, options.seconds, BLOCK_US, WINDOW_NS)
    print(f"{'kind':<10}{'share':>6}{'allotted':>10}{'observed':>10}{'error p50':>11}{'most':>8}")
    for one in shares:
        plain, mean = one.plain(), sum(one.observed) / len(one.observed)
        print(
            f"{one.kind:<10}{one.share:>6}{one.allotted:>10.2f}{mean:>10.2f}"
            f"{plain['error_p50']:>11.2%}{plain['error_most']:>8.2%}"
        )
    found = {"window_ms": WINDOW_NS / 1e6, "jobs": [one.plain() for one in shares]}
    print(f"wrote {keep('shares', gpu, found).name}")
    return 0


def measure(
    device: str,
    reserved: Sequence[str],
    quotas: Sequence[str],
    seconds: float,
    block_us: float,
    window_ns: int,
) -> list[JobShare]:
    """Run all jobs at once for ``seconds`` on a daemon of their own."""
    with gc.local(device) as gpu:
        kernel = gpu.kernel(SOURCE, ENTRY)
        each = kernel.occupancy(THREADS)
        slots = gpu.device.sms * each
        loops = loops_for(gpu, kernel, slots, block_us)
        wanted = [("reserved", share) for share in reserved] + [("quota", one) for one in quotas]
        # Half as much again as runs in that time, so that no job ends before it is cancelled.
        rounds = 1.5 * (seconds + 0.5) * 1e6 / block_us
        sides = [
            Side(gpu, kernel, part, round(rounds * (part * slots + 1)))
            for part in (float(share.rstrip("%")) / 100 for _, share in wanted)
        ]
        jobs = [
            side.submit(
                loops, **({"reservation": share} if kind == "reserved" else {"quota": share})
            )
            for side, (kind, share) in zip(sides, wanted, strict=True)
        ]
        until_all_run(jobs)
        time.sleep(seconds)
        allotted = [float(job.allocation) for job in jobs]
        for job in jobs:
            job.cancel()
        for job in jobs:
            with suppress(gc.JobCancelled):
                job.result(TIMEOUT_S)
        notes = [side.notes() for side in sides]
    windows = common_windows(notes, window_ns)
    return [
        JobShare(kind, share, given, observed(one.bridged(), windows, window_ns, each))
        for (kind, share), given, one in zip(wanted, allotted, notes, strict=True)
    ]


def loops_for(gpu: gc.Session, kernel: gc.Kernel, slots: int, block_us: float) -> int:
    """Return the loops with which a task block takes about ``block_us``."""
    side = Side(gpu, kernel, 1.0, 4 * slots)
    loops = 1000
    for _ in range(5):
        side.submit(loops).result(TIMEOUT_S)
        took = float(np.median(side.notes().block_ns())) / 1e3
        if abs(took / block_us - 1) < 0.05:
            break
        loops = max(1, min(round(loops * block_us / max(took, 0.05)), 1 << 30))
    return loops


def until_all_run(jobs: Sequence[gc.Job]) -> None:
    """Wait until every job has done a task block.

    Raises:
        TimeoutError: one does not start.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while any(job.progress[0] == 0 for job in jobs):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all run: {[job.progress for job in jobs]}")
        time.sleep(0.01)


def common_windows(notes: Sequence[Notes], window_ns: int) -> list[int]:
    """Return the start times of the windows throughout which all jobs ran."""
    first = max(int(one.began.min()) for one in notes) + window_ns
    last = min(int(one.ended.max()) for one in notes) - window_ns
    return list(range(first, last - window_ns + 1, window_ns))


def observed(notes: Notes, windows: Sequence[int], window_ns: int, each: int) -> list[float]:
    """CapSM on average in each window."""
    found = []
    for begin in windows:
        end = begin + window_ns
        found.append(notes.between(begin, end).busy_share(begin, end) / each)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
