"""Recovery from device hosts that die under load, and from every device call that can fail.

    python -m campaigns.run host_failures

First, `kill -9` of the device host at random times while clients submit online and offline jobs,
chains and streams. Each task block of each job counts itself in a cell, so that a lost or a doubled
one is detected. The time to service is from the kill until a job that another client submits at
that time is done, including all that the new host has to load and compile. Descriptors, child
processes and resident memory of the daemon are compared before and after.

Then the n-th call of the device's interface fails, for n = 1, 2, 3 ... until the workload passes
without a failure: as an error of the device, as an unexpected exception, and as the loss of the
whole device. For the checks after each see `campaigns.host_failures.injection`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import gpud_client as gc
from campaigns.frame import Campaign, Figures, Plan, together
from campaigns.host_failures.device_calls import KINDS
from campaigns.host_failures.injection import MOST_CALLS, inject
from campaigns.host_failures.kills import Kills, Report
from gpud.demo.metrics import percentile

CLIENTS = 4


def measure(plan: Plan) -> Figures:
    """All figures."""
    killed = asyncio.run(_kills(plan.device, plan.seed, CLIENTS, plan.count))
    found = {"seed": plan.seed, "clients": CLIENTS, **_figures(killed), "calls": {}}
    for kind in KINDS:
        numbers = range(5, MOST_CALLS, 40) if plan.short else range(1, MOST_CALLS)
        found["calls"][kind] = asyncio.run(_calls(kind, numbers))
    return found


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


def report(found: Figures) -> None:
    """Print the figures."""
    service = ", ".join(f"{name} {value} ms" for name, value in found["service_ms"].items())
    jobs: Counter[str] = Counter(found["jobs"])
    before, after = found["before"], found["after"]
    rows = {
        "kill -9 of the device host": str(found["kills"]),
        "jobs: done, lost with their host, cancelled": ", ".join(
            f"{jobs[state]:,}" for state in ("done", "device-lost", "job-cancelled")
        ),
        "task blocks lost or doubled, and other wrongs": str(len(found["wrong"])),
        "kill to service": service,
        "descriptors before and after": f"{before['descriptors']}, {after['descriptors']}",
        "child processes": f"{before['children']}, {after['children']}",
        "resident memory before, and after each quarter": ", ".join(
            f"{size >> 10:,} KiB"
            for size in (before["resident_bytes"], *found["resident_bytes_by_quarter"])
        ),
    }
    for name, value in rows.items():
        print(f"{name:<50}{value}")
    for kind, calls in found["calls"].items():
        print(
            f"device calls that fail as {kind!r}: {calls['failed']} of up to "
            f"{calls['calls_of_the_workload']}, {calls['hosts_ended']} hosts ended"
        )


def added(past: Figures, found: Figures) -> Figures:
    """Return the figures of two runs as those of one; of times the worse."""
    counts = ("jobs", "requests_refused")
    return together(past, found, sums=("kills",), counts=counts, worst=("service_ms",))


HOST_FAILURES = Campaign(
    "host_failures",
    "Device hosts killed under load, and each device call failed in turn",
    unit="kills",
    count=200,
    few=5,
    measure=measure,
    report=report,
    wrong=lambda found: found["wrong"],
    add=added,
    seed=20260,
)
