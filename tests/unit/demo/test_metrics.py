"""The demo's metrics, on numbers with known results."""

from __future__ import annotations

import math
import random
import statistics

import numpy as np
import pytest

from gpud.demo.arrivals import poisson
from gpud.demo.metrics import (
    harvest,
    interval_of_r99,
    jain,
    offline_rate,
    percentile,
    r99,
)


@pytest.mark.parametrize("percent", [0, 1, 37.5, 50, 99, 100])
def test_percentiles_are_numpys(percent: float) -> None:
    values = [random.Random(1).random() for _ in range(173)] + [0.5, 0.5, 9.0]
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)))


def test_a_percentile_of_one_value_is_that_value() -> None:
    assert percentile([3.0], 99) == 3.0


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], -1), ([1.0], 101)])
def test_percentiles_that_do_not_exist(values: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match="no percentile"):
        percentile(values, percent)


def test_r99_compares_the_slowest_and_not_the_usual() -> None:
    alone = [1.0] * 200
    assert r99(alone, alone) == 1
    assert r99([1.0] * 190 + [5.0] * 10, alone) == 5
    assert r99([5.0] + [1.0] * 199, alone) == 1


def test_harvest_is_one_when_offline_work_gets_what_is_left() -> None:
    assert harvest(0.8, 0.2) == pytest.approx(1)
    assert harvest(0.4, 0.2) == pytest.approx(0.5)
    assert harvest(1.0, 0.0) == 1
    for busy in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match="nothing to harvest"):
            harvest(0.5, busy)


def test_offline_work_is_counted_by_what_a_task_block_takes() -> None:
    alone, work = {"small": 1000.0, "large": 1.0}, {"small": 0.001, "large": 1.0}
    assert offline_rate(alone, alone, work) == 1
    assert offline_rate({"small": 500.0, "large": 0.5}, alone, work) == 0.5
    assert offline_rate({"small": 0.0, "large": 1.0}, alone, work) == 0.5
    assert offline_rate({"small": 2000.0, "large": 0.0}, alone, work) == 1  # shared otherwise
    for wrong in ({"small": 1.0}, {}, {"small": 1.0, "other": 1.0}):
        with pytest.raises(ValueError, match="no common kernels"):
            offline_rate(wrong, alone, work)
    with pytest.raises(ValueError, match="nothing to compare"):
        offline_rate({"a": 1.0}, {"a": 0.0}, {"a": 1.0})


def test_jains_index() -> None:
    assert jain([3, 3, 3]) == 1
    assert jain([5, 0, 0, 0, 0]) == pytest.approx(0.2)
    assert jain([1, 2, 3]) == pytest.approx(36 / 42)
    assert jain([0, 0]) == 1
    for amounts in ([], [1, -1]):
        with pytest.raises(ValueError, match="fairness"):
            jain(amounts)


def test_the_interval_holds_the_value_and_narrows_with_more_requests() -> None:
    rng = random.Random(7)
    alone = [rng.expovariate(1) + 1 for _ in range(2000)]
    together = [1.2 * latency for latency in alone]
    low, high = interval_of_r99(together, alone)
    assert low == pytest.approx(1.2)  # the same places are resampled on both sides
    assert high == pytest.approx(1.2)
    noisy = [latency * rng.uniform(1, 1.6) for latency in alone]
    widths = []
    for count in (100, 2000):
        low, high = interval_of_r99(noisy[:count], alone[:count])
        assert low <= r99(noisy[:count], alone[:count]) <= high
        widths.append(high - low)
    assert widths[1] < widths[0]
    assert interval_of_r99(noisy, alone) == interval_of_r99(noisy, alone)
    with pytest.raises(ValueError, match="no pairs"):
        interval_of_r99(alone, alone[1:])


def test_arrivals_are_a_poisson_process() -> None:
    times = poisson(50, 200, seed=3)
    assert times == sorted(times)
    assert 0 < times[0] < times[-1] < 200
    assert len(times) == pytest.approx(10_000, rel=0.03)
    gaps = np.diff(times)
    assert statistics.fmean(gaps) == pytest.approx(0.02, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(0.02, rel=0.05)  # exponential: equal to the mean


def test_arrivals_depend_on_the_seed_alone() -> None:
    assert poisson(20, 10, seed=1) == poisson(20, 10, seed=1)
    assert poisson(20, 10, seed=1) != poisson(20, 10, seed=2)
    for rate, seconds in ((0, 1), (1, 0), (-1, 1), (math.nan, 1)):
        with pytest.raises(ValueError, match="no process"):
            poisson(rate, seconds, seed=1)
