"""Co-location of online requests beside offline work, in another tree and in this one, in turns.

    python bench/bench_colocation_trees.py BEFORE [--device cpu:N] [--rounds N] [--seconds S]
                                                  [--block-ms MS] [--load L]

Each tree has a daemon and clients of its own, all of which are there from the beginning; problem
sizes are measured once, in this tree. In each round each tree has a window with online requests
alone and one with offline work beside them, with the same arrivals, in an order that is left to
chance. So other programs disturb both trees alike, and the windows of each are taken together for
its percentiles: the p99 of one short window is its slowest request, and r99, the quotient of two
such, says nothing.

Prints the percentiles of latencies and of times on the device, r99 of all windows, how often jobs
were resized for a request, and the offline work. Writes nothing. Takes some 10 s a round.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpud.demo.arrivals import poisson
from gpud.demo.colocation import sizes_for
from gpud.demo.metrics import percentile

ROOT = Path(__file__).resolve().parents[1]
JOB_S, REQUEST_S = 0.25, 0.012
PERCENTS = (50, 90, 99)
# Runs in either tree: of gpud it uses only what has long been there.
WINDOWS = """
import json, sys
import gpud_client as gc
from gpud.demo.colocation import Sizes, open_experiment
from gpud.demo.offline_client import Sized
from gpud.demo.offline_kernels import OFFLINE
assert gc.__file__.startswith({tree!r}), gc.__file__
kinds = {{kind.name: kind for kind in OFFLINE}}
offline, layers = json.loads({sizes!r})
sizes = Sizes(tuple(Sized(kinds[name], *rest) for name, *rest in offline), layers)
resizes = 0
result = gc.Job.result
def counted(job, *args):
    global resizes
    value = result(job, *args)
    resizes += job.stats.get("resizes") or 0
    return value
gc.Job.result = counted
with open_experiment({device!r}, "reservations", sizes) as experiment:
    print("ready", flush=True)
    for line in sys.stdin:
        beside, arrivals = json.loads(line)
        resizes = 0
        window = experiment.measure("window", {seconds}, arrivals, offline=beside)
        work = sum(window.rates.get(one.kind.name, 0) * one.work_s for one in sizes.offline)
        answers = window.answers
        print(json.dumps([answers.latencies_s, answers.run_s, resizes, work, window.problems]),
              flush=True)
"""


def compare(
    before: Path, device: str, rounds: int, seconds: float, block_s: float, busy: float
) -> int:
    """Measure both trees and print the table; return the exit status."""
    sizes = sizes_for(device, block_s=block_s, job_s=JOB_S, request_s=REQUEST_S)
    rows = [(o.kind.name, o.rounds, o.task_blocks, o.block_s, o.work_s) for o in sizes.offline]
    trees = {"before": before.resolve(), "after": ROOT}
    running: dict[str, subprocess.Popen[str]] = {}
    windows: dict[tuple[str, bool], list[list[Any]]] = {}
    try:
        for name, tree in trees.items():
            code = WINDOWS.format(
                tree=str(tree), sizes=json.dumps([rows, sizes.layers]), device=device,
                seconds=seconds,
            )  # fmt: skip
            running[name] = subprocess.Popen(
                [sys.executable, "-c", code],
                env={**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'client'}"},
                cwd=tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            if _answer(running[name]) != "ready":
                raise RuntimeError(f"the clients in {tree} did not begin; what they wrote says why")
        for number in range(rounds):
            arrivals = poisson(busy / REQUEST_S, seconds, number + 1) or [0.0]
            for beside in (False, True):
                for name in random.sample(sorted(running), len(running)):
                    seen = json.loads(_answer(running[name], json.dumps([beside, arrivals])))
                    windows.setdefault((name, beside), []).append(seen)
    finally:
        for process in running.values():
            process.communicate()  # closes its input: it ends
    return report(windows)


def report(windows: dict[tuple[str, bool], list[list[Any]]]) -> int:
    """Print the table; return 1 if a result was wrong."""
    heads = [f"p{percent} {what}" for what in ("ms", "run ms") for percent in PERCENTS]
    print(f"{'':<26}" + "".join(f"{head:>12}" for head in [*heads, "resizes", "offline"]))
    p99: dict[tuple[str, bool], float] = {}
    problems = []
    for (name, beside), seen in sorted(windows.items(), key=lambda item: item[0][1]):
        latencies = [one for row in seen for one in row[0]]
        ran = [one for row in seen for one in row[1]]
        problems += [problem for row in seen for problem in row[4]]
        p99[name, beside] = percentile(latencies, 99)
        times = [1e3 * percentile(of, one) for of in (latencies, ran) for one in PERCENTS]
        others = [sum(row[2] for row in seen) / len(latencies), mean(row[3] for row in seen)]
        what = f"{name}, {'beside offline' if beside else 'alone'}"
        print(
            f"{what:<26}"
            + "".join(f"{time:>12.1f}" for time in times)
            + "".join(f"{other:>12.2f}" for other in others)
        )
    for name in ("before", "after"):
        print(f"r99 {name}: {p99[name, True] / p99[name, False]:.2f}")
    for problem in problems[:5]:
        print(f"WRONG: {problem}")
    return 1 if problems else 0


def _answer(process: subprocess.Popen[str], line: str | None = None) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    if line is not None:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
    return process.stdout.readline().strip()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("before", type=Path, help="the tree to compare with")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a window")
    parser.add_argument("--block-ms", type=float, default=1.0, help="of offline task blocks")
    parser.add_argument("--load", type=float, default=0.2, help="of online requests")
    options = parser.parse_args()
    return compare(
        options.before,
        options.device,
        options.rounds,
        options.seconds,
        options.block_ms / 1e3,
        options.load,
    )


if __name__ == "__main__":
    sys.exit(main())
