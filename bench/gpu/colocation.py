"""Co-location on a GPU: the cost to online requests and the gain for offline work, by system.

    python bench/gpu/colocation.py [--system NAME ...] [--seconds S] [--allow-mps] [--short]

Online requests of about 1 ms and 4 ms arrive as a Poisson process at loads 0.2 and 0.5, beside
offline kernels of 0.04 to 10.8 ms and beside task blocks of 5 ms. Every window has the same
arrivals for every system; each system is compared with itself alone. Systems:

    gpud         a daemon; requests are sequences that reserve the whole device
    gpud_floor   a daemon; requests reserve half of the SMs exclusively (``exclusive``), and
                 persistent offline blocks have the other half
    streams      one process, two streams of different priorities
    processes    two processes, which the driver time-slices
    green        one process, two green contexts: half of the SMs for each
    mps          two processes under MPS; mps_limited: the offline one with half of the SMs and the
                 lower priority. Only with --allow-mps: it starts a control daemon of its own, with
                 its own pipe directory, and ends it; no setting of the card is changed

A native CUDA graph of the same requests alone is measured beside each: a system's r99 is the ratio
to itself alone, and hides what the system adds to every request.

Reported for each: r99, r99 against the native graph, what is added per kernel, the ratio of p99.9,
b (offline work per second together / alone), harvest
b / (1 - u), u being the requests' share of the time alone; see `gpud.demo.metrics`.

Prints a table and writes bench/results/gpu_colocation_SYSTEM.json row by row; an interrupted run is
continued. gpud's windows are tested on the CPU device.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import gpud_client as gc
from bench.gpu.colocation_window import System, WindowResult, window
from bench.gpu.instrumentation.driver import Gpu
from bench.gpu.instrumentation.warm_up import warm_up
from bench.gpu.record import Rows, need_gpu
from bench.gpu.workloads.colocation_work import (
    ENTRY,
    OFFLINE,
    ONLINE,
    SOURCE,
    THREADS,
    Offline,
    Online,
    Sized,
    sized_offline,
    sized_online,
)
from bench.harness.timing import geometric_mean
from gpud.compiler.pipeline import compile_program
from gpud.demo.arrivals import poisson
from gpud.demo.metrics import harvest, percentile
from gpud.device.interface import pack_parameters

SYSTEMS = ("gpud", "gpud_floor", "streams", "processes", "green", "mps", "mps_limited")
LOADS = (0.5, 0.2)
REQUESTS = 5000
"""Of each window with requests, at least: its p99 then rests on 50 of them."""

LONG = "blocks of 5ms"
"""Offline work whose task blocks are longer than a request: listed apart."""

AIM_R99, AIM_HARVEST = 1.05, 0.90
GOAL_R99, GOAL_HARVEST = 1.02, 0.95
AIM_LONG = 1.1
"""Of r99 beside `LONG`, for requests that have SMs exclusively; others cannot meet it."""

AIM_ADDED_US = 10.0


@dataclass(frozen=True)
class Row:
    """One system beside one offline kernel at one load.

    ``p99_native_s`` is that of a native CUDA graph alone, ``r99_native`` the ratio to it: ``r99``
    hides what a system adds to requests alone. ``added_us`` is how much longer the median request
    alone takes for each of its kernels than the native graph.
    """

    system: str
    online: str
    offline: str
    load: float
    requests: int
    p99_alone_s: float
    p99_s: float
    r99: float
    r999: float
    b: float
    harvest: float
    p99_native_s: float
    r99_native: float
    added_us: float


def main() -> int:
    """Measure the systems, print and save their rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--system", action="append", choices=SYSTEMS, help="repeatable")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a window at least")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of a window at least")
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals")
    parser.add_argument("--allow-mps", action="store_true", help="start an MPS control daemon")
    parser.add_argument("--short", action="store_true", help="the first cell only")
    options = parser.parse_args()
    need_gpu()
    gpu = Gpu()
    warm_up(gpu)
    online, offline = (ONLINE[:1], OFFLINE[:1]) if options.short else (ONLINE, OFFLINE)
    loads = LOADS[:1] if options.short else LOADS
    sizes = measured_sizes(gpu, online, offline)
    for name in options.system or SYSTEMS:
        if name.startswith("mps") and not options.allow_mps:
            print(f"{name}: left out; give --allow-mps where MPS may be used")
            continue
        # Not whether it is short: what was measured of it is not measured again.
        settings = {key: vars(options)[key] for key in ("seconds", "seed", "requests")}
        kept = Rows(f"colocation_{name}", gpu, settings)
        rows = [Row(**row) for row in kept.rows]
        with opened(name, gpu) as system:
            cells = Cells(online, offline, loads, options.seconds, options.requests, options.seed)
            for row in measure(name, system, sizes, cells, rows):
                rows.append(row)
                print(line(row), flush=True)
                kept.add(vars(row), **summary(rows))
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in summary(rows).items()))
        if not options.short:
            kept.end(**summary(rows))
        print(f"wrote gpu_colocation_{name}.json")
    return 0


