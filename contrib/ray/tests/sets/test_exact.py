"""The exact solver: not longer than list schedules, and right where one can count."""

import random

import pytest

pytest.importorskip("ortools", reason="the extra exact")

from task_sets.comparison import beside_exact
from task_sets.exact import solve

from gpud_ray.sets.bounds import lower_bound_s
from gpud_ray.sets.generate import random_gpus, random_tasks
from gpud_ray.sets.model import GPU, Task
from gpud_ray.sets.policies.packing import RULES, SHARED_IN_ORDER, Packing, Plan
from gpud_ray.sets.simulation import simulate

GIB = 1024


def test_the_sources_example_fits_at_once() -> None:
    tasks = [Task(i, gib * GIB, capsm_milli=1000) for i, gib in enumerate((6, 3, 3, 2, 2, 2))]
    schedule = solve(tasks, [GPU(0, 10 * GIB), GPU(1, 8 * GIB)])
    assert (schedule.makespan_s, schedule.optimal) == (1.0, True)


def test_capsm_is_a_constraint_of_its_own() -> None:
    tasks = [Task(i, 1, capsm_milli=1200, duration_s=1.0) for i in range(3)]
    assert solve(tasks, [GPU(0, 100, capsm_milli=2000)]).makespan_s == 3.0


@pytest.mark.parametrize("seed", range(4))
def test_between_the_lower_bound_and_a_list_schedule(seed: int) -> None:
    chance = random.Random(seed)
    gpus = random_gpus(chance, 2)
    tasks = random_tasks(chance, 8, until_s=2.0 * (seed % 2))
    rule = next(rule for rule in RULES if rule.least == 1)
    trace = simulate(tasks, gpus, Packing(Plan(rule, {})), SHARED_IN_ORDER)
    found = solve(
        tasks, gpus, limit_s=5, begin_with={run.task: (run.gpu, run.start_s) for run in trace.ran}
    )
    rounding_s = 1e-3 * len(tasks)
    assert lower_bound_s(tasks, gpus) - 1e-9 <= found.bound_s <= found.makespan_s + 1e-9
    assert found.makespan_s <= trace.makespan_s + rounding_s


def test_plans_beside_optima() -> None:
    found = beside_exact(3)
    assert found["solved_to_the_optimum"] == 3
    assert found["most_of_optimum"] < 1.2


def test_a_task_that_no_gpu_holds_is_named() -> None:
    with pytest.raises(ValueError, match="task 4 needs 200 MiB, which no GPU has"):
        solve([Task(4, 200)], [GPU(0, 100)])
