"""Victim selection: which offline jobs release capacity for an online one.

Problem: an amount must be released at once, and few jobs should be disturbed.

Approach: jobs of which every task block is claimed release first, since they lose nothing. Then
the smallest job that can cover the rest alone; if none can, the largest releases all it has, and so
on. Each releases whole slices, no more than needed.

Terms: shortfall: the amount that must be released.

Properties:
    enough: what is released is the shortfall or more, or nothing is chosen;
    tight: each job's release without its last slice would be too little;
    few: if one job can cover the shortfall, no other is disturbed;
    limited: no more than ``most`` is released;
    ties: of jobs with equal allocations, the one that was started last is chosen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from gpud.core.job import JobRecord

__all__ = ["choose_victims"]

Entry = tuple[int, int, JobRecord]


def choose_victims(
    entries: Sequence[Entry], shortfall: int, most: int
) -> list[tuple[JobRecord, int]] | None:
    """Return jobs and the slices that each keeps, or None if they cannot release enough.

    Args:
        entries: the jobs that can shrink, sorted by `gpud.core.sort_keys.size_key`.
        shortfall: the amount that must be released, more than 0.
        most: the amount that may be released, ``shortfall`` or more.
    """
    chosen: list[tuple[JobRecord, int]] = []
    missing = shortfall
    pool: list[Entry] = []
    for entry in entries:
        if entry[2].exhausted and missing > 0:
            missing, most = _take(entry[2], missing, most, chosen)
        elif not entry[2].exhausted:
            pool.append(entry)
    while missing > 0 and pool:
        # (x,) sorts before every (x, ...): the first job that has x or more.
        index = bisect_left(pool, (missing,))
        if index == len(pool):
            index = bisect_left(pool, (pool[-1][0],))
        missing, most = _take(pool.pop(index)[2], missing, most, chosen)
    return chosen if missing <= 0 else None


def _take(
    job: JobRecord, missing: int, most: int, chosen: list[tuple[JobRecord, int]]
) -> tuple[int, int]:
    """Add a job to ``chosen``; return what is still missing and what may still be released."""
    piece = job.slice
    has = job.alloc // piece
    slices = min(has, -(-missing // piece), most // piece)
    if slices:
        chosen.append((job, has - slices))
    return missing - slices * piece, most - slices * piece
