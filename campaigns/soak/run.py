"""An hour of good and hostile clients on one daemon: does anything grow, slow down, or get lost?

    python -m campaigns.run soak

One daemon, two processes of clients. The good ones (`campaigns.soak.good_clients`) check every
result and record latencies; the hostile ones (`campaigns.soak.hostile_clients`) are killed in
the middle of a frame, send garbage, never read, trap, fail asserts, write out of bounds, run for
ever, take all memory, stall the compiler, open thousands of sessions, cancel and resize hundreds of
jobs.

Private memory, descriptors and threads of the front, the device host, its compiler process and the
compile process are sampled every two seconds. A warm-up, the first fifth, does not count. Then

* growth [MiB] is the median of the last quarter less that of the second quarter;
* slope [MiB] is that of a least-squares line, for the whole time;
* latency is that of the first tenth after the warm-up and of the last tenth.

Acts that a daemon might not contain are tried in another one first and left out if it does not,
which the results say. Without root all clients belong to one user.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any

from campaigns.frame import Campaign, Figures, Plan
from campaigns.fuzz.live import Talk, Unanswered
from campaigns.soak.hostile_clients import ACTS, run_kernel
from gpud.wire import messages as wm
from tests.support.daemon_process import DaemonProcess, serving
from tests.support.processes import Sample

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"memory": "1 GiB", "session_memory": "256 MiB", "compile_timeout": "5 s"}
WARM_UP = 0.2  # of the time
AIM_GROWTH = 0.05  # of the process's memory, or AIM_GROWTH_MIB if that is more
# LLVM keeps some memory for each program ever compiled, which is half of this in an hour.
AIM_GROWTH_MIB = 16.0
TRIED = ("out of bounds", "endless")
_MIB = 1 << 20
_AFTER_S = 120.0  # how long clients may take to end after their time
_GONE_S = 30.0  # by when a client's sessions, jobs and memory must be gone after its end
_ROLES = ("front", "host", "native", "worker")
_MOST_PROCESSES = dict.fromkeys(_ROLES, 1) | {"worker": 2}  # one device; setting compile_processes


def chosen_acts() -> list[str]:
    """Return the acts to run: without those that a daemon does not contain."""
    return [name for name in ACTS if name not in TRIED or _contained(name)]


def _contained(name: str) -> bool:
    """Whether a daemon contains this act: its device host survives."""
    with serving("cpu:1", **SETTINGS) as daemon, closing(Talk(daemon.connect())) as talk:
        hosts = [one.pid for one in daemon.samples() if one.role == "host"]
        talk.ask(wm.Hello(1, 1, "try"))
        try:
            if name == "endless":
                outcome = run_kernel(talk, "endless", timeout_ns=10**8)
            else:
                outcome = run_kernel(talk, "out-of-bounds", (4096).to_bytes(8, "little"))
        except Unanswered:
            return False
        same = [one.pid for one in daemon.samples() if one.role == "host"] == hosts
        return same and outcome in ("job-timeout", "illegal-address")


def soak(seconds: float, seed: str, device: str, acts: Sequence[str]) -> dict[str, Any]:
    """Run the benchmark; returns all figures, see `report`. ``problems`` is empty on success."""
    with ExitStack() as stack:
        daemon = stack.enter_context(serving(device, **SETTINGS))
        started = _settled(daemon)
        good = _client(stack, ["campaigns.soak.good_clients", str(daemon.path), str(seconds)])
        bad = _client(
            stack,
            ["campaigns.soak.hostile_clients", str(daemon.path), seed, str(seconds), *acts],
        )
        rows = _watch(daemon, seconds, [good, bad])
        reports = [_report_of(one) for one in (good, bad)]
        left = _left(daemon)
        after = _settled(daemon)
        bugs = daemon.bugs()
        replaced = _status(daemon)["devices"][0]["restarts"]
        log_bytes = daemon.log.stat().st_size
        status = daemon.end()
    clients, hostile = reports
    found = {
        "aims": {"growth": AIM_GROWTH, "growth_mib": AIM_GROWTH_MIB},
        "seconds": round(seconds, 1),
        "seed": seed,
        "acts_left_out": sorted(set(ACTS) - set(acts)),
        "other_user": os.geteuid() == 0,
        "good": clients,
        "hostile": hostile,
        "processes": {role: trend(rows, role) for role in _ROLES},
        "at_start": _counts(started),
        "at_end": _counts(after),
        "left": left,
        "device_hosts_replaced": replaced,
        "log_bytes": log_bytes,
        "exit_status": status,
    }
    return {**found, "problems": _problems(found, bugs)}


def _client(stack: ExitStack, arguments: list[str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


def _report_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        text, _ = process.communicate(timeout=_AFTER_S)
        report: dict[str, Any] = json.loads(text)
    except (subprocess.TimeoutExpired, ValueError) as error:
        process.kill()
        return {"died": f"{type(error).__name__}, exit status {process.poll()}"}
    return report


Row = tuple[float, Sample]
"""Part of the time that had passed, and a sample of a process."""


def _watch(
    daemon: DaemonProcess, seconds: float, clients: Sequence[subprocess.Popen[str]]
) -> list[Row]:
    """Sample the daemon until the time is over, or the daemon or a client process has ended."""
    rows: list[Row] = []
    began = time.monotonic()
    period = min(2.0, seconds / 100)
    while (now := time.monotonic() - began) < seconds:
        rows += [(now / seconds, one) for one in daemon.samples()]
        if not daemon.alive or any(client.poll() is not None for client in clients):
            break
        time.sleep(period)
    return rows


def trend(rows: Sequence[Row], role: str) -> dict[str, Any]:
    """Return the growth of the processes of a role after the warm-up; see the module.

    Times in ``rows`` are parts of the whole; the slope is for the whole time.
    """
    mine = [(at, one) for at, one in rows if one.role == role]
    counted = [(at, one) for at, one in mine if at >= WARM_UP]
    if len(counted) < 8:
        return {"samples": len(counted)}

    def medians(least: float, most: float, field: str) -> float:
        values = [float(getattr(one, field)) for at, one in counted if least <= at < most]
        return median(values or [float(getattr(counted[-1][1], field))])

    second, last = (WARM_UP + 0.25 * (1 - WARM_UP), WARM_UP + 0.5 * (1 - WARM_UP)), (0.8, 1.01)
    private = [(at, one.private_bytes / _MIB) for at, one in counted]
    grown = (medians(*last, "private_bytes") - medians(*second, "private_bytes")) / _MIB
    return {
        "samples": len(counted),
        "pids": len({one.pid for _, one in mine}),
        "private_mib": {
            "first": round(mine[0][1].private_bytes / _MIB, 1),
            "second_quarter": round(medians(*second, "private_bytes") / _MIB, 1),
            "last_quarter": round(medians(*last, "private_bytes") / _MIB, 1),
            "most": round(max(value for _, value in private), 1),
        },
        "growth_mib": round(grown, 2),
        "slope_mib_in_all": round(_slope(private), 2),
        "descriptors": [medians(*second, "descriptors"), medians(*last, "descriptors")],
        "threads": [medians(*second, "threads"), medians(*last, "threads")],
        "private_mib_by_tenths": [
            round(median(values), 1)
            for tenth in range(10)
            if (values := [v.private_bytes / _MIB for at, v in mine if int(10 * at) == tenth])
        ],
    }


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of a least-squares line."""
    n = len(points)
    x, y = sum(at for at, _ in points) / n, sum(value for _, value in points) / n
    below = sum((at - x) ** 2 for at, _ in points)
    return sum((at - x) * (value - y) for at, value in points) / below if below else 0.0


