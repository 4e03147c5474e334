"""What campaigns share: a run that goes on from a recorded one, and what is recorded when."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.harness import results
from campaigns.frame import Campaign, Figures, Plan, run, together
from campaigns.run import CAMPAIGNS, campaign, main


def measure(plan: Plan) -> Figures:
    wrong = plan.options.plant
    return {"tries": plan.count, "seed": plan.seed, "by_kind": {"a": plan.count}, "wrong": wrong}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plant", action="append", default=[])


def added(past: Figures, found: Figures) -> Figures:
    return together(past, found, sums=("tries",), counts=("by_kind",), joined=("wrong",))


TRIES = Campaign(
    "tries",
    "Tries",
    unit="tries",
    count=100,
    few=10,
    measure=measure,
    report=lambda found: print(found["tries"]),
    wrong=lambda found: found["wrong"],
    add=added,
    own_options=options,
)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    return tmp_path / "tries.json"


def figures(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    return {name: found[name] for name in ("tries", "seed", "by_kind")}


def test_a_whole_run_is_recorded_and_a_part_is_not(recorded: Path) -> None:
    assert run(TRIES, ["--short"]) == 0
    assert run(TRIES, ["--count", "40"]) == 0
    assert not recorded.exists()
    assert run(TRIES, []) == 0
    assert figures(recorded) == {"tries": 100, "seed": 1, "by_kind": {"a": 100}}


def test_a_run_goes_on_with_the_next_seed(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(TRIES, ["--add", "--count", "40"]) == 0
    assert run(TRIES, ["--add"]) == 0
    assert figures(recorded) == {"tries": 100, "seed": 2, "by_kind": {"a": 100}}
    with pytest.raises(SystemExit):
        run(TRIES, ["--add"])
    assert "has 100 tries already" in capsys.readouterr().err


def test_what_is_wrong_is_printed_and_not_gone_on_from(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(TRIES, ["--plant", "a leak"]) == 1
    assert "WRONG: a leak" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        run(TRIES, ["--add", "--count", "200"])
    assert "begin again, without --add" in capsys.readouterr().err


def test_a_run_that_cannot_be_added_to_has_no_such_option(recorded: Path) -> None:
    with pytest.raises(SystemExit):
        run(replace(TRIES, add=None), ["--add"])
    assert not recorded.exists()


def test_of_two_runs_the_worse_times_are_kept() -> None:
    first = {"ms": {"p50": 1, "p99": 9}, "back": 3, "seed": 1}
    second = {"ms": {"p50": 2, "p99": 5}, "back": 2, "seed": 2}
    both = together(first, second, worst=("ms", "back"))
    assert both == {"ms": {"p50": 2, "p99": 9}, "back": 3, "seed": 2, "runs": 2}


def test_each_folder_has_one_that_can_be_run() -> None:
    folders = {
        path.parent.name for path in (results.RESULTS.parents[1] / "campaigns").glob("*/run.py")
    }
    assert {campaign(name).name for name in CAMPAIGNS} == set(CAMPAIGNS) >= folders


@pytest.mark.parametrize(
    "name", [name for name in CAMPAIGNS if (results.RESULTS / f"{name}.json").exists()]
)
def test_recorded_figures_are_read_and_were_made_whole(name: str) -> None:
    one = campaign(name)
    found = json.loads((results.RESULTS / f"{one.name}.json").read_text())
    assert one.name == name
    assert found[one.unit] >= one.count
    assert not one.wrong(found)
    one.report(found)
    if one.add is not None:
        assert one.add(found, found)[one.unit] == 2 * found[one.unit]


def test_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert main(["nothing"]) == 2
    assert "there is no campaign 'nothing'" in capsys.readouterr().out
