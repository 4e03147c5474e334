"""Weighted max-min fair sharing of free capacity among offline jobs, in slices.

Problem: the job with the least in proportion to its weight grows first, a slice at a time, until
nothing fits. A large device has thousands of slices, and jobs have slices of different sizes.

Approach: compute a level that all jobs are certain to reach. Each job is given slices until it has
reached that level, as it would be one slice at a time. The few slices that are left are handed out
one by one, lowest level first. Where that alone decided, a job of large weight would wait until
each of many small ones has had a whole slice, since one slice raises these by much and it by
little; so it must be known what an equal part is, and who is below that comes before.

Terms:
    level: the amount that a job has, divided by its weight;
    part: the level at which all would be equal; a job is below its part if it is nearer to that
        with a slice more than without;
    room of a job: the slices that it can take.

Properties:
    fits: the amounts handed out are at most what is free, and no job gets more than its room;
    exhaustive: afterwards no slice of a job with room left would fit;
    least_first: the result is that of giving one slice at a time to the job with the lowest level
        of those of which a slice fits;
    in_turn: where a part is given, the last slices go to jobs below theirs first; of these to the
        largest slices, for which there is room only now, and of equal ones to the job that is
        lowest with its slice;
    capped: `fill_within` gives no group more than its cap, and others what it cannot have;
    steady: equal input gives equal output, ties in the order given.

Source: that only who is not ahead takes part, and of these who would end first comes first, is the
rule of J. Bennett and H. Zhang, "WF2Q: Worst-case Fair Weighted Fair Queueing" (INFOCOM 1996).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from gpud.core.sort_keys import level

__all__ = ["Candidate", "fill", "fill_within"]


class Candidate(NamedTuple):
    """A job that can take capacity.

    Attributes:
        has: the amount that it has now.
        piece: the amount of one slice.
        room: the most slices that it can take, 1 or more.
        weight: 1 or more.
    """

    has: int
    piece: int
    room: int
    weight: int


def fill(free: int, candidates: Sequence[Candidate], part: int | None = None) -> list[int]:
    """Return how many slices each candidate gets of the amount ``free``.

    With ``part`` the last slices are handed out as the property in_turn says.
    """
    if len(candidates) == 1:
        return [min(candidates[0].room, free // candidates[0].piece)]
    if not candidates:
        return []
    grants = [0] * len(candidates)
    # One slice at a time, each job would grow until it has reached the level or exceeded it by less
    # than a slice. So the level is computed with one slice of each job set aside.
    spare = free - sum(candidate.piece for candidate in candidates)
    if spare > 0:
        common = _common_level(spare, candidates)
        for index, (has, piece, room, weight) in enumerate(candidates):
            slices = min(room, -((has - common * weight) // piece))
            if slices > 0:
                grants[index] = slices
                free -= slices * piece
    heap = [
        (*_turn(has + grants[index] * piece, piece, weight, part), index)
        for index, (has, piece, room, weight) in enumerate(candidates)
        if grants[index] < room and piece <= free
    ]
    heapify(heap)
    while heap:
        _, _, index = heappop(heap)
        has, piece, room, weight = candidates[index]
        if piece > free:
            continue
        free -= piece
        grants[index] += 1
        if grants[index] < room and piece <= free:
            heappush(heap, (*_turn(has + grants[index] * piece, piece, weight, part), index))
    return grants


def _turn(has: int, piece: int, weight: int, part: int | None) -> tuple[int, int]:
    """Return a key by which the next slice goes to one job or another, lowest first."""
    if part is not None and level(has + piece // 2, weight) < part:
        return -piece, level(has + piece, weight)
    return 0, level(has, weight)


def fill_within(
    free: int,
    candidates: Sequence[Candidate],
    groups: Sequence[tuple[Sequence[int], int]],
    part: int | None = None,
) -> list[int]:
    """Fill as `fill`, with caps on what groups of candidates get together.

    Args:
        free: as for `fill`.
        candidates: as for `fill`.
        groups: the indices of each group's candidates, and the most that they get. A candidate is
            in one group at most.
        part: as for `fill`.
    """
    if not groups:
        return fill(free, candidates, part)
    rooms = [candidate.room for candidate in candidates]
    open_ = list(groups)
    while True:
        able = [index for index, room in enumerate(rooms) if room]
        grants = [0] * len(candidates)
        within = fill(free, [candidates[index]._replace(room=rooms[index]) for index in able], part)
        for index, slices in zip(able, within, strict=True):
            grants[index] = slices
        over = [
            group
            for group in open_
            if sum(grants[index] * candidates[index].piece for index in group[0]) > group[1]
        ]
        if not over:
            return grants
        # What such a group gets is shared within it; then it is out of the others' way.
        for indices, most in over:
            own = fill(max(0, most), [candidates[index] for index in indices])
            for index, slices in zip(indices, own, strict=True):
                rooms[index] = slices
        open_ = [group for group in open_ if group not in over]


def _common_level(free: int, candidates: Sequence[Candidate]) -> int:
    """Return the highest level to which ``free`` can raise all, or slightly less, never more."""
    # The total weight of the growing jobs changes at the levels where a job begins to grow and
    # where its room is used up. Rounding the first down and the second up overestimates the cost.
    changes = []
    for has, piece, room, weight in candidates:
        changes.append((has // weight, weight))
        changes.append((-(-(has + room * piece) // weight), -weight))
    changes.sort()
    reached, rising = changes[0][0], 0
    for at, change in changes:
        cost = rising * (at - reached)
        if cost > free:
            break
        free -= cost
        reached = at
        rising += change
    return reached + free // rising if rising else reached
