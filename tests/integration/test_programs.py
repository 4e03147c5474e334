"""Programs that know nothing of gpud, run by ``gpuctl exec``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gpud_client as gc
from gpud_client.cli.minimal_client import MinimalClient

PROGRAMS = Path(__file__).parents[1] / "programs" / "unchanged"
GPUCTL = [str(Path(sys.executable).with_name("gpuctl"))]


def run_program(
    *command: str, options: tuple[str, ...] = (), env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*GPUCTL, "exec", "--local", "cpu:2", *options, "--", *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, **(env or {})},
    )


def test_a_program_over_the_driver_api_runs_unchanged() -> None:
    done = run_program(sys.executable, str(PROGRAMS / "driver_vector_add.py"))

    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_the_exit_status_is_the_programs() -> None:
    assert run_program("sh", "-c", "exit 7").returncode == 7
    assert run_program("sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM
    assert run_program("no-such-program").returncode == 127


def test_without_a_daemon_it_says_what_to_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [*GPUCTL, "exec", "--socket", str(tmp_path / "none.sock"), "--", "true"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 3
    assert "gpud serve" in done.stderr


def start_launching(path: str, *options: str) -> subprocess.Popen[str]:
    """A program that launches kernels until a call fails; returns once it has begun."""
    program = subprocess.Popen(
        [*GPUCTL, "exec", "--socket", path, *options, sys.executable, "launch_until_error.py"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=PROGRAMS,
    )  # fmt: skip
    assert program.stdout is not None
    assert program.stdout.readline() == "begins\n"
    return program


def test_a_daemon_that_goes_away_is_an_error_from_then_on() -> None:
    with gc.local("cpu:2") as gpu:
        program = start_launching(gpu.path)
    out, err = program.communicate(timeout=60)

    assert out == "709 709 709\n", err
    assert "the connection to the daemon is lost" in err


def test_the_share_is_the_programs_and_can_be_changed() -> None:
    with gc.local("cpu:2") as gpu:
        program = start_launching(gpu.path, "--quota", "25%")
        row = the_job(gpu.path)
        resize = [*GPUCTL, "resize", row["id"], "--quota", "1", "--socket", gpu.path]

        assert row["program"].endswith("launch_until_error.py")
        assert row["quota"] == "1/2"
        assert subprocess.run(resize, check=False, timeout=60).returncode == 0
        assert the_job(gpu.path)["quota"] == "1"
    program.communicate(timeout=60)


def the_job(path: str) -> dict[str, Any]:
    end = time.monotonic() + 30
    with MinimalClient(path) as client:
        while time.monotonic() < end:
            for row in client.query("jobs")["jobs"]:
                return dict(row)
    raise TimeoutError("the program has no job")
