"""The command line ``gpud-ray`` itself; its commands are tested beside what they do."""

from __future__ import annotations

import pytest

from gpud_ray import __version__
from gpud_ray.cli import main


def test_it_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"gpud-ray {__version__}\n"


def test_an_unknown_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dance"]) == 2
    assert "dance" in capsys.readouterr().err
