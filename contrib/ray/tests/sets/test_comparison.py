"""`gpud-ray compare`: the shapes of what was reported that are reproduced, and its outputs."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpud_ray.cli import main
from gpud_ray.cli.compare import print_table
from gpud_ray.sets.generate import cluster
from gpud_ray.sets.readings import READINGS
from gpud_ray.sets.simulation import simulate


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compare")


@pytest.fixture(scope="module")
def found(folder: Path) -> Any:
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = main(
            [
                "compare",
                "--seeds",
                "1",
                "--instances",
                "25",
                "--json",
                "--picture",
                str(folder / "sets.png"),
            ]
        )
    assert status == 0
    return json.loads(out.getvalue())


def test_makespans_have_the_order_that_was_reported(found: Any) -> None:
    for row in found["makespans_s"].values():
        for baseline in ("MCT", "Min-min", "Max-min"):
            assert row["lower bound"] <= row["gpud"] < row["EGS"] < row[baseline] < row["greedy"]


def test_what_egs_gains_is_less_with_more_tasks(found: Any) -> None:
    few, more, many = found["EGS_percent_of"]["greedy"]
    assert few < more < many
    for baseline in ("MCT", "Min-min"):  # with 250 tasks it depends on the set
        _, more, many = found["EGS_percent_of"][baseline]
        assert more < many


def test_most_of_the_gain_over_mct_is_two_tasks_at_a_time(found: Any) -> None:
    for row in found["makespans_s"].values():
        assert row["MCT, two at a time"] < row["EGS"]


def test_beta_of_0_4_is_best_if_a_draw_follows_the_other(found: Any) -> None:
    beta = {float(key): value for key, value in found["beta_in_rounds_makespan_s"].items()}
    assert min(beta, key=lambda one: beta[one]) == 0.4


def test_parallel_tasks(found: Any) -> None:
    rows = {int(key): row["assumed"] for key, row in found["parallel"].items()}
    assert rows[1]["peak_capsm_percent"] < 30
    assert rows[2]["makespan_s"] < rows[1]["makespan_s"] < rows[4]["makespan_s"]
    assert [rows[n]["out_of_memory"] > 0 for n in (1, 2, 4, 5)] == [False, False, False, True]
    assert (rows[4]["peak_capsm_percent"], rows[4]["peak_memory_percent"]) == (100, 95)


def test_the_picture_is_written(found: Any, folder: Path) -> None:
    assert (folder / "sets.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_is_printed(found: Any, capsys: pytest.CaptureFixture[str]) -> None:
    print_table(found)
    out = capsys.readouterr().out
    assert "of Min-min" in out
    assert "worse than EGS" in out


def test_random_instances_are_not_worse_than_egs(found: Any) -> None:
    """The short version of `gpud-ray compare --instances 1000`."""
    instances = found["random_instances"]
    assert instances["instances"] == 25
    assert instances["worse_than_EGS"] == 0
    assert instances["least_of_lower_bound"] >= 1 - 1e-9
    assert instances["mean_of_lower_bound"] < 1.3


def test_each_reading_of_the_source_can_be_simulated() -> None:
    gpus = cluster(servers=2)
    makespans = {name: one.egs_s(40, 1, gpus) for name, one in READINGS.items()}
    assert makespans["dividing takes no time"] < makespans["main: 15 us a pair"]
    assert makespans["main: 15 us a pair"] < makespans["EGS one at a time"]
    for reading in READINGS.values():
        greedy = reading.make_baseline("greedy")
        assert simulate(reading.tasks(40, 0), gpus, greedy, reading.model).done == 40
