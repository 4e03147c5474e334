"""`bench/compare_sets.py`: the shapes of what was reported that are reproduced, and its outputs."""

from pathlib import Path
from typing import Any

import pytest
from compare_sets import print_table
from task_sets.comparison import compare
from task_sets.figures import draw


@pytest.fixture(scope="module")
def found() -> Any:
    return compare(seeds=1, instances=25)


def test_makespans_have_the_order_that_was_reported(found: Any) -> None:
    for row in found["makespans_s"].values():
        for baseline in ("MCT", "Min-min", "Max-min"):
            assert row["lower bound"] <= row["gpud"] < row["EGS"] < row[baseline] < row["greedy"]


def test_most_of_the_gain_over_mct_is_two_tasks_at_a_time(found: Any) -> None:
    for row in found["makespans_s"].values():
        assert row["MCT, two at a time"] < row["EGS"]


def test_beta_of_0_4_is_best_if_the_source_is_taken_literally(found: Any) -> None:
    by_beta = found["readings"]["literal"]["beta_makespan_s"]
    assert min(by_beta, key=by_beta.get) == 0.4


def test_what_egs_gains_over_greedy_is_less_with_more_tasks(found: Any) -> None:
    few, more, many = found["readings"]["literal"]["EGS_percent_of"]["greedy"]
    assert few < more < many


def test_parallel_tasks(found: Any) -> None:
    rows = {count: row["assumed"] for count, row in found["parallel"].items()}
    assert rows[1]["peak_capsm_percent"] < 30
    assert rows[2]["makespan_s"] < rows[1]["makespan_s"] < rows[4]["makespan_s"]
    assert [rows[n]["out_of_memory"] > 0 for n in (1, 2, 4, 5)] == [False, False, False, True]
    assert (rows[4]["peak_capsm_percent"], rows[4]["peak_memory_percent"]) == (100, 95)


def test_the_picture_is_written(found: Any, tmp_path: Path) -> None:
    draw(found, tmp_path / "sets.png")
    assert (tmp_path / "sets.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_is_printed(found: Any, capsys: pytest.CaptureFixture[str]) -> None:
    print_table(found)
    out = capsys.readouterr().out
    assert "of Min-min" in out
    assert "worse than EGS" in out


def test_random_instances_are_not_worse_than_egs(found: Any) -> None:
    """The short version of ``--instances 1000``."""
    instances = found["random_instances"]
    assert instances["instances"] == 25
    assert instances["worse_than_EGS"] == 0
    assert instances["least_of_lower_bound"] >= 1 - 1e-9
    assert instances["mean_of_lower_bound"] < 1.3
