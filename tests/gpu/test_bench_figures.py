"""Saved results name the GPU, and figures are drawn from results of their real shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import summary
from bench.gpu import colocation, figures, release_latency, resize, rewrite_cost
from bench.gpu.colocation import compared
from bench.gpu.colocation_window import WindowResult
from bench.gpu.record import keep, rounded
from bench.gpu.shares import JobShare
from bench.gpu.workloads.colocation_work import OFFLINE, ONLINE
from bench.harness.timing import Spread
from tests.gpu.test_bench_timestamps import made

WHERE = {
    "gpu": "A GPU", "driver": "1.2", "date": "2026-01-02T03:04:05+00:00",
}  # fmt: skip


class NoGpu:
    def describe(self) -> dict[str, Any]:
        return {"gpu": "A GPU", "driver": "1.2"}


def spread(value: float) -> Spread:
    return Spread(value, value, value, value)


def row(name: str, us: float, ratio: float) -> rewrite_cost.Row:
    registers = {"native": 8, "rewritten": 13, "checked": 16}
    sides = {"rewritten": spread(ratio), "checked": spread(1.5)}
    return rewrite_cost.Row(name, "", 9, spread(us), sides, registers)


def release() -> dict[str, Any]:
    one = release_latency.Row("gpud", 10.0, [9_000, 30_000], [8_000, 9_000], [5], [10_000])
    plain = release_latency.Row("plain", 10.0, [], [80_000], [], [10_000])
    return {"rows": [one.plain(), plain.plain()]}


def stepped() -> dict[str, Any]:
    notes = made([(0, 1_000_000, 0), (0, 400_000, 64)])
    settled = {
        "1->0.5": {"count": 1, "p50": 30.0, "p99": 40.0, "most": 40.0},
        "0.5->1": {"count": 0},
    }
    counts = {"steps": 2, "lost": 0, "never_settled": 1, "settled_us": settled}
    return {**counts, "trace": resize.trace(notes, [(0, 1.0, 2), (350_000, 0.5, 1)], 1)}


def together() -> dict[str, Any]:
    seen = WindowResult([0.001] * 9, 4.0)
    one = compared("gpud", ONLINE[0], OFFLINE[0], 0.2, seen, seen, 5.0, 0.2, seen)
    return {**colocation.summary([one]), "rows": [vars(one)]}


def kept(folder: Path) -> None:
    """A result file for each figure."""
    costs = [row("a", 30, 1.01), row("b", 40, 0.99)]
    found = {
        "rewrite_cost": {
            **rewrite_cost.summary([one.plain() for one in costs]),
            "wrong": [],
            "rows": [one.plain() for one in costs],
        },
        "release_latency": release(),
        "colocation_gpud": together(),
        "resize": stepped(),
        "shares": {"window_ms": 10, "jobs": [JobShare("quota", "8%", 2.0, [2.0, 1.9]).plain()]},
    }
    for name, value in found.items():
        (folder / f"gpu_{name}.json").write_text(json.dumps({**WHERE, **value}))


def test_every_figure_is_drawn(tmp_path: Path) -> None:
    kept(tmp_path)
    for name, draw in figures.FIGURES.items():
        path = tmp_path / f"{name}.png"
        figures.save(path, figures.results(tmp_path, name), draw)
        assert path.read_bytes().startswith(b"\x89PNG")
    assert figures.results(tmp_path, "nothing") == []


def test_the_page_has_a_row_for_each_result_and_names_the_gpu(tmp_path: Path) -> None:
    kept(tmp_path)
    others: dict[str, dict[str, Any]] = {
        "waits": {
            "calls": {"cuMemAlloc": {"waits": False}, "cuMemFree": {"waits": True}},
            "launches": {"a launch": {"waits": False}},
        },
        "tests_bounds_checks": {"passed": 5, "failed": 1, "error": 1, "skipped": 0, "bad": []},
        "sanitize_memcheck_2": {"part": "2/2", "status": 3},
        "random_resizes": {"events": 1000, "kernels_run": 3, "task_blocks": 70, "problems": ["x"]},
    }
    for name, value in others.items():
        (tmp_path / f"gpu_{name}.json").write_text(json.dumps({**WHERE, **value}))
    page = summary.page(tmp_path)
    assert page.count("## On a GPU: A GPU, driver 1.2, 2026-01-02\n") == 1
    for row in (
        "that wait for a kernel that runs | cuMemFree | `make gpu-bench-waits`",
        "... launches on other streams that it holds up | none |",
        "bounds_checks: passed, failed, skipped | 5, 2, 0 | `make gpu-test-bounds_checks`",
        "part 2/2 | ended with 3 | `make gpu-sanitize-memcheck-2`",
        "1,000 random resizes, 3 kernels, 70 task blocks: problems | 1 | `make gpu-bench-random_",
        "geometric mean 1.000, 95th percentile 1.009 (aims 1.01, 1.03); worst 1.01 (a) |",
        "last block gone p50 19.5, p99 29.8 us (aim 13.0, 20.0); first online block p50 8.5",
        "plain, task blocks of 10 us | first online block p50 80.0, p99 80.0 us |",
        "| r99 geometric mean 1.000, worst 1.000, against a native graph alone 1.000; least harv",
        "... added to each kernel of a request alone, worst | 0.0 us (aim 10) |",
        "| `make gpu-bench-colocation-gpud` |",
        "| 0, 1; settled, slowest step: p99 40 us | `make gpu-bench-resize` |",
        "off by 2.5% in the median window, 5.0% at p99 (worst job) | `make gpu-bench-shares` |",
    ):
        assert row in page


def test_results_name_the_gpu_and_the_date(tmp_path: Path) -> None:
    path = keep("x", NoGpu(), {"value": 1.23456789}, tmp_path)  # type: ignore[arg-type]
    found = json.loads(path.read_text())
    assert path.name == "gpu_x.json"
    assert (found["gpu"], found["driver"], found["value"]) == ("A GPU", "1.2", 1.2346)
    assert found["date"].startswith("20")
    assert rounded((1.23456789, ["a", 2])) == [1.2346, ["a", 2]]


def test_only_long_kernels_are_in_the_mean() -> None:
    rows = [row("a", 30, 1.02), row("b", 25, 1.0), row("short", 5, 9.0)]
    found = rewrite_cost.summary([one.plain() for one in rows])
    assert found["kernels"] == 2
    assert found["sides"]["rewritten"]["geometric_mean"] == pytest.approx(1.00995, abs=1e-4)
    assert found["sides"]["rewritten"]["worst"] == ["a", 1.02]
    assert found["met"] == {"geometric_mean": True, "p95": True}
    assert rewrite_cost.summary([rows[2].plain()]) == {"kernels": 0}
    assert "not in the mean" in rewrite_cost.line(rows[2])
