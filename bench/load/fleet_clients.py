"""Many clients of one daemon in one process, for `bench_fleet`.

    python -m bench.load.fleet_clients idle|busy SOCKET COUNT SECONDS

Opens COUNT connections and prints ``ready``. *Idle* ones then wait for a line on standard input.
*Busy* ones wait for it too, then submit one job after another for SECONDS, each from its own
thread, check each result, and print a report as JSON.

The kernel adds 1 to every number of the client's array, so after k jobs each number must be k. That
detects a task block that was lost or ran twice, and a job that wrote into another's memory.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field

import numpy as np

import gpud_client as gc

__all__ = ["BLOCK", "SOURCE", "TASK_BLOCKS", "Report"]

SOURCE = r"""
extern "C" __global__ void tick(unsigned* ticks, int rounds) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, x = i;
    for (int r = 0; r < rounds; r++) x = x * 1664525u + 1013904223u;
    ticks[i] += 1 + (x == 0xffffffffu && rounds < 0);
}"""
TASK_BLOCKS, BLOCK, ROUNDS = 32, 256, 20_000


@dataclass
class Report:
    """The results of a busy client's jobs."""

    jobs: int = 0
    wrong: list[str] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)


def main() -> int:
    """Run the clients."""
    role, path, count, seconds = sys.argv[1:]
    with ExitStack() as stack:
        clients = [stack.enter_context(gc.connect(path)) for _ in range(int(count))]
        works = [_Work(client) for client in clients] if role == "busy" else []
        print("ready", flush=True)
        sys.stdin.readline()
        if works:
            print(json.dumps([asdict(report) for report in _run(works, float(seconds))]))
    return 0


class _Work:
    def __init__(self, gpu: gc.Session) -> None:
        self.report = Report()
        self._ticks = gpu.zeros(TASK_BLOCKS * BLOCK, np.uint32)
        self._kernel = gpu.kernel(SOURCE, "tick")
        self._kernel.occupancy(BLOCK)  # compiled now, so that it is not part of the measurement

    def run(self, end_s: float) -> None:
        report = self.report
        try:
            while time.monotonic() < end_s:
                began = time.monotonic()
                arguments = (self._ticks, np.int32(ROUNDS))
                self._kernel.submit(TASK_BLOCKS, BLOCK, arguments).result(60)
                report.latencies_s.append(time.monotonic() - began)
                report.jobs += 1
                bad = int((self._ticks.numpy() != report.jobs).sum())
                if bad:
                    report.wrong.append(f"job {report.jobs}: {bad} numbers are wrong")
        except (gc.GpudError, TimeoutError) as error:
            report.wrong.append(f"{type(error).__name__}: {error}")


def _run(works: list[_Work], seconds: float) -> list[Report]:
    end = time.monotonic() + seconds
    threads = [threading.Thread(target=work.run, args=(end,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [work.report for work in works]


if __name__ == "__main__":
    sys.exit(main())
