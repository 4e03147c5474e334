"""The order of steps, interrupted steps, and each step over the model of the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import record, run_steps
from bench.gpu.figures import FIGURES, results
from bench.gpu.record import Rows
from bench.gpu.run_steps import LEAST_S, StepRunner
from bench.gpu.steps import OPTIONS, SELECTIONS, STEPS, Step
from bench.gpu.summary_rows import rows
from tests.conformance.suite import CASES
from tests.gpu.test_conformance import part_of
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
SITE = ROOT / "tests" / "driver_model" / "site"


class NoGpu:
    def describe(self) -> dict[str, Any]:
        return {"gpu": "A GPU", "driver": "1.2"}


def step(name: str, code: str, folder: Path) -> Step:
    path = folder / f"{name}.py"
    path.write_text(code)
    return Step(name, 100.0, str(path))


def outcomes(one: StepRunner) -> dict[str, str]:
    return {name: found["outcome"] for name, found in one.state.items()}


def test_new_steps_come_first_and_interrupted_ones_continue(tmp_path: Path) -> None:
    steps = [Step(name, 5.0, "") for name in "abcd"]
    one = StepRunner(steps, tmp_path, 1e6)
    one.state = {
        "a": {"outcome": "failed"},
        "b": {"outcome": "cut"},
        "c": {"outcome": "passed"},
    }
    order = []
    for found, limit_s in one.turns():
        order.append((found.name, limit_s == 5.0))
        one.state[found.name] = {"outcome": "cut" if len(order) == 1 else "passed"}
    assert order == [("d", True), ("b", False), ("d", False), ("a", False)]
    assert not list(StepRunner(steps, tmp_path, LEAST_S).turns()), "there is too little time"


def test_steps_end_and_their_outcome_and_output_are_kept(tmp_path: Path) -> None:
    steps = [
        step("good", "print('well')", tmp_path),
        step("bad", "raise SystemExit(3)", tmp_path),
    ]
    one = StepRunner(steps, tmp_path, 600)
    one.run()
    # What failed has had its turn; it has another in the next call.
    assert outcomes(one) == {"good": "passed", "bad": "failed"}
    assert (tmp_path / "logs" / "good.log").read_text() == "well\n"
    assert not one.report()
    again = StepRunner(steps, tmp_path, 600)
    assert [found.name for found, _ in again.turns()] == ["bad"]
    again.forget(["good"])
    assert [found.name for found, _ in again.turns()] == ["good", "bad"]


def test_a_step_over_its_limit_is_interrupted(tmp_path: Path) -> None:
    one = StepRunner([step("long", "import time; time.sleep(1000)", tmp_path)], tmp_path, 600)
    assert one._run(one._steps[0], 0.1) == "cut"


def test_an_interrupted_step_keeps_its_results() -> None:
    code = """
import time
try:
    print("begun", flush=True)
    time.sleep(1000)
except KeyboardInterrupt:
    print("kept")
    raise
