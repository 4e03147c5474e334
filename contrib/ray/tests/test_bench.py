"""The benchmarks of contrib/ray/bench run, in their shortest form, and nothing is lost in them."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from gpud_ray.local_cluster import local_cluster

BENCH = Path(__file__).parents[1] / "bench"


def test_no_item_is_lost_when_agents_are_killed() -> None:
    bench = runpy.run_path(str(BENCH / "kills.py"))
    with local_cluster("cpu:1", "cpu:1", settings=bench["SETTINGS"]) as cluster:
        told = bench["run"](cluster, 3, 60, agents=True)
        assert told["kills"] == 3
        assert told["done"] == told["submitted"] > 0
        assert told["again"] > 0


def test_the_overhead_is_measured_for_each_way() -> None:
    rows = runpy.run_path(str(BENCH / "overhead.py"))["run"](5)
    assert list(rows) == ["local daemon", "own node", "other node"]
    for row in rows.values():
        assert all(one > 0 and many > 0 for one, many in row.values())
    assert rows["own node"][256][0] > rows["local daemon"][256][0]


def test_placement_is_compared(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = tmp_path / "table.json"
    monkeypatch.setattr(
        "sys.argv", ["placement.py", "--items", "20", "--seeds", "1", "--json", str(table)]
    )
    main: Any = runpy.run_path(str(BENCH / "placement.py"))["main"]
    main()
    printed = capsys.readouterr().out
    assert "all given out at once" in printed
    assert "Ray's default" in printed
    assert table.exists()
