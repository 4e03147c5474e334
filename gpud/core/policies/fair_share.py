"""How room that came free is shared among offline jobs: weighted max-min fairness, in slices.

Problem: the job that has least in proportion to its weight grows first, a slice at a time, until
nothing fits. A large device has thousands of slices, and jobs have slices of different sizes.

Approach: a level, an amount for each unit of weight, is found to which all can surely be served.
Each job is given slices until it has reached it, as it would be one slice at a time. The few that
are left are handed out one by one, least served first.

Terms: level: amount divided by weight; room of a job: the slices that it can take.

Properties:
    fits: the amounts handed out are at most what is free, and no job gets more than its room;
    exhaustive: afterwards no job with room left has a slice that would fit;
    least_first: the result is that of giving one slice at a time to the job that has least in
        proportion to its weight, of those that a slice fits;
    steady: equal input gives equal output, ties in the order given.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from gpud.core.sort_keys import level

__all__ = ["Candidate", "fill"]


class Candidate(NamedTuple):
    """A job that can take capacity.

    Attributes:
        has: the amount that it has.
        piece: the amount of one slice.
        room: slices that it can take, 1 or more.
        weight: 1 or more.
    """

    has: int
    piece: int
    room: int
    weight: int


def fill(free: int, candidates: Sequence[Candidate]) -> list[int]:
    """Returns how many slices each candidate gets of the amount ``free``."""
    if len(candidates) == 1:
        return [min(candidates[0].room, free // candidates[0].piece)]
    if not candidates:
        return []
    grants = [0] * len(candidates)
    # One slice at a time, each job would go on until it has reached the level or passed it by less
    # than a slice. So the level is one that leaves a slice of each.
    spare = free - sum(candidate.piece for candidate in candidates)
    if spare > 0:
        common = _common_level(spare, candidates)
        for index, (has, piece, room, weight) in enumerate(candidates):
            slices = min(room, -((has - common * weight) // piece))
            if slices > 0:
                grants[index] = slices
                free -= slices * piece
    heap = [
        (level(has + grants[index] * piece, weight), index)
        for index, (has, piece, room, weight) in enumerate(candidates)
        if grants[index] < room and piece <= free
    ]
    heapify(heap)
    while heap:
        _, index = heappop(heap)
        has, piece, room, weight = candidates[index]
        if piece > free:
            continue
        free -= piece
        grants[index] += 1
        if grants[index] < room and piece <= free:
            heappush(heap, (level(has + grants[index] * piece, weight), index))
    return grants


def _common_level(free: int, candidates: Sequence[Candidate]) -> int:
    """The highest level to which ``free`` can fill all, or a little less: never more."""
    # The weight of those being filled changes where a job is reached and where it has its most.
    # Rounding down where one enters and up where it leaves counts too much, never too little.
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
