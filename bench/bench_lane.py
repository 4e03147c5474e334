"""A lane: round trip, one client's submit, and launches a second, beside a bare echo.

    python bench/bench_lane.py [--rounds N] [--device cpu:N] [--short]

An empty kernel of one block with three arguments that differ from launch to launch, in a lane of
the whole device. Beside it, in turns of the same run, stand a bare msgpack echo over a Unix socket
and the same kernel as an ordinary job. ``submit`` is the time of one call while the ring has room.
Then eight clients, processes with a lane each, launch at once, in turns with one alone.

A round trip through two processes takes several times as long if they are on two cores, one of
which has to wake up. Where the system puts them changes from second to second, and favours either
side. So lane and echo are also compared where both are put on one core, or the program on one and
all else on another.

Prints the figures beside their aims and writes bench/results/lane.json; with --short it only
prints.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import gpud_client as gc
from bench.harness.processes import children, confine
from bench.harness.results import keep
from bench.harness.timing import load
from bench.load.echo_server import Echo
from bench.load.lane_client import KERNEL, LaneClients
from gpud.demo.metrics import percentile
from gpud_client.launch.lane_jobs import LaneJob

CALLS, BATCH = 300, 400  # a batch fits into the ring
CLIENTS, TURN_S = 8, 1.0
AIMS = {"p50_ratio": 1.0, "p99_ratio": 2.0, "submit_us": 4.0, "launches_a_second": 150_000.0}

FREE, ONE, TWO = "as they come", "one core", "two cores"
PLACES = FREE, ONE, TWO

Sides = dict[str, list[float]]


def main() -> int:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15, help="turns of each side")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--short", action="store_true", help="two turns; writes no file")
    options = parser.parse_args()
    before = load()
    found = measure(options.device, 2 if options.short else options.rounds)
    report(found)
    if not options.short:
        keep("lane", {"aims": AIMS, **found}, before)
    return 0


def measure(device: str, rounds: int) -> dict[str, Any]:
    """All figures; times in microseconds."""
    trips: dict[str, Sides] = {place: {"lane": [], "echo": []} for place in PLACES}
    trips[FREE]["job"] = []
    submits: list[float] = []
    rates: list[float] = []
    with gc.local(device) as gpu, Echo() as echo:
        empty, x = gpu.kernel(KERNEL, "empty"), gpu.zeros(4, np.float32)
        with gpu.lane(reservation=gpu.device.sms) as lane:

            def launch(index: int) -> gc.Job:
                return empty.submit(1, 32, (x, index, 0.5 * index), stream=lane)

            launch(0).result()
            for _ in range(rounds):
                for place in PLACES:
                    with placed(place):
                        trips[place]["lane"] += timed(lambda index: launch(index).result())
                        trips[place]["echo"] += timed(lambda _: echo.call())
                took, rate = batch(launch)
                submits += took
                rates.append(rate)
            parts = parts_of_a_submit(empty, (x, 1, 0.5), lane)
        for _ in range(rounds):
            trips[FREE]["job"] += timed(
                lambda index: empty.submit(1, 32, (x, index, 0.5 * index)).result()
            )
    return {
        "round_trip_us": {
            place: {
                side: {"p50": percentile(times, 50), "p99": percentile(times, 99)}
                for side, times in sides.items()
            }
            for place, sides in trips.items()
        },
        "submit_us": {"p50": percentile(submits, 50), "p99": percentile(submits, 99)},
        "launches_a_second": percentile(rates, 50),
        "parts_us": parts,
        "clients": several(device, max(2, rounds // 3)),
    }


@contextmanager
def placed(place: str) -> Iterator[None]:
    """Have this program on one core, and what it has started on the same or on another one."""
    every = sorted(os.sched_getaffinity(0))
    cores = {FREE: (every, every), ONE: (every[:1], every[:1]), TWO: (every[:1], every[1:2])}
    own, others = cores[place]
    try:
        _confine(own, others or own)
        yield
    finally:
        _confine(every, every)


def _confine(own: list[int], others: list[int]) -> None:
    confine(os.getpid(), own)
    for child in children(os.getpid()):
        for pid in (child, *children(child)):
            confine(pid, others)


def several(device: str, turns: int) -> dict[str, Any]:
    """Launches a second of one client, and of several with a part of the device each, in turns."""
    one: list[float] = []
    together: list[float] = []
    each: list[list[float]] = []
    with gc.local(device) as gpu:
        part = Fraction(gpu.device.sms, 2 * CLIENTS)  # all of them fit beside the first
        with (
            LaneClients(str(gpu.path), 1, Fraction(gpu.device.sms, 2)) as alone,
            LaneClients(str(gpu.path), CLIENTS, part) as many,
        ):
            for _ in range(turns):
                one += alone.run(TURN_S)
                rates = many.run(TURN_S)
                together.append(sum(rates))
                each.append(rates)
    means = [sum(rates) / turns for rates in zip(*each, strict=True)]
    return {
        "one": percentile(one, 50),
        "together": percentile(together, 50),
        "least_of_mean": min(means) / (sum(means) / CLIENTS),
    }


def parts_of_a_submit(kernel: gc.Kernel, args: tuple[Any, ...], lane: Any) -> dict[str, float]:
    """Return the time of some parts of a submit, each by itself."""
    calls: dict[str, Callable[[], object]] = {
        "check and convert the arguments": lambda: kernel._packer.values(args),
        "make the job": lambda: LaneJob(lane, "empty", 1),
        "wake the device's thread, of which none sleeps": lane._ends.wake,
    }
    found = {}
    for name, call in calls.items():
        times = []
        for _ in range(50):
            began = time.perf_counter_ns()
            for _ in range(100):
                call()
            times.append((time.perf_counter_ns() - began) / 1e5)
        found[name] = percentile(times, 50)
    return found


def timed(call: Callable[[int], object]) -> list[float]:
    """Return the times of calls, one after the other."""
    times = []
    for index in range(CALLS):
        began = time.perf_counter_ns()
        call(index)
        times.append((time.perf_counter_ns() - began) / 1e3)
    return times


def batch(launch: Callable[[int], gc.Job]) -> tuple[list[float], float]:
    """Return the times of submitting a batch, and its launches a second until all have ended."""
    times = []
    begin = time.perf_counter_ns()
    job = launch(0)
    for index in range(1, BATCH):
        began = time.perf_counter_ns()
        job = launch(index)
        times.append((time.perf_counter_ns() - began) / 1e3)
    job.result()
    return times, BATCH / ((time.perf_counter_ns() - begin) / 1e9)


def report(found: dict[str, Any]) -> None:
    """Print the figures beside their aims."""
    for place, trips in found["round_trip_us"].items():
        for side, row in trips.items():
            print(f"{place}, {side:4}: p50 {row['p50']:8.1f} us, p99 {row['p99']:8.1f} us")
        p50, p99 = (trips["lane"][at] / trips["echo"][at] for at in ("p50", "p99"))
        print(
            f"    lane / echo: p50 {p50:.2f} (aim {AIMS['p50_ratio']:g}), p99 {p99:.2f} "
            f"(aim {AIMS['p99_ratio']:g})"
        )
    submit = found["submit_us"]
    print(
        f"one submit: p50 {submit['p50']:.1f} us (aim {AIMS['submit_us']:g}), p99 "
        f"{submit['p99']:.1f} us"
    )
    for name, took in found["parts_us"].items():
        print(f"    of that, {name}: {took:.2f} us")
    print(
        f"launches a second: {found['launches_a_second']:,.0f} (aim "
        f"{AIMS['launches_a_second']:,.0f})"
    )
    clients = found["clients"]
    print(
        f"{CLIENTS} clients with a lane each: {clients['together']:,.0f} launches a second "
        f"together, one alone {clients['one']:,.0f} (aim: no less); the slowest has "
        f"{clients['least_of_mean']:.2f} of the mean"
    )


if __name__ == "__main__":
    raise SystemExit(main())
