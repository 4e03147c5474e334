"""Reading shares from notes, and a short run on the CPU device."""

from __future__ import annotations

import pytest

from bench.gpu.shares import JobShare, common_windows, measure, observed
from tests.gpu.test_bench_timestamps import made

pytestmark = pytest.mark.ci


def test_windows_lie_where_all_jobs_run() -> None:
    first = made([(0, 50, 0), (50, 100, 0)])
    second = made([(20, 90, 64)])
    windows = common_windows([first, second], 10)
    assert windows == [30, 40, 50, 60, 70]
    assert observed(first, windows, 10, 2) == [0.5] * 5
    assert observed(made([(0, 35, 0)]), [30], 10, 1) == [0.5]


def test_errors_are_of_what_was_allotted() -> None:
    plain = JobShare("quota", "8%", 2.0, [2.0, 1.8, 2.1]).plain()
    assert plain["error_most"] == pytest.approx(0.1)
    assert plain["error_p50"] == pytest.approx(0.05)


def test_jobs_of_a_daemon_are_observed() -> None:
    held = measure("cpu:2@75", ["50%"], ["50%"], 0.2, 1000.0, 5_000_000)
    assert [(one.kind, one.share, one.allotted) for one in held] == [
        ("reserved", "50%", 1.0), ("quota", "50%", 1.0),
    ]  # fmt: skip
    assert all(0 <= value <= 1.01 for one in held for value in one.observed)
    first, second = held
    assert len(first.observed) == len(second.observed)
