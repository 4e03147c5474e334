"""Decision latency of the scheduler, and the speed of replaying a log.

    python bench/bench_scheduler.py [--events N] [--short]

Decisions: `Scheduler.handle` for each kind of event, with 10 to 4,000 jobs alive on a device with
16 SMs (`bench.load.scheduler_events`): percentiles of wall-clock time, and of processor time, which
does not grow while other processes have the core. The floor, measured in the same run, is a handler
that only dispatches the event and builds a command, as any scheduler in Python must.

Replay: a log of 100,000 events, in a separate process: seconds, and memory beyond that of the
interpreter and the modules.

Prints a table and writes bench/results/scheduler.json; with --short it only prints.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness.machine import describe
from bench.harness.memory import peak_bytes
from bench.harness.timing import load, percentile_us
from bench.load.scheduler_events import LoadGenerator
from gpud.core import commands as out
from gpud.core import events as ev
from gpud.core.replay import steps, write_header, write_line
from gpud.core.scheduler import Scheduler, Settings

RESULT = Path(__file__).parent / "results" / "scheduler.json"
LIVE = (10, 100, 1000, 4000)
AIM_P99_US = 100.0
AIM_AT = 1000
MIB = 1 << 20


def main() -> int:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=100_000, help="of the log that is replayed")
    parser.add_argument("--short", action="store_true", help="2,000 events; writes no file")
    parser.add_argument("--replay", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.replay is not None:
        print(json.dumps(replayed(options.replay)))
        return 0
    events = 2000 if options.short else options.events
    before = load()
    rows = [decisions(jobs, events // 5) for jobs in LIVE]
    print(f"{'live jobs':>10}{'event':>18}{'p50':>9}{'p99':>9}{'p99 CPU':>9}{'floor p99':>11}  us")
    for row in rows:
        for kind, found in row["kinds"].items():
            print(
                f"{row['live_jobs']:>10}{kind:>18}{found['p50_us']:9.1f}{found['p99_us']:9.1f}"
                f"{found['p99_cpu_us']:9.1f}{found['floor_p99_us']:11.1f}"
            )
    replay = measure_replay(events)
    print(f"aim: p99 of {AIM_P99_US:g} us with {AIM_AT} live jobs")
    print(
        f"replay of {replay['events']:,} events: {replay['seconds']:.2f} s, "
        f"{replay['peak_mib']:.1f} MiB, {replay['differences']} differences"
    )
    if not options.short:
        found = {
            "machine": describe(),
            **before,
            "aims": {"p99_us": AIM_P99_US, "live_jobs": AIM_AT},
            "decisions": rows,
            "replay": replay,
        }
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def decisions(jobs: int, count: int) -> dict[str, Any]:
    """Time ``count`` steps of a load with ``jobs`` jobs alive, by kind of event and in all."""
    scheduler = Scheduler(Settings())
    floor = Floor()
    passed: dict[str, list[int]] = {}
    used: dict[str, list[int]] = {}
    floors: dict[str, list[int]] = {}

    def handle(event: ev.Event) -> list[out.Command]:
        kind = type(event).__name__
        began, cpu = time.perf_counter_ns(), time.thread_time_ns()
        commands = scheduler.handle(event)
        cpu, ended = time.thread_time_ns() - cpu, time.perf_counter_ns()
        floor.handle(event)
        floored = time.perf_counter_ns()
        for name in (kind, "all"):
            passed.setdefault(name, []).append(ended - began)
            used.setdefault(name, []).append(cpu)
            floors.setdefault(name, []).append(floored - ended)
        return commands

    driver = LoadGenerator(handle, jobs)
    driver.fill()
    for times in (passed, used, floors):
        times.clear()
    for _ in range(count):
        driver.step()
    kinds = {
        kind: {
            "events": len(passed[kind]),
            "p50_us": percentile_us(passed[kind], 50),
            "p99_us": percentile_us(passed[kind], 99),
            "p50_cpu_us": percentile_us(used[kind], 50),
            "p99_cpu_us": percentile_us(used[kind], 99),
            "floor_p99_us": percentile_us(floors[kind], 99),
        }
        for kind in sorted(passed)
    }
    return {"live_jobs": jobs, "kinds": kinds}


class Floor:
    """A handler that answers each event with one command and decides nothing."""

    def __init__(self) -> None:
        self._handlers = dict.fromkeys(ev.Event.__args__, self._answer)

    def handle(self, event: ev.Event) -> list[out.Command]:
        return self._handlers[type(event)](event)

    def _answer(self, event: ev.Event) -> list[out.Command]:
        return [out.SetTimer(event.now_ns)]


def measure_replay(events: int) -> dict[str, Any]:
    """Write a log of ``events`` events and replay it in a separate process."""
    settings = Settings()
    scheduler = Scheduler(settings)
    with tempfile.TemporaryDirectory(prefix="gpud-") as folder:
        path = Path(folder) / "events.jsonl"
        with path.open("w") as file:
            print(write_header(settings), file=file)
            written = 0

            def handle(event: ev.Event) -> list[out.Command]:
                nonlocal written
                written += 1
                commands = scheduler.handle(event)
                print(write_line(event, commands), file=file)
                return commands

            driver = LoadGenerator(handle, AIM_AT)
            driver.fill()
            while written < events:
                driver.step()
        done = subprocess.run(
            [sys.executable, __file__, "--replay", str(path)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        found: dict[str, Any] = json.loads(done.stdout)
        found["log_mib"] = round(path.stat().st_size / MIB, 1)
        return found


def replayed(path: Path) -> dict[str, Any]:
    """Replay a log in this process."""
    before = peak_bytes()
    began = time.perf_counter()
    events = differences = 0
    with path.open() as file:
        for step in steps(file):
            events += 1
            differences += not step.agrees
    seconds = time.perf_counter() - began
    return {
        "events": events,
        "seconds": round(seconds, 2),
        "us_per_event": round(seconds * 1e6 / events, 1),
        "peak_mib": round((peak_bytes() - before) / MIB, 1),
        "differences": differences,
    }


if __name__ == "__main__":
    raise SystemExit(main())
