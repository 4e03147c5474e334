"""Optimal schedules of small sets, with OR-Tools' CP-SAT solver (the extra ``exact``).

Problem: the shortest makespan when every task has its memory and *all* the CapSM that it can use
from its start to its end, on one GPU.

Approach: for each task and each GPU that can hold it an optional interval, of which exactly one is
present; on each GPU memory and CapSM are cumulative resources. Durations count in milliseconds,
rounded up. The solver begins from a given schedule, ends after a time limit, and has a bound.

A plan of `packing` may be shorter than this optimum: it may start a task with less CapSM.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpud.errors import GpudError
from gpud_ray.sets.model import GPU, Task, run_s

__all__ = ["MissingSolver", "Schedule", "solve"]

_TICKS = 1000  # in a second


class MissingSolver(GpudError):
    """OR-Tools is not installed; the message says how to install it."""

    code = "ray-missing-solver"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The best schedule that was found.

    Attributes:
        starts: (GPU, second) by task.
        makespan_s: of the schedule.
        bound_s: no schedule of this kind is shorter.
        optimal: whether the two are the same.
    """

    starts: Mapping[int, tuple[int, float]]
    makespan_s: float
    bound_s: float
    optimal: bool


def solve(
    tasks: Sequence[Task],
    gpus: Sequence[GPU],
    *,
    limit_s: float = 10.0,
    begin_with: Mapping[int, tuple[int, float]] | None = None,
    threads: int = 1,
) -> Schedule:
    """Search for the optimum.

    Args:
        tasks: each fits at least one GPU.
        gpus: as they are when nothing runs.
        limit_s: seconds of search.
        begin_with: (GPU, second) by task, of a schedule that is known.
        threads: of the solver; with one, equal input gives equal results.

    Raises:
        MissingSolver: OR-Tools is not installed.
        ValueError: a task fits no GPU.
        TimeoutError: no schedule was found in time.
    """
    cp_model = _cp_model()
    model = cp_model.CpModel()
    ticks = {(t.id, g.id): math.ceil(_TICKS * run_s(t, g)) for t in tasks for g in gpus}
    horizon = sum(max(ticks[task.id, gpu.id] for gpu in gpus) for task in tasks)
    horizon += max((math.ceil(_TICKS * task.arrival_s) for task in tasks), default=0)
    end = model.new_int_var(0, horizon, "makespan")
    start: dict[int, Any] = {}
    on: dict[tuple[int, int], Any] = {}
    intervals: dict[int, list[Any]] = {gpu.id: [] for gpu in gpus}
    held: dict[int, list[Task]] = {gpu.id: [] for gpu in gpus}
    for task in tasks:
        usable = [gpu for gpu in gpus if gpu.memory_mb >= task.memory_mb]
        if not usable:
            raise ValueError(f"task {task.id} needs {task.memory_mb} MiB, which no GPU has")
        begin = model.new_int_var(math.ceil(_TICKS * task.arrival_s), horizon, f"start {task.id}")
        start[task.id] = begin
        for gpu in usable:
            present = on[task.id, gpu.id] = model.new_bool_var(f"{task.id} on {gpu.id}")
            length = ticks[task.id, gpu.id]
            intervals[gpu.id].append(
                model.new_optional_fixed_size_interval_var(
                    begin, length, present, f"{task.id} of {gpu.id}"
                )
            )
            held[gpu.id].append(task)
            model.add(end >= begin + length).only_enforce_if(present)
            if begin_with is not None and task.id in begin_with:
                model.add_hint(present, begin_with[task.id][0] == gpu.id)
        model.add_exactly_one(on[task.id, gpu.id] for gpu in usable)
        if begin_with is not None and task.id in begin_with:
            model.add_hint(begin, math.ceil(_TICKS * begin_with[task.id][1]))
    for gpu in gpus:
        memory = [task.memory_mb for task in held[gpu.id]]
        capsm = [task.capsm_on(gpu) for task in held[gpu.id]]
        model.add_cumulative(intervals[gpu.id], memory, gpu.memory_mb)
        model.add_cumulative(intervals[gpu.id], capsm, gpu.capsm_milli)
    model.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = threads
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise TimeoutError(f"no schedule of {len(tasks)} tasks within {limit_s:g} s; give it more")
    starts = {
        number: (gpu, solver.value(start[number]) / _TICKS)
        for (number, gpu), present in on.items()
        if solver.value(present)
    }
    return Schedule(
        starts,
        solver.value(end) / _TICKS,
        solver.best_objective_bound / _TICKS,
        status == cp_model.OPTIMAL,
    )


def _cp_model() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise MissingSolver(
            "no exact schedules without OR-Tools: pip install 'gpud-ray[exact]'"
        ) from None
    return cp_model
