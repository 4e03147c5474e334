"""Runs tests under coverage, once: each mutant is tried with the tests that reach it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from coverage import CoverageData

from bench.mutation.scratch import Scratch

__all__ = ["record"]

_RCFILE = """[run]
context = ${{PYTEST_CURRENT_TEST-}}
data_file = {folder}/raw/data
disable_warnings = module-not-measured, no-data-collected, module-not-imported, already-imported
parallel = true
patch = _exit
source =
    {tree}/gpud
    {tree}/client
"""
_PATH_FILE = (
    'import os; exec(\'if os.getenv("COVERAGE_PROCESS_START"):'
    " import coverage; coverage.process_startup()')\n"
)


_PLUGIN = Path(__file__).with_name("recorder_plugin.py")


def record(scratch: Scratch, folder: Path, name: str, tests: Sequence[str]) -> Path:
    """Run ``tests`` under coverage and add what they covered to the recording ``folder/name``.

    Returns: The file of the tests' outcomes; the coverage lies beside it.
    """
    raw = folder / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for old in raw.iterdir():
        old.unlink()
    rcfile = folder / "coveragerc"
    rcfile.write_text(_RCFILE.format(folder=folder, tree=scratch.folder))
    scratch.install("recorder_plugin.py", _PLUGIN.read_text())
    startup = scratch.install("zz_coverage.pth", _PATH_FILE)
    outcomes = folder / f"{name}.jsonl"
    outcomes.unlink(missing_ok=True)
    command = [
        str(scratch.python),
        "-m",
        "pytest",
        "-q",
        "-m",
        "not gpu and not slow",
        "--timeout=600",
    ]
    command += ["-p", "no:cacheprovider", "-p", "recorder_plugin", *tests]
    environment = {
        **scratch.environment,
        "COVERAGE_PROCESS_START": str(rcfile),
        "MUTATION_OUTCOMES": str(outcomes),
    }
    try:
        subprocess.run(command, cwd=scratch.folder, env=environment, check=False)
    finally:
        startup.unlink()
    data = CoverageData(str(folder / f"{name}.coverage"))
    data.erase()
    for part in raw.iterdir():
        one = CoverageData(str(part))
        try:
            one.read()
        except Exception as error:  # noqa: BLE001 - a process was killed while it wrote
            print(f"{part.name} is left out: {error}")
            continue
        data.update(one)
        one.close()
        part.unlink()
    data.write()
    data.close()
    return outcomes
