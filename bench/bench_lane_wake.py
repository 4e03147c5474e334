"""How soon a launch begins in a lane whose share is lent, beside the blocks that had to leave.

    python bench/bench_lane_wake.py [--wakes N] [--short]

Offline blocks of 0.1 ms and of 1 ms fill a CPU device with one SM for each core; they have the
share of an idle lane, which is the whole device. A launch is written into the lane's ring at a
random time, as a client writes it; the device host's watch of the lane carries out the take-back
plan and gives the lane its blocks back, without the front. Measured is the time from the record to
the launch's first block: to when the device began it, as its completion says, and to the first
clock that it reads, on the CPU device after the work of 1,024 threads that claim a task block;
and from the record to the end of the first offline block after it, which is the least that any way
to take back needs. What is above it is what the host adds. Beside it, in turn with it, the same
where somebody is asked first, over a socket pair, who answers at once: a front that has nothing
else to do and nothing to decide. What the host reports is encoded and sent, as ever.

Prints a table and writes bench/results/lane_wake.json; with --short it only prints.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import socket
import struct
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness.machine import describe
from bench.harness.timing import percentile_us
from gpud.compiler.pipeline import compile_program
from gpud.core.capacity import MOST_SLICES
from gpud.device.cpu.device import CPUDevice
from gpud.device.host import messages as m
from gpud.device.host.lane_watch import LaneWatch
from gpud.device.host.lending import Lending
from gpud.device.host.link import Link
from gpud.device.host.running_job import RunningJob
from gpud.device.interface import LaunchSpec
from gpud.device.lane_reports import EndedLaunch
from gpud.device.record_wait import wake_shared
from gpud.server.ipc import memfd
from gpud.units import JobId
from gpud.wire import lane_ring as ring

RESULT = Path(__file__).parent / "results" / "lane_wake.json"
BLOCKS_MS = (0.1, 1.0)
SIDES = ("plan", "asked")
OFFLINE, LANE = JobId(1), JobId(2)
ENDS = 1 << 12
THREADS = 1024  # of a block: few blocks fill an SM
AIM_US = 50.0
HOLD_S = 0.001

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
    """A device full of one offline job, and a lane that lends it everything."""

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
        self.jobs: dict[int, RunningJob] = {}
        self.front, theirs = socket.socketpair()
        threading.Thread(target=lambda: answer(theirs), daemon=True).start()
        ours, theirs = socket.socketpair()
        threading.Thread(target=lambda: read(theirs), daemon=True).start()
        self.link = Link(ours)
        start = m.StartRun(OFFLINE, 1, b"", self.slices // device.sms, 0, 0, online=False)
        self.job = self.jobs[OFFLINE] = RunningJob(start, self.hear, self.forget)
        prepared = device.prepare([spec], None)
        self.job.start(device.new_run(prepared, 0, self.job.on_left, self.job.on_over))
        self.epoch = 0
        self.idle, self.woke = threading.Event(), threading.Event()
        self._barrier = threading.Lock()
        self.lending = AskingLending(self.jobs, self.hear, self.front)
        self._open_lane(online)

    def _open_lane(self, online: Any) -> None:
        descriptor = memfd.create("ring", -(-ring.RING_BYTES // 4096) * 4096)
        self.map = mmap.mmap(descriptor, 0)
        self.lane = self.device.open_lane(descriptor, MOST_SLICES, 1, self)
        os.close(descriptor)
        self.lane.resize(MOST_SLICES * self.device.sms)
        block = (THREADS, 1, 1)
        spec = LaunchSpec(online, "persistent", (1, 1, 1), block, b"")
        sites: list[int] = []
        self.lane.add_site(spec, sites.append)
        while not sites:
            time.sleep(0.001)
        self.number = 0
        self.watch = LaneWatch(LANE, self.lane, self.lending, HOLD_S, self._lost, lambda: True)
        self.watch.start()

    def _lost(self, error: BaseException) -> None:
        traceback.print_exception(error)
        os._exit(1)

    def forget(self, running: RunningJob) -> None:
        """Forget a job that has ended."""
        self.jobs.pop(running.number, None)

    # -- what the front does

    def hear(self, event: Any) -> None:
        """Lend, with a plan; book. What the device host sends is sent."""
        self.link.send(event)
        if isinstance(event, m.LaneLent):
            self.epoch += 1
            self.job.resize(self.slices, self.epoch)
            self.lending.plan(m.TakeBackPlan(LANE, 0, event.epoch, ((OFFLINE, self.slices),)))
            self.idle.set()
        elif isinstance(event, m.LaneTookBack):
            self.epoch += 1
            self.job.resize(0, self.epoch, booked=sum(slices for _, slices in event.taken))
            self.woke.set()

    # -- an observer of the lane

    def launch_ended(self, launch: EndedLaunch) -> None:
        """Say what went wrong."""
        print(f"launch {launch.number} is {launch.state}: {launch.error}", file=sys.stderr)

    def on_left(self) -> None:
        """Nothing is to be reported."""

    def on_over(self) -> None:
        """Nothing is to be reported."""

    def once(self, side: str, wait_s: float) -> tuple[int, int, int]:
        """Return the ns from a record to the launch's first block, and to an offline one's end.

        The first is to when the block was begun, the second to the clock that it read.
        """
        self.lending.asks = side == "asked"
        began = self.began.view.view(np.uint64)
        began[0] = np.iinfo(np.uint64).max
        if not self.idle.wait(30):
            raise RuntimeError("the lane has not become idle within 30 s")
        self.idle.clear()
        self.woke.clear()
        if self.lending.asks:
            self.lane.plan(None)  # nobody may act before the answer
        time.sleep(wait_s)
        slot = ring.SLOTS_AT + self.number % ring.SLOTS * ring.SLOT_BYTES
        address = self.began.address.to_bytes(8, "little")
        struct.pack_into(
            "<6I8x8s", self.map, slot, self.number, 0, self.device.sms, 1, 1, 8, address
        )
        self.number += 1
        written, written_monotonic = time.time_ns(), time.monotonic_ns()  # the first: %globaltimer
        struct.pack_into("<I", self.map, ring.HEAD, self.number)
        with self._barrier:  # as the client has it: the device sees `head`, or this `listening`
            pass
        if struct.unpack_from("<I", self.map, ring.LISTENING)[0]:
            wake_shared(self.lane._ring.address + ring.HEAD)
        if not self.woke.wait(30):
            raise RuntimeError("the lane has not woken within 30 s")
        end = time.monotonic() + 30
        while struct.unpack_from("<I", self.map, ring.COMPLETED)[0] != self.number:
            if time.monotonic() > end:
                raise RuntimeError("the launch in the lane has not ended within 30 s")
            time.sleep(0.0005)
        ends = self.ends.view.view(np.uint64).astype(np.int64)
        after = ends[ends > written]
        first = int(began[0]) - written
        at = ring.COMPLETIONS_AT + (self.number - 1) % ring.SLOTS * ring.COMPLETION_BYTES
        begun = struct.unpack_from("<Q", self.map, at + 16)[0] - written_monotonic
        return begun, first, int(after.min()) - written if len(after) else first


class AskingLending(Lending):
    """Asks somebody before it takes anything back, if it is to."""

    def __init__(self, jobs: dict[int, RunningJob], send: Any, front: socket.socket) -> None:
        super().__init__(jobs, send)
        self.asks = False
        self._front = front

    def take_back(
        self, lane: int, before: tuple[tuple[int, int], ...] | None = None
    ) -> tuple[tuple[int, int], ...] | None:
        """Take back what a lane has lent."""
        if self.asks:
            self._front.send(b"?")
            self._front.recv(1)
        return super().take_back(lane, before)


def answer(theirs: socket.socket) -> None:
    """Answer whatever is asked, at once."""
    while theirs.recv(1):
        theirs.send(b"!")


def read(theirs: socket.socket) -> None:
    """Read what the device host sends, as a front does."""
    while theirs.recv(1 << 16):
        pass


def measure(block_ms: float, wakes: int) -> dict[str, dict[str, float]]:
    """Return p50 and p99, in us, of each side."""
    draw = random.Random(7)
    found: dict[str, list[tuple[int, int, int]]] = {side: [] for side in SIDES}
    with CPUDevice() as device:
        machine = Machine(device, block_ms)
        time.sleep(0.1)
        for number in range(wakes * len(SIDES)):
            side = SIDES[number % len(SIDES)]
            found[side].append(machine.once(side, draw.uniform(0.003, 0.003 + 2 * block_ms / 1e3)))
        machine.watch.stop()
        machine.lane.end()
        machine.job.end()
    rows = {}
    for side, times in found.items():
        row = {"wakes": float(len(times))}
        for name, values in {
            "begun": [begun for begun, _, _ in times],
            "first": [first for _, first, _ in times],
            "left": [left for _, _, left in times],
            "above": [begun - left for begun, _, left in times],
            "read_above": [first - left for _, first, left in times],
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
    print(f"{'block':>7}  {'way':<6}{'block begun us':>18}{'a block left us':>18}", end="")
    print(f"{'above us':>16}{'clock read, above':>20}")
    print(f"{'ms':>7}  {'':<6}{'p50':>9}{'p99':>9}{'p50':>9}{'p99':>9}{'p50':>8}{'p99':>8}", end="")
    print(f"{'p50':>10}{'p99':>10}")
    rows = {}
    for block_ms in BLOCKS_MS:
        for side, row in measure(block_ms, wakes).items():
            rows[f"{block_ms:g} ms, {side}"] = row
            print(
                f"{block_ms:>7g}  {side:<6}{row['begun_p50_us']:>9.0f}{row['begun_p99_us']:>9.0f}"
                f"{row['left_p50_us']:>9.0f}{row['left_p99_us']:>9.0f}"
                f"{row['above_p50_us']:>8.0f}{row['above_p99_us']:>8.0f}"
                f"{row['read_above_p50_us']:>10.0f}{row['read_above_p99_us']:>10.0f}"
            )
    print(f"aim: p50 at most {AIM_US:g} us above, by plan")
    if not options.short:
        RESULT.write_text(json.dumps({"machine": describe(), "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
