"""The search for cores: the properties of `gpud.tasks.core.core_search`, without and with noise."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from gpud.tasks.core.core_search import CoreSearch, first_cores
from gpud.tasks.core.need_history import NeedHistory


def found(knee: int, start: int, *, most: int = 32, literal: bool = False) -> CoreSearch:
    search = CoreSearch(start, most, literal=literal)
    while not search.over:
        search.measured(min(search.cores, knee) * 960 // knee)
    return search


@pytest.mark.parametrize("knee", range(1, 25))
@pytest.mark.parametrize("start", [1, 4, 16, 24])
def test_finds_the_knee(knee: int, start: int) -> None:
    search = found(knee, start)
    assert search.best == knee
    # ends:
    assert search.windows <= abs(knee - start) + 5


def test_literal_keeps() -> None:
    assert found(4, 16, literal=True).best == 16
    assert found(16, 4, literal=True).best == 16


def test_no_more_than_there_are() -> None:
    assert found(16, 4, most=6).best == 6
    search = CoreSearch(4, 16)
    search.measured(500)
    for _ in range(2):
        search.measured(300)
    assert search.cores == 5
    search.limit(4)
    assert (search.over, search.cores) == (True, 4)


def test_what_cannot_be_measured_is_left_alone() -> None:
    search = CoreSearch(4, 16)
    search.measured(None)
    assert (search.over, search.best, search.windows) == (True, 4, 0)


def test_noise_is_no_reason_to_take_cores_away() -> None:
    chance = random.Random(7)
    misses = 0
    for _ in range(100):
        knee, search = chance.randint(1, 12), CoreSearch(4, 16)
        while not search.over:
            true = min(search.cores, knee) * 900 / knee
            search.measured(max(0, round(true * (1 + chance.gauss(0, 0.02)))))
        misses += abs(search.best - knee) > 1
    assert misses <= 5


def test_first_cores_come_from_what_tells_most() -> None:
    history = NeedHistory()
    history.learn("ada", "fit", "image", Fraction(6))
    history.learn("bob", "train", "image", Fraction(2))
    assert history.known("ada", "fit", "image") == 6
    assert history.known("eve", "fit", "image") == 6
    assert history.known("eve", "new", "image") == 2  # the latest of its category
    assert history.known("eve", "new", "") is None
    assert first_cores(Fraction(3, 2), Fraction(2), start_cores=4) == 3
    assert first_cores(None, Fraction(2), start_cores=4, fewer=2, more=1) == 7
    assert first_cores(None, Fraction(1, 2), start_cores=1, fewer=2) == 1
