"""Lanes on a GPU: round trip, submit, an idle lane's wake, and requests beside offline work.

    python bench/gpu/lanes.py [--rounds N] [--wakes N] [--seconds S] [--short]

Through a daemon, like a user. Rows, each saved as it is measured:

``launches``    `bench/bench_lane.py`: an empty kernel in a lane of the whole GPU, whose arguments
                differ, beside a bare echo and an ordinary job; one call of ``submit``; launches a
                second of one client, and of eight with a lane each
``ordinary``    `bench/bench_service.py`: the round trip and rate without a lane
``wake``        a lane of half the GPU is idle, and offline blocks of 0.1 or 1 ms fill the GPU: from
                the record to the first online block that the host has seen. The blocks that leave
                had up to one block time to go
``requests``    requests of `REQUEST_MS` in a lane of the whole GPU at random times, at loads of 0.2
                and 0.5, alone and beside offline blocks: p99 beside / p99 alone, and what offline
                work got of the time that requests left (*harvest*)

Prints and writes bench/results/gpu_lanes.json; an interrupted run goes on after its last row.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import gpud_client as gc
from bench import bench_lane, bench_service
from bench.gpu.instrumentation.driver import Gpu
from bench.gpu.instrumentation.warm_up import warm_up
from bench.gpu.record import Rows, need_gpu
from gpud.demo.metrics import percentile

BLOCKS_MS, LOADS = (1.0, 0.1), (0.2, 0.5)
REQUEST_MS = 1.0
THREADS = 256
TIMEOUT_S = 60.0
SEED = 18
SOURCE = r"""
__device__ unsigned long long now() {
    unsigned long long ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}
extern "C" __global__ void busy(unsigned long long ns, unsigned* done) {
    if (threadIdx.x) return;  // one thread keeps the block on its SM
    unsigned long long begin = now();
    while (now() - begin < ns) {}
    atomicAdd(done, 1);
}
"""
_ENDLESS = 1 << 24


def main() -> int:
    """Measure, print and save the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15, help="turns of launches")
    parser.add_argument("--wakes", type=int, default=300, help="of each kind of block")
    parser.add_argument("--seconds", type=float, default=5.0, help="of requests, each side")
    parser.add_argument("--short", action="store_true", help="no launches of several clients")
    options = parser.parse_args()
    need_gpu()
    gpu = Gpu()
    warm_up(gpu)
    kept = Rows("lanes", gpu, vars(options))
    if not kept.has(row="launches") and not options.short:
        _add(kept, {"row": "launches", **bench_lane.measure("cuda", options.rounds)})
    if not kept.has(row="ordinary") and not options.short:
        _add(kept, {"row": "ordinary", **bench_service.measure("cuda", options.rounds)})
    for block_ms in BLOCKS_MS:
        if not kept.has(row="wake", block_ms=block_ms):
            _add(kept, {"row": "wake", "block_ms": block_ms, **wakes(block_ms, options.wakes)})
    for block_ms in BLOCKS_MS:
        for load in LOADS:
            if not kept.has(row="requests", block_ms=block_ms, load=load):
                found = requests("cuda", block_ms, load, options.seconds)
                _add(kept, {"row": "requests", "block_ms": block_ms, "load": load, **found})
    kept.end()
    return 0


def _add(kept: Rows, row: dict[str, Any]) -> None:
    kept.add(row)
    print(row, flush=True)


