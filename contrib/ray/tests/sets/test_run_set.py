"""The commands `gpud-ray make-set` and `gpud-ray run-set`, without Ray."""

import json
from pathlib import Path

import pytest

from gpud_ray.cli import main


def test_a_made_set_runs_and_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "set.toml")
    assert main(["make-set", path, "--tasks", "8", "--seed", "2", "--memory", "2"]) == 0
    with Path(path).open("a") as file:
        file.write('[[task]]\nexecutable = "/bin/false"\nmemory = 0\nname = "false"\n')
    assert main(["run-set", path, "--local", "cpu:1,cpu:1", "--json", "--tries", "2"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [one["state"] for one in told["tasks"]] == ["done"] * 8 + ["failed"]
    assert told["tasks"][8]["reason"] == "exit status 1 (try 2 of 2)"
    assert {one["node"] for one in told["tasks"]} == {"node 0"}


def test_what_is_wrong_is_said_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "set.toml"
    path.write_text('[[task]]\nkernel = "stencil"\nsize = 3\n')
    assert main(["run-set", str(path)]) == 1
    assert f"{path}:3: task 1: size must be a multiple of 16; not 3" in capsys.readouterr().err
    path.write_text('[[task]]\nkernel = "stencil"\nsize = 64\n')
    assert main(["run-set", str(path), "--local", "cpu:1,"]) == 1
    assert "--local is one or more devices" in capsys.readouterr().err
    assert main(["run-set", str(tmp_path / "none.toml")]) == 1
    assert "No such file" in capsys.readouterr().err
