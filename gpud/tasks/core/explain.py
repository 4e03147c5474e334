"""Says in words why a task waits, from the scheduler's state."""

from __future__ import annotations

from gpud.tasks.core.lifecycle import TaskState
from gpud.tasks.core.record import TaskRecord
from gpud.tasks.core.scheduler import TaskScheduler

__all__ = ["why"]


def why(scheduler: TaskScheduler, task: TaskRecord) -> list[str]:
    """Return sentences, the most important first; none if it does not wait."""
    if task.state is TaskState.HELD:
        return [f"it is held: gpuctl task release {task.id} lets it go"]
    if task.state is TaskState.BLOCKED:
        before = [number for number in task.terms.after if number in scheduler.tasks]
        return [f"it comes after {_names(before)}, which {_are(before)} not done yet"]
    if task.state not in (TaskState.QUEUED, TaskState.FROZEN):
        return []
    said = []
    if task.state is TaskState.FROZEN:
        said.append(f"it was frozen: {task.reason}; it goes on when {_cores(task.cores)} are free")
        if task.halved_for is not None:
            return [*said, f"not before GPU task {task.halved_for} has ended"]
    said += _lacks(scheduler, task)
    queue = scheduler.table.queue_of(task)
    ahead = [one for one in queue.candidates(len(queue)) if one.id != task.id]
    before = [one.id for one in ahead[: _place(scheduler, task)]]
    if before:
        said.append(f"{len(before)} tasks of its queue come before it, first {_names(before[:3])}")
    return said


def _place(scheduler: TaskScheduler, task: TaskRecord) -> int:
    queue = scheduler.table.queue_of(task)
    return next(
        (number for number, one in enumerate(queue.candidates(len(queue))) if one.id == task.id), 0
    )


def _lacks(scheduler: TaskScheduler, task: TaskRecord) -> list[str]:
    nodes = list(scheduler.nodes.values())
    said = []
    if task.is_gpu:
        usable = [len(node.usable_gpus()) for node in nodes]
        holders = [
            one.id for node in nodes for one in node.tasks.values() if one.is_gpu and one.gpus
        ]
        if max(usable, default=0) < task.terms.gpus and holders:
            said.append(
                f"it needs {float(task.terms.gpus):g} GPUs on one node, and {max(usable)} are "
                f"free: {_names(holders)} {_have(holders)} the others"
            )
        for node in nodes:
            said += [f"{node.gpu_names[gpu]}: {reason}" for gpu, reason in node.marked.items()]
    free = [len(node.free_cpus) for node in nodes]
    cores = task.cores if task.state is TaskState.FROZEN else task.terms.cores or 1
    if max(free, default=0) < cores:
        said.append(f"it needs {_cores(cores)} on one node, and {max(free, default=0)} are free")
    elif not task.is_gpu:
        blocked = [number for node in nodes for number in node.blocked]
        if blocked:
            said.append(f"cores are kept free for the bandwidth of {_names(blocked)}")
        waiting = [one.id for name in ("gpu", "multi") for one in scheduler.queues[name]]
        if waiting:
            said.append(f"free cores belong to the GPU queue, where {_names(waiting[:3])} waits")
    for node in nodes:
        kept = node.kept.get(task.is_gpu, task.id)
        if kept != task.id:
            said.append(f"node {node.id} is kept for task {kept}, which waited long")
    return said


def _names(tasks: list[int]) -> str:
    names = ", ".join(map(str, tasks)) or "none"
    return f"task{'' if len(tasks) == 1 else 's'} {names}"


def _are(tasks: list[int]) -> str:
    return "is" if len(tasks) == 1 else "are"


def _have(tasks: list[int]) -> str:
    return "has" if len(tasks) == 1 else "have"


def _cores(count: int) -> str:
    return f"{count} core{'' if count == 1 else 's'}"
