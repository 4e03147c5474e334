"""What twenty training loops were found to need in their first iteration, beside what they need.

    python bench/bench_learned_sizes.py

Each loop is a trace of allocations (`tests.support.allocation_trace`): what it keeps, and temporary
arrays with their lives; every other one keeps what it frees until its iteration ends, as frameworks
do that cache. It opens a workload without sizes; the trace itself says how many bytes live at once.
Sizes are whole pages, so a page above is no error. Writes bench/results/learned_sizes.json.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import gpud_client as gc
from bench.harness.results import keep
from tests.support.allocation_trace import run_trace, trace

TRACES = 20
PAGE_BYTES = 4096
MOST = 1.05


def learned(gpu: Any, seed: int) -> dict[str, int]:
    """Run the first iteration of a loop; return its needs and what was learned of them."""
    keeps, lives = trace(seed)
    with gpu.workload(offset=0) as work:
        kept = [work.zeros(size, np.uint8) for size in keeps]
        with work.iteration() as turn:
            temporary = run_trace(turn, lives)
        del kept
        return {
            "seed": seed,
            "persistent": sum(-(-size // 256) * 256 for size in keeps),
            "learned_persistent": work.persistent,
            "temporary": temporary,
            "learned_temporary": work.temporary,
        }


def main() -> int:
    """Measure, print and write the results; returns 1 if a size is wrong."""
    with gc.local("cpu:1", memory="64MiB") as gpu:
        rows = [learned(gpu, seed) for seed in range(TRACES)]
    print(f"{'trace':>5}{'persists':>12}{'learned':>12}{'temporary':>12}{'learned':>12}")
    wrong = []
    for row in rows:
        print(f"{row['seed']:5}" + "".join(f"{row[name]:12,}" for name in list(row)[1:]))
        for kind in ("persistent", "temporary"):
            most = MOST * row[kind] + PAGE_BYTES
            if not row[kind] <= row[f"learned_{kind}"] <= most:
                wrong.append((row["seed"], kind))
    print("too small, or more than 5 % and a page above:", wrong or "none")
    keep("learned_sizes", {"traces": rows, "wrong": wrong})
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
