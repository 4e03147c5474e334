"""Processor time of gpud's own code for a launch in a lane of the CUDA device, over the model.

    python bench/bench_cuda_lane.py [--rounds N]

Problem: on a GPU a thread of the device host reads a lane's ring and calls the driver. What it
spends besides those calls needs no GPU to be measured. Approach: that of
`bench/bench_cuda_host.py`, whose stepped model of the driver subtracts the time that is spent in
it; launches are written into a lane's ring, and the lane is told of them and of their end on one
thread.

``read``      to copy a record out of the ring and check it
``first``     one launch, with other parameters than before: from its record to the driver's call
``end``       from its end, as the watcher sees it, to its completion in the ring
``groups``    launches that wait in the ring when the one before ends, 16 to a run: for each, all
              that is done from its record to its completion

Each for the ways in which launches are queued. Prints a table, p50 of N rounds in microseconds of
the thread's processor, and writes bench/results/cuda_lane.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.bench_cuda_host import OCCUPANCY, SMS, TimedDriver
from bench.harness.machine import describe
from gpud.device.cuda.device import CUDADevice
from gpud.device.cuda.driver.calls import Driver
from gpud.device.cuda.launch.batch import LAUNCH_PATHS
from gpud.device.cuda.launch.sequence import WINDOW
from gpud.device.interface import LaunchSpec
from gpud.wire import lane_ring as ring
from tests.unit.cuda.model_runs import PROGRAM
from tests.unit.cuda.ring_writer import RingWriter

OUT = Path(__file__).parent / "results" / "cuda_lane.json"
TOTAL = 1 << 20
MANY = 8 * WINDOW


def main() -> int:
    """Measure, print and save the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    found = {}
    for way in LAUNCH_PATHS:
        found[way] = measured(way, rounds)
        print(f"{way:<8}" + "  ".join(f"{k} {v:.1f}" for k, v in found[way].items()), flush=True)
    OUT.write_text(json.dumps({"machine": describe(), "rounds": rounds, **found}, indent=1) + "\n")
    return 0


class Nobody:
    """Whom a lane tells what happens to it."""

    def launch_ended(self, launch: Any) -> None:
        """Fail: these launches simply run to their end."""
        raise AssertionError(launch)

    def on_left(self) -> None:
        """Nothing depends on it here."""

    def on_over(self) -> None:
        """Nothing depends on it here."""


def measured(way: str, rounds: int) -> dict[str, float]:
    """Return the medians of one way to queue launches, in microseconds a launch."""
    fake = TimedDriver(sms=SMS, room=SMS * OCCUPANCY)
    fake.occupancy = OCCUPANCY
    samples: dict[str, list[float]] = {}

    def took(name: str, began: int, inside: int, launches: int = 1) -> None:
        spent = time.thread_time_ns() - began - (fake.inside_ns - inside)
        samples.setdefault(name, []).append(spent / launches / 1e3)

    with CUDADevice(driver=Driver(fake), launches=way, watch=False) as device:
        kernel = device.load(PROGRAM).kernel("persistent_a")
        descriptor = os.memfd_create("ring")
        os.ftruncate(descriptor, -(-ring.RING_BYTES // 4096) * 4096)
        writer = RingWriter(descriptor)
        lane = device.open_lane(descriptor, ring.SLICES, 1, Nobody())
        sites: list[int] = []
        lane.add_site(LaunchSpec(kernel, "persistent", (1, 1, 1), (32, 1, 1), b""), sites.append)
        lane.resize(SMS * ring.SLICES)
        for at in range(rounds):
            writer.write(sites[0], struct.pack("<Q", at), (TOTAL, 1, 1))
            began, inside = time.thread_time_ns(), fake.inside_ns
            lane.act()
            samples.setdefault("first", []).append((fake.launched_ns - (began - inside)) / 1e3)
            fake.run()
            began, inside = time.thread_time_ns(), fake.inside_ns
            device.watcher.poll()
            took("end", began, inside)
            assert writer.completed == writer.launches
            for _ in range(MANY):
                writer.write(sites[0], struct.pack("<Q", at), (TOTAL, 1, 1))
            began, inside = time.thread_time_ns(), fake.inside_ns
            lane.act()
            while writer.completed != writer.launches:
                before, spent = time.thread_time_ns(), fake.inside_ns
                fake.run()
                inside -= time.thread_time_ns() - before - (fake.inside_ns - spent)
                device.watcher.poll()
            took("groups", began, inside, MANY)
            for _ in range(MANY):
                writer.write(sites[0], struct.pack("<Q", at), (TOTAL, 1, 1))
            reader, began = lane.ring, time.thread_time_ns()
            for _ in range(MANY):
                reader.read([8])
            took("read", began, fake.inside_ns, MANY)
            for number in range(writer.launches - MANY, writer.launches):
                reader.complete(number, ring.DONE, 0, 0, 0, 0)
        lane.end()
        os.close(descriptor)
    return {name: statistics.median(values) for name, values in sorted(samples.items())}


if __name__ == "__main__":
    sys.exit(main())
