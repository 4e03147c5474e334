"""Many clients of one daemon: lost jobs, fairness, and the cost of a client.

    python bench/bench_fleet.py [--seconds S] [--device cpu:N] [--short]

200 clients are attached to one daemon: 136 idle connections in one process, and 64 that submit
offline jobs for a minute, one at a time each, 16 connections in each of 4 processes. A client
checks the result of each of its jobs. Then 8 equal jobs that would run for long share the device
for a few seconds, and their task blocks are counted.

Fairness is Jain's index: of jobs done among the 64, and of task blocks done among the 8. The memory
of an idle client is the growth of the front's resident set, divided by the clients. Processor time
is that of the front process; the kernels' is the device host's.

Prints the figures and writes bench/results/fleet.json; with --short it only prints.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import gpud_client as gc
from bench.harness.memory import resident_bytes
from bench.harness.results import keep
from bench.harness.timing import load
from bench.load.fleet_clients import BLOCK, SOURCE
from gpud.demo.metrics import jain, percentile

ROOT = Path(__file__).resolve().parents[1]
CLIENTS, BUSY, PROCESSES, LONG = 200, 64, 4, 8
AIM_FAIRNESS = 0.99


def main() -> int:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--short", action="store_true", help="2 s; writes no file")
    options = parser.parse_args()
    before = load()
    found = measure(options.device, 2.0 if options.short else options.seconds)
    report(found)
    if not options.short:
        keep("fleet", {"aims": {"jain": AIM_FAIRNESS}, **found}, before)
    return 1 if found["wrong"] else 0


def measure(device: str, seconds: float) -> dict[str, Any]:
    """All figures; see `report`."""
    with ExitStack() as stack:
        gpu = stack.enter_context(gc.local(device))
        front = int(gpu.query("status")["pid"])
        resident = resident_bytes(front)
        idle = _Clients(stack, "idle", gpu.path, CLIENTS - BUSY, seconds)
        per_client = (resident_bytes(front) - resident) / (CLIENTS - BUSY)
        busy = [
            _Clients(stack, "busy", gpu.path, BUSY // PROCESSES, seconds) for _ in range(PROCESSES)
        ]
        used = _cpu_s(front)
        began = time.monotonic()
        for clients in busy:
            clients.go()
        reports = [one for clients in busy for one in clients.reports()]
        took, used = time.monotonic() - began, _cpu_s(front) - used
        idle.go()
        progress = _long_jobs(gpu, min(5.0, seconds))
    jobs = [one["jobs"] for one in reports]
    latencies = [latency for one in reports for latency in one["latencies_s"]]
    return {
        "clients": CLIENTS,
        "submitting": BUSY,
        "processes": PROCESSES + 1,
        "seconds": round(took, 1),
        "jobs": sum(jobs),
        "jobs_per_second": round(sum(jobs) / took, 1),
        "least_and_most_jobs_of_a_client": [min(jobs), max(jobs)],
        "wrong": [text for one in reports for text in one["wrong"]][:20],
        "jain_of_jobs": round(jain(jobs), 5),
        "jain_of_long_jobs": round(jain(progress), 5),
        "long_jobs_task_blocks": progress,
        "latency_ms": {
            f"p{percent}": round(1e3 * percentile(latencies, percent), 1) for percent in (50, 99)
        },
        "idle_client_bytes": round(per_client),
        "front_cpu_share": round(used / took, 3),
        "front_cpu_us_a_job": round(1e6 * used / max(1, sum(jobs)), 1),
    }


class _Clients:
    """A process with several clients; ends with the stack."""

    def __init__(self, stack: ExitStack, role: str, path: str, count: int, seconds: float) -> None:
        command = [sys.executable, "-m", "bench.load.fleet_clients", role, path]
        self._process = stack.enter_context(
            subprocess.Popen(
                [*command, str(count), str(seconds)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(self._process.kill)
        if self._read() != "ready\n":
            raise RuntimeError(f"{count} {role} clients could not connect")

    def go(self) -> None:
        """Let busy clients begin and idle ones leave."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def reports(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self._read())
        return found

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def _long_jobs(gpu: gc.Session, seconds: float) -> list[int]:
    """Task blocks that equal jobs do in ``seconds``, after all have waited for capacity.

    An online job that reserves the whole device keeps them waiting until all are submitted, so that
    all begin at the same time.
    """
    kernel = gpu.kernel(SOURCE, "tick")
    blocks, rounds = 1 << 16, np.int32(100_000)
    ticks = [gpu.zeros(blocks * BLOCK, np.uint32) for _ in range(LONG)]
    first = kernel.submit(1024, BLOCK, (ticks[0], rounds), reservation="100%", stream=gpu.stream())
    jobs = [kernel.submit(blocks, BLOCK, (one, rounds), stream=gpu.stream()) for one in ticks]
    first.result(60)
    before = [job.progress[0] for job in jobs]
    time.sleep(seconds)
    progress = [job.progress[0] - done for job, done in zip(jobs, before, strict=True)]
    for job in jobs:
        job.cancel()
    return progress


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def report(found: dict[str, Any]) -> None:
    """Print the figures."""
    least, most = found["least_and_most_jobs_of_a_client"]
    rows = {
        "clients attached, of these submitting": f"{found['clients']}, {found['submitting']}",
        "jobs, each result checked": f"{found['jobs']:,} in {found['seconds']} s",
        "lost or wrong": str(len(found["wrong"])),
        f"Jain's index of jobs done ({least} to {most} a client)": f"{found['jain_of_jobs']}"
        f"  (aim {AIM_FAIRNESS})",
        f"Jain's index of {LONG} long jobs": f"{found['jain_of_long_jobs']}  (aim {AIM_FAIRNESS})",
        "submit to result, p50 and p99": f"{found['latency_ms']['p50']} ms, "
        f"{found['latency_ms']['p99']} ms",
        "memory of an idle client in the front": f"{found['idle_client_bytes'] / 1024:.1f} KiB",
        "processor time of the front": f"{found['front_cpu_share']:.1%} of a core, "
        f"{found['front_cpu_us_a_job']} us a job",
    }
    for name, value in rows.items():
        print(f"{name:<52}{value}")
    for text in found["wrong"]:
        print(f"WRONG: {text}")


if __name__ == "__main__":
    sys.exit(main())
