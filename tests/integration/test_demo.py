"""The demo runs, is right, and would notice if it were not; so do the daemon's benchmarks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpud.demo.allocation_trace import changes_in, trace_problems
from gpud.demo.cli import LANES, POLICIES
from gpud.demo.colocation import Experiment, Sizes, open_experiment
from gpud.demo.offline_client import Sized
from gpud.demo.offline_kernels import OFFLINE

ROOT = Path(__file__).parents[2]


pytestmark = [pytest.mark.ci, pytest.mark.timeout(300)]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip


def test_the_demo_runs_and_every_result_is_right(tmp_path: Path) -> None:
    # Little load: where others have the cores, requests take many times as long as they should.
    options = ("--seconds", "1", "--load", "0.05", "--device", "cpu:2", "--out", str(tmp_path))
    done = run("-m", "gpud", "demo", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "Every result was right" in done.stdout
    for name in POLICIES.values():
        assert f"\n{name} " in done.stdout
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert [row["policy"] for row in figures["compared"]] == list(POLICIES)
    for policy in POLICIES:
        trace = json.loads((tmp_path / f"trace-{policy}.json").read_text())
        assert trace_problems(trace) == []
        assert {change.lane for change in changes_in(trace)} >= LANES.keys()


@pytest.mark.parametrize(
    "wrong", [("--load", "2"), ("--seconds", "0"), ("--block-ms", "x"), ("--nonsense",)]
)
def test_a_wrong_argument_is_a_usage_error(wrong: tuple[str, ...]) -> None:
    done = run("-m", "gpud.demo", *wrong)
    assert done.returncode == 2
    assert wrong[0] in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def experiment() -> Iterator[Experiment]:
    sizes = Sizes(tuple(Sized(kind, 8, 64, 1e-4, 1e-4) for kind in OFFLINE), layers=2)
    with open_experiment("cpu:2", "reservations", sizes) as one:
        yield one


def test_a_window_counts_what_was_done_in_it(experiment: Experiment) -> None:
    arrivals = [0.0, 0.05, 0.051, 0.2]
    window = experiment.measure("together", 0.3, arrivals, offline=True)
    assert window.problems == []
    assert len(window.answers.latencies_s) == len(window.answers.run_s) == len(arrivals)
    assert min(window.answers.latencies_s) > 0
    assert 0 < window.busy < 1
    assert set(window.rates) == {kind.name for kind in OFFLINE}
    assert min(window.rates.values()) > 0
    assert min(window.jobs.values()) > 1


def test_a_window_without_offline_work_has_no_rates(experiment: Experiment) -> None:
    window = experiment.measure("alone", 0.1, [0.0], offline=False)
    assert (window.rates, window.problems, len(window.answers.run_s)) == ({}, [], 1)


def test_lost_doubled_and_wrong_work_is_noticed(experiment: Experiment) -> None:
    """Counts and results are spoilt between two windows, as a fault of the daemon's would."""
    for client in experiment._offline:
        client._arguments[-1].numpy()[3] += 1
        assert client._first is not None
        client._first.view("u1").flat[5] ^= 1
    experiment._online._slots[0].served[7] += 1
    window = experiment.measure("spoilt", 0.1, [0.0], offline=True)
    for kind in OFFLINE:
        said = [text for text in window.problems if text.startswith(kind.name)]
        assert any("0 task blocks ran too seldom, 1 too often" in text for text in said)
        assert any("the bytes are not those of the first job" in text for text in said)
    assert any("slot 0: 1 rows were not answered" in text for text in window.problems)


def test_the_benchmark_of_the_service_runs() -> None:
    done = run("bench/bench_service.py", "--short", "--device", "cpu:2")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "round trip, p99, us" in done.stdout
    assert "wrote" not in done.stdout


def test_the_benchmark_of_colocation_runs() -> None:
    done = run("bench/bench_colocation.py", "--short", "--device", "cpu:2")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    assert done.stdout.count("1 ms   0.2  ") == len(POLICIES) + 1  # and in a lane


def test_the_benchmark_of_many_clients_runs() -> None:
    done = run("bench/bench_fleet.py", "--short", "--device", "cpu:2")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "lost or wrong                                       0" in done.stdout
