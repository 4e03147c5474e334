"""Recovery from device hosts that die under load, and from every device call that can fail.

    python -m tests.faults.host_failures.run [--kills N] [--clients N] [--device cpu:N] [--seed N]
    python -m tests.faults.host_failures.run --short

First, `kill -9` of the device host at random times while clients submit online and offline jobs,
chains and streams. Each task block of each job counts itself in a cell, so that a lost or a doubled
one is detected. The time to service is from the kill until a job that another client submits at
that time is done, including all that the new host has to load and compile. Descriptors, child
processes and resident memory of the daemon are compared before and after.

Then the n-th call of the device's interface fails, for n = 1, 2, 3 ... until the workload passes
without a failure: as an error of the device, as an unexpected exception, and as the loss of the
whole device. For the checks after each see tests/faults/test_host_calls.py.

Prints the figures and writes bench/results/host_failures.json; with --short it only prints.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import gpud_client as gc
from bench.harness.results import keep
from bench.harness.timing import load
from gpud.demo.metrics import percentile
from tests.faults.host_failures.device_calls import KINDS
from tests.faults.host_failures.kills import Kills, Report
from tests.faults.test_host_calls import MOST_CALLS, inject

ROOT = Path(__file__).resolve().parents[3]
SEED = 20260


def main() -> int:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--device", default="cpu:2")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--short", action="store_true", help="5 kills, few calls; writes no file")
    options = parser.parse_args()
    before = load()
    print(f"seed {options.seed}")
    kills = 5 if options.short else options.kills
    report = asyncio.run(_kills(options.device, options.seed, options.clients, kills))
    found = {"seed": options.seed, "clients": options.clients, "kills": _figures(report)}
    show_kills(report)
    found["calls"] = {}
    for kind in KINDS:
        numbers = range(5, MOST_CALLS, 40) if options.short else range(1, MOST_CALLS)
        found["calls"][kind] = asyncio.run(_calls(kind, numbers))
        show_calls(kind, found["calls"][kind])
    if not options.short:
        keep("host_failures", found, before)
    return 1 if report.wrong else 0


async def _kills(device: str, seed: int, clients: int, kills: int) -> Report:
    with gc.local(device) as gpu:
        work = Kills(gpu.path, seed, clients)
        try:
            return await work.run(kills)
        finally:
            work.close()


def _figures(report: Report) -> dict[str, Any]:
    before, after = report.before._asdict(), report.after._asdict()
    return {
        "kills": report.kills,
        "jobs": dict(sorted(report.outcomes.items())),
        "requests_refused": dict(sorted(report.refused.items())),
        "wrong": report.wrong[:20],
        "service_ms": {
            f"p{percent}": round(1e3 * percentile(report.service_s, percent))
            for percent in (50, 90, 99, 100)
        },
        "before": before,
        "after": after,
        "resident_bytes_by_quarter": _quarters(report.resident_bytes),
    }


def _quarters(samples: list[int]) -> list[int]:
    """Return the last sample of each quarter, which shows whether the value keeps growing."""
    return [samples[len(samples) * quarter // 4 - 1] for quarter in (1, 2, 3, 4)]


async def _calls(kind: str, numbers: Any) -> dict[str, Any]:
    logging.getLogger("gpud").setLevel(logging.CRITICAL)  # hosts end on purpose
    found = await inject(kind, numbers)
    return {
        "calls_of_the_workload": found.most,
        "failed": sum(found.failed.values()),
        "by_call": dict(sorted(found.failed.items())),
        "hosts_ended": len(found.hosts.ended),
    }


def show_kills(report: Report) -> None:
    """Print the figures of the first part."""
    found = _figures(report)
    service = ", ".join(f"{name} {value} ms" for name, value in found["service_ms"].items())
    jobs = Counter(found["jobs"])
    ended = f"{jobs['done']:,}, {jobs['device-lost']:,}, {jobs['job-cancelled']:,}"
    before, after = report.before, report.after
    rows = {
        "kill -9 of the device host": str(report.kills),
        "jobs: done, lost with their host, cancelled": ended,
        "task blocks lost or doubled, and other wrongs": str(len(report.wrong)),
        "kill to service": service,
        "descriptors before and after": f"{before.descriptors}, {after.descriptors}",
        "child processes": f"{before.children}, {after.children}",
        "resident memory": f"{before.resident_bytes >> 10:,} KiB, "
        f"{after.resident_bytes >> 10:,} KiB",
        "resident memory after each quarter": ", ".join(
            f"{size >> 10:,} KiB" for size in found["resident_bytes_by_quarter"]
        ),
    }
    for name, value in rows.items():
        print(f"{name:<50}{value}")
    for text in report.wrong:
        print(f"WRONG: {text}")


def show_calls(kind: str, found: dict[str, Any]) -> None:
    """Print the figures of the second part, for one way to fail."""
    print(
        f"device calls that fail as {kind!r}: {found['failed']} of up to "
        f"{found['calls_of_the_workload']}, {found['hosts_ended']} hosts ended"
    )


if __name__ == "__main__":
    sys.exit(main())
