"""A makespan that no schedule can beat.

Approach: the largest of three bounds that hold for every policy:

* no task ends before its arrival and its duration on the fastest GPU that can hold it;
* the work that arrives from a time on, in CapSM seconds, has to be done with all
  GPUs' CapSM after that;
* the same for memory: a task holds its memory at least for its duration.

Needs on unequal GPUs are taken where they are least.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpud_ray.sets.model import GPU, Task, run_s

__all__ = ["lower_bound_s"]


def lower_bound_s(tasks: Sequence[Task], gpus: Sequence[GPU]) -> float:
    """Return the bound; tasks that no GPU can hold do not count, as they are never run."""
    bound_s = capsm_s = memory_s = 0.0
    capsm = sum(gpu.capsm_milli for gpu in gpus)
    memory = sum(gpu.memory_mb for gpu in gpus)
    for task in sorted(tasks, key=lambda task: -task.arrival_s):  # from the end
        usable = [gpu for gpu in gpus if gpu.memory_mb >= task.memory_mb]
        if not usable:
            continue
        fastest_s = min(run_s(task, gpu) for gpu in usable)
        capsm_s += min(run_s(task, gpu) * task.capsm_on(gpu) for gpu in usable)
        memory_s += fastest_s * task.memory_mb
        after_s = max(fastest_s, capsm_s / capsm, memory_s / memory)
        bound_s = max(bound_s, task.arrival_s + after_s)
    return bound_s
