"""The properties of the idle rate that `gpud_ray.placement.idle_rate` names, and its settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpud.errors import InvalidArgument
from gpud_ray.placement.gpu_reading import GPUReading
from gpud_ray.placement.idle_rate import READINGS, Reading, gpu_idle_rate, node_idle_rate
from gpud_ray.placement.settings import Settings

PARTS = st.floats(0, 1)
GPUS = st.builds(
    GPUReading,
    index=st.just(0),
    name=st.just("a GPU"),
    core_clock_mhz=st.floats(100, 3_000),
    sms=st.integers(1, 200),
    cores_per_sm=st.floats(0.5, 128),
    idle_cores=PARTS,
    memory_clock_mhz=st.floats(100, 12_000),
    bus_width_bits=st.floats(64, 6_144),
    idle_bandwidth=st.none() | PARTS,
    memory_bytes=st.just(1 << 34),
    memory_free_bytes=st.integers(0, 1 << 34),
    warps_per_sm=st.sampled_from([32, 48, 64]),
    jobs=st.integers(0, 30),
)
READING = st.sampled_from(READINGS)


def test_an_idle_common_gpu_has_a_rate_of_1_for_each_weight(gpu: GPUReading) -> None:
    assert gpu_idle_rate(gpu, Reading(combine="sum")) == pytest.approx(2)
    assert gpu_idle_rate(gpu, Reading(combine="product")) == pytest.approx(1)
    assert gpu_idle_rate(gpu, Reading(combine="sum", compute_weight=0.5)) == pytest.approx(1.5)


def test_each_reading_takes_its_own_inputs(gpu: GPUReading) -> None:
    eighth = gpu.memory_bytes // 8
    half = replace(
        gpu, idle_cores=0.5, idle_bandwidth=0.25, memory_free_bytes=eighth, warps_per_sm=32
    )
    found = {
        (reading.warp, reading.memory, reading.combine): gpu_idle_rate(half, reading)
        for reading in READINGS
        if reading.cores == "idle"
    }
    assert found == {
        ("threads", "bandwidth", "sum"): pytest.approx(0.75),
        ("threads", "bandwidth", "product"): pytest.approx(0.125),
        ("threads", "capacity", "sum"): pytest.approx(0.625),
        ("threads", "capacity", "product"): pytest.approx(0.0625),
        ("warps", "bandwidth", "sum"): pytest.approx(0.375),
        ("warps", "bandwidth", "product"): pytest.approx(0.0625),
        ("warps", "capacity", "sum"): pytest.approx(0.3125),
        ("warps", "capacity", "product"): pytest.approx(0.03125),
    }


def test_a_full_gpu_has_a_rate_of_0_but_for_a_newcomer(gpu: GPUReading) -> None:
    full = replace(gpu, idle_cores=0, idle_bandwidth=0, jobs=3)
    assert gpu_idle_rate(full, Reading(cores="idle")) == 0
    assert gpu_idle_rate(full, Reading(memory="bandwidth", combine="sum", cores="idle")) == 0
    # gpud would give a fourth job a quarter.
    assert gpu_idle_rate(full, Reading(cores="newcomer")) == pytest.approx(0.25)


@given(GPUS, READING, st.integers(0, 50))
def test_it_never_rises_with_what_was_placed_since(
    gpu: GPUReading, reading: Reading, unseen: int
) -> None:
    rate = gpu_idle_rate(gpu, reading, unseen=unseen)
    assert rate >= 0
    assert gpu_idle_rate(gpu, reading, unseen=unseen + 1) <= rate
    assert gpu_idle_rate(gpu, reading, unseen=unseen, taken=1 << 30) <= rate


@given(
    GPUS,
    READING,
    st.sampled_from(["core_clock_mhz", "sms", "cores_per_sm", "memory_clock_mhz", "bus_width_bits",
                     "warps_per_sm"]),
)  # fmt: skip
def test_it_never_falls_when_a_figure_rises(gpu: GPUReading, reading: Reading, figure: str) -> None:
    doubled: dict[str, Any] = {figure: getattr(gpu, figure) * 2}
    more = replace(gpu, **doubled)
    assert gpu_idle_rate(more, reading) >= gpu_idle_rate(gpu, reading)


@given(GPUS, READING, PARTS)
def test_it_never_falls_when_an_idle_part_rises(
    gpu: GPUReading, reading: Reading, part: float
) -> None:
    for name in ("idle_cores", "idle_bandwidth"):
        low, high = sorted((getattr(gpu, name) or 0.0, part))
        figures: list[dict[str, Any]] = [{name: low}, {name: high}]
        rates = [gpu_idle_rate(replace(gpu, **one), reading) for one in figures]
        assert rates[0] <= rates[1]


@given(st.lists(GPUS, min_size=2, max_size=5), READING, st.floats(0.1, 10))
def test_one_factor_for_the_weights_of_a_sum_keeps_the_order(
    gpus: list[GPUReading], reading: Reading, factor: float
) -> None:
    reading = replace(reading, combine="sum")
    scaled = replace(reading, compute_weight=factor, bandwidth_weight=factor)
    rates = [(gpu_idle_rate(gpu, reading), gpu_idle_rate(gpu, scaled)) for gpu in gpus]
    for a, b in rates:
        assert b == pytest.approx(a * factor)


def test_a_node_has_the_maximum_or_the_mean_of_its_gpus() -> None:
    assert node_idle_rate([1, 3], Reading(node="max")) == 3
    assert node_idle_rate([1, 3], Reading(node="mean")) == 2
    assert node_idle_rate([], Reading()) == 0


@pytest.mark.parametrize(
    ("figure", "value", "problem"),
    [("sms", 0, "sms is over 0"), ("idle_cores", 1.5, "idle_cores is a part"),
     ("memory_free_bytes", -1, "bytes free"), ("core_clock_mhz", float("nan"), "over 0")],
)  # fmt: skip
def test_a_reading_that_cannot_be_is_refused(
    gpu: GPUReading, figure: str, value: float, problem: str
) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        replace(gpu, **{figure: value})  # type: ignore[arg-type]


def test_settings_are_changed_by_name() -> None:
    changed = Settings().changed(["period_s=0.5", "combine=product", "count_unseen=false"])
    assert (changed.period_s, changed.reading.combine, changed.count_unseen) == (
        0.5,
        "product",
        False,
    )
    assert Settings().changed([]) == Settings()


@pytest.mark.parametrize(
    ("assignment", "problem"),
    [
        ("period_s", "name=value"),
        ("perod_s=1", "no setting 'perod_s'; there are period_s"),
        ("period_s=soon", "a number, not 'soon'"),
        ("period_s=0", "0.01 or more"),
        ("attempts=1.5", "a whole number"),
        ("count_unseen=1", "true or false"),
        ("warp=lanes", "'threads' or 'warps', not 'lanes'"),
        ("compute_weight=-1", "0 or more"),
        ("missed_beats=2", "stale before it is lost"),
    ],
)
def test_a_wrong_setting_says_what_is_right(assignment: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        Settings().changed([assignment])
