"""Out-of-bounds accesses: is each one contained and reported, and no other session's memory hit?

    python -m campaigns.run out_of_bounds

An attacker's session lies between two neighbours' on one daemon. Generated kernels make one bad
access each: every kind of access of PTX that the device runs, on every side of the attacker's
range, by pointers that are computed, given, or loaded from memory, in straight code, loops,
functions and behind barriers, in all forms. Each case must end as `IllegalAddress` with the
address, the instruction and its line, the task block and thread, and the nearest array; nothing may
be stored after the bad access; and every byte of both neighbours' memory is compared, allocated or
not. One case in ten is a twin whose accesses are legal, such as the last bytes of the arena, and
must run.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from campaigns.frame import Campaign, Figures, together
from campaigns.out_of_bounds.accesses import ACCESSES
from campaigns.out_of_bounds.affine import affine
from campaigns.out_of_bounds.campaign import Tally, generated
from campaigns.out_of_bounds.world import World
from campaigns.out_of_bounds.written import written

ALONE_PART, WRITTEN_PART = 0.2, 0.1
"""Shares of the cases: kernels with one kind of access each, and kernels in CUDA C++. Somewhat less
than another tenth are addresses that wrap around between threads."""


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
    print(
        f"{found['cases']} cases in {found['seconds']} s: {found['bad_accesses']} bad accesses, "
        f"{found['legal_twins']} legal twins, {found['wrong']} wrong"
    )


def added(past: Figures, found: Figures) -> Figures:
    """Return the figures of two runs as those of one."""
    sums = ("seconds", "cases", "bad_accesses", "legal_twins", "wrong")
    both = together(past, found, sums=sums, joined=("failures",))
    rows: Counter[tuple[str, str, str]] = Counter()
    for access, side, outcome, count in (*past["counts"], *found["counts"]):
        rows[access, side, outcome] += count
    both["counts"] = [[*key, count] for key, count in sorted(rows.items())]
    return both


OUT_OF_BOUNDS = Campaign(
    "out_of_bounds",
    "Out-of-bounds accesses, each to be contained and reported",
    unit="cases",
    count=11_200,  # one in ten is legal, so that 10,000 are not
    few=500,
    measure=lambda plan: measure(plan.device, plan.count, plan.seed),
    report=report,
    wrong=lambda found: [f"{what}: {'; '.join(problems)}" for what, problems in found["failures"]],
    add=added,
    device="cpu:1",
    seed=5,
)
