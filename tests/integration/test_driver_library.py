"""The CUDA driver library under sanitizers: a program that makes right calls and wrong ones."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import gpud_client as gc
from gpud_cuda.build import build, find_compiler, find_headers

CALLS = Path(__file__).parents[1] / "programs" / "calls.c"
SANITIZERS = {
    "none": [],
    "addresses": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "threads": ["-fsanitize=thread"],
}


def compile_calls(folder: Path, flags: list[str]) -> Path:
    library, program = build(folder, flags=flags), folder / "calls"
    subprocess.run(
        [
            *find_compiler(), "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-g",
            *flags, f"-isystem{find_headers()}", str(CALLS), str(library), "-pthread",
            "-o", str(program),
        ],
        check=True,
    )  # fmt: skip
    return program


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.timeout(300)
@pytest.mark.ci
def test_calls_from_many_threads_and_wrong_ones(tmp_path: Path, sanitizer: str) -> None:
    program = compile_calls(tmp_path, SANITIZERS[sanitizer])
    with gc.local("cpu:2") as gpu:
        environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "GPUD_SOCKET": gpu.path}
        done = subprocess.run(
            [str(program)],
            check=False, capture_output=True, text=True, timeout=200, env=environment,
        )  # fmt: skip

    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
    assert "Sanitizer" not in done.stderr
    assert done.stderr.count("expected a function") == 1  # why the module was refused
