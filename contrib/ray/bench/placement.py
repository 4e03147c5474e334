"""Show 1: items on four unequal nodes, by idle rates and by what people do without; in virtual
time.

Two tables: how well each reading of F predicts the throughput that items then reach; and makespan
(all items at once) and time of an item (they come one by one, at 70 % load) of each way to place
them. All with the default settings.

Run it: .venv-ray/bin/python contrib/ray/bench/placement.py [--items 2000] [--seeds 3]
[--only NAME] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean

from placing.comparison import BASELINES, predictions, run_baseline, run_idle_rate

from gpud_ray.placement.settings import Settings

LOAD = 0.7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", help="ways whose name has this, and no predictions")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    told = {
        "items": asked.items,
        "seeds": asked.seeds,
        "predictions": {} if asked.only else predicted(asked.items, asked.seeds),
        "placement": placed(asked.items, asked.seeds, asked.only or ""),
    }
    if asked.json:
        asked.json.write_text(json.dumps(told, indent=1) + "\n", "utf-8")


def predicted(count: int, seeds: int) -> dict[str, float]:
    runs = [predictions(count, seed, LOAD) for seed in range(seeds)]
    means = {name: mean(run[name] for run in runs) for name in runs[0]}
    print("\nHow well F predicts the throughput that an item then reaches (rank correlation)\n")
    for name, value in sorted(means.items(), key=lambda one: -one[1]):
        print(f"  {value:6.3f}  {name}")
    return means


def placed(count: int, seeds: int, only: str) -> dict[str, dict[str, float]]:
    ways: dict[str, Callable[[int, float | None], dict[str, float]]] = {
        "idle rate": _idle_rate(Settings(), count),
        "idle rate, unused bandwidth": _idle_rate(Settings(memory="bandwidth"), count),
        "idle rate, all given out at once": _idle_rate(Settings(in_flight_per_gpu=0), count),
    }
    for name in BASELINES:
        ways[name] = partial(_baseline, name, count)
    print(f"\n{count} items, mean of {seeds} seeds: all at once | one by one at {LOAD:.0%} load\n")
    print(f"  {'makespan':>9} {'items/s':>8} | {'mean':>7} {'p99':>8}")
    rows: dict[str, dict[str, float]] = {}
    for name, run in ways.items():
        if only not in name:
            continue
        burst = [run(seed, None) for seed in range(seeds)]
        stream = [run(seed, LOAD) for seed in range(seeds)]
        rows[name] = {
            "makespan_s": _mean(burst, "makespan_s"),
            "items_per_s": _mean(burst, "items_per_s"),
            "mean_s": _mean(stream, "mean_s"),
            "p99_s": _mean(stream, "p99_s"),
        }
        row = rows[name]
        print(
            f"  {row['makespan_s']:7.1f} s {row['items_per_s']:8.2f} | {row['mean_s']:5.2f} s "
            f"{row['p99_s']:6.1f} s  {name}",
            flush=True,
        )
    return rows


def _idle_rate(settings: Settings, count: int) -> Callable[[int, float | None], dict[str, float]]:
    return lambda seed, load: run_idle_rate(settings, count, seed, load)


def _baseline(name: str, count: int, seed: int, load: float | None) -> dict[str, float]:
    return run_baseline(name, count, seed, load)


def _mean(runs: list[dict[str, float]], name: str) -> float:
    return mean(run[name] for run in runs)


if __name__ == "__main__":
    main()
