"""Victim selection: which offline jobs release capacity for an online one.

Problem: an amount must be released at once, few jobs should be disturbed, and over time each should
lose in proportion to its weight.

Approach: jobs of which every task block is claimed release first, since they lose nothing. Then one
job that can cover the rest alone; if none can, the largest releases all it has, and so on. Each
releases whole slices, no more than needed. `choose_by_size` takes the smallest of the jobs that can
cover the rest; `choose_by_service` the one that has had the most service by weight, and disturbs
jobs that are behind only if the others cannot cover it. Whoever releases falls behind the others,
so the next time it is somebody else's turn.

Terms:
    shortfall: the amount that must be released;
    behind: a job's surplus is negative by more than a fair share's service in the hold time; see
        `gpud.core.service`.

Properties:
    enough: what is released is the shortfall or more, or nothing is chosen;
    tight: each job's release without its last slice would be too little;
    few: if one job can cover the shortfall, and is not behind, no other is disturbed;
    limited: no more than ``most`` is released;
    ties: of jobs that are equal otherwise, the one that was started last is chosen;
    turns: by service, of equal jobs that give way again and again, each does equally often.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpud.core.job import JobRecord

__all__ = ["Entry", "Victim", "choose_by_service", "choose_by_size"]

Entry = tuple[int, int, JobRecord]


class Victim(NamedTuple):
    """A job that releases capacity, and the slices that it keeps."""

    job: JobRecord
    slices: int


class _Release:
    """What was chosen, what is still missing, and what may still be released."""

    def __init__(self, shortfall: int, most: int) -> None:
        self.chosen: list[Victim] = []
        self.missing = shortfall
        self.most = most

    def take(self, job: JobRecord) -> None:
        """Let a job release what is missing, as far as it can and may."""
        piece = job.slice
        has = job.alloc // piece
        slices = min(has, -(-self.missing // piece), self.most // piece)
        if slices:
            self.chosen.append(Victim(job, has - slices))
        self.missing -= slices * piece
        self.most -= slices * piece

    def take_exhausted(self, entries: Sequence[Entry]) -> list[Entry]:
        """Let jobs release first of which all task blocks are claimed; return the others."""
        others = []
        for entry in entries:
            if not entry[2].exhausted:
                others.append(entry)
            elif self.missing > 0:
                self.take(entry[2])
        return others

    def result(self) -> list[Victim] | None:
        """Return what was chosen, or None if it is too little."""
        return self.chosen if self.missing <= 0 else None


def choose_by_size(entries: Sequence[Entry], shortfall: int, most: int) -> list[Victim] | None:
    """Return jobs and the slices that each keeps, or None if they cannot release enough.

    Args:
        entries: the jobs that can shrink, sorted by `gpud.core.sort_keys.size_key`.
        shortfall: the amount that must be released, more than 0.
        most: the amount that may be released, ``shortfall`` or more.
    """
    release = _Release(shortfall, most)
    pool = release.take_exhausted(entries)
    while release.missing > 0 and pool:
        # (x,) sorts before every (x, ...): the first job that has x or more.
        index = bisect_left(pool, (release.missing,))
        if index == len(pool):
            index = bisect_left(pool, (pool[-1][0],))
        release.take(pool.pop(index)[2])
    return release.result()


def choose_by_service(
    entries: Sequence[Entry],
    shortfall: int,
    most: int,
    rate: Callable[[list[Entry]], Sequence[tuple[int, bool]]],
) -> list[Victim] | None:
    """Return jobs and the slices that each keeps, or None if they cannot release enough.

    Args:
        entries: as for `choose_by_size`.
        shortfall: as for `choose_by_size`.
        most: as for `choose_by_size`.
        rate: returns for jobs that can be chosen the level of their service, and whether they are
            behind.
    """
    release = _Release(shortfall, most)
    pool = release.take_exhausted(entries)
    if release.missing <= 0 or not pool:
        return release.result()
    if len(pool) == 1:
        release.take(pool[0][2])
        return release.result()
    rated = list(zip(rate(pool), pool, strict=True))
    for behind in (False, True):
        group = [(entry, level) for (level, is_behind), entry in rated if is_behind is behind]
        while release.missing > 0 and group:
            missing = release.missing
            index = bisect_left(group, missing, key=lambda one: one[0][0])
            if index < len(group):
                chosen = max(range(index, len(group)), key=lambda at: group[at][1])
                # Of equal ones the first in the order of size, which was started last.
            else:
                chosen = bisect_left(group, group[-1][0][0], key=lambda one: one[0][0])
            release.take(group.pop(chosen)[0][2])
    return release.result()
