"""``gpud-ray submit``: one kernel from a file, any number of times."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from gpud_client.cli import formatting
from gpud_client.cli.exit_status import FAILED
from gpud_client.cli.kernel_arguments import ArraySpec, parse_argument, parse_dim
from gpud_client.cli.output import JsonOption, emit, say
from gpud_ray.cli.nodes import AddressOption, connect
from gpud_ray.cli.progress import progress

__all__ = ["submit"]

_LOOK_S = 0.2


def submit(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="CUDA C++ or PTX; - reads the standard input.")
    ],
    kernel: Annotated[str, typer.Argument(metavar="KERNEL", help="The kernel to run.")],
    *,
    grid: Annotated[
        str, typer.Option("--grid", "-g", help="How many blocks to run, such as 256 or 16,16,1.")
    ],
    block: Annotated[
        str, typer.Option("--block", "-b", help="How many threads a block has, such as 256.")
    ],
    arg: Annotated[
        list[str] | None,
        typer.Option("--arg", "-a", metavar="VALUE", show_default=False,
                     help="The value of the next parameter, as of gpuctl run; every array is a "
                     "result, too."),
    ] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many items.")] = 1,
    show: Annotated[
        int, typer.Option("--show", min=0, help="Print the first N values of each array.")
    ] = 8,
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Submit a kernel, as one item or as many, and say where they ran."""
    import ray

    import gpud_ray

    source = sys.stdin.read() if str(file) == "-" else file.read_text("utf-8")
    import numpy as np

    arguments = [parse_argument(text) for text in arg or []]
    rng = np.random.default_rng(0)
    call = gpud_ray.KernelCall(
        source=source,
        kernel=kernel,
        grid=parse_dim(grid, "grid"),
        block=parse_dim(block, "block"),
        args=tuple(
            gpud_ray.InOut(one.make(rng)) if isinstance(one, ArraySpec) else one
            for one in arguments
        ),
    )
    connect(address)
    pairs = [gpud_ray.submit(call, report=True) for _ in range(count)]
    with progress("items", count, quiet=as_json) as step:
        waiting = [told for _, told in pairs]
        while waiting:
            _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_LOOK_S)
            step(count - len(waiting))
    reports, failures = [], []
    for _, told in pairs:
        try:
            reports.append(ray.get(told))
        except gpud_ray.ItemFailed as error:
            failures.append(getattr(error, "cause", None) or error)
    first = _first(pairs, show) if reports and not failures else []
    _print(reports, failures, first, as_json)
    if failures:
        raise typer.Exit(FAILED)


def _first(pairs: list[tuple[Any, Any]], show: int) -> list[list[Any]]:
    """Return the first values of the first item's arrays."""
    import ray

    values = ray.get(pairs[0][0])
    arrays = [] if values is None else values if isinstance(values, tuple) else [values]
    return [array.ravel()[:show].tolist() for array in arrays]


def _print(reports: list[Any], failures: list[Any], first: list[list[Any]], as_json: bool) -> None:
    nodes = Counter(report.node for report in reports)
    twice = sum(report.may_have_run_twice for report in reports)
    if as_json:
        emit(
            {
                "done": len(reports),
                "failed": [str(one) for one in failures],
                "may_have_run_twice": twice,
                "nodes": dict(nodes),
                "first": first,
                "items": [
                    {"item": one.item, "node": one.node, "device": one.device,
                     "placed_s": one.placed_s, "ran_s": one.ran_s, "kernel_s": one.kernel_s,
                     "attempts": len(one.attempts)}
                    for one in reports
                ],
            }
        )  # fmt: skip
        return
    for values in first:
        say(" ".join(f"{one:g}" for one in values))
    for failure in failures[:10]:
        print(f"gpud-ray: {failure}", file=sys.stderr)  # noqa: T201
    where = ", ".join(f"{number:,} on {node[:8]}" for node, number in nodes.most_common())
    times = [one.ran_s for one in reports]
    mean = f", {formatting.seconds(sum(times) / len(times))} each" if times else ""
    again = f"; {twice} may have run twice" if twice else ""
    say(f"{len(reports):,} done ({where or 'nowhere'}){mean}, {len(failures):,} failed{again}")
