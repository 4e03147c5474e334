"""The policies on sets small enough to know what is right, and their properties on random ones."""

import random
from collections.abc import Callable
from itertools import product

import pytest

from gpud_ray.sets.bounds import lower_bound_s
from gpud_ray.sets.generate import matrix_products, random_gpus, random_tasks
from gpud_ray.sets.model import GPU, Policy, Room, Stage, Task
from gpud_ray.sets.policies.baselines import Greedy, MaxMin, MinimumCompletionTime, MinMin
from gpud_ray.sets.policies.egs import EGS, divide
from gpud_ray.sets.policies.packing import RULES, SHARED_IN_ORDER, Packing, Plan, plan
from gpud_ray.sets.simulation import DeviceModel, Simulation, Stuck, Trace, simulate

GIB = 1024
# The source's example: greedy leaves one task without a GPU, {6, 2, 2} and {3, 3, 2} fit.
GPUS = [GPU(0, 10 * GIB), GPU(1, 8 * GIB)]
TASKS = [Task(i, gib * GIB, capsm_milli=1000) for i, gib in enumerate((6, 3, 3, 2, 2, 2))]


def at_once(trace: Trace) -> int:
    return sum(run.start_s == 0 for run in trace.ran)


def sizes(groups: list[list[Task]]) -> list[list[int]]:
    return [sorted((task.memory_mb // GIB for task in group), reverse=True) for group in groups]


def test_greedy_leaves_one_task_of_the_example_unplaced() -> None:
    assert at_once(simulate(TASKS, GPUS, Greedy(parallel=6))) == 5


def test_backtracking_places_the_whole_example() -> None:
    division = divide(TASKS, [10 * GIB, 8 * GIB])
    assert not division.left
    assert division.weight == pytest.approx(2.0)
    assert [sum(group) for group in sizes(division.groups)] == [10, 8]


@pytest.mark.parametrize(
    "policy", [EGS(beta=1.0, parallel=6), Packing(plan(TASKS, GPUS, limit_s=None))]
)
def test_policies_that_look_at_memory_start_the_whole_example_at_once(policy: Policy) -> None:
    assert at_once(simulate(TASKS, GPUS, policy, SHARED_IN_ORDER)) == 6


def test_a_division_takes_its_time_and_literally_waits_for_the_last_one() -> None:
    tasks = [Task(i, 1, duration_s=1.0) for i in range(4)]
    gpus = [GPU(0, 10), GPU(1, 10)]
    at = sorted(run.start_s for run in simulate(tasks, gpus, EGS(0.5, 1, pair_s=0.25)).ran)
    assert at == [2, 2, 3, 3]  # two of four: 8 pairs; meanwhile two of two: 4
    one_by_one = EGS(0.5, 1, literal=True, pair_s=0.25)
    at = sorted(run.start_s for run in simulate(tasks, gpus, one_by_one).ran)
    assert at == [2, 2, 4, 4]


def test_the_literal_rule_leaves_a_task_of_the_example() -> None:
    division = divide(TASKS, [10 * GIB, 8 * GIB], literal=True)
    assert all(sum(group) <= 8 for group in sizes(division.groups))
    assert [task.memory_mb for task in division.left] == [2 * GIB]


def test_a_task_that_no_group_may_hold_under_the_literal_rule_still_runs() -> None:
    tasks = [Task(0, 9 * GIB), Task(1, 9 * GIB), Task(2, GIB)]
    trace = simulate(tasks, GPUS, EGS(beta=0.4, literal=True))
    assert trace.done == 3
    assert {run.gpu for run in trace.ran if run.task != 2} == {0}


@pytest.mark.parametrize("seed", range(30))
def test_divide_finds_the_best_weight_there_is(seed: int) -> None:
    chance = random.Random(seed)
    free = [chance.randint(4, 12) for _ in range(chance.randint(1, 3))]
    tasks = [Task(i, chance.randint(1, 6)) for i in range(chance.randint(1, 7))]
    best = None
    for where in product(range(len(free)), repeat=len(tasks)):
        used = [0] * len(free)
        for task, index in zip(tasks, where, strict=True):
            used[index] += task.memory_mb
        if all(mb <= room for mb, room in zip(used, free, strict=True)):
            weight = sum(mb / room for mb, room in zip(used, free, strict=True))
            best = weight if best is None else max(best, weight)
    division = divide(tasks, free)
    assert bool(division.left) == (best is None)
    if best is not None:
        assert division.weight == pytest.approx(best)
    placed = [task.id for group in division.groups for task in group]
    assert sorted(placed + [task.id for task in division.left]) == [task.id for task in tasks]


def test_a_division_is_bounded_and_keeps_the_longest_beginning() -> None:
    # Nothing but 3 + 3 fits beside a 4, so that the last task never fits: the tree is searched.
    tasks = [Task(i, 3) for i in range(18)] + [Task(18, 5)]
    division = divide(tasks, [10] * 6, nodes=50, least_nodes=0)
    assert division.nodes <= 50 * len(tasks)
    assert [task.id for task in division.left] == [18]


def test_mct_min_min_and_max_min_go_by_completion_time() -> None:
    tasks = [Task(i, 1, duration_s=s) for i, s in enumerate((4.0, 1.0, 2.0, 3.0))]
    gpus = [GPU(0, 10), GPU(1, 10)]
    where = {}
    for policy in (MinimumCompletionTime(), MinMin(), MaxMin()):
        trace = simulate(tasks, gpus, policy)
        where[policy.name] = {run.task: (run.gpu, run.start_s) for run in trace.ran}
    assert where["MCT"] == {0: (0, 0), 1: (1, 0), 2: (1, 1), 3: (1, 3)}
    assert where["Min-min"] == {1: (0, 0), 2: (1, 0), 3: (0, 1), 0: (1, 2)}
    assert where["Max-min"] == {0: (0, 0), 3: (1, 0), 2: (1, 3), 1: (0, 4)}


def test_completion_time_counts_slower_gpus() -> None:
    tasks = [Task(i, 1, duration_s=1.0) for i in range(3)]
    gpus = [GPU(0, 10, cores=4352), GPU(1, 10, cores=2000)]
    trace = simulate(tasks, gpus, MinimumCompletionTime())
    assert {run.task: run.gpu for run in trace.ran} == {0: 0, 1: 0, 2: 1}


POLICIES: tuple[Callable[[], Policy], ...] = (
    Greedy, lambda: Greedy(3), MinimumCompletionTime, lambda: MinMin(2), MaxMin, EGS,
    lambda: EGS(0.1, 4), lambda: EGS(pair_s=0.01), lambda: EGS(literal=True), Packing,
)  # fmt: skip


@pytest.mark.parametrize("make", POLICIES)
@pytest.mark.parametrize("seed", range(6))
def test_conserved_and_never_too_fast(make: Callable[[], Policy], seed: int) -> None:
    chance = random.Random(seed)
    gpus = random_gpus(chance, chance.randint(1, 5))
    tasks = random_tasks(chance, 60, until_s=8.0 * (seed % 2), memory_mb=(1, 9000))
    policy = make()
    model = SHARED_IN_ORDER if isinstance(policy, Packing) else None
    trace = simulate(tasks, gpus, policy, model, sampled=True)
    ended = sorted([run.task for run in trace.ran if run.done] + list(trace.failed))
    assert ended == [task.id for task in tasks]
    largest = max(gpu.memory_mb for gpu in gpus)
    assert list(trace.failed) == [t.id for t in sorted(
        tasks, key=lambda t: (t.arrival_s, t.id)) if t.memory_mb > largest]  # fmt: skip
    by_id = {task.id: task for task in tasks}
    for run in trace.ran:
        assert run.start_s >= by_id[run.task].arrival_s
        assert run.end_s - run.start_s >= (by_id[run.task].duration_s or 0) * (1 - 1e-9)
    assert all(s.capsm <= 1 + 1e-9 and s.memory <= 1 for s in trace.samples)
    assert trace.makespan_s >= lower_bound_s(tasks, gpus) * (1 - 1e-9)


def test_a_policy_that_starts_nothing_is_named() -> None:
    class Nothing(Greedy):
        def act(self, stage: Stage) -> None:
            pass

    with pytest.raises(Stuck, match="greedy lets 6 tasks wait"):
        simulate(TASKS, GPUS, Nothing())


def test_tasks_that_overcommit_memory_fail_and_are_tried_again_a_bounded_number_of_times() -> None:
    tasks = [Task(i, 6, duration_s=10.0) for i in range(2)]
    trace = simulate(tasks, [GPU(0, 10)], MinMin(2, overcommit=True), DeviceModel(tries=3))
    assert trace.failed == {1: "out of memory in each of 3 tries"}
    assert [run.done for run in trace.ran if run.task == 1] == [False] * 3
    assert [run.done for run in trace.ran if run.task == 0] == [True]


def test_both_constraints() -> None:
    """Memory is never exceeded; at most one task of a GPU has less CapSM than it could use."""

    class Watched(Packing):
        def act(self, stage: Stage) -> None:
            super().act(stage)
            for room in stage.rooms:
                assert room.free_mb >= 0
                wants = [task.capsm_on(room.gpu) for task in room.running.values()]
                assert sum(wants[:-1]) <= room.gpu.capsm_milli

    chance = random.Random(3)
    for rule in [rule for rule in RULES if rule.parallel is None]:
        gpus = random_gpus(chance, 3)
        simulate(
            random_tasks(chance, 60, until_s=5.0), gpus, Watched(Plan(rule, {})), SHARED_IN_ORDER
        )


def test_no_starvation() -> None:
    """A task for which half of the memory would have to be free at once is kept room for."""
    large = Task(0, 9, capsm_milli=68_000, duration_s=0.1)
    stream = [
        Task(i, 3, capsm_milli=20_000, duration_s=1.0, arrival_s=i * 0.25) for i in range(1, 401)
    ]
    ends = {}
    for overtaken in (20, 10_000):
        trace = simulate(
            [Task(1000, 3, capsm_milli=20_000, duration_s=1.0), large, *stream],
            [GPU(0, 10)],
            Packing(
                Plan(next(rule for rule in RULES if rule.least == 1), {1000: 9.0, 0: -1.0}),
                overtaken=overtaken,
            ),
            SHARED_IN_ORDER,
        )
        ends[overtaken] = next(run.end_s for run in trace.ran if run.task == 0)
    assert ends[20] < 15
    assert ends[10_000] > 90  # what the rule is there for


def test_repeatable() -> None:
    tasks, gpus = matrix_products(60), GPUS
    plans = [plan(tasks, gpus, trials=25, limit_s=None, seed=1) for _ in range(2)]
    assert plans[0].makespan_s == plans[1].makespan_s
    trace = simulate(tasks, gpus, Packing(plans[0]), plans[0].rule.model)
    assert trace.makespan_s == plans[0].makespan_s


def test_a_run_that_cannot_beat_a_limit_ends_early() -> None:
    simulation = Simulation(TASKS, [GPU(0, 10 * GIB)], Packing(), SHARED_IN_ORDER, limit_s=0.5)
    assert simulation.run().makespan_s == float("inf")


@pytest.mark.parametrize(("arguments", "message"), [
    ({"memory_mb": -1}, "task 7: memory of -1 MiB"),
    ({"memory_mb": 1, "threads": 0}, "task 7: 0 threads"),
    ({"memory_mb": 1, "capsm_milli": 0}, "task 7: CapSM of 0/1000"),
    ({"memory_mb": 1, "duration_s": float("nan")}, "task 7: duration_s is nan"),
])  # fmt: skip
def test_impossible_tasks_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Task(7, **arguments)  # type: ignore[arg-type]


def test_other_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="beta is 0"):
        EGS(beta=0)
    with pytest.raises(ValueError, match="two tasks have the number 0"):
        simulate([TASKS[0], TASKS[0]], GPUS, Greedy())
    with pytest.raises(ValueError, match="GPU 3: memory_mb is 0"):
        GPU(3, 0)


def test_a_room_counts_both() -> None:
    room = Room(GPU(0, 10, capsm_milli=2000))
    room.add(Task(1, 4, capsm_milli=500))
    room.add(Task(2, 3))
    assert (room.free_mb, room.free_capsm) == (3, -500)
    room.remove(Task(2, 3))
    assert (room.free_mb, room.free_capsm) == (6, 1500)
