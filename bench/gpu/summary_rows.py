"""Results of measurements on a GPU as rows of the page of figures.

One function for each kind of result; it takes what `bench.gpu.record.keep` wrote. Figures that miss
their aim have rows like all others. A benchmark without a file has no row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["Row", "rows", "source"]

Result = dict[str, Any]
Row = tuple[str, str, str]
"""What was measured, the figure, and the command."""


def rows(results: Path) -> dict[str, list[Row]]:
    """Return the rows of all existing results, by where and when they were measured."""
    found: dict[str, list[Row]] = {}
    for pattern, rows_of in _ROWS.items():
        for path in sorted(results.glob(f"gpu_{pattern}.json")):
            result: Result = json.loads(path.read_text())
            name = path.stem.removeprefix("gpu_")
            own = found.setdefault(source(result), [])
            cut = "" if result.get("complete", True) else ", so far"
            own += [
                (what + cut, figure, f"make {_target(name)}")
                for what, figure in rows_of(name, result)
            ]
    return found


def source(found: Mapping[str, Any]) -> str:
    """Return the GPU, the driver and the date of results."""
    return f"{found['gpu']}, driver {found['driver']}, {found['date'][:10]}"


def _tests(name: str, found: Result) -> Iterator[tuple[str, str]]:
    bad = found["failed"] + found["error"]
    yield (
        f"tests on the GPU, {name.removeprefix('tests_')}: passed, failed, skipped",
        f"{found['passed']}, {bad}, {found['skipped']}",
    )


def _sanitize(name: str, found: Result) -> Iterator[tuple[str, str]]:
    tool = name.split("_")[1]
    verdict = "clean" if found["status"] == 0 else f"ended with {found['status']}"
    yield f"compute-sanitizer {tool}, rewritten suite, part {found['part']}", verdict


def _waits(_: str, found: Result) -> Iterator[tuple[str, str]]:
    if "sight_us" in found:
        yield "store of the host to a block's answer, p50 in us", f"{found['sight_us']['p50']:.1f}"
    for key, what in (
        ("calls", "calls of the driver that wait for a kernel that runs"),
        ("calls_full", "... that wait for one on all SMs"),
        ("launches", "... launches on other streams that it holds up"),
    ):
        if key in found:
            waiting = [name for name, one in found[key].items() if one["waits"]]
            yield what, "; ".join(waiting) or "none"


def _load_beside(_: str, found: Result) -> Iterator[tuple[str, str]]:
    for row in found["rows"]:
        verdict = row.get("error") or ("waits" if row["waits"] else "does not wait")
        yield (
            f"load of {row['load']} beside a kernel, {row['beside']}",
            f"{verdict}, {row['us']:,.0f} us; another thread's call {row['other_call_us']:,.0f} us",
        )


def _machine(_: str, found: Result) -> Iterator[tuple[str, str]]:
    cold, warm = (found[f"clocks_mhz_{when}"].get("sm", "?") for when in ("idle", "warm"))
    yield "NVRTC; SM clock idle, warm", f"{found['nvrtc']}; {cold}, {warm} MHz"


def _rewrite_cost(_: str, found: Result) -> Iterator[tuple[str, str]]:
    if not found["kernels"]:
        return
    aims = found["aims"]
    for side, one in found["sides"].items():
        aimed = side == "rewritten"
        aim = f" (aims {aims['geometric_mean']:g}, {aims['p95']:g})" if aimed else ""
        worst, ratio = one["worst"]
        yield (
            f"{side} / native time, {one['kernels']} kernels of {found['from_us']:g} us and more",
            (
                f"geometric mean {one['geometric_mean']:.3f}, 95th percentile "
                f"{one['p95']:.3f}{aim}; worst {ratio:.2f} ({worst})"
            ),
        )
    if found["wrong"]:
        yield "... kernels that left other bytes", str(len(found["wrong"]))


def _release_latency(_: str, found: Result) -> Iterator[tuple[str, str]]:
    for row in found["rows"]:
        gone, first = row["gone"], row["first_online"]
        said = []
        if gone["count"]:
            aim = row["aim_p99_us"]
            said.append(f"last block gone p50 {gone['p50']:.1f}, p99 {gone['p99']:.1f} us"
                        f" (aim {_aim(row)}{aim:.1f})")  # fmt: skip
        if first["count"]:
            said.append(f"first online block p50 {first['p50']:.1f}, p99 {first['p99']:.1f} us")
        yield (
            (f"half of the device released, {row['side']}, task blocks of {row['block_us']:g} us"),
            "; ".join(said) or "nothing seen",
        )


def _aim(row: Result) -> str:
    """Return the aim for p50, if there is one, in front of the one for p99."""
    aim = row.get("aim_p50_us")
    return "" if aim is None else f"{aim:.1f}, "


def _launch_cost(_: str, found: Result) -> Iterator[tuple[str, str]]:
    for count in dict.fromkeys(row["kernels"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["kernels"] == count]
        yield (
            f"a request of {count} kernels of 20 us alone: begun, over, p50",
            "; ".join(
                f"{row['side']} {row['begun_us']['p50']:.1f}, {row['over_us']['p50']:.0f} us"
                for row in rows
            ),
        )


def _colocation(name: str, found: Result) -> Iterator[tuple[str, str]]:
    what = f"co-location, {name.removeprefix('colocation_')}: {len(found['rows'])} cells"
    if "r99_mean" in found:
        yield (
            what,
            (
                f"r99 geometric mean {found['r99_mean']:.3f}, worst {found['r99_worst']:.3f}, "
                f"against a native graph alone {found['r99_native_mean']:.3f}; least harvest "
                f"{found['harvest_least']:.2f} (aims of gpud's 1.05 for the mean, 0.90)"
            ),
        )
        yield (
            "... added to each kernel of a request alone, worst",
            f"{found['added_us_worst']:.1f} us (aim 10)",
        )
    if "r99_long_worst" in found:
        yield (
            "... beside task blocks of 5 ms: worst r99",
            f"{found['r99_long_worst']:.2f} (aim 1.1, with SMs of its own)",
        )


def _resize(_: str, found: Result) -> Iterator[tuple[str, str]]:
    slowest = max((one for one in found["settled_us"].values() if one["count"]),
                  key=lambda one: one["p99"], default=None)  # fmt: skip
    settled = "" if slowest is None else f"; settled, slowest step: p99 {slowest['p99']:.0f} us"
    yield (
        f"{found['steps']} steps of a share under one kernel: task blocks lost, never settled",
        f"{found['lost']}, {found['never_settled']}{settled}",
    )


def _random_resizes(_: str, found: Result) -> Iterator[tuple[str, str]]:
    yield (
        (
            f"{found['events']:,} random resizes, {found['kernels_run']} kernels, "
            f"{found['task_blocks']:,} task blocks: problems"
        ),
        str(len(found["problems"])),
    )


def _shares(_: str, found: Result) -> Iterator[tuple[str, str]]:
    for kind in dict.fromkeys(job["kind"] for job in found["jobs"]):
        jobs = [job for job in found["jobs"] if job["kind"] == kind]
        yield (
            (
                f"{len(jobs)} {kind} jobs, share in windows of {found['window_ms']:g} ms against "
                "what was allotted"
            ),
            (
                f"off by {max(job['error_p50'] for job in jobs):.1%} in the median window, "
                f"{max(job['error_p99'] for job in jobs):.1%} at p99 (worst job)"
            ),
        )


def _lanes(_: str, found: Result) -> Iterator[tuple[str, str]]:
    for row in found["rows"]:
        if row["row"] == "launches":
            trips, submit = row["round_trip_us"], row["submit_us"]
            yield (
                "a lane's round trip, beside a bare echo: p50, p99; one submit, launches a second",
                (
                    f"{trips['lane']['p50']:.0f}, {trips['lane']['p99']:.0f} us beside "
                    f"{trips['echo']['p50']:.0f}, {trips['echo']['p99']:.0f} (aims: 1, 2 x); "
                    f"{submit['p50']:.1f} us (aim 4), {row['launches_a_second']:,.0f} (aim 150,000)"
                ),
            )
        elif row["row"] == "wake":
            first = row["first_block_us"]
            yield (
                f"an idle lane's first block, offline blocks of {row['block_ms']:g} ms",
                f"p50 {first['p50']:.0f}, p99 {first['p99']:.0f} us after its record",
            )
        elif row["row"] == "requests":
            yield (
                (
                    f"requests in a lane at load {row['load']:g}, offline blocks of "
                    f"{row['block_ms']:g} ms"
                ),
                (
                    f"r99 {row['r99']:.3f}, harvest {row['harvest']:.2f} (aims 1.15 at 1 ms, "
                    "1.1 at 0.1 ms; 0.95)"
                ),
            )


def _region_moves(_: str, found: Result) -> Iterator[tuple[str, str]]:
    for row in found["rows"]:
        yield (
            f"{row['bytes'] >> 20} MiB that a program keeps: to host memory and back, of a copy",
            (
                f"{row['leave_of_copy']:.2f} ({row['leave_gb_s']:.1f} GB/s), "
                f"{row['come_of_copy']:.2f} ({row['come_gb_s']:.1f} GB/s)"
            ),
        )


_ROWS: dict[str, Callable[[str, Result], Iterator[tuple[str, str]]]] = {
    "tests_*": _tests,
    "sanitize_*": _sanitize,
    "machine": _machine,
    "waits": _waits,
    "load_beside": _load_beside,
    "rewrite_cost": _rewrite_cost,
    "release_latency": _release_latency,
    "launch_cost": _launch_cost,
    "colocation_*": _colocation,
    "resize": _resize,
    "random_resizes": _random_resizes,
    "shares": _shares,
    "lanes": _lanes,
    "region_moves": _region_moves,
}
"""By the pattern of a result's name."""


def _target(name: str) -> str:
    """Return the Makefile's target that writes a result."""
    kind, _, rest = name.partition("_")
    if kind == "tests":
        return f"gpu-test-{rest}"
    if kind == "sanitize":
        return f"gpu-sanitize-{rest.replace('_', '-')}"
    return f"gpu-bench-{f'colocation-{rest}' if kind == 'colocation' else name}"
