"""The properties of the tasks' scheduler over random histories, and faults that each catches.

``GPUD_TASK_SEEDS`` sets how many histories come from seeds, 40 by default.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpud.tasks.core import events as ev
from gpud.tasks.core.commands import MeasureWindow
from gpud.tasks.core.fair_queue import FairQueue
from gpud.tasks.core.lifecycle import TaskInput
from gpud.tasks.core.node import NodeRecord
from gpud.tasks.core.placement import Placement
from gpud.tasks.core.record import TaskRecord
from gpud.tasks.core.scheduler import TaskScheduler
from gpud.tasks.core.task_table import TaskTable
from tests.property.task_simulation import CHECKS, Broken, World, history, random_settings, step

SEEDS = int(os.environ.get("GPUD_TASK_SEEDS", "40"))


def histories(end: int, first: int = 0) -> None:
    for seed in range(first, end):
        history(seed)


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_random_histories(first: int) -> None:
    histories(min(first + 10, SEEDS), first)


@settings(max_examples=40)
@given(st.integers(0, 1 << 16), st.lists(st.integers(0, 1 << 16), max_size=80))
def test_histories_that_shrink(seed: int, steps: list[int]) -> None:
    """Each step has a seed of its own, so that those which do not matter can be left out."""
    world = World(random_settings(random.Random(seed)))
    world.node(0, 8, 4, freezes=True, memory=1000)
    for one in steps:
        step(random.Random(one), world)
    world.finish()


# -- planted faults --------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def two_tasks_get_a_processor(patch: Patch) -> None:
    give = NodeRecord.give_cores

    def wrong(self: NodeRecord, task: TaskRecord, cores: int) -> None:
        free = list(self.free_cpus)
        give(self, task, cores)
        if cores:
            self.free_cpus = free

    patch.setattr(NodeRecord, "give_cores", wrong)


def a_shared_gpu_is_forgotten(patch: Patch) -> None:
    add = NodeRecord.add

    def wrong(self: NodeRecord, task: TaskRecord, gpus: Any) -> None:
        add(self, task, gpus)
        for gpu in task.gpus if task.part is not None else ():
            self.gpu_used[gpu] -= task.part or 0

    patch.setattr(NodeRecord, "add", wrong)


def the_ends_of_tasks_wake_nobody(patch: Patch) -> None:
    place = Placement.place

    def wrong(self: Placement) -> None:
        if not any(type(one).__name__ == "FinishTask" for one in self._table.out):
            place(self)

    patch.setattr(Placement, "place", wrong)


def a_borrower_is_disturbed_at_once(patch: Patch) -> None:
    victims = Placement._victims

    def wrong(self: Placement, node: NodeRecord, missing: int) -> list[TaskRecord] | None:
        for task in node.tasks.values():
            task.since_ns -= self._settings.least_run_ns
        return victims(self, node, missing)

    patch.setattr(Placement, "_victims", wrong)


def gpu_tasks_are_victims_too(patch: Patch) -> None:
    def wrong(self: NodeRecord) -> list[TaskRecord]:
        return [task for task in self.tasks.values() if task.has_cores][::-1]

    patch.setattr(NodeRecord, "borrowers", wrong)


def the_richest_user_is_next(patch: Patch) -> None:
    def wrong(self: FairQueue, lookahead: int) -> Any:
        yield from list(self._front.values())
        users = sorted(self._users, key=lambda user: -self.has.get(user, 0))
        for user in users:
            yield from list(self._users[user].values())[:lookahead]

    patch.setattr(FairQueue, "candidates", wrong)


def a_lost_attempt_is_forgotten(patch: Patch) -> None:
    over = TaskScheduler._over

    def wrong(self: TaskScheduler, task: TaskRecord, event: ev.TaskEnded) -> None:
        over(self, task, event)
        if event.lost and task.id in self.tasks:
            task.attempt -= 1

    patch.setattr(TaskScheduler, "_over", wrong)


def a_task_is_dropped_from_its_queue(patch: Patch) -> None:
    enter = TaskTable.enter

    def wrong(self: TaskTable, task: TaskRecord) -> None:
        if not task.front or task.attempt == 0:
            enter(self, task)

    patch.setattr(TaskTable, "enter", wrong)


def a_task_that_failed_vanishes(patch: Patch) -> None:
    forget = TaskScheduler._forget

    def wrong(self: TaskScheduler, task: TaskRecord) -> None:
        forget(self, task)
        if task.state == "failed":
            self.table.out[:] = [
                one for one in self.table.out if type(one).__name__ != "FinishTask"
            ]

    patch.setattr(TaskScheduler, "_forget", wrong)


def a_stopped_task_keeps_its_place_in_the_sums(patch: Patch) -> None:
    stop = Placement.stop

    def wrong(self: Placement, task: TaskRecord, by: TaskInput, reason: str) -> None:
        node = self._nodes[task.node or 0]
        stop(self, task, by, reason)
        node.stopping_cores += 1

    patch.setattr(Placement, "stop", wrong)


def decisions_depend_on_the_process(patch: Patch) -> None:
    number = iter(range(10**9))
    measure = Placement.measure

    def wrong(self: Placement, task: TaskRecord) -> None:
        measure(self, task)
        self._table.out[-1] = MeasureWindow(task.id, task.attempt, next(number))

    patch.setattr(Placement, "measure", wrong)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (two_tasks_get_a_processor, {"exclusive", "counted"}),
        (a_shared_gpu_is_forgotten, {"exclusive", "counted"}),
        (the_ends_of_tasks_wake_nobody, {"awake"}),
        (a_borrower_is_disturbed_at_once, {"least_run"}),
        (gpu_tasks_are_victims_too, {"only_cpu"}),
        (the_richest_user_is_next, {"least_first"}),
        (a_lost_attempt_is_forgotten, {"once"}),
        (a_task_is_dropped_from_its_queue, {"filed", "error"}),
        (a_task_that_failed_vanishes, {"kept"}),
        (a_stopped_task_keeps_its_place_in_the_sums, {"counted"}),
        (decisions_depend_on_the_process, {"equal_logs"}),
    ],
)
def test_a_planted_fault_is_caught(
    fault: Callable[[Patch], None], found: set[str], monkeypatch: Patch
) -> None:
    fault(monkeypatch)
    with pytest.raises(Broken) as caught:
        histories(200)
    assert caught.value.name in found
    assert caught.value.name in (*CHECKS, "error")
