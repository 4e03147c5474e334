"""The command line gpud: options, checks, and exit statuses."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpud.cli import checks, main
from gpud.cli.checks import CHECKS, Check, can_run, run_checks
from gpud.config import SETTINGS
from gpud.errors import pip_command
from gpud_client.cli.exit_status import DONE, FAILED, USAGE
from tests.unit.cli.scripted_daemon import scripted


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short folder that is the user's home, cache, configuration and runtime folder."""
    found = Path(tempfile.mkdtemp(prefix="gpud-"))
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(found))
    for setting in SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)
    yield found
    shutil.rmtree(found)


def state(name: str) -> Check:
    return CHECKS[name]()


# -- serve ---------------------------------------------------------------------------------------


def test_serve_has_a_flag_for_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == DONE
    out = capsys.readouterr().out
    for setting in SETTINGS:
        assert f" {setting.flag} " in out
    assert "--config" in out
    assert "--exit-with-parent" in out


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--polcy", "fifo"], USAGE, ["No such option", "--policy", "--help"]),
        (["--grace"], USAGE, ["--grace", "requires an argument"]),
        (["--grace", "soon"], USAGE, ["--grace", "soon"]),
        (["--history", "-1"], USAGE, ["--history", "-1"]),
        (["--socket", "/tmp/" + "x" * 200], USAGE, ["--socket", "107"]),
        (["--device", "c p u"], USAGE, ["--device", "c p u"]),
        (["--device", "cpu:0"], USAGE, ["--device", "cpu:0"]),
        (["--policy", "none"], USAGE, ["none", "fifo"]),
        (["--config", "/nowhere/gpud.toml"], FAILED, ["/nowhere/gpud.toml", "--config"]),
        (["extra"], USAGE, ["extra"]),
    ],
)
def test_serve_refuses_what_it_cannot_mean(
    arguments: list[str],
    status: int,
    words: list[str],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", *arguments]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert all(word in err for word in words), err


def test_serve_names_the_line_of_a_bad_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "gpud.toml"
    file.write_text("history = 10\ndrain_timeot = 3\n")
    assert main(["serve", "--config", str(file)]) == FAILED
    err = capsys.readouterr().err
    assert f"{file}:2" in err
    assert "drain_timeout" in err


# -- doctor --------------------------------------------------------------------------------------


def test_doctor_on_this_machine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == DONE
    found = json.loads(capsys.readouterr().out)
    assert found["can_run"] is True
    assert [check["name"] for check in found["checks"]] == list(CHECKS)
    for check in found["checks"]:
        assert set(check) == {"name", "state", "detail", "hint"}
        assert check["state"] in ("ok", "missing")
        assert check["detail"]
    assert main(["doctor"]) == DONE
    out = capsys.readouterr().out
    assert "gpud can run here" in out
    assert all(name in out for name in CHECKS)
    assert list(folder.iterdir()) == []  # the checks leave nothing behind


def test_doctor_fails_where_gpud_cannot_run(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "gpud").mkdir()
    (folder / "gpud" / "gpud.toml").write_text("policy = 7\n")
    assert main(["doctor"]) == FAILED
    out = capsys.readouterr().out
    assert "gpud cannot run here: see configuration" in out
    assert "policy" in out


def test_a_check_that_breaks_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Check:
        raise KeyError("MemAvailable")

    monkeypatch.setitem(CHECKS, "memory", broken)
    found = {check.name: check for check in run_checks()}
    assert list(found) == list(CHECKS)
    assert "KeyError" in found["memory"].detail
    assert can_run(list(found.values()))


def test_a_library_that_is_needed_and_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_REQUIRED", (("msgpack", ""), ("no-such-library", "daemon")))
    found = state("libraries")
    assert found.state == "problem"
    assert found.hint == pip_command("daemon")
    assert not can_run([found])


def test_the_check_of_the_daemon(folder: Path) -> None:
    found = state("daemon")
    assert (found.state, found.hint) == ("missing", "gpud serve")
    (folder / "gpud").mkdir()
    with scripted(folder / "gpud" / "gpud.sock"):
        found = state("daemon")
    assert found.state == "ok"
    assert "pid" in found.detail
    # The socket file still exists, but no process listens on it.
    assert state("daemon").state == "missing"


def test_the_check_of_the_cache(folder: Path) -> None:
    assert state("program cache").state == "ok"
    (folder / "gpud").mkdir(mode=0o700)
    assert state("program cache").state == "ok"
    (folder / "gpud").chmod(0o777)
    found = state("program cache")
    assert found.state == "missing"
    assert "chmod 700" in found.hint


# -- how commands end ----------------------------------------------------------------------------


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == DONE
    assert capsys.readouterr().out.startswith("gpud ")
    assert main(["--help"]) == DONE
    out = capsys.readouterr().out
    assert all(f" {command} " in out for command in ("serve", "demo", "doctor", "replay"))
    assert main([]) == USAGE
    assert main(["serv"]) == USAGE
    assert "serve" in capsys.readouterr().err


def test_the_demo_has_options_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpud", "demo", "--help"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "gpud demo" in done.stdout
    done = subprocess.run(
        [sys.executable, "-m", "gpud", "demo", "--no-such-option"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2


def test_what_a_gpu_needs_is_looked_for_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", no_library)
    found = state("CUDA")
    assert (found.state, "libcuda.so.1" in found.detail) == ("missing", True)
    assert "driver" in found.hint
    monkeypatch.setattr(ctypes, "CDLL", lambda _: None)
    assert state("CUDA").state == "ok"
    monkeypatch.setattr(checks, "_version", lambda _: None)
    assert state("CUDA").hint == pip_command("cuda13")
