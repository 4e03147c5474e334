"""What launching costs: requests of 1 to 200 short kernels, as graphs and by native calls.

    python bench/gpu/launch_cost.py [--rounds N] [--kernels N ...]

A request is a sequence of kernels of about 20 us, each with a task block for each place of the GPU.
It is run again and again on an idle GPU, alone: by gpud's CUDA device with its launches queued as a
CUDA graph, and by native code (`gpud.device.cuda.launch.batch`); and by the driver alone as a
native graph, of the kernels, and of the kernels with one of a single block before each, as gates
are. The sides take turns.
Measured on the host: from the call that begins the request until that returns, and until the
request is over.

Prints a table and writes bench/results/gpu_launch_cost.json row by row; an interrupted run is
continued. ``batches``: how many requests were queued as what.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu.instrumentation.driver import Gpu, Graph
from bench.gpu.instrumentation.timestamps import (
    ENTRY,
    NOTE_BYTES,
    OUT_BLOCKS,
    SOURCE,
    NotedKernel,
    Notes,
    quantiles_us,
)
from bench.gpu.instrumentation.warm_up import warm_up
from bench.gpu.record import Rows, cuda_device, need_gpu
from gpud.compiler.pipeline import compile_program
from gpud.device.interface import pack_parameters
from tests.support.resizable_run import ResizableRun

KERNELS = (1, 16, 200)
BLOCK_US = 20.0
THREADS = 256
NATIVE = "native graph"
NATIVE_GATES = "native, two each"
FIRST = 3
"""Requests that are not counted: gpud prepares a sequence's launches at the end of the second."""

TIMEOUT_S = 60.0

Side = Callable[[], tuple[int, int]]
"""Runs a request; nanoseconds until the call returned, and until it was over."""


def main() -> int:
    """Measure, print and save the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--kernels", type=int, action="append", help="of a request, repeatable")
    options = parser.parse_args()
    need_gpu()
    gpu = Gpu()
    warm_up(gpu)
    kept = Rows("launch_cost", gpu, {"rounds": options.rounds})
    print(f"{'kernels':>8}  {'side':<18}{'begun p50 us':>13}{'over p50 us':>13}{'p99':>10}")
    with ExitStack() as stack:
        devices = {
            name: stack.enter_context(cuda_device(graphs=name == "graph"))
            for name in ("graph", "native")
        }
        for count in options.kernels or KERNELS:
            if not kept.has(kernels=count, side=NATIVE):
                for row in measure(gpu, devices, count, options.rounds):
                    kept.add(row)
                    print(line(row), flush=True)
    print(f"wrote {kept.end().name}")
    return 0


def measure(gpu: Gpu, devices: dict[str, Any], count: int, rounds: int) -> list[dict[str, Any]]:
    """Measure requests of ``count`` kernels; a row for each side, the native one last."""
    with ExitStack() as stack:
        sides: dict[str, Side] = {}
        loops = slots = 0
        for path, device in devices.items():
            slots = device.sms * _occupancy(device)
            kernel = NotedKernel(device, THREADS, slots)
            stack.callback(kernel.close)
            loops = loops or kernel.loops_for(BLOCK_US, _runner(device, kernel, slots))
            sequence = device.prepare([kernel.spec(slots, loops)] * count)
            sides[path] = _ours(device, sequence, slots)
        sides[NATIVE_GATES] = _native(gpu, slots, loops, count, gates=True)
        sides[NATIVE] = _native(gpu, slots, loops, count)
        before = {path: _counts(device) for path, device in devices.items()}
        times: dict[str, list[tuple[int, int]]] = {name: [] for name in sides}
        names = list(sides)
        for number in range(rounds + FIRST):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                times[name].append(sides[name]())
        after = {path: _counts(device) for path, device in devices.items()}
    return [
        {
            "kernels": count,
            "side": name,
            "begun_us": quantiles_us([begun for begun, _ in taken[FIRST:]]),
            "over_us": quantiles_us([over for _, over in taken[FIRST:]]),
            "batches": {
                what: value - before[name].get(what, 0)
                for what, value in after.get(name, {}).items()
                if value != before[name].get(what, 0)
            },
        }
        for name, taken in times.items()
    ]


def _occupancy(device: Any) -> int:
    """Return how many blocks of the kernel an SM has."""
    kernel = NotedKernel(device, THREADS, 1)
    kernel.close()
    return kernel.occupancy


def _counts(device: Any) -> dict[str, int]:
    return {} if device.batches is None else dict(device.batches.counts)


def _runner(device: Any, kernel: NotedKernel, slots: int) -> Callable[[int], Notes]:
    def run(loops: int) -> Notes:
        kernel.clear()
        job = ResizableRun(device, [kernel.spec(slots, loops)])
        job.resize(slots)
        job.result(TIMEOUT_S)
        return kernel.notes(slots)

    return run


def _ours(device: Any, sequence: Any, slots: int) -> Side:
    def side() -> tuple[int, int]:
        job = ResizableRun(device, sequence, priority=1)
        began = time.perf_counter_ns()
        job.resize(slots)
        begun = time.perf_counter_ns()
        job.result(TIMEOUT_S)
        return begun - began, time.perf_counter_ns() - began

    return side


def _native(gpu: Gpu, slots: int, loops: int, count: int, *, gates: bool = False) -> Side:
    """Return requests without gpud; ``gates``: with a short kernel of one block before each."""
    program = compile_program(SOURCE, kill=False)
    function = gpu.load(program.original_ptx).function(ENTRY)
    stream = gpu.stream(gpu.highest_priority)
    notes = gpu.buffer(np.zeros(NOTE_BYTES * slots, np.uint8))
    out = gpu.buffer(np.zeros(THREADS * OUT_BLOCKS, np.float32))
    values = [
        notes.address.to_bytes(8, "little"),
        out.address.to_bytes(8, "little"),
        loops.to_bytes(4, "little"),
    ]
    buffer = pack_parameters(function.parameters, values)
    short = pack_parameters(function.parameters, [*values[:-1], (1).to_bytes(4, "little")])
    with Graph(gpu, stream) as graph:
        for number in range(count):
            if gates and number:
                function.launch((1, 1, 1), (1, 1, 1), short, stream=stream)
            function.launch((slots, 1, 1), (THREADS, 1, 1), buffer, stream=stream)

    kept = notes, out  # as long as the graph

    def side() -> tuple[int, int]:
        assert kept
        began = time.perf_counter_ns()
        graph.launch()
        begun = time.perf_counter_ns()
        gpu.synchronise(stream)
        return begun - began, time.perf_counter_ns() - began

    return side


def line(row: dict[str, Any]) -> str:
    """Return a row of the printed table."""
    begun, over = row["begun_us"], row["over_us"]
    how = ", ".join(f"{value} {what}" for what, value in row["batches"].items())
    return (
        f"{row['kernels']:>8}  {row['side']:<18}{begun['p50']:>13.1f}{over['p50']:>13.1f}"
        f"{over['p99']:>10.1f}  {how}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
