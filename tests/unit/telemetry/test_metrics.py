"""The metrics: a table, its exposition, and the dashboard that reads it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gpud.telemetry.metrics import METRICS, Totals, exposition
from gpud.telemetry.nvml import GPUState

ROOT = Path(__file__).resolve().parents[3]

DEVICE = {
    "index": 0, "name": 'a "GPU"', "kind": "cuda", "state": "ready", "sms": 132, "restarts": 2,
    "allocated_sms": 1.5, "paused": None, "jobs": 3, "online_jobs": 1, "memory_bytes": 1 << 30,
    "memory_used_bytes": 1 << 20, "gpu_utilisation_percent": 25, "gpu_sm_clock_mhz": 1980,
}  # fmt: skip
STATUS = {
    "version": "0.1.0", "policy": "shares", "uptime_s": 12.5, "draining": False, "clients": 4,
    "orphaned_sessions": 0, "loop_stalls": 3, "loop_longest_stall_s": 0.075,
    "jobs": {"running": 2, "ending": 1}, "ended": {"done": 5, "failed": 1, "cancelled": 0},
    "devices": [DEVICE],
}  # fmt: skip


def families_of(text: str) -> list[Any]:
    return list(text_string_to_metric_families(text))  # type: ignore[no-untyped-call]


def samples(status: dict[str, Any], totals: Totals) -> dict[tuple[str, tuple[Any, ...]], float]:
    text = exposition(status, totals).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families_of(text)
        for sample in family.samples
    }


def test_units_are_those_of_the_names() -> None:
    seen = samples(STATUS, Totals())
    device = (("device", "0"),)
    assert seen["gpud_gpu_utilisation_ratio", device] == 0.25
    assert seen["gpud_gpu_sm_clock_hertz", device] == 1.98e9
    assert seen["gpud_device_allocated_sms", device] == 1.5
    assert seen["gpud_device_restarts_total", device] == 2
    assert seen["gpud_device_paused", device] == 0
    assert seen["gpud_device_info", (*device, ("kind", "cuda"), ("name", 'a "GPU"'))] == 1
    assert [seen["gpud_jobs", (("state", s),)] for s in ("waiting", "running", "ending")] == [
        0,
        2,
        1,
    ]
    assert seen["gpud_ended_jobs_total", (("state", "failed"),)] == 1
    assert not any(name == "gpud_gpu_power_watts" for name, _ in seen), "NVML did not say it"


def test_queued_times_are_a_histogram() -> None:
    totals = Totals()
    for queued_s in (0.0005, 0.001, 0.02, 5000.0):
        totals.add(True, queued_s, 2.0)
    totals.add(False, 1.0, None)
    seen = samples(STATUS, totals)

    def below(bound: str) -> float:
        return seen["gpud_queued_seconds_bucket", (("kind", "online"), ("le", bound))]

    assert [below(bound) for bound in ("0.001", "0.01", "0.03", "1000.0", "+Inf")] == [
        2,
        2,
        3,
        3,
        4,
    ]
    assert seen["gpud_queued_seconds_sum", (("kind", "online"),)] == pytest.approx(5000.0215)
    assert seen["gpud_queued_seconds_count", (("kind", "offline"),)] == 1
    assert seen["gpud_capsm_seconds_total", (("kind", "online"),)] == 8.0


def test_every_metric_of_the_table_can_be_exposed() -> None:
    full = {**DEVICE, **{one.field: 1 for one in METRICS if one.field}}
    text = exposition({**STATUS, "devices": [full]}, Totals()).decode()
    families = {family.name for family in families_of(text)}
    assert families == {one.name for one in METRICS}


def test_what_nvml_reads_is_there_to_be_exposed() -> None:
    fields = {one.field for one in METRICS if one.field.startswith("gpu_")}
    assert fields - {"gpu_last_xid"} <= {f"gpu_{name}" for name in GPUState._fields}


def test_the_dashboard_reads_what_there_is() -> None:
    dashboard = json.loads((ROOT / "contrib/grafana/gpud.json").read_text())
    exprs = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    known = {one.name + suffix for one in METRICS for suffix in suffixes.get(one.kind, ("",))}
    read = {name for expr in exprs for name in re.findall(r"gpud_\w+", expr)}
    assert read
    assert read <= known
