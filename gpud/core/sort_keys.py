"""In which order jobs wait, grow and shrink: keys that are the same wherever they are worked out.

Every key ends with a number that no other job has, so that no two are equal.
"""

from __future__ import annotations

from gpud.core.job import JobRecord

__all__ = ["deadline_key", "level", "level_key", "preparation_key", "size_key", "start_key"]

_NO_DEADLINE = 1 << 64  # after every deadline: times have 63 bits
_LEVEL_BITS = 20  # below an amount: what a division by a weight leaves


def start_key(job: JobRecord) -> tuple[int, int]:
    """Arrival: when a job became ready, which for the first of a stream is its submission."""
    return (0, job.order)


def deadline_key(job: JobRecord) -> tuple[int, int]:
    """Deadline, then arrival; jobs without a deadline come last."""
    deadline = _NO_DEADLINE if job.deadline_ns is None else job.deadline_ns
    return (deadline, job.order)


def preparation_key(job: JobRecord) -> tuple[bool, int, int]:
    """For which jobs a new host is prepared first: online ones by deadline, then by arrival."""
    deadline, arrival = deadline_key(job) if job.online else start_key(job)
    return (not job.online, deadline, arrival)


def level(amount: int, weight: int) -> int:
    """Returns an amount in proportion to a weight, for comparing."""
    return (amount << _LEVEL_BITS) // weight


def level_key(job: JobRecord) -> tuple[int, int]:
    """Least share in proportion to the weight first, then arrival."""
    return ((job.slices * job.slice << _LEVEL_BITS) // job.weight, job.order)


def size_key(job: JobRecord) -> tuple[int, int]:
    """Smallest allocation first; of equal ones the job that was started last."""
    return (job.alloc, -job.start_order)
