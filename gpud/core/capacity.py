"""Exact integer arithmetic for amounts of a device's capacity.

Problem: allocations of kernels with different M must add up exactly, thousands of times a second.

Approach: an *amount* is an integer count of 1/SCALE CapSM, where every M from 1 to 32 divides
SCALE. A slice of any kernel is then an integer, sums and comparisons are those of integers, and no
rounding ever happens. The shares that users ask for are converted to slices once, at submission.

Terms (units in brackets):
    amount [1/SCALE CapSM]: a quantity of capacity; a device with S SMs has S * SCALE.
    M [slices per CapSM]: occupancy of a job, counted as at most `MOST_SLICES`. If more blocks of a
        kernel fit on an SM, each of its slices holds several blocks.
    slice [1/M CapSM]: the unit in which capacity is allocated to a job.

Properties:
    exact: ``to_fraction(slice_of(m)) == Fraction(1, m)`` for every M;
    rounds_up: `slices_above` gives the share or more, by less than a slice;
    rounds_down: `slices_below` gives the share or less, by less than a slice.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NewType

__all__ = [
    "MOST_SLICES",
    "SCALE",
    "Amount",
    "amount_of",
    "counted_occupancy",
    "slice_of",
    "slices_above",
    "slices_below",
    "to_fraction",
]

Amount = NewType("Amount", int)
"""An amount of capacity in 1/SCALE CapSM."""

MOST_SLICES = 32
"""The largest M that is counted: the most resident blocks per SM of any NVIDIA GPU so far."""

SCALE = math.lcm(*range(1, MOST_SLICES + 1))
assert all(SCALE % occupancy == 0 for occupancy in range(1, MOST_SLICES + 1))


def counted_occupancy(occupancy: int) -> int:
    """Return M as the scheduler counts it: at most `MOST_SLICES`.

    Raises:
        ValueError: ``occupancy`` is less than 1.
    """
    if occupancy < 1:
        raise ValueError(f"a kernel that can run has an occupancy of 1 or more, not {occupancy}")
    return min(occupancy, MOST_SLICES)


def slice_of(occupancy: int) -> Amount:
    """Return the amount of one slice, for an M that `counted_occupancy` returned."""
    return Amount(SCALE // occupancy)


def amount_of(sms: int | Fraction) -> Amount:
    """Return ``sms`` CapSM as an amount, rounded down."""
    return Amount(math.floor(sms * SCALE))


def to_fraction(amount: int) -> Fraction:
    """Return an amount as CapSM, exactly."""
    return Fraction(amount, SCALE)


def slices_above(share: Fraction, occupancy: int) -> int:
    """Return ``share`` CapSM in slices, rounded up, as for a reservation."""
    return math.ceil(share * occupancy)


def slices_below(share: Fraction, occupancy: int) -> int:
    """Return ``share`` CapSM in slices, rounded down, as for a quota."""
    return math.floor(share * occupancy)
