"""Sort keys: the order in which jobs start, are prepared, grow and shrink.

Every key ends with a number that is unique to the job, so that no two keys are equal.
"""

from __future__ import annotations

from gpud.core.job import JobRecord

__all__ = [
    "WITH_SLICES",
    "deadline_key",
    "hunger_key",
    "level",
    "level_key",
    "preparation_key",
    "size_key",
    "start_key",
]

_NO_DEADLINE = 1 << 64  # sorts after every deadline: times have 63 bits
_AFTER_ALL_SERVICE = 1 << 192  # levels of service and of capacity are far below

WITH_SLICES = (-_AFTER_ALL_SERVICE // 2,)
"""Sorts, as a `hunger_key`, after all jobs without slices and before all with some."""

_LEVEL_BITS = 20  # fractional bits that a level keeps in its division by a weight


def start_key(job: JobRecord) -> tuple[int, int]:
    """Users in turn, then arrival: when a job was unblocked, at its submission if it follows none.

    Where users take no turns, all tags are 0.
    """
    return (job.tag, job.order)


def deadline_key(job: JobRecord) -> tuple[int, int]:
    """Deadline, then arrival; jobs without a deadline come last."""
    deadline = _NO_DEADLINE if job.deadline_ns is None else job.deadline_ns
    return (deadline, job.order)


def preparation_key(job: JobRecord) -> tuple[bool, int, int]:
    """Order in which a new host is prepared: online jobs by deadline, then offline by arrival."""
    deadline, arrival = deadline_key(job) if job.online else start_key(job)
    return (not job.online, deadline, arrival)


def level(amount: int, weight: int) -> int:
    """Return the level, amount / weight, as a fixed-point number; only for comparisons."""
    return (amount << _LEVEL_BITS) // weight


def hunger_key(job: JobRecord) -> tuple[int, int]:
    """Jobs without slices first, the least service by weight first; then by slices and lead."""
    if job.slices:
        has = job.slices * job.slice + job.lead
        return ((has << _LEVEL_BITS) // job.weight, job.order)
    served = job.service_base + job.capsm_scaled_ns  # it does not change without slices
    return ((served << _LEVEL_BITS) // job.weight - _AFTER_ALL_SERVICE, job.order)


def level_key(job: JobRecord) -> tuple[int, int]:
    """Lowest level, the slices' amount / weight, first; then arrival."""
    return ((job.slices * job.slice << _LEVEL_BITS) // job.weight, job.order)


def size_key(job: JobRecord) -> tuple[int, int]:
    """Smallest allocation first; of equal ones the job that was started last comes first."""
    return (job.alloc, -job.start_order)
