"""Results of benchmarks as rows of the README's table: the few that tell whether gpud is of use."""

from __future__ import annotations

from collections.abc import Iterator

from bench.summary_rows import Result
from bench.summary_rows import conformance as conformance_rows

Headline = tuple[str, str, str]
"""What was measured, the figure, and the aim."""


def colocation(result: Result) -> Iterator[Headline]:
    aims = result["aims"]
    ours, fifo = (
        next(
            row
            for row in result["rows"]
            if (row["policy"], row["load"], row["block_ms"]) == (policy, 0.5, aims["block_ms"])
        )
        for policy in ("reservations", "fifo")
    )
    yield (
        "online requests for half of the device's time, beside offline work: p99 / p99 alone",
        f"{ours['r99']:.3f} (run to completion: {fifo['r99']:.0f})",
        _aim(aims["r99"], met=ours["r99"] <= aims["r99"]),
    )
    yield (
        "offline work done / what the time that they leave would allow",
        f"{ours['harvest']:.2f} (run to completion: {fifo['harvest']:.2f})",
        _aim(aims["harvest"], met=ours["harvest"] >= aims["harvest"]),
    )


def conformance(result: Result) -> Iterator[Headline]:
    what, figure = next(conformance_rows(result))
    yield what, figure, "all"


def resizes(result: Result) -> Iterator[Headline]:
    yield (
        f"{result['events']:,} random resizes while kernels ran: task blocks lost or run twice",
        f"{len(result['wrong'])}",
        "0",
    )


def bounds_checks(result: Result) -> Iterator[Headline]:
    one = result["summary"]["bounds checks"]
    yield (
        f"bounds checks: time with / without, geometric mean of {one['kernels']} kernels",
        f"{one['geometric_mean']:.3f}",
        _aim(result["aim"], met=one["geometric_mean"] <= result["aim"]),
    )


def service(result: Result) -> Iterator[Headline]:
    ratio, aim = result["round_trip_ratio_p50"]["median"], result["aims"]["round_trip_ratio"]
    yield (
        "an empty kernel from `submit` to `result` / a bare echo through a socket, p50",
        f"{ratio:.1f} ({result['gpud_p50_us']['median']:.0f} us)",
        _aim(aim, met=ratio <= aim),
    )


def _aim(aim: float, *, met: bool) -> str:
    return f"{aim:g}" if met else f"{aim:g}, missed"