@dataclass(frozen=True)
class Sizes:
    """Sizes of all kernels on this device, and how long requests and offline kernels take alone."""

    online: Mapping[str, list[Sized]]
    request_s: Mapping[str, float]
    offline: Mapping[str, Sized]


def measured_sizes(gpu: Gpu, online: Sequence[Online], offline: Sequence[Offline]) -> Sizes:
    """Find the sizes by plain launches on the idle GPU."""
    ptx = compile_program(SOURCE, form="persistent", kill=False).original_ptx
    function = gpu.load(ptx).function(ENTRY)
    out = gpu.buffer(np.zeros(THREADS * 1024, np.float32))
    stream = gpu.stream()

    def timer(blocks: int, loops: int) -> float:
        values = [out.address.to_bytes(8, "little"), loops.to_bytes(4, "little")]
        buffer = pack_parameters(function.parameters, values)
        best = float("inf")
        for _ in range(3):
            begin, end = gpu.event(), gpu.event()
            begin.record(stream)
            for _ in range(4):
                function.launch((blocks, 1, 1), (THREADS, 1, 1), buffer, stream=stream)
            end.record(stream)
            best = min(best, end.since_us(begin) / 4)
        return best

    slots = gpu.sms * function.occupancy(THREADS)
    return Sizes(
        {one.name: sized_online(one, slots, timer) for one in online},
        {one.name: sum(one.kernels_us) / 1e6 for one in online},
        {one.name: sized_offline(one, slots, timer) for one in offline},
    )


