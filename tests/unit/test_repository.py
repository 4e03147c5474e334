"""The repository itself: nothing in it belongs to one machine, and its entry points exist."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SKIP = {
    ".git", ".venv", ".venv-programs", ".venv-ray", "__pycache__", ".mypy_cache", ".pytest_cache",
    ".ruff_cache",
}  # fmt: skip
SKIP |= {".gpu", ".hypothesis", "build", "dist", "site"}

# Written in pieces, so that this file does not name what it looks for.
FORBIDDEN = {
    "a path of one machine": re.compile(r"/(?:root|home|Users|work|mnt)/\w"),
    "a package index": re.compile(
        "py" + r"pi\.(?:org|python)|python" + r"hosted|(?:extra-)?index" + r"-url|find" + "-links"
        "|ana" + r"conda\.org|arti" + "factory|dev" + r"pi\b"
    ),
}


def text_files() -> list[Path]:
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(set(folders) - SKIP)
        found += [Path(folder, name) for name in sorted(set(names) - SKIP)]  # .git may be a file
    return [path for path in found if b"\0" not in path.read_bytes()[:4096]]


def leaks(text: str) -> list[str]:
    patterns = FORBIDDEN | {"this checkout": re.compile(re.escape(f"{ROOT}/"))}
    return [f"{what}: {match[0]}" for what, pattern in patterns.items()
            for match in pattern.finditer(text)]  # fmt: skip


def test_no_file_names_a_machine_or_an_index() -> None:
    found = {str(path.relative_to(ROOT)): leaks(path.read_text()) for path in text_files()}
    assert {path: what for path, what in found.items() if what} == {}


@pytest.mark.parametrize(
    "text",
    ["/ro" + "ot/gpud", "cd /ho" + "me/ada/gpud", "https://py" + "pi.org/simple",
     "--extra-index" + "-url x", f"{ROOT}/gpud"],
)  # fmt: skip
def test_the_checker_sees_a_planted_leak(text: str) -> None:
    assert leaks(text) != []


def test_every_dependency_is_pinned_exactly() -> None:
    """For the extras that `make install`, `make faults` and `make site` take.

    cuda12 and cuda13 follow the driver instead.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in ("daemon", "demo", "dev", "docs", "fuzz"):
        wanted += project["optional-dependencies"][extra]
    names = {re.split(r"[<>=!~ ;\[]", entry)[0] for entry in wanted}
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines()
            if line and not line.startswith("#")]  # fmt: skip
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    pinned = {normal(pin.partition("==")[0]) for pin in pins}
    assert {normal(name) for name in names} - pinned == set()


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_ci_is_executable_and_well_formed() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)
