"""The benchmarks' checks bite, and they run from end to end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bench import bench_bounds_checks, bench_lane, bench_persistent_cost
from bench.harness.timing import interleave, ratios, spread
from bench.harness.workloads import WORKLOADS, Problem, Workload
from gpud.device.cpu.device import CPUDevice
from tests.conformance.suite import find

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def device() -> Iterator[CPUDevice]:
    with CPUDevice(2) as one:
        yield one


def test_the_cost_of_the_persistent_form_is_measured_and_kept(
    device: CPUDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench_persistent_cost, "RESULTS", tmp_path)
    (stencil,) = (workload for workload in WORKLOADS if workload.name == "stencil")
    rows = bench_persistent_cost.measure(device, stencil, rounds=3, tiny=True)
    assert [row.persistent_blocks for row in rows] == [2 * 8]
    assert all(row.block_us.least > 0 and row.overhead.least > -1 for row in rows)
    bench_persistent_cost.report(rows)
    bench_persistent_cost.keep(rows, device.sms, 3, {"load_1min": 0.0})
    kept = json.loads((tmp_path / "persistent_cost.json").read_text())
    assert kept["rows"][0]["task_blocks"] == rows[0].task_blocks


CLOCK = r"""
extern "C" __global__ void when(long long* out) { out[blockIdx.x] = clock64(); }
"""


def test_forms_that_disagree_are_noticed(device: CPUDevice) -> None:
    def make(_: int, blocks: int) -> Problem:
        return Problem((blocks, 1, 1), (np.zeros(blocks, np.int64),))

    workload = Workload("when", "differs every time", CLOCK, (32, 1, 1), make, output=0)
    with pytest.raises(bench_persistent_cost.DifferentBytesError, match="when"):
        bench_persistent_cost.measure(device, workload, rounds=1, tiny=True)


def test_sides_take_turns_and_the_order_turns_too() -> None:
    calls: list[str] = []
    sides = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    samples = interleave(sides, rounds=3, batch=2)
    assert "".join(calls) == "aabb" + "bbaa" + "aabb"
    assert [(len(side.wall), len(side.cpu)) for side in samples.values()] == [(3, 3), (3, 3)]


def test_ratios_are_taken_within_rounds() -> None:
    drifting = [1.0, 2.0, 4.0, 8.0, 16.0]
    assert ratios([3 * value for value in drifting], drifting) == spread([3.0] * 5)
    found = spread([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (found.median, found.low, found.high, found.least) == (3.0, 2.0, 4.0, 1.0)


def test_the_cost_of_bounds_checks_and_kill_polls_is_measured_and_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench_bounds_checks, "RESULT", tmp_path / "bounds_checks.json")
    cases = [find(name) for name in ("saxpy", "add_strided")]
    rows, left_out = bench_bounds_checks.measure(cases, rounds=2, tiny=True)
    assert [row.case for row in rows] == ["saxpy", "add_strided"]
    assert left_out == {}
    assert all(row.plain_us.least > 0 and row.checked.least > 0 for row in rows)
    assert [row.polled is not None for row in rows] == [False, True]  # only one has a loop
    bench_bounds_checks.report(rows, left_out)
    bench_bounds_checks.keep(rows, left_out, 2, {"load_1min": 0.0})
    kept = json.loads((tmp_path / "bounds_checks.json").read_text())
    assert kept["summary"]["bounds checks"]["kernels"] == 2
    assert kept["rows"][1]["polled"]["median"] > 0


def test_the_lane_benchmark_runs_from_end_to_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench_lane.py", "--short", "--device", "cpu:2"])
    assert bench_lane.main() == 0
    told = capsys.readouterr().out
    assert "one core, lane" in told
    assert "one submit" in told
