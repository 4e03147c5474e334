"""A short soak: good and hostile clients at one daemon; its run.py lasts an hour."""

from __future__ import annotations

from typing import Any

import pytest

from campaigns.soak import run as soak
from campaigns.soak.hostile_clients import ACTS
from tests.support.processes import Sample

pytestmark = pytest.mark.ci

# Those that stall the compiler or the device for seconds have tests of their own.
LIGHT = [name for name in ACTS if name not in ("compile bomb", "endless")]
_MIB = 1 << 20


def test_a_short_soak(capsys: pytest.CaptureFixture[str]) -> None:
    found = soak.soak(5.0, "test", "cpu:2", LIGHT)
    assert found["problems"] == []
    assert found["good"]["wrong"] == 0
    assert all(found["good"]["jobs"].values())
    done = {name.partition(":")[0] for name in found["hostile"]["outcomes"]}
    assert done == set(LIGHT)
    assert found["device_hosts_replaced"] == 0
    soak.report(found)
    assert "lost or wrong: 0" in capsys.readouterr().out


def rows(per_sample_mib: float, samples: int = 100) -> list[tuple[float, Sample]]:
    def one(at: int) -> Sample:
        return Sample(1, "front", int((30 + at * per_sample_mib) * _MIB), 0, 20, 2)

    return [(at / samples, one(at)) for at in range(samples)]


def test_a_leak_shows_in_the_trend() -> None:
    flat = soak.trend(rows(0.0), "front")
    assert (flat["growth_mib"], flat["slope_mib_in_all"]) == (0, 0)
    leak = soak.trend(rows(0.2), "front")
    assert leak["slope_mib_in_all"] == pytest.approx(20, abs=0.1)
    assert leak["growth_mib"] == pytest.approx(0.2 * 40, abs=1)
    assert leak["descriptors"] == [20, 20]
    assert soak.trend(rows(0.2), "host") == {"samples": 0}


def hour(**more: Any) -> dict[str, Any]:
    processes = {"front": soak.trend(rows(0.0), "front")}
    ends = {"processes": {"front": 1, "host": 1, "worker": 2}, "descriptors": {"front": 20}}
    return {
        "seconds": 3600.0,
        "good": {"first_wrong": []},
        "hostile": {"problems": []},
        "processes": processes,
        "left": {"jobs": 0},
        "at_start": ends,
        "at_end": ends,
        "exit_status": 0,
        **more,
    }


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"processes": {"front": soak.trend(rows(0.5), "front")}}, "has grown"),
        ({"good": {"first_wrong": ["a job was lost"]}}, "a job was lost"),
        ({"good": {"died": "exit status 1"}}, "exit status 1"),
        ({"hostile": {"problems": ["killed: Unanswered"]}}, "Unanswered"),
        ({"left": {"jobs": 2}}, "2 jobs are left"),
        ({"at_end": {"processes": {"host": 2}, "descriptors": {}}}, "2 processes of the role host"),
        ({"at_end": {"processes": {"other": 1}, "descriptors": {}}}, "of the role other"),
        ({"at_end": {"processes": {}, "descriptors": {"front": 90}}}, "90 descriptors"),
        ({"exit_status": 1}, "status 1"),
    ],
)
def test_what_must_not_be_is_a_problem(more: dict[str, Any], words: str) -> None:
    assert soak._problems(hour(), []) == []
    assert words in " ".join(soak._problems(hour(**more), []))


def test_a_traceback_in_the_log_is_a_problem() -> None:
    assert soak._problems(hour(), ["Traceback"]) == ["the log tells of a bug: Traceback"]
