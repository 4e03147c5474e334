"""Frameworks that take turns with a GPU's memory compute what they compute alone."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon_process import DaemonProcess

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "support" / "train_on_gpu.py"
FRAMEWORKS = {"pytorch": "torch", "cupy": "cupy", "numba": "numba"}


def started(name: str, environment: dict[str, str], *options: str) -> subprocess.Popen[str]:
    places = {"PYTHONPATH": f"{ROOT}:{ROOT / 'client'}", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), name, *options],
        env={**environment, **places},
        stdout=subprocess.PIPE,
        text=True,
    )


def outcome(process: subprocess.Popen[str]) -> Any:
    text, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    return json.loads(text.splitlines()[-1])


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("movable", [False, True], ids=["there", "movable"])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_two_programs_in_turns_compute_what_they_do_alone(
    gpu: Any, name: str, *, movable: bool
) -> None:
    if importlib.util.find_spec(FRAMEWORKS[name]) is None:
        pytest.skip(f"{FRAMEWORKS[name]} is not installed")
    alone = outcome(started(name, dict(os.environ)))
    with DaemonProcess() as daemon:
        # Twice 256 + 64 MiB and once 128 MiB: the third part has to be shared. Or once 256 + 64.
        size = "512MiB" if movable else "832MiB"
        daemon.serve("--device", "cuda:0", "--memory", size, "--turn-slice", "20ms")
        options = ("--turns", "--movable") if movable else ("--turns",)
        both = [started(name, daemon.environment, *options) for _ in range(2)]
        found = [outcome(one) for one in both]
        assert not daemon.bugs()
    assert [one["values"] for one in found] == [alone["values"]] * 2
    assert all(one["turns"] >= 1 for one in found)
    assert sum(one["turns"] for one in found) > 3, "they were to take turns"
    assert any(one["moved_bytes"] for one in found) == movable