class Load:
    """A session with the busy kernel, and offline work that fills the device when it is wanted."""

    def __init__(self, device: str) -> None:
        self._local = gc.local(device)
        self.gpu = self._local.__enter__()
        self._kernel = self.gpu.kernel(SOURCE, "busy")
        self._done = self.gpu.zeros(1, np.uint32)
        self.offline: gc.Job | None = None

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *failed: Any) -> None:
        self.stop()
        self._local.__exit__(*failed)

    def fill(self, block_ms: float) -> None:
        """Have offline blocks fill the device."""
        self.offline = self.run(block_ms, _ENDLESS, None)
        end = time.monotonic() + TIMEOUT_S
        while not self.offline.progress[0]:
            if time.monotonic() > end:
                raise TimeoutError("no offline block has ended")
            time.sleep(0.001)

    def stop(self) -> None:
        """End offline work."""
        if self.offline is not None:
            self.offline.cancel()
            with suppress(gc.JobCancelled):
                self.offline.result(TIMEOUT_S)
            self.offline = None

    def run(self, milliseconds: float, blocks: int, lane: gc.Lane | None) -> gc.Job:
        """Submit blocks that take so long."""
        given = (int(milliseconds * 1e6), self._done)
        return self._kernel.submit(blocks, THREADS, given, stream=lane)


def wakes(block_ms: float, count: int, device: str = "cuda") -> dict[str, Any]:
    """Return how long an idle lane takes to have its first block, in microseconds."""
    chance, took = random.Random(SEED), []
    with Load(device) as load:
        sms = load.gpu.device.sms
        with load.gpu.lane(reservation=max(1, sms // 2)) as lane:
            load.run(0.01, sms, lane).result(TIMEOUT_S)
            load.fill(block_ms)
            for _ in range(count):
                time.sleep(chance.uniform(0.005, 0.02))  # it lends its share meanwhile
                job = load.run(0.01, sms, lane)
                job.result(TIMEOUT_S)
                stats = job.stats
                took.append(1e6 * (stats["queued_s"] + (stats["first_block_s"] or 0)))
    return {"wakes": count, "first_block_us": _quantiles(took)}


def requests(device: str, block_ms: float, share: float, seconds: float) -> dict[str, Any]:
    """Return latencies of requests in a lane, alone and beside offline blocks, and the harvest."""
    with Load(device) as load, load.gpu.lane(reservation=load.gpu.device.sms) as lane:
        load.run(REQUEST_MS, load.gpu.device.sms, lane).result(TIMEOUT_S)
        alone = _served(load, lane, share, seconds)
        load.fill(block_ms)
        full = _rate(load, seconds / 2)
        assert load.offline is not None
        before, began = load.offline.progress[0], time.monotonic()
        beside = _served(load, lane, share, seconds)
        rate = (load.offline.progress[0] - before) / (time.monotonic() - began)
    p99 = percentile(beside, 99) / percentile(alone, 99)
    return {
        "requests": len(alone),
        "alone_us": _quantiles(alone),
        "beside_us": _quantiles(beside),
        "r99": p99,
        "harvest": rate / (full * (1 - share)),
    }


def _served(load: Load, lane: gc.Lane, share: float, seconds: float) -> list[float]:
    """Return the latencies of requests at random times, in microseconds."""
    chance, jobs = random.Random(SEED), []
    begin = time.monotonic_ns()
    due = 0.0
    while (due := due + chance.expovariate(share / (REQUEST_MS / 1e3))) < seconds:
        wanted = begin + int(due * 1e9)
        left_s = (wanted - time.monotonic_ns()) / 1e9
        if left_s > 0:
            time.sleep(left_s)
        late_s = (time.monotonic_ns() - wanted) / 1e9
        jobs.append((late_s, load.run(REQUEST_MS, load.gpu.device.sms, lane)))
    lane.synchronize()
    return [1e6 * (late + job.stats["queued_s"] + job.stats["run_s"]) for late, job in jobs]


def _rate(load: Load, seconds: float) -> float:
    """Return offline blocks a second, with nothing beside them."""
    assert load.offline is not None
    before, began = load.offline.progress[0], time.monotonic()
    time.sleep(seconds)
    return (load.offline.progress[0] - before) / (time.monotonic() - began)


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    return {f"p{one}": percentile(values, one) for one in (50, 99)}


if __name__ == "__main__":
    raise SystemExit(main())
