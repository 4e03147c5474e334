"""Runs the rewritten conformance suite under compute-sanitizer: ``sanitize.py memcheck``.

    python bench/gpu/sanitize.py memcheck|racecheck|synccheck [--part 1/2] [--only WORD]

Runs the conformance tests that need a GPU, without the CPU device, under one of the tool's checks,
and ends with 1 if it found anything. Writes bench/results/gpu_sanitize_TOOL_PART.json.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu.instrumentation.driver import Gpu
from bench.gpu.record import keep, need_gpu
from bench.gpu.steps import NO_AUTOLOAD, OPTIONS

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("memcheck", "racecheck", "synccheck")
FOUND = 9
"""The tool's exit status if it found anything."""
LIMIT_S = 590


def command(tool: str, only: str = "") -> list[str]:
    """Return the command to run."""
    tests = "tests/gpu/test_conformance.py"
    words = f"test_rewritten and ({only})" if only else "test_rewritten"
    return [
        *("compute-sanitizer", "--tool", tool, "--target-processes", "all"),
        *("--error-exitcode", str(FOUND), "--print-limit", "20"),
        *(sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", *OPTIONS),
        *("--timeout=0", tests, "-k", words),
    ]


def main() -> int:
    """Run the tool; its output is printed as it comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tool", choices=TOOLS)
    parser.add_argument("--part", default="1/1", help="which of how many parts of the cases")
    parser.add_argument("--only", default="", help="a word of the cases' names, as for pytest -k")
    options = parser.parse_args()
    need_gpu()
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not on PATH; it comes with the CUDA toolkit", file=sys.stderr)
        return 1
    ours = {"GPUD_REFERENCE": "none", "GPUD_PART": options.part}
    environment = {**os.environ, **NO_AUTOLOAD, **ours}
    try:
        done = subprocess.run(
            command(options.tool, options.only), cwd=ROOT, env=environment, check=False,
            timeout=LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        print(f"{options.tool}: not done after {LIMIT_S} s; take smaller parts", file=sys.stderr)
        return 1
    name = f"sanitize_{options.tool}_{options.part.partition('/')[0]}"
    found = {"part": options.part, "only": options.only, "status": done.returncode}
    keep(name, Gpu(), found)
    what = {0: "nothing found", FOUND: "FOUND something, see above"}
    print(f"{options.tool}: {what.get(done.returncode, f'the tests ended {done.returncode}')}")
    return 1 if done.returncode else 0


if __name__ == "__main__":
    raise SystemExit(main())
