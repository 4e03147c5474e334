"""A task set on CPU devices: two nodes with two executors each, under every policy.

Tasks are our own kernels, of all classes. Their needs are measured first, each alone on its GPU:
MCT, Min-min, Max-min and ours know durations, and ours the part of them in which a task uses the
device. Then every policy runs the same set, in turns; and EGS with 1, 2 and 4 parallel tasks, in
both modes. Makespans are medians of the rounds, beside greedy's.

Run it: .venv-ray/bin/python contrib/ray/bench/run_sets.py [--tasks 100] [--rounds 3]
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from statistics import median

from gpud_ray.sets.generate import random_set
from gpud_ray.sets.run.nodes import started_locally
from gpud_ray.sets.run.scheduler import POLICIES, PolicyChoice, Run
from gpud_ray.sets.setfile import SetTask, TaskSet

NODES = (("cpu:1", "cpu:1"), ("cpu:1", "cpu:1"))
ALONE = (("cpu:1",),)


def ran(task_set: TaskSet, nodes: tuple[tuple[str, ...], ...], policy: str) -> Run:
    """Run a set on nodes that are started and ended; every task has to be done."""
    with started_locally(task_set, nodes, policy=PolicyChoice(policy)) as (scheduler, _):
        run = scheduler.run()
    failed = [one.reason for one in run.ended.values() if one.state == "failed"]
    if failed:
        raise SystemExit(f"{len(failed)} tasks failed: {failed[0]}")
    return run


def with_needs(tasks: list[SetTask]) -> list[SetTask]:
    """Measure each task alone: how long it takes, and which part of that it uses the device."""
    ran(TaskSet(tasks, parallel=1), ALONE, "mct")  # compiles
    ended = ran(TaskSet(tasks, parallel=1), ALONE, "mct").ended
    measured = []
    for one in tasks:
        took_s, kernels_s = ended[one.needs.id].took_s, ended[one.needs.id].kernels_s
        capsm_milli = max(1, min(1000, round(1000 * kernels_s / took_s)))
        needs = replace(one.needs, duration_s=took_s, capsm_milli=capsm_milli)
        measured.append(replace(one, needs=needs))
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    tasks = with_needs(random_set(options.tasks, seed=1).tasks)
    alone_s = sum(one.needs.duration_s or 0 for one in tasks)
    capsm = sum(one.needs.capsm_milli or 0 for one in tasks) / len(tasks) / 10
    print(f"{len(tasks)} tasks, one after another {alone_s:.2f} s, using {capsm:.0f} % of a device")
    cases = {name: (name, 2, "split") for name in ("greedy", *POLICIES[:2], *POLICIES[3:])}
    for parallel in (1, 2, 4):
        cases[f"egs, {parallel} parallel, split"] = ("egs", parallel, "split")
        cases[f"egs, {parallel} parallel, in turn"] = ("egs", parallel, "in turn")
    took: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        for name, (policy, parallel, mode) in cases.items():
            task_set = TaskSet(tasks, parallel, mode)  # type: ignore[arg-type]
            took[name].append(ran(task_set, NODES, policy).makespan_s)
    first = median(took["greedy"])
    print("| case | makespan, s | of greedy | rounds |")
    print("| --- | ---: | ---: | --- |")
    for name, seconds in took.items():
        each = ", ".join(f"{one:.2f}" for one in seconds)
        print(f"| {name} | {median(seconds):.2f} | {median(seconds) / first:.2f} | {each} |")


if __name__ == "__main__":
    main()
