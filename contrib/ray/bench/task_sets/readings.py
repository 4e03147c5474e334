"""What the source of EGS leaves open, as three readings, each with the figures that come out of it.

The source's experiments had two nodes with two executors each (4 GPUs of 10,989 MiB); its "400 a
round, at most 50 a GPU" implies 8. The figures here are for 8. It does not say how large its
matrices are, how long tasks run, what its baselines do with a GPU, nor how long dividing takes.
Assumed are sides of 2,000 to 5,500, tasks that last as long as their arithmetic needs, baselines
that run one task of a GPU at a time (EGS two), and 15 us of dividing for each pair of a task drawn
and one that waits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import mean
from typing import Any, Final

from gpud_ray.sets.generate import cluster, matrix_products
from gpud_ray.sets.model import Policy
from gpud_ray.sets.policies.baselines import Greedy, MinimumCompletionTime, MinMin
from gpud_ray.sets.policies.egs import EGS
from gpud_ray.sets.simulation import simulate

__all__ = ["BASELINES", "BETAS", "COUNTS", "GPUS", "MAIN", "READINGS", "products", "table"]

COUNTS: Final = (250, 500, 1000)
BETAS: Final = (0.1, 0.2, 0.4, 0.6)
GPUS: Final = cluster(servers=4)
BASELINES: Final[dict[str, Callable[[], Policy]]] = {
    "greedy": Greedy, "MCT": MinimumCompletionTime, "Min-min": MinMin,
}  # fmt: skip

products = partial(matrix_products, lasting="by work", sides=(2000, 5500))

MAIN: Final[dict[str, Any]] = {"literal": True, "pair_s": 15e-6}
READINGS: Final[dict[str, dict[str, Any]]] = {
    "literal": MAIN,
    "literal, dividing takes no time": {"literal": True},
    "a draw as soon as there is memory for it": {"pair_s": 15e-6},
}
"""Options of EGS."""


def table(seeds: int) -> dict[str, dict[str, Any]]:
    """Return, for each reading, EGS in percent of each baseline by the number of tasks, and its
    mean makespans of 1,000 tasks by beta."""
    theirs = {
        (name, count): _mean_s(make, count, seeds)
        for name, make in BASELINES.items()
        for count in COUNTS
    }
    found = {}
    for reading, options in READINGS.items():
        egs_s = {count: _egs_s(count, seeds, 0.4, options) for count in COUNTS}
        found[reading] = {
            "EGS_percent_of": {
                name: [round(100 * egs_s[count] / theirs[name, count]) for count in COUNTS]
                for name in BASELINES
            },
            "beta_makespan_s": {
                beta: round(_egs_s(COUNTS[-1], seeds, beta, options), 1) for beta in BETAS
            },
        }
    return found


def _egs_s(count: int, seeds: int, beta: float, options: dict[str, Any]) -> float:
    return mean(
        simulate(products(count, seed), GPUS, EGS(beta, seed=seed, **options)).makespan_s
        for seed in range(seeds)
    )


def _mean_s(make: Callable[[], Policy], count: int, seeds: int) -> float:
    return mean(simulate(products(count, seed), GPUS, make()).makespan_s for seed in range(seeds))