def _status(daemon: DaemonProcess) -> dict[str, Any]:
    with closing(Talk(daemon.connect(other_user=False))) as talk:
        talk.ask(wm.Hello(1, 1, "soak"))
        found: dict[str, Any] = talk.ask(wm.Query(2, "status")).value
        return found


def _left(daemon: DaemonProcess) -> dict[str, int]:
    """Sessions, jobs and memory left after all clients have ended; waits up to `_GONE_S`."""
    end = time.monotonic() + _GONE_S
    while True:
        status = _status(daemon)
        used = sum(device["memory_used_bytes"] for device in status["devices"])
        left = {
            "sessions": status["sessions"] - 1,  # this query's own session
            "clients": status["clients"] - 1,
            "jobs": sum(status["jobs"].values()),
            "memory_bytes": used,
        }
        if not any(left.values()) or time.monotonic() > end:
            return left
        time.sleep(0.2)


def _settled(daemon: DaemonProcess) -> list[Sample]:
    """Return the daemon's processes, once their number is steady."""
    end = time.monotonic() + _GONE_S
    while True:
        found = daemon.samples()
        roles = Counter(one.role for one in found)
        # The compiler process starts with the first kernel.
        steady = set(_ROLES) == {*roles, "native"} and not _too_many(roles)
        if steady or time.monotonic() > end:
            return found
        time.sleep(0.1)


