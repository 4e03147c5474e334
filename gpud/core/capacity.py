"""Exact amounts of a device's capacity as integers.

Problem: allocations of kernels with different M must add up exactly, thousands of times a second.

Approach: an *amount* is an integer count of 1/SCALE CapSM, where every M from 1 to 32 divides
SCALE. A slice of a kernel is then a whole number, sums and comparisons are those of integers, and
no rounding ever happens. Shares that users ask for are turned into slices once, at submission.

Terms (units in brackets):
    amount [1/SCALE CapSM]: how much of a device; a device with S SMs has S * SCALE.
    M [slices per CapSM]: occupancy of a job, counted as at most `MOST_SLICES`. A kernel of which
        more blocks fit on an SM has slices that hold several blocks.
    slice [1/M CapSM]: the unit in which a job is given capacity.

Properties:
    exact: ``to_fraction(slice_of(m)) == Fraction(1, m)`` for every M;
    rounds_up: `slices_above` never gives less than what was asked for, and less than a slice more;
    rounds_down: `slices_below` never gives more, and less than a slice less.
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
"""The largest M that is counted: what an SM of any NVIDIA architecture so far can hold."""

SCALE = math.lcm(*range(1, MOST_SLICES + 1))
assert all(SCALE % occupancy == 0 for occupancy in range(1, MOST_SLICES + 1))


def counted_occupancy(occupancy: int) -> int:
    """Returns M as the scheduler counts it: at most `MOST_SLICES`.

    Raises:
        ValueError: ``occupancy`` is less than 1.
    """
    if occupancy < 1:
        raise ValueError(f"a kernel that can run has an occupancy of 1 or more, not {occupancy}")
    return min(occupancy, MOST_SLICES)


def slice_of(occupancy: int) -> Amount:
    """Returns the amount of one slice, for a counted M."""
    return Amount(SCALE // occupancy)


def amount_of(sms: int | Fraction) -> Amount:
    """Returns the largest amount that is not over ``sms`` CapSM."""
    return Amount(math.floor(sms * SCALE))


def to_fraction(amount: int) -> Fraction:
    """Returns an amount in CapSM."""
    return Fraction(amount, SCALE)


def slices_above(share: Fraction, occupancy: int) -> int:
    """Returns the fewest slices that hold ``share`` CapSM: a reservation's."""
    return math.ceil(share * occupancy)


def slices_below(share: Fraction, occupancy: int) -> int:
    """Returns the most slices that ``share`` CapSM holds: a quota's."""
    return math.floor(share * occupancy)
