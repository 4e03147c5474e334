"""Programs that know nothing of gpud, run by ``gpuctl exec``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

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
