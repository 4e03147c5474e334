"""What an import loads, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"numpy", "llvmlite", "cuda", "cupy", "pynvml", "msgpack", "typer", "rich", "uvloop"}
HEAVY |= {"asyncio", "multiprocessing", "ctypes", "inspect", "logging", "subprocess"}


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a bare interpreter has after ``statement`` and not before."""
    script = (
        "import sys\nbefore = set(sys.modules)\n"
        f"{statement}\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_the_package_loads_nothing_heavy() -> None:
    assert loaded_by("import gpud") & HEAVY == set()


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        # JobCancelled is what concurrent.futures raises for a cancelled future, and that loads it.
        ("gpud.errors", {"logging"}),
        ("gpud.units", set()),
    ],
)
def test_what_the_client_shares_loads_nothing_heavy(module: str, allowed: set[str]) -> None:
    assert loaded_by(f"import {module}") & HEAVY == allowed


def test_nvrtc_is_loaded_on_first_use() -> None:
    assert (
        loaded_by("import gpud.compiler.toolchain.nvrtc") & {"cuda", "llvmlite", "numpy"} == set()
    )


def test_the_checker_sees_a_heavy_import() -> None:
    assert "numpy" in loaded_by("import numpy")
