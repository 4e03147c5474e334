"""What the checking mode costs, over the kernels of the conformance suite.

    python bench/bench_checking.py [--rounds N] [--only CASE ...]

Each kernel runs on one CPU device in its own form, as a session has it without the checking mode
(with bounds checks and kill polls) and with it, in turns, on arrays of its own. Processor times of
whole jobs are compared. The suite's kernels are small, so the cost of starting a job counts on both
sides: kernels of which a job takes less than 0.2 ms are left out.

Prints a table, the median and the geometric mean of the ratios, and the ten largest.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.bench_bounds_checks import form_of
from bench.harness.timing import geometric_mean, interleave, ratios
from gpud.compiler.pipeline import compile_program
from gpud.device.cpu.device import CPUDevice
from gpud.errors import GpudError
from tests.conformance.checking_device import CheckingDevice
from tests.conformance.runner import LoadedCase, Run, headers_installed, source_of
from tests.conformance.suite import CASES, Case

LEAST_S = 0.2e-3
PATIENCE_S = 60.0


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5, help="samples of each side")
    parser.add_argument("--only", action="append", help="one case only, repeatable")
    options = parser.parse_args()
    found: dict[str, float] = {}
    for case in CASES:
        if case.opcodes or (options.only and case.name not in options.only):
            continue
        if form_of(case) is None or (case.headers and not headers_installed()):
            continue
        try:
            ratio = _measure(case, options.rounds)
        except (GpudError, TimeoutError) as error:
            print(f"{case.name:<28}{error}", flush=True)
            continue
        if ratio is not None:
            found[case.name] = ratio
            print(f"{case.name:<28}{ratio:8.1f}", flush=True)
    if found:
        values = sorted(found.values())
        print(f"\n{len(values)} kernels: median {statistics.median(values):.1f}, ", end="")
        print(f"geometric mean {geometric_mean(values):.1f}, largest:")
        for name in sorted(found, key=found.__getitem__, reverse=True)[:10]:
            print(f"  {name:<28}{found[name]:8.1f}")
    return 0


def _measure(case: Case, rounds: int) -> float | None:
    """Return the time with the checking mode / without; None if the case is too short."""
    form = form_of(case)
    assert form is not None
    with CPUDevice(1) as device:
        arena: Any = CheckingDevice(device)
        calls = {}
        for name, check in (("plain", False), ("checked", True)):
            program = compile_program(
                source_of(case.name).ptx, form=form, progress=case.progress, check=check
            )
            run = LoadedCase(arena, case, form, ptx=program.ptx).start()

            def once(run: Run = run) -> None:
                job = run.launch()
                job.resize(1)
                job.result(PATIENCE_S)

            calls[name] = once
        samples = interleave(calls, rounds)
        times = {name: one.cpu for name, one in samples.items()}
        if min(times["plain"]) < LEAST_S:
            return None
        return ratios(times["checked"], times["plain"]).median


if __name__ == "__main__":
    raise SystemExit(main())