def _too_many(roles: Mapping[str, int]) -> list[str]:
    return [
        f"{many} processes of the role {role} are there"
        for role, many in roles.items()
        if many > _MOST_PROCESSES.get(role, 0)
    ]


def _counts(samples: Sequence[Sample]) -> dict[str, Any]:
    return {
        "processes": Counter(one.role for one in samples),
        "descriptors": {one.role: one.descriptors for one in samples},
        "private_mib": {one.role: round(one.private_bytes / _MIB, 1) for one in samples},
    }


def _problems(found: dict[str, Any], bugs: list[str]) -> list[str]:
    """Everything that fails the benchmark."""
    clients, hostile = found["good"], found["hostile"]
    problems = [f"the log tells of a bug: {line}" for line in bugs]
    problems += [f"{who} {one['died']}" for who, one in _named(found) if "died" in one]
    problems += [f"good clients: {line}" for line in clients.get("first_wrong", ())]
    problems += [f"hostile clients: {line}" for line in hostile.get("problems", ())]
    for role, one in found["processes"].items():
        most = max(AIM_GROWTH_MIB, AIM_GROWTH * one.get("private_mib", {}).get("second_quarter", 0))
        # In the first minutes memory still grows to its working size.
        if found["seconds"] >= 1200 and one.get("growth_mib", 0) > most:
            problems.append(f"the {role} has grown by {one['growth_mib']} MiB")
    problems += [f"{many} {what} are left" for what, many in found["left"].items() if many]
    start, end = found["at_start"], found["at_end"]
    problems += _too_many(end["processes"])
    for role, before in start["descriptors"].items():
        now = end["descriptors"].get(role, before)
        if now > before + 8:
            problems.append(f"the {role} has {now} descriptors, {before} at its start")
    if found["exit_status"]:
        problems.append(f"the daemon ended with status {found['exit_status']}")
    return problems


def _named(found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [("the good clients' process:", found["good"]), ("the hostile's:", found["hostile"])]


def report(found: dict[str, Any]) -> None:
    """Print the figures."""
    clients, hostile = found["good"], found["hostile"]
    print(f"{found['seconds']:g} s, seed {found['seed']}")
    if found["acts_left_out"]:
        print(f"left out, as the daemon is not proof: {', '.join(found['acts_left_out'])}")
    if "jobs" in clients:
        jobs = ", ".join(f"{count:,} {role}" for role, count in clients["jobs"].items())
        print(f"good clients' jobs, each checked: {jobs}")
        print(f"  lost or wrong: {clients['wrong']}; missed online requests: {clients['missed']}")
        tenths = clients["online_ms"]
        first = tenths[int(10 * WARM_UP)]
        for name in ("p50", "p99", "most"):
            print(
                f"  online latency, {name:<4}: {first[name]} ms first, {tenths[-1][name]} ms last"
            )
    for name, count in hostile.get("outcomes", {}).items():
        print(f"  {count:>7,}  {name}")
    print(f"device hosts replaced: {found['device_hosts_replaced']}")
    for role, one in found["processes"].items():
        if "growth_mib" in one:
            print(
                f"{role}: {one['private_mib']['second_quarter']} MiB in the second quarter, growth "
                f"{one['growth_mib']} MiB, slope {one['slope_mib_in_all']} MiB; descriptors "
                f"{one['descriptors']}, threads {one['threads']}, {one['pids']} processes"
            )


def _measure(plan: Plan) -> Figures:
    return soak(float(plan.count), str(plan.seed), plan.device, chosen_acts())


SOAK = Campaign(
    "soak",
    "Good and hostile clients on one daemon",
    unit="seconds",
    count=3600,
    few=60,
    measure=_measure,
    report=report,
    wrong=lambda found: found["problems"],
)
