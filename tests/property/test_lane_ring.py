"""Nobody sleeps for ever at a lane's ring, in any interleaving of its client and two SMs."""

from __future__ import annotations

import pytest

from tests.property.lane_ring_model import Fault, Model, search


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(Model(), id="one"),
        pytest.param(Model(ahead=2), id="ahead"),
        pytest.param(Model(total=2), id="shared", marks=pytest.mark.ci),
    ],
)
def test_no_lost_wake_up_in_any_interleaving(model: Model) -> None:
    assert search(model) > 1000


def test_a_word_that_both_sides_write_loses_a_wake_up() -> None:
    with pytest.raises(Fault, match="a wake-up was lost"):
        search(Model(launches=3, clears=True))


def test_a_launch_that_ends_between_two_looks_is_not_slept_through() -> None:
    with pytest.raises(Fault, match="a wake-up was lost"):
        search(Model(looks_twice=True))


def test_a_launch_that_is_over_before_it_is_reported_lets_the_count_run_backwards() -> None:
    with pytest.raises(Fault, match="completed runs backwards"):
        search(Model(launches=3, ahead=2, reports_late=True))
