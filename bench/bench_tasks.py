"""Tasks: replays in virtual time beside other schedulers, the search for cores, and large queues.

    python bench/bench_tasks.py [replay] [search] [queue] [--tasks N] [--nodes N] [--short]

replay: N tasks (`bench.load.task_trace`) on one node of 8 GPUs and 64 cores and on many: how much
of GPUs and cores is used while tasks arrive, tasks that were finished by then, and how long tasks
waited, for FIFO, plain DRF, a static split, backfill with twice the true run times, the source's
rules, and gpud. GPU tasks of the first four have as many cores as they ask for.

search: the search for cores on 200 curves with noise: within one core of the knee, and windows.

queue: 100,000 tasks that wait: to submit one (kept in SQLite), list the latest 200, and schedule.

Prints tables and writes bench/results/tasks_PART.json; with --short less of each, and no file. Only
the times of ``queue`` depend on the machine.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness.results import keep
from bench.load.task_trace import POLICIES, Result, Simulation, trace
from gpud.tasks.core import events as ev
from gpud.tasks.core.core_search import CoreSearch
from gpud.tasks.core.scheduler import TaskScheduler
from gpud.tasks.store import TaskStore

PARTS = ("replay", "search", "queue")
GPU_LOAD, CPU_LOAD = 0.8, 0.45


def main() -> int:
    """Measure, print, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", default=[], help="replay, search, queue; all if none")
    parser.add_argument("--tasks", type=int, default=10_000, help="of a replay")
    parser.add_argument("--nodes", type=int, nargs="*", default=[1, 50], help="of the replays")
    parser.add_argument("--short", action="store_true", help="little of each; writes no file")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {sorted(unknown)}; there are {', '.join(PARTS)}")
    parts = options.parts or PARTS
    short: bool = options.short
    found: dict[str, Any] = {}
    if "replay" in parts:
        count, nodes = (150, [1]) if short else (options.tasks, options.nodes)
        found["replay"] = {
            f"{one} node{'' if one == 1 else 's'} of 8 GPUs": replay(count, one) for one in nodes
        }
    if "search" in parts:
        found["search"] = search(20 if short else 200)
    if "queue" in parts:
        found["queue"] = queue(1000 if short else 100_000)
    if not short:
        for part, figures in found.items():
            keep(f"tasks_{part}", figures)
    return 0


def replay(count: int, nodes: int) -> dict[str, Any]:
    """Replay the same tasks with every policy."""
    arrivals = trace(count, nodes, 1, gpu_load=GPU_LOAD, cpu_load=CPU_LOAD)
    days = arrivals[-1].at_s / 86_400
    print(f"{count} tasks in {days:.1f} days on {nodes} node(s) of 8 GPUs and 64 cores")
    print(f"{'':22}{'GPUs':>7}{'cores':>7}{'done':>7}{'GPU tasks wait':>26}{'CPU tasks wait':>26}")
    print(f"{'':22}{'':21}{'mean, p50, p99 min':>26}{'mean, p50, p99 min':>26}")
    rows = {}
    for name, policy in POLICIES.items():
        row = _row(Simulation(arrivals, nodes, policy).run())
        rows[name] = row
        waits = [
            "{:.0f}, {:.0f}, {:.0f}".format(*row[f"{kind} wait, min"]) for kind in ("GPU", "CPU")
        ]
        print(
            f"{name:22}{row['GPU utilisation']:7.3f}{row['core utilisation']:7.3f}"
            f"{row['done while tasks came']:7}{waits[0]:>26}{waits[1]:>26}", flush=True,
        )  # fmt: skip
    return {"days": round(days, 1), "policies": rows}


def _row(result: Result) -> dict[str, Any]:
    def waits(seconds: list[float]) -> list[float]:
        ordered = sorted(seconds) or [0.0]
        mean = sum(ordered) / len(ordered)
        p50, p99 = (ordered[min(len(ordered) - 1, len(ordered) * k // 100)] for k in (50, 99))
        return [round(one / 60, 1) for one in (mean, p50, p99)]

    return {
        "GPU utilisation": round(result.gpu_utilisation, 4),
        "core utilisation": round(result.core_utilisation, 4),
        "done while tasks came": result.finished_in_span,
        "GPU wait, min": waits(result.gpu_wait_s),
        "CPU wait, min": waits(result.cpu_wait_s),
        "freezes": result.freezes,
    }


def search(count: int) -> dict[str, Any]:
    """Search on random curves: linear to a knee of 1 to 16 cores, with noise of 1 to 3 %."""
    rows: dict[str, Any] = {}
    for name, literal in (("literal rule", True), ("ours", False)):
        chance = random.Random(3)
        near = exact = windows = over = 0
        for _ in range(count):
            knee, noise = chance.randint(1, 16), chance.uniform(0.01, 0.03)
            found = CoreSearch(max(1, knee + chance.randint(-4, 4)), 32, literal=literal)
            while not found.over:
                true = 950 * min(1.0, found.cores / knee)
                found.measured(max(0, round(true * (1 + chance.gauss(0, noise)))))
            near += abs(found.best - knee) <= 1
            exact += found.best == knee
            over += max(0, found.best - knee)
            windows += found.windows
        rows[name] = {
            "within one core": near / count, "at the knee": exact / count,
            "windows": round(windows / count, 2), "cores too many": round(over / count, 2),
        }  # fmt: skip
        print(f"search, {name}: {rows[name]}")
    return rows


def queue(count: int) -> dict[str, Any]:
    """Let tasks wait, and measure one more."""
    scheduler = TaskScheduler()
    scheduler.handle(ev.NodeChanged(0, 0, tuple(range(64)), tuple(f"g{n}" for n in range(8))))
    with tempfile.TemporaryDirectory() as folder:
        store = TaskStore(Path(folder, "tasks.sqlite"))

        def submit(number: int) -> None:
            gpus = Fraction(number % 3 == 0)
            terms = ev.TaskTerms(f"u{number % 20}", "p", None if gpus else 4, gpus)
            task = store.submit(
                number, 0, name="p", command=["p"], directory="/", environment=b"A=b\0",
                surroundings={}, terms=terms, held=False,
            )  # fmt: skip
            scheduler.handle(ev.TaskSubmitted(number, task, terms))
            for changed in scheduler.changed.values():
                store.keep(changed, number, ended=False)

        for first in range(0, count, 1000):
            with store.transaction():
                for number in range(first, first + 1000):
                    submit(number)
        times: dict[str, list[float]] = {"submit": [], "list": [], "end and start": []}
        for number in range(count, count + 200):
            begin = time.perf_counter()
            with store.transaction():
                submit(number)
            times["submit"].append(time.perf_counter() - begin)
            begin = time.perf_counter()
            store.tasks(ended=False, limit=200, uid=None)
            times["list"].append(time.perf_counter() - begin)
            task = next(iter(scheduler.nodes[0].tasks.values()))
            begin = time.perf_counter()
            scheduler.handle(ev.TaskEnded(number, task.id, task.attempt, 0))
            times["end and start"].append(time.perf_counter() - begin)
        store.close()
    rows = {}
    for name, seconds in times.items():
        ordered = sorted(seconds)
        rows[name] = {
            "p50_ms": round(1000 * ordered[len(ordered) // 2], 3),
            "p99_ms": round(1000 * ordered[len(ordered) * 99 // 100], 3),
        }
        print(f"with {count} tasks waiting, {name}: {rows[name]}")
    return {"waiting": count, **rows}


if __name__ == "__main__":
    sys.exit(main())
