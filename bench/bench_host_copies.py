"""The cost on the host of copying arrays between a session's memory file and page-locked memory.

    python bench/bench_host_copies.py [--rounds N]

An array for a GPU is copied twice: by the device host between the file and page-locked memory
(`gpud.device.cuda.memory.staging`), and by the GPU over the bus; the two are pipelined, so that a
client sees the slower one. This measures the first: the calls of the staging, 4 MiB at a time.
Interleaved with them: a plain copy in memory, which is the floor; a mapping of the file that is
kept, in both directions, and one that is made anew, as for an array that is copied for the first
time; larger and smaller parts; and two threads.

Times are processor time, since the machine is shared; wall-clock times are recorded, too. Ordinary
resident memory stands in for page-locked memory. Prints a table and writes
bench/results/host_copies.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import numpy.typing as npt

from bench.harness.machine import describe
from bench.harness.timing import Samples, cores_used, interleave, load, spread
from gpud.device.cuda.memory import staging

RESULT = Path(__file__).parent / "results" / "host_copies.json"
ARRAY_BYTES = 64 << 20
PART_BYTES = staging._HALF_BYTES
BUS_GB_S = 64.0
"""PCI Express 5.0 with 16 lanes, one way: 128 GB/s both ways, says NVIDIA's H100 data sheet."""

Bytes = npt.NDArray[np.uint8]


def main() -> int:
    """Measure, print and write the results."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--rounds", type=int, default=21)
    samples = interleave(sides(), arguments.parse_args().rounds)
    rows = {name: row(samples[name]) for name in samples}
    print(f"{'':<34}{'GB/s':>7}{'quartiles':>14}{'of the floor':>14}{'of the bus':>12}")
    floor = rows["memory to memory"]["cpu_gb_s"]["median"]
    for name, found in rows.items():
        cpu = found["cpu_gb_s"]
        found["of_floor"] = round(cpu["median"] / floor, 2)
        quartiles = f"{cpu['low']:.1f} to {cpu['high']:.1f}"
        print(
            f"{name:<38}{cpu['median']:7.1f}{quartiles:>14}{found['of_floor']:14.2f}"
            f"{cpu['median'] / BUS_GB_S:12.2f}"
        )
    found = {
        "machine": describe(),
        "array_bytes": ARRAY_BYTES,
        "bus_gb_s": BUS_GB_S,
        "load": load(),
        "cores_used": cores_used(samples.values()),
        "rows": rows,
    }
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def row(samples: Samples) -> dict[str, Any]:
    """GB/s for each core used, and by wall-clock time."""
    return {
        "cpu_gb_s": spread([ARRAY_BYTES / s / 1e9 for s in samples.cpu]).plain(),
        "wall_gb_s": spread([ARRAY_BYTES / s / 1e9 for s in samples.wall]).plain(),
    }


def sides() -> dict[str, Callable[[], None]]:
    """Return the copies to measure, by name; the file and all memory are resident before."""
    file = os.memfd_create("host-copies")
    os.ftruncate(file, ARRAY_BYTES)
    by_calls, kept = staging.FilePart(file, 0), staging.MappedPart(file, 0, ARRAY_BYTES)
    kept.write(0, np.full(ARRAY_BYTES, 7, np.uint8))
    other: Bytes = np.full(ARRAY_BYTES, 7, np.uint8)
    buffer: Bytes = np.ones(4 * PART_BYTES, np.uint8)
    second = ThreadPoolExecutor(1)

    def parts(size: int, copy: Callable[[int, Bytes], None]) -> Callable[[], None]:
        def run() -> None:
            for at in range(0, ARRAY_BYTES, size):
                copy(at, buffer[:size])

        return run

    def plain(at: int, part: Bytes) -> None:
        np.copyto(part, other[at : at + part.size])

    def halves(copy: Callable[[int, Bytes], None]) -> Callable[[int, Bytes], None]:
        def both(at: int, part: Bytes) -> None:
            half = part.size // 2
            begun = second.submit(copy, at + half, part[half:])
            copy(at, part[:half])
            begun.result()

        return both

    def anew() -> None:
        parts(PART_BYTES, staging.MappedPart(file, 0, ARRAY_BYTES).read)()

    return {
        "memory to memory": parts(PART_BYTES, plain),
        "file to buffer (set)": parts(PART_BYTES, by_calls.read),
        "buffer to file (get)": parts(PART_BYTES, by_calls.write),
        "file to buffer, 1 MiB at a time": parts(1 << 20, by_calls.read),
        "file to buffer, 16 MiB at a time": parts(4 * PART_BYTES, by_calls.read),
        "file to buffer, two threads": parts(PART_BYTES, halves(by_calls.read)),
        "kept mapping to buffer": parts(PART_BYTES, kept.read),
        "kept mapping to buffer, two threads": parts(PART_BYTES, halves(kept.read)),
        "buffer to kept mapping": parts(PART_BYTES, kept.write),
        "buffer to kept mapping, two threads": parts(PART_BYTES, halves(kept.write)),
        "new mapping to buffer": anew,
    }


if __name__ == "__main__":
    raise SystemExit(main())
