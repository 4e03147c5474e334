"""Random resize events over the conformance suite on a GPU, a million or as many as time allows.

    python bench/gpu/random_resizes.py [--events N] [--seconds S] [--seed N]

As ``python -m campaigns.run resizes`` on the CPU device: every case that can be resized runs in
persistent and in sliced form while a seeded generator shrinks, grows, stops and resumes it; every
task block counts itself, every result is compared (`tests.conformance.stress`). Events come in
rounds with a seed each, so that a time limit can end the run; a mismatch, a hang or a lost task
block ends it with 1.

Writes bench/results/gpu_random_resizes.json.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu.instrumentation.driver import Gpu
from bench.gpu.instrumentation.warm_up import warm_up
from bench.gpu.record import cuda_device, keep, need_gpu
from tests.conformance.runner import LoadedCase, headers_installed
from tests.conformance.stress import stress
from tests.conformance.suite import CASES, Case
from tests.conformance.suite.case import Form
from tests.gpu.device_arrays import OnDevice

ROUND = 5_000
FORMS: tuple[Form, ...] = ("persistent", "sliced")


def main() -> int:
    """Run the events, print and save the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--jobs", type=int, default=3, help="jobs that run at once")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    need_gpu()
    gpu = Gpu()
    warm_up(gpu)
    cases = [case for case in CASES if headers_installed() or not case.headers]
    with cuda_device() as device:
        cases = [case for case in cases if case.target <= device.capability]
        found = measure(
            OnDevice(device), cases, options.events, options.seconds, options.seed, options.jobs
        )
    for name, value in found.items():
        print(f"{name:<16}{value}")
    print(f"wrote {keep('random_resizes', gpu, {'seed': options.seed, **found}).name}")
    return 1 if found["problems"] else 0


def measure(
    device: Any,
    cases: Sequence[Case],
    events: int,
    seconds: float,
    seed: int,
    jobs: int = 3,
    each: int = ROUND,
) -> dict[str, Any]:
    """Run rounds of ``each`` events until ``events`` are done, time is over or a check failed.

    Cases are loaded for a third of the time at most, in an order that the seed decides.
    """
    began = time.monotonic()
    forms: list[tuple[Case, Form]] = [
        (case, form) for case in cases for form in FORMS if form in case.forms
    ]
    random.Random(seed).shuffle(forms)
    loaded: list[LoadedCase] = []
    for case, form in forms:
        if loaded and time.monotonic() - began > seconds / 3:
            break
        loaded.append(LoadedCase(device, case, form))
    kinds: Counter[str] = Counter()
    run: set[tuple[str, str]] = set()
    task_blocks = rests = runs = rounds = 0
    problems: list[str] = []
    while kinds.total() < events and time.monotonic() - began < seconds and not problems:
        # Each round begins elsewhere in the suite, so that short rounds reach all of it.
        first = rounds * max(1, len(loaded) // 7) % len(loaded)
        order = loaded[first:] + loaded[:first]
        count = min(each, events - kinds.total())
        report = stress(device, order, count, seed=seed + rounds, jobs=jobs)
        kinds += report.events
        run |= set(report.runs)
        runs += sum(report.runs.values())
        task_blocks += report.task_blocks
        rests += report.rests
        problems += report.problems
        rounds += 1
    return {
        "events": kinds.total(),
        "kinds": dict(sorted(kinds.items())),
        "kernels": len(forms),
        "kernels_loaded": len(loaded),
        "kernels_run": len(run),
        "runs": runs,
        "rounds": rounds,
        "task_blocks": task_blocks,
        "rests": rests,
        "problems": problems,
        "seconds": time.monotonic() - began,
    }


if __name__ == "__main__":
    raise SystemExit(main())
