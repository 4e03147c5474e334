"""Out-of-bounds accesses: is each one contained and reported, and no other session's memory hit?

    python -m tests.faults.out_of_bounds.run [--cases N] [--seed S] [--device cpu:N] [--short]

An attacker's session lies between two neighbours' on one daemon. Generated kernels make one bad
access each: every kind of access of PTX that the device runs, on every side of the attacker's
range, by pointers that are computed, given, or loaded from memory, in straight code, loops,
functions and behind barriers, in all forms. Each case must end as `IllegalAddress` with the
address, the instruction and its line, the task block and thread, and the nearest array; nothing may
be stored after the bad access; and every byte of both neighbours' memory is compared, allocated or
not. One case in ten is a twin whose accesses are legal, such as the last bytes of the arena, and
must run.

The cases and their checks are those of tests/faults/out_of_bounds, which has the details.

Prints the counts and writes bench/results/out_of_bounds.json; with --short it only prints. The exit
status is 1 if anything was missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench.harness.results import keep
from bench.harness.timing import load
from tests.faults.out_of_bounds.accesses import ACCESSES
from tests.faults.out_of_bounds.affine import affine
from tests.faults.out_of_bounds.campaign import Tally, generated
from tests.faults.out_of_bounds.world import World
from tests.faults.out_of_bounds.written import written

ROOT = Path(__file__).resolve().parents[3]
CASES, SEED = 11_200, 5  # one in ten is legal, so that 10,000 are not
ALONE_PART, WRITTEN_PART = 0.2, 0.1
"""Shares of the cases: kernels with one kind of access each, and kernels in CUDA C++. Somewhat less
than another tenth are addresses that wrap around between threads."""


def main() -> int:
    """Run, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--device", default="cpu:1")
    parser.add_argument("--short", action="store_true", help="500 cases; writes no file")
    options = parser.parse_args()
    before = load()
    cases = 500 if options.short else options.cases
    found = measure(options.device, cases, options.seed)
    report(found)
    if not options.short:
        keep("out_of_bounds", found, before)
    return 1 if found["wrong"] else 0


def measure(device: str, cases: int, seed: int) -> dict[str, Any]:
    """Run ``cases`` cases, or a few more because of rounding."""
    tally = Tally()
    began = time.monotonic()

    def progress(done: int) -> None:
        took = time.monotonic() - began
        print(f"  {done} cases, {took:.0f} s, {len(tally.failures)} wrong", flush=True)

    with World(device) as world:
        alone = round(cases * ALONE_PART) if cases >= 1000 else 0
        by_hand = round(cases * WRITTEN_PART)
        written(world, tally, seed, by_hand)
        affine(world, tally, seed, max(2, cases // 300))
        progress(tally.cases)
        if alone:
            generated(world, tally, seed + 1, alone, most=1, progress=progress)
        rest = cases - tally.cases
        most = 6 if cases >= 1000 else 16
        generated(world, tally, seed, rest, most=most, progress=progress)
        # Rounding leaves some over.
        if tally.cases < cases:
            left = cases - tally.cases
            generated(world, tally, seed + 2, left, most=8, accesses=ACCESSES[:left])
    return {
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
        "cases": tally.cases,
        "bad_accesses": sum(n for (_, side, _), n in tally.counts.items() if not _legal(side)),
        "legal_twins": sum(n for (_, side, _), n in tally.counts.items() if _legal(side)),
        "kinds_of_access": len(ACCESSES),
        "wrong": len(tally.failures),
        "failures": tally.failures[:20],
        "counts": [[*key, count] for key, count in sorted(tally.counts.items())],
    }


def _legal(side: str) -> bool:
    return side.startswith("legal")


def report(found: dict[str, Any]) -> None:
    """Print the counts, by kind of access and by side."""
    for title, place in (("access", 0), ("side", 1)):
        rows: dict[str, Counter[str]] = {}
        for row in found["counts"]:
            rows.setdefault(row[place], Counter())[row[2]] += row[3]
        outcomes = sorted({outcome for row in rows.values() for outcome in row})
        print(f"{title:36}" + "".join(f"{outcome:>12}" for outcome in outcomes))
        for name, row in sorted(rows.items()):
            print(f"{name:36}" + "".join(f"{row[outcome]:>12}" for outcome in outcomes))
        print()
    for what, problems in found["failures"]:
        print(what, *problems, sep="\n    ")
    print(
        f"{found['cases']} cases in {found['seconds']} s: {found['bad_accesses']} bad accesses, "
        f"{found['legal_twins']} legal twins, {found['wrong']} wrong"
    )


if __name__ == "__main__":
    sys.exit(main())
