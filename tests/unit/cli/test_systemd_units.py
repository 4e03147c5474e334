"""The units in contrib/systemd agree with gpud, with each other and with systemd."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpud.cli import main
from gpud.config import Config
from gpud.wire.socket_path import default_socket_path
from gpud.wire.task_paths import runner_socket

ROOT = Path(__file__).parents[3] / "contrib" / "systemd"
UNITS = sorted(ROOT.glob("*/gpud*.*"))
Unit = dict[str, list[tuple[str, str]]]


def parse(path: Path) -> Unit:
    """A unit's settings by section, in order; a line that is none fails."""
    found: Unit = {}
    section = ""
    for line in path.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        head = re.fullmatch(r"\[(\w+)\]", line)
        if head:
            section = head[1]
            found[section] = []
            continue
        setting = re.fullmatch(r"([A-Z]\w*)=(.*)", line)
        assert setting is not None, f"{path.name}: {line}"
        found[section].append((setting[1], setting[2]))
    return found


def value(unit: Unit, section: str, key: str) -> str:
    (found,) = [text for name, text in unit[section] if name == key]
    return found


def test_all_units_are_there() -> None:
    assert [str(path.relative_to(ROOT)) for path in UNITS] == [
        "system/gpud.service", "system/gpud.socket", "user/gpud-runner.service",
        "user/gpud-runner.socket", "user/gpud.service", "user/gpud.socket",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["system", "user"])
def test_the_service_drains_and_says_when_it_is_ready(kind: str) -> None:
    unit = parse(ROOT / kind / "gpud.service")
    assert value(unit, "Service", "Type") == "notify"
    drain_s = Config().drain_timeout_ns / 1e9
    assert int(value(unit, "Service", "TimeoutStopSec")) > drain_s
    assert value(unit, "Unit", "Requires") == "gpud.socket"
    assert value(unit, "Service", "ExecReload") == "/bin/kill -HUP $MAINPID"
    # Its command is one that gpud has: the arguments behind the program parse up to --help.
    program, *arguments = value(unit, "Service", "ExecStart").split()
    assert Path(program).name == "gpud"
    assert main([*arguments, "--help"]) == 0


def test_the_runners_units_start_it_where_clients_look_and_leave_tasks_running() -> None:
    unit = parse(ROOT / "user" / "gpud-runner.service")
    _, *arguments = value(unit, "Service", "ExecStart").split()
    assert main([*arguments, "--help"]) == 0
    assert value(unit, "Service", "KillMode") == "process"
    socket = parse(ROOT / "user" / "gpud-runner.socket")
    listen = value(socket, "Socket", "ListenStream").replace("%t", "/run/user/1000")
    assert Path(listen) == runner_socket({"XDG_RUNTIME_DIR": "/run/user/1000"})


def test_what_would_stop_the_compiler_is_not_asked_for() -> None:
    unit = parse(ROOT / "system" / "gpud.service")
    assert "MemoryDenyWriteExecute" not in dict(unit["Service"])
    assert value(unit, "Service", "RestrictAddressFamilies") == "AF_UNIX"


def test_the_users_socket_is_where_clients_look() -> None:
    unit = parse(ROOT / "user" / "gpud.socket")
    listen = value(unit, "Socket", "ListenStream")
    expected = default_socket_path({"XDG_RUNTIME_DIR": "/run/user/1000"})
    assert Path(listen.replace("%t", "/run/user/1000")) == expected
    assert value(unit, "Socket", "SocketMode") == "0600"


def test_the_machines_socket_is_for_a_group() -> None:
    unit = parse(ROOT / "system" / "gpud.socket")
    assert value(unit, "Socket", "SocketMode") == "0660"
    service = parse(ROOT / "system" / "gpud.service")
    assert value(unit, "Socket", "SocketGroup") == value(service, "Service", "Group")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
@pytest.mark.parametrize("kind", ["system", "user"])
def test_systemd_finds_nothing_wrong(kind: str, tmp_path: Path) -> None:
    """With programs that exist, for it checks that; it needs no running systemd for the rest."""
    for path in (ROOT / kind).iterdir():
        text = re.sub(
            r"^ExecStart=\S+", "ExecStart=/bin/true", path.read_text(), flags=re.MULTILINE
        )
        (tmp_path / path.name).write_text(text)
    scope = ["--user"] if kind == "user" else []
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *scope, *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True, text=True, check=False,
        env={"XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )  # fmt: skip
    ours = [line for line in done.stderr.splitlines() if "gpud" in line]
    assert ours == [], done.stderr


def test_the_parser_sees_a_line_that_is_none(tmp_path: Path) -> None:
    unit = tmp_path / "x.service"
    unit.write_text("[Service]\nType notify\n")
    with pytest.raises(AssertionError, match="Type notify"):
        parse(unit)
