"""Policies for task sets on simulated GPUs, beside what was reported of EGS.

Run it: .venv-ray/bin/python contrib/ray/bench/compare_sets.py [--seeds 10] [--instances 1000]
[--exact 40] [--picture FILE] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from task_sets.comparison import compare
from task_sets.figures import draw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=10, help="task sets of each kind")
    parser.add_argument("--instances", type=int, default=0, help="random ones, ours beside EGS")
    parser.add_argument("--exact", type=int, default=0, help="small ones, beside OR-Tools' optima")
    parser.add_argument("--picture", type=Path, help="draw the figures into this file (PNG)")
    parser.add_argument("--json", action="store_true", help="print all as JSON")
    asked = parser.parse_args()
    found = compare(
        asked.seeds, asked.instances, asked.exact,
        said=lambda what: print(f"simulating: {what}", file=sys.stderr, flush=True),
    )  # fmt: skip
    if asked.picture:
        draw(found, asked.picture)
    if asked.json:
        print(json.dumps(found))
    else:
        print_table(found)


def print_table(found: dict[str, Any]) -> None:
    """Print what `gpud_ray.sets.comparison.compare` has found."""
    from rich.console import Console

    console = Console(highlight=False)
    makespans = found["makespans_s"]
    counts = list(makespans)
    table = _table("makespan, simulated s", *(f"{count} tasks" for count in counts))
    for name in next(iter(makespans.values())):
        digits = 3 if name.endswith("(s)") else 1
        table.add_row(name, *(f"{makespans[count][name]:.{digits}f}" for count in counts))
    console.print(table)
    reported = found["reported"]["EGS_percent_of"]
    table = _table("EGS", *(f"% of {name}" for name in reported), "s of 1,000 tasks by beta")
    table.add_row("reported", *("/".join(map(str, row)) for row in reported.values()), "")
    for reading, row in found["readings"].items():
        percents = ("/".join(map(str, row["EGS_percent_of"][name])) for name in reported)
        by_beta = ", ".join(f"{one:.1f}" for one in row["beta_makespan_s"].values())
        table.add_row(reading, *percents, by_beta)
    console.print(table)
    table = _table("100 detections", "s", "without pressure", "peaks", "fails", "reported")
    for parallel, row in found["parallel"].items():
        here = row["assumed"]
        table.add_row(
            f"{parallel} parallel",
            f"{here['makespan_s']:.1f}",
            f"{row['without pressure']['makespan_s']:.1f}",
            f"{here['peak_capsm_percent']} % CapSM, {here['peak_memory_percent']} % memory",
            str(here["out_of_memory"]),
            found["reported"]["parallel"][parallel],
        )
    console.print(table)
    for key, title in (
        ("random_instances", "ours on random instances"),
        ("small_instances", "ours beside the solver's optima"),
    ):
        table = _table(title, "")
        for name, value in found.get(key, {}).items():
            if name != "seeds_worse" or value:
                table.add_row(name.replace("_", " "), str(value))
        if key in found:
            console.print(table)


def _table(*columns: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    return table


if __name__ == "__main__":
    main()
