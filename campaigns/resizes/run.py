"""Random resizing over the whole conformance suite: does every task block run exactly once?

    python -m campaigns.run resizes

Every case that can be resized runs in persistent and in sliced form, checked as the daemon has it,
several at once, with claims of one task block, of several, and in advance, while a seeded generator
shrinks, grows, stops and resumes them. `tests.conformance.stress` describes the checks after every
run and at every pause.
"""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from itertools import cycle
from typing import Any

from campaigns.frame import Campaign, Figures, Plan, together
from gpud.compiler.abi.control_words import Claims
from gpud.device.cpu.device import CPUDevice
from tests.conformance.checked_device import CheckedDevice
from tests.conformance.runner import LoadedCase, headers_installed
from tests.conformance.stress import stress
from tests.conformance.suite import CASES

HOW = (Claims(), Claims(4), Claims(1, 1), Claims(3, 2), Claims())
"""Claim sizes, used in turn; their number differs from that of forms, so each case gets several."""

JOBS = 3
"""That run at once."""


def measure(plan: Plan) -> Figures:
    """Load every case in every form that can be resized, and resize them."""
    with CPUDevice(int(plan.device.removeprefix("cpu:"))) as unchecked:
        device: Any = CheckedDevice(unchecked)
        how = cycle(HOW)
        began = time.monotonic()
        loaded = [
            LoadedCase(device, case, form, claims=next(how))
            for case in CASES
            for form in ("persistent", "sliced")
            if form in case.forms and (headers_installed() or not case.headers)
        ]
        print(f"{len(loaded)} kernels compiled in {time.monotonic() - began:.0f} s", flush=True)
        found = stress(device, loaded, plan.count, seed=plan.seed, jobs=JOBS)
    by_form: Counter[str] = Counter()
    for (_, form), runs in found.runs.items():
        by_form[form] += runs
    return {
        "seed": plan.seed,
        "device": plan.device,
        "cases": len({one.case.name for one in loaded}),
        "kernels": len(loaded),
        "kernels_run": len(found.runs),
        "events": found.events.total(),
        "by_kind": dict(sorted(found.events.items())),
        "by_form": dict(sorted(by_form.items())),
        "task_blocks": found.task_blocks,
        "rests": found.rests,
        "seconds": round(found.seconds, 1),
        "wrong": found.problems,
    }


def report(found: Figures) -> None:
    """Print the figures."""
    rows = {
        "kernels (programs by forms), of them run": f"{found['kernels']}, {found['kernels_run']}",
        "resizes": f"{found['events']:,}",
        **{f"    {kind}": f"{count:,}" for kind, count in found["by_kind"].items()},
        **{f"runs, {form}": f"{count:,}" for form, count in found["by_form"].items()},
        "task blocks counted": f"{found['task_blocks']:,}",
        "stopped jobs checked at rest": f"{found['rests']:,}",
        "seconds": f"{found['seconds']}",
    }
    for name, value in rows.items():
        print(f"{name:<48}{value}")


RESIZES = Campaign(
    "resizes",
    "Random resizes of every kernel of the suite while they run",
    unit="events",
    count=1_000_000,
    few=3_000,
    measure=measure,
    report=report,
    wrong=lambda found: found["wrong"],
    add=partial(
        together,
        sums=("events", "task_blocks", "rests", "seconds"),
        counts=("by_kind", "by_form"),
        joined=("wrong",),
    ),
)
