"""Every command of gpuctl but run against a scripted daemon: output, JSON, exit statuses."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from gpud.errors import Draining, LimitExceeded
from gpud.wire.messages import AskHistory, Cancel, Compile, Follow, Query, Resize, SetSetting
from gpud_client.cli import main
from gpud_client.cli import queries as looking
from gpud_client.cli.app import app
from gpud_client.cli.exit_status import BROKEN_PIPE, DONE, FAILED, INTERRUPTED, NO_DAEMON, USAGE
from gpud_client.cli.job_control import parse_job
from tests.support.fake_daemon import FakeDaemon
from tests.unit.cli.scripted_daemon import ANSWERS, ENDED, RUNNING, WAITING, Peer, scripted

GPUCTL = [sys.executable, "-c", "import sys; from gpud_client.cli import main; sys.exit(main())"]
LOOKS = ["status", "ps", "kernels", "memory", "history", "events", "doctor"]


def process(*arguments: str, path: Path, **options: Any) -> subprocess.Popen[str]:
    env = {**os.environ, "GPUD_SOCKET": str(path), "PYTHONPATH": "client"}
    return subprocess.Popen([*GPUCTL, *arguments], env=env, text=True, **options)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "status",
            ["gpud 0.1.0", "pid 4711", "1 running, 1 waiting", "CPU device", "3.5", "8 GiB"],
        ),
        ("ps", ["3.17", "4.1", "alice", "step, reduce", "25/100 25%", "evil?[31m name"]),
        ("kernels", ["axpy<float>", "persistent"]),
        ("memory", ["alice", "4712", "3 MiB"]),
        ("history", ["2.5", "failed", "the job was ended"]),
        ("events", ["job-failed", "job=2.5", "user=alice", "error=a trap"]),
        ("doctor", ["daemon", "ok", "gpud 0.1.0"]),
    ],
)
def test_looks_print_a_table(
    command: str, words: list[str], peer: Peer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command]) == DONE
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    assert all(word in out for word in words), out


def test_a_row_is_one_line_in_a_pipe(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    error = {"code": "illegal-address", "message": "illegal address " + "far away " * 60}
    peer.answers["history"] = {"jobs": [{**ENDED, "error": error}] * 2}
    assert main(["history"]) == DONE
    rows = [line for line in capsys.readouterr().out.splitlines() if "2.5" in line]
    assert len(rows) == 2
    assert all(row.count("far away") == 60 and "step, reduce" in row for row in rows)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("status", ["CPU device", "ready", "3.5", "784 KiB", "allocated"]),
        ("ps", ["3.17", "4.1", "running", "waiting", "3.5", "25%"]),
        ("kernels", ["axpy<float>", "persistent", "no thread ..."]),
        ("history", ["2.5", "failed", "0.4 ms", "1.50 s", "the job was ended"]),
        ("memory", ["alice", "3 MiB"]),
    ],
)
@pytest.mark.parametrize("columns", [80, 60])
def test_a_narrow_terminal_shows_what_matters(
    columns: int, command: str, words: list[str], peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    device = {
        **ANSWERS["status"]["devices"][0],
        "name": "CPU device, 2 virtual SMs of capability",
        "memory_used_bytes": 784 << 10,
        "memory_bytes": 6319128576,
    }
    job = {**RUNNING, "program": "a" * 40, "kernels": ["b" * 70], "user": "somebody-else"}
    peer.answers["status"] = {**ANSWERS["status"], "devices": [device]}
    peer.answers["jobs"] = {"jobs": [*ANSWERS["jobs"]["jobs"], job]}
    assert main([command]) == DONE
    seen = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    assert all(
        len(line) <= columns for line in seen.splitlines() if not line.startswith("gpud ")
    ), seen
    assert all(word in seen for word in words), seen


@pytest.mark.parametrize("command", LOOKS)
def test_looks_print_one_json_document(
    command: str, peer: Peer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--json"]) == DONE
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == ANSWERS[{"ps": "jobs"}.get(command, command)]
    assert out.count("\n") == 1


@pytest.mark.parametrize("command", LOOKS)
def test_what_is_empty_is_said(
    command: str, peer: Peer, capsys: pytest.CaptureFixture[str]
) -> None:
    peer.answers = {topic: {} for topic in ANSWERS}
    assert main([command]) == DONE
    assert capsys.readouterr().err == ""
    assert main([command, "--json"]) == DONE


def test_status_waits_for_a_daemon_that_is_starting(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "s"
    with ExitStack() as daemon:
        clock = SimpleNamespace(
            monotonic=time.monotonic, sleep=lambda _: daemon.enter_context(scripted(path))
        )
        monkeypatch.setattr(looking, "time", clock)
        assert main(["status", "--wait", "30", "--socket", str(path)]) == DONE
        assert "gpud 0.1.0" in capsys.readouterr().out
        assert main(["status", "--socket", str(folder / "none")]) == NO_DAEMON


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("gpuctl hi", ["history"]),
        ("gpuctl resize ", ["3.17", "4.1"]),
        ("gpuctl cancel 4", ["4.1"]),
        ("gpuctl config set gr", ["grace"]),
        ("gpuctl pause --device c", ["cpu:8"]),
    ],
)
def test_the_shell_completes_commands_and_jobs(
    typed: str, offered: list[str], peer: Peer, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("_GPUCTL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split(" ")) - 1))
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out.split() == offered


def test_ps_all_has_the_ended_jobs_first(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps", "--all", "--json"]) == DONE
    rows = json.loads(capsys.readouterr().out)["jobs"]
    assert [row["id"] for row in rows] == ["2.5", "3.17", "4.1"]


def test_a_wrong_choice_is_told_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "--state", "lost"]) == USAGE
    said = capsys.readouterr().err
    assert "'lost' is not one of 'done', 'failed', 'cancelled'; see gpuctl history --help" in said
    assert "Value error" not in said


def test_history_and_report_choose_jobs_alike(peer: Peer) -> None:
    chosen = ["--user", "7", "--until", "1970-01-02T00:00:00+00:00", "--state", "failed"]
    assert main(["history", *chosen]) == main(["report", *chosen]) == DONE
    listed, added = (asked._replace(request=0) for asked in peer.of(AskHistory))
    assert (listed.user, listed.until_s, listed.state, listed.by) == ("7", 86_400, "failed", None)
    assert added == listed._replace(by="user", limit=0)


def test_limits_are_passed_on(peer: Peer) -> None:
    assert main(["history", "-n", "7"]) == main(["events", "--limit", "5"]) == DONE
    assert [(query.topic, query.limit) for query in peer.of(Query)] == [("events", 5)]
    assert [asked.limit for asked in peer.of(AskHistory)] == [7]


@pytest.mark.parametrize(
    ("written", "since_s"),
    [
        ("90s", 999_910), ("15min", 999_100), ("12h", 956_800), ("1d", 913_600), ("1w", 395_200),
        ("1970-01-02T00:00:00+00:00", 86_400), ("9999w", 0),
    ],
)  # fmt: skip
def test_history_of_a_time(
    written: str, since_s: int, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpud_client.cli.history.time.time", lambda: 1_000_000.5)
    arguments = ["--user", "alice", "--state", "failed", "--since", written, "--until", "0s"]
    assert main(["history", *arguments]) == DONE
    (asked,) = peer.of(AskHistory)
    assert asked[1:] == ("alice", since_s, 1_000_000, "failed", None, 20)


def test_history_shows_the_first_line_of_an_error(
    peer: Peer, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"code": "check-failed", "message": "read outside; 2 more:\n  a race\n  another race"}
    peer.answers["history"] = {"jobs": [{**ENDED, "error": error}]}
    assert main(["history"]) == DONE
    out = capsys.readouterr().out
    assert "read outside; 2 more: ..." in out
    assert "race" not in out
    assert main(["history", "--json"]) == DONE
    assert "another race" in capsys.readouterr().out


def test_history_as_comma_separated_values(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    error = {"code": "kernel-trap", "message": 'a trap, in "step"'}
    peer.answers["history"] = {"jobs": [{"id": "2.5", "kernels": ["step", "sum"], "error": error}]}
    assert main(["history", "--csv"]) == DONE
    assert list(csv.DictReader(io.StringIO(capsys.readouterr().out))) == [
        {"id": "2.5", "kernels": "step sum", "error": 'a trap, in "step"'}
    ]


def test_a_report_adds_up(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"program": "train.py", "jobs": 12, "failed": 1, "capsm_seconds": 34.5, "queued_s": 0.5}
    peer.answers["history"] = {"jobs": [row]}
    assert main(["report", "--by", "program", "--since", "7d"]) == DONE
    out = capsys.readouterr().out
    assert all(word in out for word in ("program", "train.py", "12", "34.5", "500 ms")), out
    assert [asked.by for asked in peer.of(AskHistory)] == ["program"]


def test_doctor_fails_where_there_is_a_problem(
    peer: Peer, capsys: pytest.CaptureFixture[str]
) -> None:
    check = {"name": "device 0", "state": "problem", "detail": "failed", "hint": "see the log"}
    peer.answers["doctor"] = {"checks": [check]}
    assert main(["doctor"]) == FAILED
    assert "see the log" in capsys.readouterr().out
    assert main(["doctor", "--json"]) == FAILED
    assert json.loads(capsys.readouterr().out) == {"checks": [check]}


def test_why_prints_the_daemons_sentences(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "3.17"]) == DONE
    assert capsys.readouterr().out.splitlines() == [
        "job 3.17 (alice, offline, step):",
        "  it is paused, for 2 s: online jobs have its capacity",
        "  1 s ago: it ...",
    ]
    assert main(["why", "3.17", "--json"]) == DONE
    assert json.loads(capsys.readouterr().out)["id"] == "3.17"
    assert main(["why", "3"]) == USAGE
    assert "such as '3.17'" in capsys.readouterr().err


def test_config_shows_all_settings_or_one(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show"]) == DONE
    out = capsys.readouterr().out
    assert re.search(r"grace +2 s +the default", out)
    assert re.search(r"policy +arrival +the default +equal +at a restart", out)
    assert main(["config", "get", "grace"]) == DONE
    assert capsys.readouterr().out == "2 s\n"
    assert main(["config", "get", "users"]) == FAILED
    assert "root and to the daemon's own user" in capsys.readouterr().err
    assert main(["config", "get", "grcae"]) == USAGE
    assert "did you mean grace?" in capsys.readouterr().err
    for given in (["--json", "config", "get", "grace"], ["config", "get", "grace", "--json"]):
        assert main(given) == DONE
        assert json.loads(capsys.readouterr().out)["value"] == "2 s"


def test_config_says_what_a_change_does(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "set", "grace", "3 s"]) == DONE
    assert capsys.readouterr().out.splitlines() == [
        "grace is kept in /etc/gpud/gpud.toml",
        "but --grace says 3 s, and counts before the file",
        "grace is 3 s now",
        "policy is equal after a restart, and arrival until then",
    ]
    (asked,) = peer.of(SetSetting)
    assert asked[1:] == ("grace", "3 s")
    assert main(["config", "set", "grcae", "3 s"]) == USAGE
    assert len(peer.of(SetSetting)) == 1
    capsys.readouterr()
    assert main(["config", "reload"]) == DONE
    assert capsys.readouterr().out.startswith("grace is 3 s now\npolicy is equal after")


OTHERS = [
    {"device": 0, "user": "root", "allocated": "3/2", "online": "1", "memory_bytes": 4096},
    {"device": 0, "user": "bob", "allocated": "1/2", "online": "0", "memory_bytes": 0},
    {"device": 1, "user": None, "allocated": "1", "online": "1", "memory_bytes": 0},
]


@pytest.mark.parametrize("command", ["ps", "memory", "status"])
def test_what_others_hold_is_said(
    command: str, peer: Peer, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = {"ps": "jobs"}.get(command, command)
    peer.answers[topic] = {"others": OTHERS}
    assert main([command]) == DONE
    out = capsys.readouterr().out
    assert "others: 2 SMs, 4 KiB of memory on device 0 (root, bob)\n" in out
    assert "others: 1 SM on device 1\n" in out
    assert ("of yours" in out or "you hold no" in out) == (command != "status"), (
        "nothing is said to be empty that is not"
    )


def test_top_draws_what_others_hold(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    peer.answers["status"] = {**ANSWERS["status"], "others": OTHERS[:2]}
    peer.answers["jobs"] = {"jobs": [], "others": OTHERS[:2]}
    assert main(["top", "-c", "1"]) == DONE
    out = capsys.readouterr().out
    assert "online 1, offline 1 of 8 SMs" in out
    assert "others: 2 SMs, 4 KiB of memory (root, bob)" in out
    assert "no jobs of yours" in out


def test_ps_says_why_a_job_does_not_run(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps"]) == DONE
    assert "reason" not in capsys.readouterr().out, "all of them run"
    waiting = {**ANSWERS["jobs"]["jobs"][1], "waits_for": "needs 6 SMs, which are not free"}
    peer.answers["jobs"] = {"jobs": [ANSWERS["jobs"]["jobs"][0], waiting]}
    assert main(["ps"]) == DONE
    out = capsys.readouterr().out
    assert "reason" in out
    assert "needs 6 SMs, which are not free" in out


# -- resize and cancel ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "exact"), [("25%", Fraction(2)), ("1.5", Fraction(3, 2)), ("7/3", Fraction(7, 3))]
)
@pytest.mark.parametrize("option", ["quota", "reservation"])
def test_resize_sends_the_exact_share(
    option: str, written: str, exact: Fraction, peer: Peer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resize", "3.17", f"--{option}", written]) == DONE
    (sent,) = peer.of(Resize)
    assert sent.job == (3, 17)
    pair = (exact.numerator, exact.denominator)
    assert (sent.quota, sent.reservation) == ((pair, None) if option == "quota" else (None, pair))
    assert "job 3.17" in capsys.readouterr().out
    assert main(["resize", "3.17", f"--{option}", written, "--json"]) == DONE
    assert json.loads(capsys.readouterr().out) == RUNNING


def test_resize_of_an_unknown_job(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resize", "8.8", "--quota", "1"]) == FAILED
    assert "no job 8.8 waits or runs" in capsys.readouterr().err
    assert peer.of(Resize) == []


def test_cancel_goes_on_after_a_job_that_it_cannot_end(
    peer: Peer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cancel", "3.17"]) == DONE
    assert capsys.readouterr().out == "job 3.17 is being ended\n"
    assert main(["cancel", "8.8", "4.1", "3.17"]) == FAILED
    out, err = capsys.readouterr()
    assert out == "job 3.17 is being ended\n"
    assert "8.8: there is no job 8.8" in err
    assert "4.1 had ended before" in err
    assert [message.job for message in peer.of(Cancel)][1:] == [(8, 8), (4, 1), (3, 17)]
    assert main(["cancel", "8.8", "3.17", "--json"]) == FAILED
    rows = json.loads(capsys.readouterr().out)["jobs"]
    assert [(row["id"], row["cancelled"]) for row in rows] == [("8.8", False), ("3.17", True)]
    assert rows[0]["error"]["code"] == "unknown-name"


def test_cancel_all_of_a_user(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**RUNNING, "uid": os.geteuid()}, {**WAITING, "uid": 70001, "user": "bob"}]
    peer.answers["jobs"] = {"jobs": rows}
    assert main(["cancel", "--all"]) == DONE
    assert main(["cancel", "--all", "--user", "bob"]) == DONE
    ids = [parse_job(str(row["id"])) for row in rows]
    assert [message.job for message in peer.of(Cancel)] == ids
    for wrong in (["--all", "3.17"], [], ["3.17", "--user", "bob"]):
        assert main(["cancel", *wrong]) == USAGE


def test_run_compiles_for_its_device_alone(folder: Path) -> None:
    daemon = FakeDaemon(devices=2)
    daemon.finish_at_once = True
    source = folder / "k.cu"
    source.write_text("what it says does not matter")
    try:
        arguments = ["-g", "1", "-b", "32", "-a", "1", "-a", "null", "-a", "null", "-a", "7"]
        where = ["--device", "1", "--socket", daemon.path]
        assert main(["run", str(source), "saxpy", *arguments, *where]) == DONE
        assert [message.device for message in daemon.of(Compile)] == [1]
    finally:
        daemon.close()


# -- events and trace ----------------------------------------------------------------------------


def test_follow_prints_events_until_the_daemon_goes(
    peer: Peer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["events", "--follow", "--json", "-n", "1"]) == NO_DAEMON
    out, err = capsys.readouterr()
    events = [json.loads(line) for line in out.splitlines()]
    assert [event.get("n") for event in events] == [None, 0, 1, 2]
    assert len(peer.of(Follow)) == 1
    assert "is lost: it has ended" in err


def test_trace_writes_a_file(
    peer: Peer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    assert main(["trace", "-o", str(path)]) == DONE
    assert json.loads(path.read_text()) == ANSWERS["trace"]
    assert "1 trace events" in capsys.readouterr().out
    assert main(["trace", "-o", "-"]) == DONE
    assert json.loads(capsys.readouterr().out) == ANSWERS["trace"]
    assert main(["trace", "-o", str(tmp_path / "no" / "file")]) == FAILED
    err = capsys.readouterr().err
    assert "No such file" in err
    assert err.count("\n") == 1


def test_run_says_first_that_there_is_no_such_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "absent.cu"]) == USAGE
    assert "absent.cu: No such file" in capsys.readouterr().err


# -- how commands end ----------------------------------------------------------------------------

EVERY = [
    *([command] for command in LOOKS), ["top", "-c", "1"], ["resize", "1.1", "--quota", "1"],
    ["cancel", "1.1"], ["trace", "-o", "-"], ["events", "--follow"],
]  # fmt: skip


@pytest.mark.parametrize("arguments", EVERY, ids=" ".join)
def test_without_a_daemon(
    arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "none"
    assert main([*arguments, "--socket", str(path)]) == NO_DAEMON
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert str(path) in err
    assert "gpud serve" in err


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["resize", "3.17"], "--quota or --reservation"),
        (["resize", "3.17", "--quota", "1", "--reservation", "1"], "one of them"),
        (["resize", "3.17", "--quota", "much"], "a share is written"),
        (["resize", "3.17", "--quota", "0"], "greater than 0"),
        (["resize", "third", "--quota", "1"], "3.17"),
        (["cancel", "3.17", "4"], "3.17"),
        (["cancel"], "name jobs, or give --all"),
        (["trace"], "Missing option"),
        (["status", "--colour"], "No such option"),
        (["state"], "No such command"),
        (["history", "-n", "-1"], "Invalid value"),
        (["history", "--since", "yesterday"], "how long ago (30s, 15min, 12h, 7d, 2w)"),
        (["report", "--by", "kernel"], "Invalid value"),
        (["top", "-c", "1", "--interval", "0"], "Invalid value"),
        (["status", "more"], "unexpected extra argument"),
    ],
)
def test_wrong_usage_is_one_line_and_asks_nobody(
    arguments: list[str], match: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main([*arguments, *(["--socket", str(folder / "none")] if arguments[1:] else [])]) == USAGE
    )
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert match in err
    assert "--help" in err


def test_the_socket_may_be_named_before_the_command(
    peer: Peer, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GPUD_SOCKET")
    assert main(["--socket", str(peer.path), "ps", "--json"]) == DONE
    assert main(["--socket", str(folder / "none"), "ps", "--socket", str(peer.path)]) == DONE
    assert main(["--socket", str(folder / "none"), "ps"]) == NO_DAEMON
    assert str(folder / "none") in capsys.readouterr().err
    assert main(["ps", "-h"]) == DONE


def test_a_path_that_no_socket_can_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--socket", "/tmp/" + "x" * 200]) == FAILED
    assert "107" in capsys.readouterr().err


def test_checks_that_are_off_are_said(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    for bounds_checks in (True, False):
        peer.answers["status"] = {**ANSWERS["status"], "bounds_checks": bounds_checks}
        assert main(["status"]) == DONE
        assert ("BOUNDS CHECKS OFF" in capsys.readouterr().out) is not bounds_checks


def test_what_a_gpu_says_of_itself_is_shown(
    peer: Peer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    (device,) = ANSWERS["status"]["devices"]
    figures = {
        "gpu_utilisation_percent": 40, "gpu_memory_used_bytes": 3 << 30, "gpu_sm_clock_mhz": 1980,
        "gpu_temperature_c": None, "gpu_power_w": 123.456, "gpu_last_xid": 79,
    }  # fmt: skip
    peer.answers["status"] = {**ANSWERS["status"], "devices": [{**device, **figures}]}
    assert main(["status"]) == DONE
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    heading = next(line for line in lines if "allocated" in line)
    row = lines[-1]
    assert "GPU %" in heading
    assert "deg C" not in heading
    for word in ("40", "3 GiB", "1,980", "123", "79"):
        assert word in row
    assert main(["top", "--count", "1"]) == DONE
    assert "GPU 40%, 1,980 MHz, - \u00b0C, 123 W, Xid 79" in capsys.readouterr().out
    peer.answers["status"] = ANSWERS["status"]
    assert main(["status"]) == DONE
    assert "GPU %" not in capsys.readouterr().out


def test_what_the_daemon_refuses_is_one_line(
    peer: Peer, capsys: pytest.CaptureFixture[str]
) -> None:
    peer.answers["status"] = Draining("it ends")
    assert main(["status"]) == FAILED
    assert capsys.readouterr().err == "gpuctl: it ends\n"


def test_a_daemon_that_says_goodbye(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    peer.goodbye = LimitExceeded("1024 clients are connected already")
    assert main(["status"]) == NO_DAEMON
    assert "1024 clients" in capsys.readouterr().err


def test_a_daemon_that_goes_away(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    peer.hang_up_at = Query
    assert main(["status"]) == NO_DAEMON
    assert "is lost: it has ended" in capsys.readouterr().err


@pytest.mark.parametrize("data", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x05\x00\x00\x00hello"])
def test_something_else_listens_there(
    data: bytes, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(connection: socket.socket) -> None:
        with connection:
            connection.recv(1)
            connection.sendall(data)

    with scripted(folder / "s", serve) as other:
        assert main(["status", "--socket", str(other.path)]) in (FAILED, NO_DAEMON)
    err = capsys.readouterr().err
    assert err.startswith("gpuctl: ")
    assert err.count("\n") == 1


def test_tracebacks_on_request(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUD_DEBUG", "1")
    assert main(["status", "--socket", str(folder / "none")]) == NO_DAEMON
    assert "Traceback" in capsys.readouterr().err


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == DONE
    out = capsys.readouterr().out
    for command in [*LOOKS, "top", "run", "resize", "cancel", "trace"]:
        assert f" {command} " in out
    assert main([]) == USAGE
    assert capsys.readouterr().err == ""
    assert main(["--version"]) == DONE
    assert capsys.readouterr().out.startswith("gpuctl ")


def test_ctrl_c_is_quiet(peer: Peer) -> None:
    command = process("top", "--json", "--interval", "0.05", path=Path(peer.path),
                      stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    with command:
        assert command.stdout is not None
        assert command.stderr is not None
        json.loads(command.stdout.readline())
        command.send_signal(2)
        assert command.wait(20) == INTERRUPTED
        assert command.stderr.read() == ""


def test_a_closed_pipe_is_quiet(peer: Peer) -> None:
    command = process("top", "--json", "--interval", "0.05", path=Path(peer.path),
                      stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    with command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.readline()
        command.stdout.close()
        assert command.wait(20) == BROKEN_PIPE
        assert command.stderr.read() == ""


def modules_loaded_by(arguments: list[str]) -> set[str]:
    script = (
        "import sys; from gpud_client.cli import main; main()\nprint(*sys.modules, file=sys.stderr)"
    )
    env = {**os.environ, "PYTHONPATH": "client"}
    done = subprocess.run([sys.executable, "-c", script, *arguments],
                          env=env, capture_output=True, text=True, check=True)  # fmt: skip
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "arguments", [["--help"], ["status"], ["ps", "--json"], ["cancel", "3.17"]]
)
def test_commands_that_look_load_no_numpy(arguments: list[str], peer: Peer) -> None:
    loaded = modules_loaded_by(arguments)
    assert loaded & {"numpy", "llvmlite", "cuda", "uvloop", "asyncio"} == set()


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["ps", "--help"]])
def test_help_loads_nothing_of_the_wire(arguments: list[str]) -> None:
    assert modules_loaded_by(arguments) & {"msgpack", "gpud.wire"} == set()


def test_a_short_option_has_one_meaning() -> None:
    """In all commands: ``-n`` must not be rows here and refreshes there."""
    meanings: dict[str, set[str]] = {}
    for command in typer.main.get_command(app).commands.values():  # type: ignore[attr-defined]
        for option in command.params:
            names = [*option.opts, *option.secondary_opts]
            for short in (name for name in names if re.fullmatch("-[A-Za-z]", name)):
                meanings.setdefault(short, set()).add(max(names, key=len))
    assert len(meanings) > 5
    assert {short: many for short, many in meanings.items() if len(many) > 1} == {}


@pytest.mark.parametrize("command", LOOKS)
def test_json_before_the_command_is_json_after_it(
    peer: Peer, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--json"]) == DONE
    after = capsys.readouterr().out
    assert json.loads(after)
    assert main(["--json", command]) == DONE
    assert capsys.readouterr().out == after
