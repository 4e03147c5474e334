"""Exact amounts of capacity: the properties of `gpud.core.capacity`, by name."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gpud.core import capacity

OCCUPANCIES = range(1, capacity.MOST_SLICES + 1)
SHARES = [Fraction(n, d) for d in (1, 2, 3, 7, 10, 33) for n in (1, 2, 5, 31, 100)]


def test_exact() -> None:
    for occupancy in OCCUPANCIES:
        piece = capacity.slice_of(occupancy)
        assert capacity.to_fraction(piece) == Fraction(1, occupancy)
        assert piece * occupancy == capacity.SCALE


@pytest.mark.parametrize("share", SHARES)
def test_rounds_up(share: Fraction) -> None:
    for occupancy in OCCUPANCIES:
        given = Fraction(capacity.slices_above(share, occupancy), occupancy)
        assert share <= given < share + Fraction(1, occupancy)


@pytest.mark.parametrize("share", SHARES)
def test_rounds_down(share: Fraction) -> None:
    for occupancy in OCCUPANCIES:
        given = Fraction(capacity.slices_below(share, occupancy), occupancy)
        assert share - Fraction(1, occupancy) < given <= share


def test_amounts_of_shares_that_are_no_multiple_are_rounded_down() -> None:
    third = capacity.amount_of(Fraction(1, 37))
    assert capacity.to_fraction(third) <= Fraction(1, 37) < capacity.to_fraction(third + 1)


def test_a_kernel_with_more_blocks_than_are_counted_has_larger_slices() -> None:
    assert capacity.counted_occupancy(48) == 32
    assert capacity.counted_occupancy(7) == 7
    with pytest.raises(ValueError, match="1 or more, not 0"):
        capacity.counted_occupancy(0)
