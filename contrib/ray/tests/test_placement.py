"""Ways of placing items, compared in virtual time: what `contrib/ray/bench/placement.py` shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from placing.comparison import BASELINES, predictions, run_baseline, run_idle_rate
from placing.simulation import FIRST_S, NODES, SimulatedItem, Simulation

from gpud_ray.placement.gpu_reading import GPUReading
from gpud_ray.placement.settings import Settings

COMMON = NODES["two common"][0]


def simulate(items: Sequence[SimulatedItem], gpu: GPUReading = COMMON) -> list[float]:
    """Run items on one node with one GPU; return when each has ended."""
    nodes = {"node": (gpu,)}
    simulation = Simulation(
        nodes, items, (), lambda item, _: simulation.arrive("node", item), lambda *_: None, 1
    )
    return [item.ended_s - FIRST_S for item in simulation.run()]


def item(name: str, compute_s: float, memory_s: float, sms: float = 68) -> SimulatedItem:
    return SimulatedItem(
        name, compute_s * COMMON.peak_core_mhz, memory_s * COMMON.peak_mbit_s, 1 << 30, sms
    )


def test_an_item_runs_at_the_rate_of_what_it_lacks() -> None:
    assert simulate([item("a", 2, 1)]) == [pytest.approx(2)]
    assert simulate([item("a", 1, 3)]) == [pytest.approx(3)]
    assert simulate([item("a", 1, 0, sms=34)]) == [pytest.approx(2)]


def test_items_share_a_gpu_equally_and_leave_what_they_cannot_use() -> None:
    assert simulate([item("a", 1, 0), item("b", 2, 0)]) == pytest.approx([2, 3])
    # b can use a quarter; a gets the rest.
    assert simulate([item("a", 3, 0), item("b", 1, 0, sms=17)]) == pytest.approx([4, 4])
    # One needs cores only, the other bandwidth and half of the cores.
    assert simulate([item("a", 1, 0), item("b", 0.5, 1)]) == pytest.approx([1.5, 1.5], rel=0.35)


def test_an_item_waits_for_memory() -> None:
    small = replace(COMMON, memory_bytes=1 << 30, memory_free_bytes=1 << 30)
    assert simulate([item("a", 1, 0), item("b", 1, 0)], small) == pytest.approx([1, 2])


def test_the_idle_rate_beats_what_knows_nothing_of_the_nodes() -> None:
    ours = run_idle_rate(Settings(), 150, 0, None)
    for name in ("round robin", "random"):
        theirs = run_baseline(name, 150, 0, None)
        assert ours["makespan_s"] < 0.7 * theirs["makespan_s"], name


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_every_way_ends_every_item(name: str) -> None:
    told = run_baseline(name, 40, 1, 0.7)
    assert 0 < told["mean_s"] <= told["p99_s"] <= told["makespan_s"]


def test_the_default_reading_predicts_as_well_as_the_other() -> None:
    runs = [predictions(150, seed, 0.7) for seed in range(2)]
    means = {memory: sum(run[memory] for run in runs) / 2 for memory in runs[0]}
    assert means[Settings().memory] == max(means.values()) > 0.6


def test_equal_seeds_give_equal_runs() -> None:
    assert run_idle_rate(Settings(), 60, 3, 0.7) == run_idle_rate(Settings(), 60, 3, 0.7)
    assert run_baseline("random", 60, 3, 0.7) == run_baseline("random", 60, 3, 0.7)
