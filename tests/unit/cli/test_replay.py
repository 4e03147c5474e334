"""gpud replay: repeats the decisions of an event log, and reports where they differ."""

from __future__ import annotations

import io
import json
from fractions import Fraction
from pathlib import Path

import pytest

from gpud.cli import main
from gpud.core.events import (
    BlocksLeft,
    DeviceReady,
    Event,
    JobEnded,
    JobSubmitted,
    LaunchShape,
    SessionOpened,
)
from gpud.core.replay import write_header, write_line
from gpud.core.scheduler import Scheduler
from gpud.core.settings import Settings
from gpud.units import SessionId, job_id
from gpud_client.cli.exit_status import DONE, FAILED, USAGE

SESSION = SessionId(1)
OFFLINE, ONLINE = job_id(1, 1), job_id(1, 2)
EVENTS: list[Event] = [
    DeviceReady(0, 0, 4, "a device"),
    SessionOpened(1, SESSION),
    JobSubmitted(2, OFFLINE, SESSION, 0, (LaunchShape(8, 10_000),), quota=Fraction(7, 2)),
    JobSubmitted(
        3, ONLINE, SESSION, 0, (LaunchShape(4, 100),), reservation=Fraction(2), stream=1
    ),
    BlocksLeft(4, OFFLINE, 1, 16, False),
    JobEnded(5, ONLINE, False, True),
    JobEnded(9, OFFLINE, False, True),
]  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Path:
    settings = Settings()
    scheduler = Scheduler(settings)
    lines = [write_header(settings)]
    lines += [write_line(event, scheduler.handle(event)) for event in EVENTS]
    path = tmp_path / "events"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_log_gives_its_own_commands(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(log)]) == DONE
    out = capsys.readouterr().out
    assert "2 JobSubmitted" in out
    assert "7 events" in out
    assert "the commands are those of the log" in out
    assert main(["replay", str(log), "--json", "--validate"]) == DONE
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"events", "commands", "seconds", "differs_at_line"}
    assert found["events"]["JobEnded"] == 2
    assert found["commands"]["StartJob"] == 2
    assert found["differs_at_line"] is None


def test_every_step_on_request(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(log), "-v"]) == DONE
    out = capsys.readouterr().out
    assert "2: DeviceReady(now_ns=0" in out
    assert "    StartJob(" in out


def test_why_of_a_job_in_the_log(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(log), "--why", "1.1"]) == DONE
    out = capsys.readouterr().out
    assert "job 1.1:\n  it is done\n" in out
    assert "to make room for job 1.2, which is online" in out
    assert main(["replay", str(log), "--why", "9.9"]) == DONE
    assert "the log has no such job" in capsys.readouterr().out
    assert main(["replay", str(log), "--why", "x"]) == USAGE


def test_a_log_from_standard_input(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(log.read_text()))
    assert main(["replay", "-"]) == DONE


def test_the_first_difference_is_shown(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = log.read_text().splitlines()
    changed = json.loads(lines[3])
    assert changed["event"]["type"] == "JobSubmitted"
    changed["commands"] = []
    log.write_text("\n".join([*lines[:3], json.dumps(changed), *lines[4:]]))
    assert main(["replay", str(log)]) == FAILED
    out, err = capsys.readouterr()
    assert "the commands differ" in out
    assert "line 4: JobSubmitted" in err
    assert "the log has  []" in err
    assert main(["replay", str(log), "--json"]) == FAILED
    assert json.loads(capsys.readouterr().out)["differs_at_line"] == 4


def test_another_policy_is_not_compared(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(log), "--policy", "fifo"]) == DONE
    assert "another policy" in capsys.readouterr().out
    assert main(["replay", str(log), "--policy", "chance"]) == USAGE
    assert "reservations" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["empty"]),
        (b"no log\n", ["line 1", "--event-log"]),
        (b'{"gpud_event_log": 99, "settings": {}}\n', ["line 1", "99"]),
        (b"\xff\xfe\n", ["no event log"]),
        (None, ["No such file"]),
        (b"[half a line", ["line 9"]),
    ],
)
def test_what_is_no_log(
    content: bytes | None, words: list[str], log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is None:
        log.unlink()
    elif content.startswith(b"[half"):  # a daemon that was killed while it wrote
        log.write_bytes(log.read_bytes() + content)
    else:
        log.write_bytes(content)
    assert main(["replay", str(log)]) == FAILED
    err = capsys.readouterr().err
    assert all(word in err for word in words), err
    assert err.count("\n") == 1
