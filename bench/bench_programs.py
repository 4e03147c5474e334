"""What a program pays that runs under ``gpuctl exec``, and whether two share as they were told.

    python bench/bench_programs.py [--short]

Costs: a C program over gpud's CUDA driver library, which launches, waits, allocates and copies.
Shares: two such programs launch and wait, one launch at a time, with quotas of 10 % and 90 % of the
device; the ratio of their launches is to be 1:9, and is printed beside it.

Prints a table and writes bench/results/programs.json; with --short it only prints.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gpud_client as gc
from bench.harness.machine import describe
from gpud_cuda import library_folder
from gpud_cuda.build import find_compiler, find_headers

SOURCE = Path(__file__).parent / "load" / "program_costs.c"
RESULT = Path(__file__).parent / "results" / "programs.json"
GPUCTL = str(Path(sys.executable).with_name("gpuctl"))
QUOTAS = ("10%", "90%")
SECONDS, SHORT_SECONDS = 20, 3
ROUNDS, SHORT_ROUNDS = 20_000, 500


def main() -> int:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="shorter, and write no result")
    short = parser.parse_args().short
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        costs = measure_costs(program, SHORT_ROUNDS if short else ROUNDS)
        launches = measure_shares(program, SHORT_SECONDS if short else SECONDS)
    result = {
        "costs": costs,
        "shares": dict(zip(QUOTAS, launches, strict=True)),
        "machine": describe(),
    }
    print(json.dumps(result, indent=2))
    print(f"1:9 as 1:{launches[1] / launches[0]:.2f}")
    if not short:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")
    return 0


def build(folder: Path) -> Path:
    """Compile the program, which finds the library by its name."""
    program = folder / "program_costs"
    subprocess.run(
        [
            *find_compiler(), "-O2", "-D_GNU_SOURCE", f"-isystem{find_headers()}", str(SOURCE),
            str(library_folder() / "libcuda.so.1"), "-o", str(program),
        ],
        check=True,
    )  # fmt: skip
    return program


def measure_costs(program: Path, rounds: int) -> dict[str, Any]:
    """Return what the program prints of its calls, alone on two SMs."""
    done = subprocess.run(
        [GPUCTL, "exec", "--local", "cpu:2", "--", str(program), str(rounds)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    costs: dict[str, Any] = json.loads(done.stdout)
    return costs


def measure_shares(program: Path, seconds: int) -> list[int]:
    """Return how often each of two programs could launch and wait in the same time."""
    with gc.local("cpu:2") as gpu:
        started = [
            subprocess.Popen(
                [GPUCTL, "exec", "--socket", gpu.path, "--quota", quota, "--",
                 str(program), "1", str(seconds)],
                stdout=subprocess.PIPE, text=True,
            )
            for quota in QUOTAS
        ]  # fmt: skip
        return [json.loads(one.communicate()[0])["launches"] for one in started]


if __name__ == "__main__":
    sys.exit(main())
