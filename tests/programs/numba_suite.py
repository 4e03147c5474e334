"""Runs Numba's own tests of its CUDA target over gpud, and compares the failures with a list.

``python -m tests.programs.numba_suite all|ci``: all tests, or those of the driver alone. It fails
if a test fails that ``numba_failures.toml`` does not name, or passes that it names.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree as ET

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = ROOT / ".venv-programs" / "bin" / "python"
KNOWN = HERE / "numba_failures.toml"
PARTS = {
    "all": ["numba.cuda.tests"],
    "ci": ["numba.cuda.tests.cudadrv"],
}
PROCESSES = 2


def main() -> int:
    """Run a part, print what differs from the list, and return the exit status."""
    part = sys.argv[1] if len(sys.argv) > 1 else "all"
    report = ROOT / ".venv-programs" / f"numba-{part}.xml"
    run_tests(PARTS[part], report)
    outcomes = read_outcomes(report)
    known = tomllib.loads(KNOWN.read_text())
    expected = {test for reason in known["reason"] for test in reason["tests"]}
    failed = {test for test, outcome in outcomes.items() if outcome == "failed"}
    run = sum(outcome != "skipped" for outcome in outcomes.values())
    print(f"{run - len(failed)} of {run} tests passed; {len(failed)} failed")
    new = sorted(failed - expected)
    mended = sorted(test for test in expected - failed if outcomes.get(test) == "passed")
    for test in new:
        print(f"fails, and is not in {KNOWN.name}: {test}")
    for test in mended:
        print(f"passes, and is in {KNOWN.name}: {test}")
    return bool(new or mended or not run)


def run_tests(tests: list[str], report: Path) -> None:
    """Run Numba's tests with pytest, by programs that know nothing of gpud."""
    package = subprocess.check_output(
        [str(PYTHON), "-c", "import numba_cuda; print(numba_cuda.__path__[0])"], text=True
    ).strip()
    command = [
        str(Path(sys.executable).with_name("gpuctl")), "exec", "--local", "cpu:2", "--",
        str(PYTHON), "-m", "pytest", "-p", "numba_plugin", "-p", "no:cacheprovider",
        "-n", str(PROCESSES), "--dist", "loadscope", "--timeout", "300", "-q", "-W", "ignore",
        "--rootdir", package, "-c", os.devnull, "-o", "consider_namespace_packages=true",
        f"--junitxml={report}", "--pyargs", *tests,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    report.unlink(missing_ok=True)
    # Not in the repository, whose tests need more than Numba's environment has.
    subprocess.run(command, cwd=package, env=environment, check=False)


def read_outcomes(report: Path) -> dict[str, str]:
    """Return "passed", "failed" or "skipped" for each test, by its class and name."""
    outcomes: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):
        found = {child.tag for child in case}
        name = re.sub(r"^numba_?cuda\.", "", case.get("classname", "")).removeprefix(
            "numba.cuda.tests."
        )
        outcome = "failed" if found & {"failure", "error"} else "passed"
        outcomes[f"{name}.{case.get('name')}"] = "skipped" if "skipped" in found else outcome
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
