"""How fast what a program keeps moves to the machine's memory and back, beside a plain copy.

    python bench/gpu/region_moves.py [--mib 1024 8192] [--rounds 5]

Problem: a movable workload of a program with a context of its own is to move near the bandwidth of
the link (`gpud_client.adapters.kept_memory`).

Approach: a range of the size, backed in pieces of 64 MiB as frameworks allocate them, is copied to
page-locked memory and unmapped, then mapped again and copied back. Beside that: one copy of the
same bytes to one page-locked block, and back, which is what the link can do. The first time, which
locks the memory, is listed apart.

Writes bench/results/gpu_region_moves.json.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu.instrumentation.driver import Gpu, check
from bench.gpu.instrumentation.warm_up import warm_up
from bench.gpu.record import keep, need_gpu
from gpud.device.cuda.driver.calls import Driver
from gpud_client.adapters.host_memory import HostMemory
from gpud_client.adapters.mapped import MappedRange, ProcessGpu

PIECE_BYTES = 64 << 20


def main() -> int:
    """Measure, print and save the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, nargs="+", default=[1024, 8192])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    need_gpu()
    gpu = Gpu()
    warm_up(gpu)
    rows = [measured(gpu, mib << 20, options.rounds) for mib in options.mib]
    for row in rows:
        print(
            f"{row['bytes'] >> 20} MiB: leaves at {row['leave_of_copy']:.2f} of a plain copy "
            f"({row['leave_gb_s']:.1f} of {row['copy_out_gb_s']:.1f} GB/s), comes back at "
            f"{row['come_of_copy']:.2f} ({row['come_gb_s']:.1f} of {row['copy_in_gb_s']:.1f}); the "
            f"first time {row['first_leave_gb_s']:.1f} GB/s"
        )
    print(f"wrote {keep('region_moves', gpu, {'rounds': options.rounds, 'rows': rows}).name}")
    return 0


def measured(gpu: Gpu, size: int, rounds: int) -> dict[str, Any]:
    """Return bandwidths in GB/s, medians of rounds, and the ratios to plain copies."""
    process = ProcessGpu(driver=Driver(gpu.cu))
    memory, host = MappedRange(process), HostMemory(process)
    for at in range(0, size, PIECE_BYTES):
        memory.back(at, min(PIECE_BYTES, size - at))
    spans = [(memory.address, size)]

    def leave() -> None:
        host.store(spans)
        memory.unmap()

    def come_back() -> None:
        memory.map_again()
        host.load()

    try:
        first = timed(leave)
        come_back()
        moves = [(timed(leave), timed(come_back)) for _ in range(rounds)]
        flags = int(gpu.cu.CU_MEMHOSTALLOC_DEVICEMAP)
        block = int(check(gpu.cu.cuMemHostAlloc(size, flags)))
        try:
            copies = [plain(gpu, memory.address, block, size) for _ in range(rounds)]
        finally:
            check(gpu.cu.cuMemFreeHost(block))
    finally:
        host.close()
        memory.close()
        process.close()
    leaves, comes, outs, ins = (
        statistics.median(some) for pairs in (moves, copies) for some in zip(*pairs, strict=True)
    )
    names = {"leave": leaves, "come": comes, "copy_out": outs, "copy_in": ins, "first_leave": first}
    rates = {f"{name}_gb_s": size / took / 1e9 for name, took in names.items()}
    ratios = {"leave_of_copy": outs / leaves, "come_of_copy": ins / comes}
    return {"bytes": size, **rates, **ratios}


def plain(gpu: Gpu, address: int, block: int, size: int) -> tuple[float, float]:
    """Return how long one copy takes to the machine's memory, and back, in seconds."""
    cu = gpu.cu

    def out() -> None:
        check(cu.cuMemcpyDtoHAsync(block, address, size, 0))
        check(cu.cuStreamSynchronize(0))

    def into() -> None:
        check(cu.cuMemcpyHtoDAsync(address, block, size, 0))
        check(cu.cuStreamSynchronize(0))

    return timed(out), timed(into)


def timed(act: Callable[[], None]) -> float:
    """Return how long something takes, in seconds."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


if __name__ == "__main__":
    raise SystemExit(main())
