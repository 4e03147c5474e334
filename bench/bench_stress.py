"""Random resizing over the whole conformance suite: does every task block run exactly once?

    python bench/bench_stress.py [--events N] [--jobs N] [--seed N] [--sms N]

Every case that can be resized runs in persistent and in sliced form, checked as the daemon has it,
several at once, with claims of one task block, of several, and in advance, while a seeded generator
shrinks, grows, stops and resumes them. `tests.conformance.stress` describes the checks after every
run and at every pause.
Prints a table and writes bench/results/stress.json; exits 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from itertools import cycle
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness.machine import describe
from gpud.compiler.abi.control_words import Claims
from gpud.device.cpu.device import CPUDevice
from tests.conformance.checked_device import CheckedDevice
from tests.conformance.runner import LoadedCase, headers_installed
from tests.conformance.stress import stress
from tests.conformance.suite import CASES

HOW = (Claims(), Claims(4), Claims(1, 1), Claims(3, 2), Claims())
"""Claim sizes, used in turn; their number differs from that of forms, so each case gets several."""

RESULT = Path(__file__).parent / "results" / "stress.json"


def main() -> int:
    """Run, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=100_000, help="resizes of running jobs")
    parser.add_argument("--jobs", type=int, default=3, help="jobs that run at once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sms", type=int, default=2, help="virtual SMs")
    options = parser.parse_args()
    with CPUDevice(options.sms) as unchecked:
        device: Any = CheckedDevice(unchecked)
        began = time.monotonic()
        how = cycle(HOW)
        loaded = [
            LoadedCase(device, case, form, claims=next(how))
            for case in CASES
            for form in ("persistent", "sliced")
            if form in case.forms and (headers_installed() or not case.headers)
        ]
        prepared = time.monotonic() - began
        print(f"{len(loaded)} kernels compiled in {prepared:.0f} s; {options.events} events ...")
        report = stress(device, loaded, options.events, seed=options.seed, jobs=options.jobs)
    by_form: Counter[str] = Counter()
    for (_, form), runs in report.runs.items():
        by_form[form] += runs
    figures = {
        "cases": len({one.case.name for one in loaded}),
        "kernels": len(loaded),
        "kernels run": len(report.runs),
        "jobs at once": options.jobs,
        "virtual SMs": options.sms,
        "events": report.events.total(),
        **{f"events: {kind}": count for kind, count in sorted(report.events.items())},
        **{f"runs: {form}": runs for form, runs in sorted(by_form.items())},
        "task blocks counted": report.task_blocks,
        "stopped jobs checked at rest": report.rests,
        "seconds": round(report.seconds, 1),
        "problems": len(report.problems),
    }
    for name, value in figures.items():
        print(f"{name:<32}{value:>12}")
    for problem in report.problems:
        print(problem)
    found = {"machine": describe(), "seed": options.seed, **figures, "found": report.problems}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
