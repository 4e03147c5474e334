"""What the source of EGS leaves open, as readings: each with the percentages that come out of it.

The source does not say how long tasks run, what its baselines do with a GPU, when a draw is
divided, nor how long dividing takes. `MAIN` is the reading that `comparison` uses: its percentages
rise with the number of tasks, as those reported do. `ROUNDS` differs in one point, and in it beta
0.4 is the best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import mean
from typing import Any, Final

from gpud_ray.sets.generate import cluster, matrix_products
from gpud_ray.sets.model import GPU, Policy, Task
from gpud_ray.sets.policies.baselines import Greedy, MinimumCompletionTime, MinMin
from gpud_ray.sets.policies.egs import EGS
from gpud_ray.sets.simulation import DeviceModel, simulate

__all__ = ["BETAS", "COUNTS", "MAIN", "READINGS", "REPORTED_PERCENT", "ROUNDS", "Reading", "table"]

COUNTS: Final = (250, 500, 1000)
BETAS: Final = (0.1, 0.2, 0.4, 0.6)
REPORTED_PERCENT: Final = {"greedy": (39, 52, 58), "MCT": (50, 59, 64), "Min-min": (59, 66, 80)}

_by_work = partial(matrix_products, lasting="by work")
_BASELINES: Final[dict[str, Callable[..., Policy]]] = {
    "greedy": Greedy, "MCT": MinimumCompletionTime, "Min-min": MinMin,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read the source.

    Attributes:
        tasks: makes a set of so many tasks, from a seed.
        parallel: tasks of a GPU that EGS runs at once.
        baseline: options of greedy, MCT and Min-min.
        egs: options of EGS.
        model: how the simulated GPUs behave.
    """

    tasks: Callable[[int, int], list[Task]] = _by_work
    parallel: int = 2
    baseline: dict[str, Any] = field(default_factory=dict)
    egs: dict[str, Any] = field(default_factory=lambda: {"pair_s": 15e-6})
    model: DeviceModel = field(default_factory=DeviceModel)

    def make_egs(self, seed: int, beta: float = 0.4) -> EGS:
        """Return EGS as this reading has it."""
        return EGS(beta, self.parallel, seed=seed, **self.egs)

    def make_baseline(self, name: str) -> Policy:
        """Return greedy, MCT or Min-min as this reading has it."""
        return _BASELINES[name](**self.baseline)

    def egs_s(self, count: int, seeds: int, gpus: Sequence[GPU], beta: float = 0.4) -> float:
        """Return EGS's mean makespan."""
        return mean(
            simulate(
                self.tasks(count, seed), gpus, self.make_egs(seed, beta), self.model
            ).makespan_s
            for seed in range(seeds)
        )

    def percent(self, seeds: int, gpus: Sequence[GPU]) -> dict[str, list[int]]:
        """Return EGS's makespan in percent of each baseline's, by the number of tasks."""
        found: dict[str, list[int]] = {name: [] for name in _BASELINES}
        for count in COUNTS:
            egs_s = self.egs_s(count, seeds, gpus)
            for name, row in found.items():
                theirs = [
                    simulate(self.tasks(count, seed), gpus, self.make_baseline(name), self.model)
                    for seed in range(seeds)
                ]
                row.append(round(100 * egs_s / mean(one.makespan_s for one in theirs)))
        return found


def _arriving(count: int, seed: int) -> list[Task]:
    """Let the tasks come one by one, 30 in a second."""
    return [replace(task, arrival_s=task.id / 30) for task in _by_work(count, seed)]


def _with_a_start(count: int, seed: int) -> list[Task]:
    """Add 0.2 s to each task."""
    return [
        replace(task, duration_s=(task.duration_s or 0) + 0.2) for task in _by_work(count, seed)
    ]


MAIN: Final = Reading()
ROUNDS: Final = replace(MAIN, egs={"pair_s": 15e-6, "one_by_one": True})

READINGS: Final[dict[str, Reading]] = {
    "main: 15 us a pair": MAIN,
    "dividing takes no time": replace(MAIN, egs={}),
    "10 us a pair": replace(MAIN, egs={"pair_s": 10e-6}),
    "20 us a pair": replace(MAIN, egs={"pair_s": 20e-6}),
    "a draw after the last one has ended": ROUNDS,
    "offers every 4 s": replace(MAIN, egs={"pair_s": 15e-6, "offers_s": 4.0}),
    "offers every 4 s, no time": replace(MAIN, egs={"offers_s": 4.0}),
    "durations apart from memory": replace(MAIN, tasks=matrix_products),
    "durations by memory": replace(MAIN, tasks=partial(matrix_products, lasting="by memory")),
    "0.2 s more for each task": replace(MAIN, tasks=_with_a_start),
    "tasks of up to 2,048 MiB": replace(
        MAIN, tasks=partial(matrix_products, lasting="by work", sides=(3000, 13_000))
    ),
    "30 tasks come in a second": replace(MAIN, tasks=_arriving),
    "baselines two at a time": replace(MAIN, baseline={"parallel": 2}),
    "EGS four at a time": replace(MAIN, parallel=4),
    "EGS one at a time": replace(MAIN, parallel=1),
}


def table(seeds: int) -> dict[str, dict[str, Any]]:
    """Simulate every reading: percentages, and EGS's makespans of 1,000 tasks by beta."""
    gpus = cluster()
    return {
        name: {
            "EGS_percent_of": reading.percent(seeds, gpus),
            "beta_makespan_s": {
                beta: round(reading.egs_s(1000, seeds, gpus, beta), 1) for beta in BETAS
            },
        }
        for name, reading in READINGS.items()
    }
