"""The cost of starting, sequencing and releasing jobs on the CPU device, within one process.

    python bench/bench_launch.py [--repeat N] [--short]

* An empty job: from the call that creates it to its callback; and its parts, Python before native
  code runs, and the time until the first task block begins. The floor is a bare thread that is
  woken through a futex and wakes the caller again.
* A sequence of 100 empty kernels against one empty kernel: the difference, for each further kernel;
  with one task block each, and with 64, and prepared anew each time.
* Releases: a job has the whole device; then a more urgent one takes half of it. The time from the
  decision until the last released block is gone, beside the task block's own time, for task blocks
  of 0.1, 1 and 5 ms.

Prints tables and writes bench/results/launch.json; with --short it only prints.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness.machine import describe
from bench.harness.timing import load
from gpud.compiler.pipeline import compile_program
from gpud.device.cpu.device import CPUDevice
from gpud.device.interface import LaunchSpec
from tests.support.resizable_run import ResizableRun

RESULT = Path(__file__).parent / "results" / "launch.json"
SOURCE = """
extern "C" __global__ void empty() {}
extern "C" __global__ void work(float* out, int n) {
    float x = threadIdx.x;
    for (int i = 0; i < n; i++) x = x * 1.0001f + 0.5f;
    out[threadIdx.x] = x;
}
"""
SEQUENCE = 100
AIM_START_US, AIM_KERNEL_US = 40.0, 3.0
BLOCKS_MS = (0.1, 1.0, 5.0)
SWITCH_S = 0.0005
"""The device host's setting."""

Times = dict[str, list[float]]


def main() -> int:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="a few samples")
    options = parser.parse_args()
    sys.setswitchinterval(SWITCH_S)
    before, began = load(), time.monotonic()
    count, repeat = (20, 1) if options.short else (500, options.repeat)
    times: Times = {}
    releases: list[dict[str, float]] = []
    with CPUDevice() as device:
        bench = Launching(device)
        for _ in range(repeat):
            bench.starts(times, count)
            bench.sequences(times, count)
        for block_ms in BLOCKS_MS:
            releases.append(bench.releases(block_ms, 5 if options.short else 60))
    rows = {name: _row(samples) for name, samples in times.items()}
    report(rows, releases)
    if not options.short:
        found = {
            "machine": describe(),
            "load": before,
            "took_s": round(time.monotonic() - began, 1),
            "aims": {"start_us": AIM_START_US, "kernel_us": AIM_KERNEL_US},
            "rows": rows,
            "releases": releases,
        }
        RESULT.write_text(json.dumps(found, indent=1) + "\n")
    return 0


