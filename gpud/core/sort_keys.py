"""Sort keys: the order in which jobs start, are prepared, grow and shrink.

Every key ends with a number that is unique to the job, so that no two keys are equal.
"""

from __future__ import annotations

from gpud.core.job import JobRecord

__all__ = ["deadline_key", "level", "level_key", "preparation_key", "size_key", "start_key"]

_NO_DEADLINE = 1 << 64  # sorts after every deadline: times have 63 bits
_LEVEL_BITS = 20  # fractional bits that a level keeps in its division by a weight


def start_key(job: JobRecord) -> tuple[int, int]:
    """Arrival: when a job was unblocked, which is at submission if it follows no other job."""
    return (0, job.order)


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


def level_key(job: JobRecord) -> tuple[int, int]:
    """Lowest level, the slices' amount / weight, first; then arrival."""
    return ((job.slices * job.slice << _LEVEL_BITS) // job.weight, job.order)


def size_key(job: JobRecord) -> tuple[int, int]:
    """Smallest allocation first; of equal ones the job that was started last comes first."""
    return (job.alloc, -job.start_order)
