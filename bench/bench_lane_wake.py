"""How soon a launch begins in a lane whose share is lent, beside the blocks that had to leave.

    python bench/bench_lane_wake.py [--wakes N] [--short]

Offline blocks of 0.1 ms and of 1 ms fill a CPU device with one SM for each core; they have the
share of an idle lane, which is the whole device. A launch comes at a random time: a thread that
sleeps on the lane's event carries out the take-back plan (`gpud.device.host.lending`) and starts
the launch, without the front. Measured is the time from the signal to the launch's first block, by
the clock that kernels read; and from the signal to the end of the first offline block after it,
which is the least that any way to take back needs. What is above it is what the host adds. Beside
it, in turn with it, the same where somebody is asked first, over a socket pair, who answers at
once: a front that has nothing else to do and nothing to decide.

Prints a table and writes bench/results/lane_wake.json; with --short it only prints.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness.machine import describe
from bench.harness.timing import percentile_us
from gpud.compiler.pipeline import compile_program
from gpud.device.cpu.device import CPUDevice
from gpud.device.host import messages as m
from gpud.device.host.lending import Lending
from gpud.device.host.running_job import RunningJob
from gpud.device.interface import LaunchSpec
from gpud.units import JobId

RESULT = Path(__file__).parent / "results" / "lane_wake.json"
BLOCKS_MS = (0.1, 1.0)
SIDES = ("plan", "asked")
OFFLINE, LANE = JobId(1), JobId(2)
ENDS = 1 << 12
THREADS = 1024  # of a block: few blocks fill an SM
AIM_US = 50.0

SOURCE = """
__device__ unsigned long long now() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
extern "C" __global__ void offline(unsigned long long* ends, unsigned long long ns) {
    if (threadIdx.x) return;
    unsigned long long began = now();
    while (now() - began < ns) {}
    ends[blockIdx.x % 4096] = now();
}
extern "C" __global__ void online(unsigned long long* began) { atomicMin(began, now()); }
"""


class Machine:
    """A device full of one offline job, and a lane that has lent it everything."""

    def __init__(self, device: CPUDevice, block_ms: float) -> None:
        self.device = device
        module = device.load(compile_program(SOURCE).ptx)
        offline, online = module.kernel("offline"), module.kernel("online")
        self.ends = device.allocate(8 * ENDS)
        self.began = device.allocate(8)
        self.slices = device.sms * device.occupancy(offline, (THREADS, 1, 1))
        values = [self.ends.address.to_bytes(8, "little")]
        values.append(round(block_ms * 1e6).to_bytes(8, "little"))
        spec = LaunchSpec.of(offline, "persistent", 2**31 - 1, THREADS, values)
        address = self.began.address.to_bytes(8, "little")
        lane = LaunchSpec.of(online, "persistent", device.sms, THREADS, [address])
        self.launch = device.prepare([lane], None)
        self.jobs: dict[int, RunningJob] = {}
        self.sent: list[Any] = []
        self.over = threading.Event()
        self.lending = Lending(self.jobs, self.sent.append)
        start = m.StartRun(OFFLINE, 1, b"", self.slices // device.sms, self.slices, 0, online=False)
        self.job = self.jobs[OFFLINE] = RunningJob(start, self.sent.append, self.forget)
        prepared = device.prepare([spec], None)
        self.job.start(device.new_run(prepared, 0, self.job.on_left, self.job.on_over))
        self.epoch = 0
        self.event = os.eventfd(0)
        self.front, theirs = socket.socketpair()
        self.ways = {"plan": self.by_plan, "asked": self.by_asking}
        self.way = self.by_plan
        for target in (self.wake, lambda: answer(theirs)):
            threading.Thread(target=target, daemon=True).start()

    def forget(self, running: RunningJob) -> None:
        """Forget a job that has ended."""
        self.jobs.pop(running.number, None)

    def wake(self) -> None:
        """Start a launch whenever the lane's event is signalled. On the lane's thread."""
        while True:
            os.eventfd_read(self.event)
            taken = self.way()
            run = self.device.new_run(self.launch, 1, lambda: None, self.over.set)
            run.resize(self.slices)
            self.lending.report(LANE, taken)

    def by_plan(self) -> tuple[tuple[int, int], ...]:
        """Take back by the plan that is there."""
        return self.lending.take_back(LANE) or ()

    def by_asking(self) -> tuple[tuple[int, int], ...]:
        """Ask somebody else what to do before it is done."""
        self.front.send(b"?")
        self.front.recv(1)
        return self.lending.take_back(LANE) or ()

    def once(self, side: str, wait_s: float) -> tuple[int, int]:
        """Return the ns from a signal to the launch's first block, and to an offline one's end."""
        self.way = self.ways[side]
        began = self.began.view.view(np.uint64)
        began[0] = np.iinfo(np.uint64).max
        self.over.clear()
        self.lending.idle(LANE)
        epoch = next(one.epoch for one in reversed(self.sent) if isinstance(one, m.LaneIdle))
        self.lending.plan(m.TakeBackPlan(LANE, 0, epoch, ((OFFLINE, self.slices),)))
        time.sleep(wait_s)
        signalled = time.time_ns()  # the clock of %globaltimer
        os.eventfd_write(self.event, 1)
        if not self.over.wait(30):
            raise RuntimeError("the launch in the lane has not ended within 30 s")
        ends = self.ends.view.view(np.uint64).astype(np.int64)
        after = ends[ends > signalled]
        first = int(began[0]) - signalled
        self.epoch += 1
        self.job.resize(self.slices, self.epoch, booked=self.slices)
        self.sent.clear()
        time.sleep(0.002)
        return first, int(after.min()) - signalled if len(after) else first


def answer(theirs: socket.socket) -> None:
    """Answer whatever is asked, at once."""
    while theirs.recv(1):
        theirs.send(b"!")


def measure(block_ms: float, wakes: int) -> dict[str, dict[str, float]]:
    """Return p50 and p99, in us, of each side."""
    draw = random.Random(7)
    found: dict[str, list[tuple[int, int]]] = {side: [] for side in SIDES}
    with CPUDevice() as device:
        machine = Machine(device, block_ms)
        time.sleep(0.1)
        for number in range(wakes * len(SIDES)):
            side = SIDES[number % len(SIDES)]
            found[side].append(machine.once(side, draw.uniform(0.003, 0.003 + 2 * block_ms / 1e3)))
        machine.job.end()
    rows = {}
    for side, times in found.items():
        row = {"wakes": float(len(times))}
        for name, values in {
            "first": [first for first, _ in times],
            "left": [left for _, left in times],
            "above": [first - left for first, left in times],
        }.items():
            for at in (50, 99):
                row[f"{name}_p{at}_us"] = percentile_us(values, at)
        rows[side] = row
    return rows


def main() -> int:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--wakes", type=int, default=1000, help="of each side")
    parser.add_argument("--short", action="store_true", help="50 wakes; writes no file")
    options = parser.parse_args()
    wakes = 50 if options.short else options.wakes
    print(f"{'block':>7}  {'way':<6}{'first block us':>18}{'a block left us':>18}{'above us':>16}")
    print(f"{'ms':>7}  {'':<6}{'p50':>9}{'p99':>9}{'p50':>9}{'p99':>9}{'p50':>8}{'p99':>8}")
    rows = {}
    for block_ms in BLOCKS_MS:
        for side, row in measure(block_ms, wakes).items():
            rows[f"{block_ms:g} ms, {side}"] = row
            print(
                f"{block_ms:>7g}  {side:<6}{row['first_p50_us']:>9.0f}{row['first_p99_us']:>9.0f}"
                f"{row['left_p50_us']:>9.0f}{row['left_p99_us']:>9.0f}"
                f"{row['above_p50_us']:>8.0f}{row['above_p99_us']:>8.0f}"
            )
    print(f"aim: p50 at most {AIM_US:g} us above, by plan")
    if not options.short:
        RESULT.write_text(json.dumps({"machine": describe(), "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