class Launching:
    """The kernels, loaded on a device."""

    def __init__(self, device: CPUDevice) -> None:
        self.device = device
        module = device.load(compile_program(SOURCE).ptx)
        self.empty, self.work = module.kernel("empty"), module.kernel("work")
        self.out = device.allocate(4 * 32)

    def starts(self, times: Times, count: int) -> None:
        """Empty jobs, one after the other."""
        one = self.device.prepare([self._empty(1)])
        wake = EchoThread()
        for _ in range(count):
            times.setdefault("floor: a thread woken and back", []).append(wake.round_trip_us())
            start = self._run(one, 1)
            times.setdefault("empty job: Python until it is given to an SM", []).append(start[0])
            times.setdefault("empty job: to its first task block", []).append(start[1])
            times.setdefault("empty job: to its callback", []).append(start[2])
        wake.close()

    def sequences(self, times: Times, count: int) -> None:
        """Sequences against one kernel, in turns."""
        for blocks in (1, 64):
            slices = blocks and self.device.sms
            one = self.device.prepare([self._empty(blocks)])
            specs = [self._empty(blocks)] * SEQUENCE
            sequence = self.device.prepare(specs)
            name = f"{SEQUENCE} kernels of {blocks} task block{'s' * (blocks > 1)}"
            for _ in range(count // 5):
                alone = self._run(one, slices)[2]
                ready = self._run(sequence, slices)[2]
                anew = self._run(lambda specs=specs: self.device.prepare(specs), slices)[2]
                further = SEQUENCE - 1
                times.setdefault(f"{name}: for each", []).append((ready - alone) / further)
                times.setdefault(f"{name}, made ready anew: for each", []).append(
                    (anew - alone) / further
                )

    def releases(self, block_ms: float, count: int) -> dict[str, float]:
        """Latencies of releasing half of a job that has the whole device."""
        rounds, block_us = self._calibrated(block_ms)
        values = [self.out.address.to_bytes(8, "little"), rounds.to_bytes(4, "little")]
        spec = LaunchSpec.of(self.work, "persistent", 2**31 - 1, 32, values)
        m = self.device.occupancy(self.work, (32, 1, 1))
        whole = m * self.device.sms
        sequence = self.device.prepare([spec])
        latencies = []
        gone = threading.Event()
        gone_ns = 0

        def left(job: ResizableRun) -> None:
            nonlocal gone_ns
            if job.held <= whole // 2:
                gone_ns = time.perf_counter_ns()
                gone.set()

        job = ResizableRun(self.device, sequence, on_left=left)
        other = ResizableRun(self.device, sequence, priority=1)
        for at in range(count):
            other.resize(0)
            wait_for(lambda: other.held == 0)
            job.resize(whole)
            goal = job.progress[1] + 2 * self.device.sms
            wait_for(lambda goal=goal: job.progress[1] >= goal)  # type: ignore[misc]
            # Releases must hit task blocks at varying times: wait for a different time each round.
            time.sleep(block_us * (at % 10) / 1e7)
            gone.clear()
            began = time.perf_counter_ns()
            job.resize(whole // 2)
            other.resize(whole // 2)
            gone.wait()
            latencies.append((gone_ns - began) / 1e3)
        for one in (job, other):
            one.end()
            one.wait()
        row = _row(latencies)
        return {
            "asked_ms": block_ms,
            "block_us": round(block_us, 1),
            "p50_us": row["p50"],
            "p99_us": row["p99"],
            "p50_blocks": round(row["p50"] / block_us, 2),
            "p99_blocks": round(row["p99"] / block_us, 2),
        }

    def _calibrated(self, block_ms: float) -> tuple[int, float]:
        """Return (rounds of the loop, microseconds) of a task block of about ``block_ms``."""
        rounds = 10_000
        for _ in range(3):
            took = min(self._block_us(rounds) for _ in range(5))
            rounds = max(1, round(rounds * block_ms * 1e3 / took))
        return rounds, min(self._block_us(rounds) for _ in range(5))

    def _block_us(self, rounds: int) -> float:
        """Return a task block's own time, from a job of several on every SM at once."""
        values = [self.out.address.to_bytes(8, "little"), rounds.to_bytes(4, "little")]
        blocks = 16 * self.device.sms
        spec = LaunchSpec.of(self.work, "persistent", blocks, 32, values)
        m = self.device.occupancy(self.work, (32, 1, 1))
        took = self._run(self.device.prepare([spec]), m * self.device.sms)[2]
        return took * self.device.sms / blocks

    def _empty(self, blocks: int) -> LaunchSpec:
        return LaunchSpec.of(self.empty, "persistent", blocks, 32, [])

    def _run(self, sequence: Any, slices: int) -> tuple[float, float, float]:
        """Microseconds until the job was started, until its first block, until its callback."""
        over = threading.Event()
        ended_ns = 0

        def ended(_: ResizableRun) -> None:
            nonlocal ended_ns
            ended_ns = time.perf_counter_ns()
            over.set()

        began = time.perf_counter_ns()
        job = ResizableRun(
            self.device, sequence() if callable(sequence) else sequence, on_done=ended
        )
        job.resize(slices)
        started = time.perf_counter_ns()
        over.wait()
        return (started - began) / 1e3, job.first_block_ns / 1e3, (ended_ns - began) / 1e3


class EchoThread:
    """A thread that answers each call."""

    def __init__(self) -> None:
        self._call, self._answer = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._serve)
        self._closing = False
        self._thread.start()

    def _serve(self) -> None:
        while True:
            self._call.acquire()
            if self._closing:
                return
            self._answer.release()

    def round_trip_us(self) -> float:
        """One call and its answer."""
        began = time.perf_counter_ns()
        self._call.release()
        self._answer.acquire()
        return (time.perf_counter_ns() - began) / 1e3

    def close(self) -> None:
        """End the thread."""
        self._closing = True
        self._call.release()
        self._thread.join()


def wait_for(holds: Callable[[], bool]) -> None:
    """Poll until the condition holds, letting other threads run in between."""
    while not holds():
        time.sleep(20e-6)


def _row(samples: Sequence[float]) -> dict[str, float]:
    ordered = sorted(samples)
    return {
        "p50": round(ordered[len(ordered) // 2], 3),
        "p99": round(ordered[int(0.99 * len(ordered))], 3),
        "least": round(ordered[0], 3),
    }


def report(rows: dict[str, dict[str, float]], releases: Sequence[dict[str, float]]) -> None:
    """Print the tables."""
    width = max(map(len, rows))
    print(f"{'microseconds':<{width}}{'p50':>9}{'p99':>9}{'least':>9}")
    for name, row in rows.items():
        print(f"{name:<{width}}" + "".join(f"{row[at]:>9.2f}" for at in ("p50", "p99", "least")))
    print(f"aims: {AIM_START_US:g} us of Python for a job, {AIM_KERNEL_US:g} us a further kernel")
    print("\nhalf of the device released: decision to last released block gone")
    print(f"{'task block us':>14}{'p50 us':>10}{'p99 us':>10}   in task blocks: p50, p99")
    for one in releases:
        print(
            f"{one['block_us']:>14.0f}{one['p50_us']:>10.0f}{one['p99_us']:>10.0f}"
            f"{one['p50_blocks']:>19.2f}{one['p99_blocks']:>8.2f}"
        )


if __name__ == "__main__":
    sys.exit(main())
