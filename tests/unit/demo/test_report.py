"""The table and the picture say what was measured."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="the extra `demo` draws the picture")

from gpud.demo import cli
from gpud.demo.allocation_trace import Change
from gpud.demo.cli import LANES, POLICIES
from gpud.demo.colocation import Comparison, DemoWindow, Sizes, compare
from gpud.demo.offline_client import Sized
from gpud.demo.offline_kernels import OFFLINE
from gpud.demo.online_client import OnlineAnswers
from gpud.demo.plot import Panel, draw, excerpt
from gpud.demo.report import conclusion, impossible, note, table
from gpud.errors import pip_command

GOOD = Comparison("reservations", 0.012, 0.02, 1.1, (1.0, 1.2), 0.7, 0.93)
SLOW = Comparison("fifo", 0.3, 0.9, 45.0, (40.0, 50.0), 0.75, 1.0)


def test_the_table_has_a_row_for_each_run() -> None:
    lines = table((0.011, 0.018), [GOOD, SLOW], POLICIES).splitlines()
    assert [line.split("  ")[0] for line in lines[2:5]] == [
        "online alone", "gpud", "run to completion",
    ]  # fmt: skip
    assert "12.0 ms" in lines[3]
    assert "1.10 (1.00 to 1.20)" in lines[3]
    assert "0.93" in lines[3]
    assert "900 ms" in lines[4]
    assert len({len(line) for line in lines[3:5]}) == 1  # columns line up
    assert lines[5].startswith("r99: ")
    assert len(lines) == 6
    greedy = replace(SLOW, harvest=1.2)
    assert "above 1" in table((0.011, 0.018), [GOOD, greedy], POLICIES).splitlines()[-1]


def test_the_conclusion_says_whether_the_aim_was_met() -> None:
    said = conclusion([GOOD, SLOW], POLICIES)
    assert "1.10 x as long as alone (45 x with run to completion)" in said
    assert "93% of the rest" in said
    assert said.endswith("met)")
    assert conclusion([SLOW], POLICIES).endswith("missed)")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"r99": 0.55, "r99_interval": (0.5, 0.7)},
            "faster beside offline work than alone",
        ),
        ({"harvest": 2.13}, "213% of what online requests left"),
        ({"offline_rate": 1.3, "harvest": 1.5}, "130% of what it gets alone"),
    ],
)
def test_figures_that_cannot_be_are_called_so(change: dict[str, Any], words: str) -> None:
    said = conclusion([replace(GOOD, **change), SLOW], POLICIES)
    assert said.startswith("These figures cannot be")
    assert words in said
    assert "aim" not in said
    assert "Run the demo again when nothing else does" in said


def test_figures_that_are_off_by_chance_count() -> None:
    near = replace(GOOD, r99=0.98, r99_interval=(0.9, 1.04), harvest=1.08)
    assert impossible([near, replace(SLOW, harvest=1.3)], POLICIES) == []


def test_a_window_is_compared_with_those_alone() -> None:
    def window(latency: float, rate: float, busy: float = 0.0) -> DemoWindow:
        answers = OnlineAnswers(latencies_s=[latency] * 50)
        return DemoWindow("fifo", 0.0, 1.0, answers, busy, {"a": rate, "b": 2 * rate})

    kinds = [replace(kind, name=name) for kind, name in zip(OFFLINE, "ab", strict=False)]
    sizes = Sizes(tuple(Sized(kind, 1, 1, 1e-3, 1e-3) for kind in kinds), layers=1)
    found = compare(window(0.03, 60), window(0.02, 0, busy=0.25), window(0, 100), sizes)
    assert found.policy == "fifo"
    assert found.r99 == pytest.approx(1.5)
    assert found.r99_interval == pytest.approx((1.5, 1.5))
    assert found.offline_rate == pytest.approx(0.6)
    assert found.harvest == pytest.approx(0.8)
    assert found.plain()["harvest"] == pytest.approx(0.8)


def test_the_excerpt_is_the_busiest_stretch() -> None:
    assert excerpt([], 1.0) == 0
    assert excerpt([5.0, 5.1], 1.0) == 0
    found = excerpt([5.0, 9.0, 9.1, 9.2, 15.0], 1.0)
    assert found == pytest.approx(4 - 0.05)


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    arrivals = [10.1, 10.5, 11.0]
    changes = [Change(9.0, "1.1", "pricer", 2.0)]
    for number, at in enumerate(arrivals):
        job = f"2.{number}"
        changes += [Change(at, "1.1", "pricer", 0.0), Change(at, job, "online", 2.0)]
        changes += [Change(at + 0.1, job, "online", 0), Change(at + 0.1, "1.1", "pricer", 2.0)]
    panel = Panel("gpud", note(GOOD), changes, arrivals, [0.1, 0.1, 0.11])
    path = tmp_path / "timeline.png"
    draw([panel, panel], [0.09, 0.1], path, sms=2, names=LANES, seconds=1.2)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from pathlib import Path\n"
        "from gpud.demo.plot import MissingMatplotlibError, draw\n"
        "try: draw([], [], Path('x.png'), sms=1, names={}, seconds=1)\n"
        "except MissingMatplotlibError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert pip_command("demo") in done.stdout


def test_on_a_machine_that_is_too_busy_it_stops_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = SimpleNamespace(measure=lambda *_, **__: DemoWindow("alone", 0.0, 5.0, busy=1.5))
    monkeypatch.setattr(sys, "setswitchinterval", lambda _: None)
    monkeypatch.setattr(cli, "sizes_for", lambda *_, **__: Sizes((), 1))
    monkeypatch.setattr(cli, "open_experiment", lambda *_: nullcontext(experiment))
    assert cli.run(["--out", str(tmp_path)]) == 1
    assert "took 150% of the time" in capsys.readouterr().out


def test_importing_the_demo_loads_nothing_heavy() -> None:
    script = "import sys, gpud.demo; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert {"numpy", "matplotlib", "gpud_client"}.isdisjoint(done.stdout.split())
