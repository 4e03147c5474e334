"""The properties of the idle rate that `gpud_ray.placement.idle_rate` names, and its settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpud.errors import InvalidArgument
from gpud_ray.node import gpu_figures
from gpud_ray.node.gpu_figures import GPUFigures
from gpud_ray.placement.gpu_reading import GPUReading
from gpud_ray.placement.idle_rate import IdleMemory, gpu_idle_rate
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
MEMORY = st.sampled_from(get_args(IdleMemory))


def test_it_is_the_product_of_its_inputs(gpu: GPUReading) -> None:
    assert gpu_idle_rate(gpu) == pytest.approx(1)  # a common GPU that is idle
    half = replace(gpu, idle_cores=0.5, jobs=1, idle_bandwidth=0.25,
                   memory_free_bytes=gpu.memory_bytes // 8, warps_per_sm=32)  # fmt: skip
    assert gpu_idle_rate(half, "capacity") == pytest.approx(0.5 * 0.125 * 0.5)
    assert gpu_idle_rate(half, "bandwidth") == pytest.approx(0.5 * 0.5 * 0.5)


def test_a_full_gpu_has_the_part_that_a_newcomer_would_get(gpu: GPUReading) -> None:
    full = replace(gpu, idle_cores=0, idle_bandwidth=0, jobs=3)
    assert gpu_idle_rate(full) == pytest.approx(0.25)


@given(GPUS, MEMORY, st.integers(0, 50))
def test_it_never_rises_with_what_was_placed_since(
    gpu: GPUReading, memory: IdleMemory, unseen: int
) -> None:
    rate = gpu_idle_rate(gpu, memory, unseen=unseen)
    assert rate >= 0
    assert gpu_idle_rate(gpu, memory, unseen=unseen + 1) <= rate
    assert gpu_idle_rate(gpu, memory, unseen=unseen, taken=1 << 30) <= rate


@given(
    GPUS,
    MEMORY,
    st.sampled_from(["core_clock_mhz", "sms", "cores_per_sm", "memory_clock_mhz", "bus_width_bits",
                     "warps_per_sm"]),
)  # fmt: skip
def test_it_never_falls_when_a_figure_rises(
    gpu: GPUReading, memory: IdleMemory, figure: str
) -> None:
    doubled: dict[str, Any] = {figure: getattr(gpu, figure) * 2}
    assert gpu_idle_rate(replace(gpu, **doubled), memory) >= gpu_idle_rate(gpu, memory)


@given(GPUS, MEMORY, PARTS)
def test_it_never_falls_when_an_idle_part_rises(
    gpu: GPUReading, memory: IdleMemory, part: float
) -> None:
    for name in ("idle_cores", "idle_bandwidth"):
        low, high = sorted((getattr(gpu, name) or 0.0, part))
        figures: list[dict[str, Any]] = [{name: low}, {name: high}]
        rates = [gpu_idle_rate(replace(gpu, **one), memory) for one in figures]
        assert rates[0] <= rates[1]


class Card:
    """NVML, of one card that may have clocked down; clocks in MHz."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    NVMLError = RuntimeError

    def __init__(self, sm_mhz: int, memory_mhz: int) -> None:
        self.present = {self.NVML_CLOCK_SM: sm_mhz, self.NVML_CLOCK_MEM: memory_mhz}

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802  (NVML's name)
        return index

    def nvmlDeviceGetClockInfo(self, _card: int, which: int) -> int:  # noqa: N802
        return self.present[which]

    def nvmlDeviceGetMaxClockInfo(self, _card: int, which: int) -> int:  # noqa: N802
        return {self.NVML_CLOCK_SM: 1_900, self.NVML_CLOCK_MEM: 9_501}[which]

    def nvmlDeviceGetMemoryBusWidth(self, _card: int) -> int:  # noqa: N802
        return 320

    def nvmlDeviceGetUtilizationRates(self, _card: int) -> Any:  # noqa: N802
        raise self.NVMLError("not supported")


def test_the_idle_card_is_chosen_although_it_has_clocked_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row: dict[str, Any] = {
        "index": 0, "name": "a card", "kind": "cuda", "spec": "cuda:0", "state": "ready",
        "sms": 68, "capability": 86, "memory_bytes": 10 << 30,
    }  # fmt: skip
    states = {
        "idle": (Card(210, 405), {"allocated_sms": 0, "gpu_sm_clock_mhz": 210}),
        "full": (Card(1_900, 9_501), {
            "allocated_sms": 68, "jobs": 1, "memory_used_bytes": 5 << 30, "gpu_sm_clock_mhz": 1_900,
        }),
    }  # fmt: skip
    rates = {}
    for name, (card, state) in states.items():
        monkeypatch.setattr(gpu_figures, "_nvml", lambda card=card: card)
        (reading,) = GPUFigures().read([{**row, **state}], {})
        assert (reading.core_clock_mhz, reading.memory_clock_mhz) == (1_900, 9_501)
        rates[name] = [gpu_idle_rate(reading, memory) for memory in get_args(IdleMemory)]
    assert all(idle > full for idle, full in zip(rates["idle"], rates["full"], strict=True))


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
    changed = Settings().changed(["period_s=0.5", "memory=bandwidth", "attempts=2"])
    assert (changed.period_s, changed.memory, changed.attempts) == (0.5, "bandwidth", 2)
    assert Settings().changed([]) == Settings()


@pytest.mark.parametrize(
    ("assignment", "problem"),
    [
        ("period_s", "name=value"),
        ("perod_s=1", "no setting 'perod_s'; there are period_s"),
        ("period_s=soon", "a number, not 'soon'"),
        ("period_s=0", "0.01 or more"),
        ("attempts=1.5", "a whole number"),
        ("memory=lanes", "'capacity' or 'bandwidth', not 'lanes'"),
        ("missed_beats=2", "stale before it is lost"),
    ],
)
def test_a_wrong_setting_says_what_is_right(assignment: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        Settings().changed([assignment])