@contextmanager
def opened(name: str, gpu: Gpu) -> Iterator[System]:
    """Return a system, ready to be measured; its processes are ended with the context."""
    with ExitStack() as stack:
        if name == "gpud":
            session = stack.enter_context(gc.local("cuda"))
            yield System(together=False, socket=str(session.path))
        elif name == "gpud_floor":
            session = stack.enter_context(gc.local("cuda"))
            asks = {"reservation": gpu.sms // 2, "exclusive": True}
            yield System(together=False, socket=str(session.path), asks=asks)
        elif name == "streams":
            yield System(together=True)
        elif name == "processes":
            yield System(together=False)
        elif name == "green":
            yield System(together=True, green_sms=gpu.sms // 2)
        else:
            environment = stack.enter_context(mps())
            limits = {}
            if name == "mps_limited":
                limits = {
                    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
                    "CUDA_MPS_CLIENT_PRIORITY": "1",
                }
            sides = {"online": environment, "offline": {**environment, **limits}}
            yield System(together=False, environment=sides)


@contextmanager
def mps() -> Iterator[dict[str, str]]:
    """Run an MPS control daemon of this process; yield the environment of its clients.

    Raises:
        FileNotFoundError: MPS is not installed.
    """
    command = shutil.which("nvidia-cuda-mps-control")
    if command is None:
        raise FileNotFoundError("nvidia-cuda-mps-control is not on PATH")
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        ours = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = {**os.environ, **ours}
        subprocess.run([command, "-d"], env=environment, check=True)
        try:
            yield ours
        finally:
            subprocess.run([command], input="quit\n", text=True, env=environment, check=False)


@dataclass(frozen=True)
class Cells:
    """What is measured: each request beside each offline kernel at each load.

    Attributes:
        seconds, requests: of a window, at least.
        seed: of the arrivals.
    """

    online: Sequence[Online]
    offline: Sequence[Offline]
    loads: Sequence[float]
    seconds: float
    requests: int
    seed: int

    def window_s(self, rate: float) -> float:
        """Return how long a window is in which ``rate`` requests arrive per second."""
        return max(self.seconds, self.requests / rate)


def measure(
    name: str, system: System, sizes: Sizes, cells: Cells, before: Sequence[Row] = ()
) -> Iterator[Row]:
    """Measure the cells that are not in ``before``: each side alone, and both together."""
    there = {(row.online, row.offline, row.load) for row in before}
    alone: dict[tuple[str, float], tuple[WindowResult, WindowResult]] = {}
    rates: dict[str, float] = {}
    for one, other, load in product(cells.online, cells.offline, cells.loads):
        if (one.name, other.name, load) in there:
            continue
        requests, request_s = sizes.online[one.name], sizes.request_s[one.name]
        size, kernel_us = sizes.offline[other.name], 1e3 * other.kernel_ms
        seconds = cells.window_s(load / request_s)
        trace = poisson(load / request_s, seconds, cells.seed)
        if (one.name, load) not in alone:
            native = window(System(together=True), seconds, requests, trace)
            own = native if system == System(together=True) else None
            alone[one.name, load] = own or window(system, seconds, requests, trace), native
        if other.name not in rates:
            work = window(system, cells.seconds, offline=size, kernel_us=kernel_us)
            rates[other.name] = work.rate
        seen = window(system, seconds, requests, trace, size, kernel_us)
        busy = min(0.99, request_s * len(trace) / seconds)
        own_alone, native_alone = alone[one.name, load]
        yield compared(
            name, one, other, load, seen, own_alone, rates[other.name], busy, native_alone
        )


def compared(
    name: str, online: Online, offline: Offline, load: float,
    seen: WindowResult, alone: WindowResult, rate_alone: float, busy: float,
    native: WindowResult,
) -> Row:  # fmt: skip
    """Return the row of a window with both sides, compared with each side alone."""
    at = {
        percent: percentile(seen.latencies_s, percent) / percentile(alone.latencies_s, percent)
        for percent in (99, 99.9)
    }
    b = seen.rate / rate_alone if rate_alone else 0.0
    reference = percentile(native.latencies_s, 99)
    added_s = percentile(alone.latencies_s, 50) - percentile(native.latencies_s, 50)
    return Row(
        name, online.name, offline.name, load, len(seen.latencies_s),
        percentile(alone.latencies_s, 99), percentile(seen.latencies_s, 99),
        at[99], at[99.9], b, harvest(b, busy), reference,
        percentile(seen.latencies_s, 99) / reference, 1e6 * added_s / len(online.kernels_us),
    )  # fmt: skip


def line(row: Row) -> str:
    """Return a row of the printed table."""
    return (
        f"  {row.system:<12}{row.online:<5}{row.offline:<15} load {row.load:g}: r99 {row.r99:.3f} "
        f"(against a native graph {row.r99_native:.3f}, added {row.added_us:.1f} us a kernel), "
        f"p99 {1e3 * row.p99_s:.2f} ms, r99.9 {row.r999:.2f}, b {row.b:.3f}, "
        f"harvest {row.harvest:.3f}"
    )


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Summary of all rows of a system, those beside `LONG` apart, and whether aims are met."""
    some = [row for row in rows if row.offline != LONG]
    apart = [row for row in rows if row.offline == LONG]
    found: dict[str, Any] = {}
    if some:
        mean = geometric_mean(row.r99 for row in some)
        least = min(row.harvest for row in some)
        found |= {
            "r99_mean": mean,
            "r99_worst": max(row.r99 for row in some),
            "r99_native_mean": geometric_mean(row.r99_native for row in some),
            "harvest_least": least,
            "added_us_worst": max(row.added_us for row in some),
            "met": mean <= AIM_R99 and least >= AIM_HARVEST,
            "goal_met": mean <= GOAL_R99 and least >= GOAL_HARVEST,
            "added_met": max(row.added_us for row in some) <= AIM_ADDED_US,
        }
    if apart:
        worst = max(row.r99 for row in apart)
        found |= {"r99_long_worst": worst, "long_met": worst <= AIM_LONG}
    return found


if __name__ == "__main__":
    raise SystemExit(main())
