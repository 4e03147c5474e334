"""Programs over frameworks run unchanged while their share changes: `make test-programs`.

Each program compares its results with NumPy's and then prints "right".
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import pytest

import gpud_client as gc
from gpud.errors import GpudError
from gpud_client.cli.job_control import parse_job
from gpud_client.cli.minimal_client import MinimalClient

HERE = Path(__file__).parent
PYTHON = HERE.parents[1] / ".venv-programs" / "bin" / "python"
GPUCTL = str(Path(sys.executable).with_name("gpuctl"))
PROGRAMS = [
    "drjit_arrays", "numba_kernels", "taichi_fields", "tinygrad_training", "triton_kernels"
]  # fmt: skip
STEP_S = 0.02


@contextmanager
def resizing(path: str, seed: int) -> Iterator[list[int]]:
    """Resize every job at random; yields a list that gets the number of each that was resized."""
    over, resized = threading.Event(), list[int]()
    rng = random.Random(seed)

    def resize_all() -> None:
        with MinimalClient(path) as client:
            while not over.wait(STEP_S):
                for row in client.query("jobs")["jobs"]:
                    try:
                        quota = Fraction(rng.randint(2, 8), 4)  # some kernels fit twice on an SM
                        job = parse_job(row["id"])
                        client.resize(job, reservation=None, quota=quota)
                        resized.append(job[1])
                    except GpudError:
                        pass  # it has ended

    thread = threading.Thread(target=resize_all)
    thread.start()
    try:
        yield resized
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.timeout(300)
def test_a_program_runs_unchanged_while_its_share_changes(program: str) -> None:
    with gc.local("cpu:2") as gpu, resizing(gpu.path, seed=1) as resized:
        done = subprocess.run(
            [
                GPUCTL, "exec", "--socket", gpu.path, "--quota", "100%", "--",
                str(PYTHON), str(HERE / "unchanged" / f"{program}.py"),
            ],
            check=False, capture_output=True, text=True, timeout=280,
        )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("right\n")
    assert resized
