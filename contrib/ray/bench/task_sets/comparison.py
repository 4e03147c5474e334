"""The source's figures in virtual time, with ours beside: makespans, beta, parallel tasks, use.

What is assumed besides, because the source does not say it, is in `readings`. 100 detections run on
one server, in one set. Tasks at more than 90 % of a GPU's memory run at a quarter of their speed
(``pressure``), which is assumed, not measured: without it four at a time are among the fastest.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from gpud_ray.sets.bounds import lower_bound_s
from gpud_ray.sets.generate import (
    cluster,
    detections,
    random_gpus,
    random_tasks,
)
from gpud_ray.sets.model import GPU, Policy, Task
from gpud_ray.sets.policies.baselines import Greedy, MaxMin, MinimumCompletionTime, MinMin
from gpud_ray.sets.policies.egs import EGS
from gpud_ray.sets.policies.packing import Packing, plan
from gpud_ray.sets.simulation import DeviceModel, Trace, simulate
from task_sets.exact import solve
from task_sets.readings import COUNTS, GPUS, MAIN, products, table

__all__ = ["PARALLEL", "REPORTED", "beside_exact", "compare", "never_worse"]

PARALLEL: Final = (1, 2, 4, 5)
PRESSURE: Final = 0.25

REPORTED: Final[dict[str, Any]] = {
    "EGS_percent_of": {"greedy": (39, 52, 58), "MCT": (50, 59, 64), "Min-min": (59, 66, 80)},
    "best_beta": 0.4,
    "parallel": {
        1: "below 30 % use",
        2: "best",
        4: "slowest of the three",
        5: "out of memory",
    },
    "peaks_percent": {"device": 100, "memory": 95},
}

_Said = Callable[[str], None]


def compare(
    seeds: int = 10,
    instances: int = 0,
    exact: int = 0,
    *,
    said: _Said = lambda _: None,
) -> dict[str, Any]:
    """Simulate everything; return plain data.

    Args:
        seeds: sets of each kind.
        instances: random instances for `never_worse`; 0: none.
        exact: small random instances for `beside_exact`; 0: none.
        said: called with what begins.
    """
    found: dict[str, Any] = {"reported": REPORTED}
    said("makespans")
    found["makespans_s"] = {
        count: _makespans([products(count, seed) for seed in range(seeds)], GPUS)
        for count in COUNTS
    }
    said("readings")
    found["readings"] = table(seeds)
    said("parallel tasks")
    found["parallel"] = {count: _parallel(count) for count in PARALLEL}
    said("use over time")
    found["use"] = dict(_use(GPUS))
    if instances:
        said(f"{instances} random instances")
        found["random_instances"] = never_worse(instances)
    if exact:
        said(f"{exact} optima")
        found["small_instances"] = beside_exact(exact)
    return found


def _makespans(sets: Sequence[Sequence[Task]], gpus: Sequence[GPU]) -> dict[str, float]:
    """Mean makespans by policy, with two tasks at a time under ``alike``, and the lower bound."""
    rows: list[dict[str, float]] = []
    for seed, tasks in enumerate(sets):
        policies: dict[str, Policy] = {
            "greedy": Greedy(),
            "MCT": MinimumCompletionTime(),
            "Min-min": MinMin(),
            "Max-min": MaxMin(),
            "EGS": EGS(seed=seed, **MAIN),
            "greedy, two at a time": Greedy(2),
            "MCT, two at a time": MinimumCompletionTime(2),
            "Min-min, two at a time": MinMin(2),
            "Max-min, two at a time": MaxMin(2),
        }
        row = {name: simulate(tasks, gpus, one).makespan_s for name, one in policies.items()}
        begin = time.monotonic()
        row["gpud"] = plan(tasks, gpus, bound_s=lower_bound_s(tasks, gpus)).makespan_s
        row["gpud planned in (s)"] = time.monotonic() - begin
        row["lower bound"] = lower_bound_s(tasks, gpus)
        rows.append(row)
    return {name: round(sum(row[name] for row in rows) / len(rows), 3) for name in rows[0]}


def _parallel(count: int) -> dict[str, Any]:
    """100 detections on one server: with the assumed slowness at full memory, and without."""
    row: dict[str, Any] = {}
    for name, model in (
        ("assumed", DeviceModel(pressure=PRESSURE)),
        ("without pressure", DeviceModel()),
    ):
        trace = simulate(
            detections(100), cluster(servers=1), EGS(parallel=count, overcommit=True), model,
            sampled=True,
        )  # fmt: skip
        row[name] = {
            "makespan_s": round(trace.makespan_s, 3),
            "out_of_memory": sum(not ran.done for ran in trace.ran),
            "failed": len(trace.failed),
            "peak_capsm_percent": round(100 * max(one.capsm for one in trace.samples)),
            "peak_memory_percent": round(100 * max(one.memory for one in trace.samples)),
        }
    return row


def _use(gpus: Sequence[GPU]) -> Iterator[tuple[str, list[dict[str, float]]]]:
    tasks = products(1000, 0)
    ours = plan(tasks, gpus)
    for policy, model in (
        (Greedy(), None),
        (MinMin(), None),
        (EGS(**MAIN), None),
        (Packing(ours), ours.rule.model),
    ):
        trace = simulate(tasks, gpus, policy, model, sampled=True)
        yield policy.name, [asdict(one) for one in _thinned(trace)]


def _thinned(trace: Trace, most: int = 400) -> list[Any]:
    step = max(1, len(trace.samples) // most)
    return trace.samples[::step]


def never_worse(instances: int, trials: int = 60) -> dict[str, Any]:
    """Compare our plans with EGS on random instances: unequal GPUs, some with arrivals.

    EGS has one, two and four tasks at a time, and the best of the three counts.
    """
    worse: list[int] = []
    of_egs: list[float] = []
    of_bound: list[float] = []
    for seed in range(instances):
        chance = random.Random(seed)
        gpus = random_gpus(chance, chance.randint(1, 6))
        tasks = random_tasks(chance, chance.randint(2, 80), until_s=chance.choice((0, 0, 10)))
        egs_s = min(simulate(tasks, gpus, EGS(parallel=n, seed=seed)).makespan_s for n in (1, 2, 4))
        bound_s = lower_bound_s(tasks, gpus)
        ours = plan(tasks, gpus, trials=trials, limit_s=None, bound_s=bound_s, seed=seed)
        of_egs.append(ours.makespan_s / egs_s)
        of_bound.append(ours.makespan_s / bound_s)
        if ours.makespan_s > egs_s * (1 + 1e-9):
            worse.append(seed)
    return {
        "instances": instances,
        "worse_than_EGS": len(worse),
        "seeds_worse": worse,
        "mean_of_EGS": round(sum(of_egs) / instances, 4),
        "at_the_lower_bound": sum(one <= 1 + 1e-9 for one in of_bound),
        "mean_of_lower_bound": round(sum(of_bound) / instances, 4),
        "least_of_lower_bound": round(min(of_bound), 4),
        "most_of_lower_bound": round(max(of_bound), 4),
    }


def beside_exact(instances: int, limit_s: float = 5.0) -> dict[str, Any]:
    """Compare our plans with optima of the solver on small random instances.

    The solver gives every task all the CapSM that it can use, our plans need not: they may be
    shorter.

    Raises:
        MissingSolver: OR-Tools is not installed.
    """
    of_exact: list[float] = []
    optimal = 0
    for seed in range(instances):
        chance = random.Random(seed)
        gpus = random_gpus(chance, chance.randint(1, 3))
        tasks = random_tasks(chance, chance.randint(4, 9), until_s=chance.choice((0, 5)))
        found = solve(tasks, gpus, limit_s=limit_s)
        ours = plan(tasks, gpus, trials=100, limit_s=None, bound_s=lower_bound_s(tasks, gpus))
        optimal += found.optimal
        of_exact.append(ours.makespan_s / found.makespan_s)
    return {
        "instances": instances,
        "solved_to_the_optimum": optimal,
        "ours_at_most_the_optimum": sum(one <= 1.001 for one in of_exact),
        "mean_of_optimum": round(sum(of_exact) / instances, 4),
        "most_of_optimum": round(max(of_exact), 4),
    }
