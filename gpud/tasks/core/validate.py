"""Checks every invariant of the tasks' scheduler from scratch, in tests and under ``debug``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

from gpud.tasks.core.fair_queue import FairQueue
from gpud.tasks.core.lifecycle import TaskState
from gpud.tasks.core.node import NodeRecord
from gpud.tasks.core.record import TaskRecord

__all__ = ["problems"]

_QUEUED = (TaskState.QUEUED, TaskState.FROZEN)
_PLACED = (TaskState.RUNNING, TaskState.FROZEN, TaskState.STOPPING)


def problems(
    tasks: Mapping[int, TaskRecord],
    nodes: Mapping[int, NodeRecord],
    queues: Mapping[str, FairQueue],
    followers: Mapping[int, list[int]],
) -> Iterator[str]:
    """Yield the violations, each beginning with the name of the property."""
    for node in nodes.values():
        yield from _of_node(node)
    yield from _filed(tasks, nodes, queues, followers)
    yield from _shares(tasks, queues)


def _of_node(node: NodeRecord) -> Iterator[str]:
    where = f"node {node.id}"
    had = [cpu for task in node.tasks.values() for cpu in task.cpus]
    if len(set(had)) != len(had):
        yield f"exclusive: a processor of {where} is had by two tasks: {sorted(had)}"
    if sorted([*had, *node.free_cpus]) != sorted(node.cpus):
        yield f"counted: {where} has processors {node.cpus}; free {node.free_cpus}, had {had}"
    for gpu in range(len(node.gpu_names)):
        users = [task for task in node.tasks.values() if gpu in task.gpus]
        used = sum((task.part or Fraction(1) for task in users), Fraction(0))
        if used > 1:
            yield f"exclusive: GPU {gpu} of {where} is had {used} times: {users}"
        if used != node.gpu_used[gpu]:
            yield f"counted: GPU {gpu} of {where} counts {node.gpu_used[gpu]}, and {used} is used"
    for name, gpus in (("cpu_cores", False), ("gpu_cores", True)):
        cores = sum(len(task.cpus) for task in node.tasks.values() if task.is_gpu == gpus)
        if cores != getattr(node, name):
            yield f"counted: {where} counts {getattr(node, name)} {name}, and {cores} are had"
    stopping = [task for task in node.tasks.values() if task.state is TaskState.STOPPING]
    if sum(len(task.cpus) for task in stopping) != node.stopping_cores:
        yield f"counted: {where} counts {node.stopping_cores} cores of tasks that are stopping"
    borrowers = node.borrowers()
    own = [task for task in node.tasks.values() if not task.is_gpu and task not in borrowers]
    if sum(len(task.cpus) for task in own) > node.cpu_part:
        yield f"parts: CPU tasks of {where} that are no borrowers do not fit in its part"
    for task in node.tasks.values():
        if task.node != node.id or task.state not in _PLACED:
            yield f"filed: {task.what} is {task.state} and is listed on {where}"
        if task.is_gpu and task.state is TaskState.FROZEN:
            yield f"only_cpu: {task.what} is a GPU task and is frozen: {task.history}"
        if task.state is not TaskState.STOPPING and (task.state is TaskState.FROZEN) == bool(
            task.cpus
        ):
            yield f"counted: {task.what} is {task.state} and has processors {task.cpus}"


def _filed(
    tasks: Mapping[int, TaskRecord],
    nodes: Mapping[int, NodeRecord],
    queues: Mapping[str, FairQueue],
    followers: Mapping[int, list[int]],
) -> Iterator[str]:
    queued: dict[int, int] = {}
    for name, queue in queues.items():
        listed = list(queue)
        if len(listed) != len(queue):
            yield f"counted: queue {name} counts {len(queue)}, and has {len(listed)}"
        for task in listed:
            queued[task.id] = queued.get(task.id, 0) + 1
            if tasks.get(task.id) is not task:
                yield f"filed: {task.what} has ended, and is in queue {name}"
    for task in tasks.values():
        expected = 1 if task.state in _QUEUED else 0
        if queued.get(task.id, 0) != expected:
            yield (f"filed: {task.what} is {task.state} and is in "
                   f"{queued.get(task.id, 0)} queues: {task.history}")  # fmt: skip
        placed = task.node is not None and task.id in nodes[task.node].tasks
        if placed != (task.state in _PLACED):
            yield f"filed: {task.what} is {task.state} and on node {task.node}: {task.history}"
        if task.state is TaskState.BLOCKED and not any(
            task.id in followers.get(before, ()) for before in task.terms.after
        ):
            yield f"kept: {task.what} waits for nobody: {task.history}"


def _shares(tasks: Mapping[int, TaskRecord], queues: Mapping[str, FairQueue]) -> Iterator[str]:
    has: dict[bool, dict[str, Fraction]] = {False: {}, True: {}}
    for task in tasks.values():
        if task.node is not None:
            amount = task.terms.gpus if task.is_gpu else Fraction(len(task.cpus))
            of = has[task.is_gpu]
            of[task.terms.user] = of.get(task.terms.user, Fraction(0)) + amount
    counted: dict[bool, dict[str, Fraction]] = {False: {}, True: {}}
    for name, queue in queues.items():
        for user, amount in queue.has.items():
            of = counted[name != "cpu"]
            of[user] = of.get(user, Fraction(0)) + amount
    for kind in (False, True):
        if {user: x for user, x in has[kind].items() if x} != counted[kind]:
            yield f"counted: users have {has[kind]}, and the queues count {counted[kind]}"
