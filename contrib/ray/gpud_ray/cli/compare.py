"""The command ``gpud-ray compare``."""

from __future__ import annotations

import json
import sys
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from gpud_ray.cli.progress import progress

__all__ = ["compare", "print_table"]


def compare(
    picture: Annotated[
        Path | None, typer.Option(help="Draw the figures into this file (PNG).")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Task sets of each kind.")] = 10,
    instances: Annotated[
        int, typer.Option(min=0, help="Compare with EGS on so many random instances, too.")
    ] = 0,
    exact: Annotated[
        int, typer.Option(min=0, help="Compare with OR-Tools' optima of so many small sets, too.")
    ] = 0,
    readings: Annotated[
        bool, typer.Option("--readings", help="Simulate other readings of the source, too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all as JSON.")] = False,
) -> None:
    """Compare policies for task sets on simulated GPUs, beside what was reported of EGS."""
    from gpud_ray.sets.comparison import compare as run

    steps = 4 + readings + bool(instances) + bool(exact)
    quiet = not sys.stderr.isatty()
    with progress("simulating", steps, quiet=quiet) as show:
        begun = count()

        def said(what: str) -> None:
            show(next(begun))
            if quiet:
                typer.echo(f"simulating: {what}", err=True)

        found = run(seeds, instances, exact, readings=readings, said=said)
    if picture is not None:
        from gpud_ray.sets.figures import draw

        draw(found, picture)
        typer.echo(f"wrote {picture}", err=True)
    if as_json:
        typer.echo(json.dumps(found))
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
    table = _table("EGS in %; (reported)", *(f"{count} tasks" for count in counts))
    for name, row in found["EGS_percent_of"].items():
        reported = found["reported"]["EGS_percent_of"].get(name, ("-",) * len(counts))
        cells = [f"{here} ({there})" for here, there in zip(row, reported, strict=True)]
        table.add_row(f"of {name}", *cells)
    console.print(table)
    table = _table("EGS, 1,000 tasks", "simulated s", "one draw after another")
    for beta, makespan_s in found["beta_makespan_s"].items():
        in_rounds_s = found["beta_in_rounds_makespan_s"][beta]
        table.add_row(f"beta {beta}", f"{makespan_s:.1f}", f"{in_rounds_s:.1f}")
    console.print(table)
    if "readings" in found:
        names = list(found["reported"]["EGS_percent_of"])
        table = _table("reading", *(f"% of {name}" for name in names), "s by beta")
        for reading, row in found["readings"].items():
            percents = ("/".join(map(str, row["EGS_percent_of"][name])) for name in names)
            by_beta = " ".join(f"{one:.1f}" for one in row["beta_makespan_s"].values())
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