"""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    run_steps._end(process)
    assert process.stdout.read() == b"kept\n"
    process.stdout.close()


def test_interrupted_rows_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu: Any = NoGpu()
    first = Rows("x", gpu, {"events": 5}, tmp_path)
    first.add({"name": "a", "us": 1.23456789}, mean=1.0)
    found = json.loads((tmp_path / "gpu_x.json").read_text())
    assert (found["complete"], found["mean"], found["gpu"]) == (False, 1.0, "A GPU")
    second = Rows("x", gpu, {"events": 5}, tmp_path)
    assert second.has(name="a", us=1.23456789)
    assert not second.has(name="b")
    second.add({"name": "b", "us": 2.0})
    assert [row["name"] for row in second.rows] == ["a", "b"]
    assert Rows("x", gpu, {"events": 6}, tmp_path).rows == []
    with monkeypatch.context() as other:
        other.setattr(NoGpu, "describe", lambda _: {"gpu": "A GPU", "driver": "1.3"})
        assert Rows("x", gpu, {"events": 5}, tmp_path).rows == []
    assert second.end().exists()
    assert Rows("x", gpu, {"events": 5}, tmp_path).rows == []


def test_steps_are_what_the_makefile_runs() -> None:
    """All but those that are selections of others."""
    said = subprocess.run(
        ["make", "-n", "gpu-test", "gpu-bench", "GPU_PYTHON=python3"],
        cwd=ROOT, capture_output=True, text=True, check=True,
        # Not what this test's own make was given, such as PYTEST_ARGS.
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
    ).stdout  # fmt: skip
    wanted = [" ".join(line.split()) for line in said.splitlines() if "python3" in line]
    known = []
    for one in STEPS:
        if one.name in SELECTIONS:
            continue
        words = [word for word in one.arguments(trial=True) if word not in (one.trial or ())]
        line = " ".join(["python3", *words]).replace(" " + " ".join(OPTIONS), "")
        record = one.environment.get("GPUD_RECORD")
        known.append(f"GPUD_RECORD={record} {line}" if record else line)
    others = ("available.py", "figures.py", "summary.py")
    assert sorted(known) == sorted(line for line in wanted if not line.endswith(others))


def test_results_can_go_elsewhere(tmp_path: Path) -> None:
    code = "from bench.gpu import record; print(record.RESULTS)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/client", "GPUD_RESULTS": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout.strip() == str(tmp_path)
    assert record.RESULTS == ROOT / "bench" / "results"


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment in which processes use the model, and results go to a temporary folder."""
    sanitizer = tmp_path / "bin" / "compute-sanitizer"
    sanitizer.parent.mkdir()
    sanitizer.write_text('#!/bin/bash\nwhile [ "$1" != "$PYTHON" ]; do shift; done\nexec "$@"\n')
    sanitizer.chmod(0o755)
    for name, value in {
        "PATH": f"{sanitizer.parent}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "PYTHONPATH": f"{SITE}:{ROOT}:{ROOT}/client",
        "GPUD_MODEL_SMS": "16",
        "GPUD_RESULTS": str(tmp_path / "results"),
        "GPUD_WARM_UP_S": "0.05",
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "results"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_step_runs_over_the_model_and_leaves_what_tables_and_figures_need(
    model: Path, tmp_path: Path
) -> None:
    steps = [found for found in STEPS if found.trial is not None]
    one = StepRunner(steps, tmp_path, 550, trial=True)
    one.run()
    assert set(outcomes(one).values()) == {"passed"}, outcomes(one)
    assert set(outcomes(one)) == {found.name for found in steps}
    waits = json.loads((model / "gpu_waits.json").read_text())
    assert waits["complete"]
    tried = {**waits["calls"], **waits["calls_full"], **waits["launches"]}
    assert not [name for name, one in tried.items() if "error" in one]
    ((where, found),) = rows(model).items()
    assert where.startswith("Fake GPU")
    commands = {command for _, _, command in found}
    assert len(commands) == len([one for one in steps if one.name not in SELECTIONS])
    assert all(results(model, name) for name in FIGURES)


def test_the_first_ten_minutes_are_in_order_and_fit() -> None:
    names = [one.name for one in STEPS]
    first = names[: names.index("test-endless") + 1]
    assert first == [
        "bench-machine", "bench-waits", "bench-rewrite_cost", "bench-release_latency", "smoke",
        "cell", "test-partitions", "test-endless",
    ]  # fmt: skip
    assert sum(one.first_s for one in STEPS[: len(first)]) <= 600
    assert names[-1] == "bench-load_beside"


def test_trials_of_the_sanitizer_have_a_case_in_each_part() -> None:
    steps = [one for one in STEPS if one.name.startswith("sanitize-")]
    assert len(steps) == 6
    runnable = [case for case in CASES if case.forms and not case.rejection]
    for one in steps:
        part = one.target[one.target.index("--part") + 1]
        assert one.trial is not None
        wanted = one.trial[1].split(" or ")
        assert [case.name for case in part_of(runnable, part) if case.name in wanted], one.name


def test_a_context_is_kept_while_steps_run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{SITE}:{ROOT}:{ROOT}/client")
    said: list[str] = []

    def kept() -> bool:
        said.append(capfd.readouterr().out)
        return "keeps a context on Fake GPU" in "".join(said)

    with run_steps.kept_open():
        until(kept)


def test_a_step_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run_steps.py", "--only", "nothing"])
    with pytest.raises(SystemExit):
        run_steps.main()
    said = capsys.readouterr().err
    assert "no such step: nothing; there are bench-machine, bench-waits" in said
