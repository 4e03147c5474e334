"""Generates the README's table of figures from the files under bench/results/.

    python bench/summary.py

Each benchmark has a function here that turns its file into rows; a benchmark without a file has no
row. Figures that miss their aim, and failures, are in the rows like all others. The table is
rewritten between two markers; tests/unit/test_docs.py checks that it is current.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.gpu import summary_rows

__all__ = ["table", "updated"]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
BEGIN = "<!-- figures: written by bench/summary.py -->\n"
END = "<!-- end of figures -->\n"

Result = dict[str, Any]
Row = tuple[str, str]
"""What was measured, and the figure."""


def main() -> int:
    """Rewrite the README's table."""
    readme = ROOT / "README.md"
    text = readme.read_text()
    new = updated(text)
    if new != text:
        readme.write_text(new)
        print("wrote README.md")
    return 0


def updated(text: str, results: Path = RESULTS) -> str:
    """``text`` with a new table between the markers; an empty one without results."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError("the text has no markers for the figures")
    return head + BEGIN + table(results) + END + tail


def table(results: Path = RESULTS) -> str:
    """Return the table of all existing results, with a description of the machines."""
    lines: list[str] = []
    machines: dict[str, None] = {}
    for name, (command, rows_of) in _ROWS.items():
        path = results / f"{name}.json"
        if not path.exists():
            continue
        found: Result = json.loads(path.read_text())
        machine = found.get("machine", {})
        machines[f"{machine.get('cores', '?')} cores of {machine.get('cpu', 'unknown')}"] = None
        made_by = found.get("command", command)
        lines += [f"| {what} | {figure} | `{made_by}` |" for what, figure in rows_of(found)]
    text = ""
    if lines:
        where = "; ".join(machines)
        text = f"\nMeasured on {where}, which other programs use too: trust ratios, not times.\n"
        text += _of(lines)
    for where, own in summary_rows.rows(results).items():
        text += f"\nOn a GPU: {where}.\n"
        text += _of([f"| {what} | {figure} | `{command}` |" for what, figure, command in own])
    return f"{text}\n" if text else ""


def _of(lines: list[str]) -> str:
    return "\n| what | figure | command |\n| --- | --- | --- |\n" + "\n".join(lines) + "\n"


# -- one function a benchmark --------------------------------------------------------------------


def _conformance(found: Result) -> Iterator[Row]:
    verdicts = [verdict for row in found["rows"] for verdict in row["results"].values()]
    bad = [v for v in verdicts if v.split(":")[0] not in ("right", "same bytes", "skipped")]
    cases = sum(bool(row["results"]) for row in found["rows"])
    yield (
        f"conformance: {cases} programs, each in every legal form, against NumPy",
        f"{len(verdicts) - len(bad)} of {len(verdicts)} right",
    )
    same = verdicts.count("same bytes")
    yield "... of these, rewritten forms that must leave the unmodified kernel's bytes", f"{same}"
    claims = [verdict for row in found["rows"] for verdict in row.get("claims", {}).values()]
    if claims:
        ways = max(len(row["claims"]) for row in found["rows"])
        right = sum(verdict.split(":")[0] in ("right", "same bytes") for verdict in claims)
        yield (
            f"... and the persistent form with {ways} other ways to claim in chunks and in advance",
            f"{right} of {len(claims)} right",
        )


def _stress(found: Result) -> Iterator[Row]:
    counted = f"{found['task blocks counted']:,} task blocks counted by the kernels"
    kernels = f"{found['kernels run']} kernels (programs times forms)"
    yield (
        f"stress: {found['events']:,} random resizes of {kernels} while they ran, {counted}",
        f"{found['problems']} problems",
    )


def _ptxas(found: Result) -> Iterator[Row]:
    rows = [row for row in found["rows"] if row["form"] == "persistent"]
    more = [row["after"]["registers"] - row["before"]["registers"] for row in rows]
    targets = ", ".join(found["targets"])
    yield (
        f"rewritten kernels that ptxas {found['ptxas']} assembles, for {targets}",
        f"{len(found['rows'])}, {len(found['failures'])} failures",
    )
    if more:
        yield (
            "registers a thread that the persistent form adds",
            f"median {statistics.median(more):g}, most {max(more)}",
        )
    kept = [row["blocks"] for row in rows if row["arch"] == "sm_90" and "blocks" in row]
    for number, name in ((2, "the loop"), (1, "loop and bounds checks")):
        if kept:
            fewer = sum(one[number] < one[0] for one in kept)
            mean = math.exp(statistics.mean(math.log(one[number] / one[0]) for one in kept))
            yield (
                f"blocks that fit on an SM of sm_90 with {name}, against the unmodified kernel",
                f"fewer in {fewer} of {len(kept)} kernels; geometric mean {mean:.3f}",
            )


def _rewrite_speed(found: Result) -> Iterator[Row]:
    aims = found["aims"]
    for row in found["rows"]:
        cold, bare = row["cold_ms_per_1000_lines"], row["bare_ms_per_1000_lines"]
        cached, aim = row["cached_ms"], f"(aim {aims['cold_ms_per_1000_lines']:g})"
        yield (
            f"rewriting {row['name']}, {row['lines']:,} PTX lines, cold",
            f"{cold:.1f} ms per 1,000 lines; {bare:.1f} without bounds checks and kill polls {aim}",
        )
        yield (
            "... from the cache, a program",
            f"{cached:.2f} ms (aim {aims['cached_ms']:g} for 1,000 lines)",
        )


def _pocl(found: Result) -> Iterator[Row]:
    for math_, mean in found["geometric_means"].items():
        # An empty launch is measured too, but is no kernel that computes something.
        rows = [row for row in found["rows"] if row["math"] == math_ and row["in_mean"]]
        ratios = [row["ratio"]["median"] for row in rows]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}, {sum(r < 1 for r in ratios)} below 1"
        yield (
            f"PoCL's time / the CPU device's, {math_} mathematics, {len(ratios)} kernels",
            f"{mean:.2f} (geometric mean; {spread})",
        )
    if found.get("failures"):
        yield "... kernels that failed", str(len(found["failures"]))


def _persistent_cost(found: Result) -> Iterator[Row]:
    yield "persistent form against unmodified, on the CPU device", found["summary"]


def _service(found: Result) -> Iterator[Row]:
    aims = found["aims"]

    def mid(name: str) -> float:
        return float(found[name]["median"])

    for percent in (50, 99):
        ours, floor = (mid(f"{side}_p{percent}_us") for side in ("gpud", "echo"))
        ratio = mid(f"round_trip_ratio_p{percent}")
        yield (
            f"an empty kernel from `submit` to `result`, p{percent}, beside a bare msgpack echo",
            f"{ours:.0f} us / {floor:.0f} us: {ratio:.2f} (aim {aims['round_trip_ratio']:g})",
        )
    yield (
        "... p50 beside a relay through as many processes that does nothing",
        f"{mid('gpud_p50_us'):.0f} us / {mid('relay_p50_us'):.0f} us: {mid('relay_ratio_p50'):.1f}",
    )
    yield (
        "submissions per second, 64 in flight, beside as many echoes",
        (
            f"{mid('gpud_per_second'):,.0f} / {mid('echo_per_second'):,.0f}: "
            f"{mid('pipelined_ratio'):.3f} (aim {aims['pipelined_ratio']:g})"
        ),
    )
    yield (
        "a sequence of 100 empty kernels, for each",
        f"{mid('sequence_us_a_kernel'):.1f} us (aim {aims['sequence_us_a_kernel']:g})",
    )


def _colocation(found: Result) -> Iterator[Row]:
    names = {"reservations": "gpud", "fifo": "run to completion", "equal": "equal sharing"}
    for row in found["rows"]:
        where = f"online load {row['load']:g}, offline task blocks of {row['block_ms']:g} ms"
        if "r99" not in row:
            yield f"{names[row['policy']]}: {where}", f"wrong: {row['problems'][0]}"
        elif row["block_ms"] == found["aims"]["block_ms"] or row["policy"] == "reservations":
            yield (
                f"{names[row['policy']]}: {where}",
                f"r99 {row['r99']:.2f}, harvest {row['harvest']:.2f}",
            )
    aims = found["aims"]
    yield "... aim of gpud's at 1 ms", f"r99 {aims['r99']:g}, harvest {aims['harvest']:g}"


def _fleet(found: Result) -> Iterator[Row]:
    yield (
        (
            f"{found['clients']} clients attached, {found['submitting']} of them submitting for "
            f"{found['seconds']:.0f} s: jobs lost or wrong"
        ),
        f"{len(found['wrong'])} of {found['jobs']:,}",
    )
    yield (
        "... Jain's fairness index of jobs done, of 8 long jobs' task blocks",
        (
            f"{found['jain_of_jobs']:.3f}, {found['jain_of_long_jobs']:.3f} "
            f"(aim {found['aims']['jain']:g})"
        ),
    )
    yield "... memory of an idle client", f"{found['idle_client_bytes'] / 1024:.1f} KiB"
    yield "... processor time of the front", f"{found['front_cpu_share']:.0%} of a core"


def _launch(found: Result) -> Iterator[Row]:
    rows, aims = found["rows"], found["aims"]
    python = rows["empty job: Python until it is given to an SM"]
    yield (
        "an empty job on the CPU device: Python before native code runs, p50",
        f"{python['p50']:.0f} us (aim {aims['start_us']:g})",
    )
    for blocks in ("1 task block", "64 task blocks"):
        each = rows[f"100 kernels of {blocks}: for each"]
        yield (
            f"a chain of 100 empty kernels of {blocks}, each further one, p50",
            f"{each['p50']:.2f} us (aim {aims['kernel_us']:g})",
        )
    for row in found["releases"]:
        yield (
            (
                "half of the CPU device released, decision to last block gone, task blocks of "
                f"{row['block_us'] / 1e3:.1f} ms"
            ),
            f"p50 {row['p50_us'] / 1e3:.2f} ms, p99 {row['p99_us'] / 1e3:.2f} ms",
        )


def _wakeup_latency(found: Result) -> Iterator[Row]:
    rows = found["rows"]
    chosen, equal, none = (rows[name]["p99_us"] for name in ("nice 10", "normal", "no kernel runs"))
    yield (
        "a byte echoed while SM threads fill every core, p99, beside equal priorities and no load",
        f"{chosen:.0f} us / {equal:.0f} us / {none:.0f} us",
    )


def _scheduler(found: Result) -> Iterator[Row]:
    aims = found["aims"]
    for row in found["decisions"]:
        every = row["kinds"]["all"]
        aim = f", aim {aims['p99_us']:g}" if row["live_jobs"] == aims["live_jobs"] else ""
        yield (
            f"a decision of the scheduler with {row['live_jobs']:,} jobs alive, p50 and p99",
            f"{every['p50_us']:.0f} and {every['p99_us']:.0f} us{aim}",
        )
    replay = found["replay"]
    yield (
        f"a log of {replay['events']:,} events replayed",
        f"{replay['seconds']:.1f} s, {replay['peak_mib']:.0f} MiB",
    )


def _out_of_bounds(found: Result) -> Iterator[Row]:
    kinds = f"{found['kinds_of_access']} kinds of access"
    legal = f"{found['legal_twins']:,} legal ones"
    yield (
        f"out-of-bounds accesses, {kinds}, through the daemon: not contained or wrongly reported",
        f"{found['wrong']} of {found['bad_accesses']:,}, and of {legal}",
    )


def _bounds_checks(found: Result) -> Iterator[Row]:
    aims = {"bounds checks": f" (aim {found['aim']:.2f})"}
    for side, one in found["summary"].items():
        name, worst = one["worst"][0]
        mean = f"geometric mean {one['geometric_mean']:.3f}{aims.get(side, '')}"
        yield (
            f"{side} on the CPU device: time with / without, {one['kernels']} kernels",
            f"{mean}; median {one['ratios']['median']:.3f}, worst {worst:.2f} ({name})",
        )


def _client_kills(found: Result) -> Iterator[Row]:
    back, many, aim = found["back_ms"], found["connections"], found["aims"]["back_ms_p99"]
    yield (
        f"{found['kills']:,} clients killed at random moments: resources back",
        f"p50 {back['p50']:.0f} ms, p99 {back['p99']:.0f} ms (aim {aim:g})",
    )
    wrong, leaks = len(found["wrong"]), len(found["leaks"])
    yield "... survivors' jobs wrong, and resources leaked", f"{wrong}, {leaks}"
    yield f"{many['connections']:,} connections, each", f"{many['kib_of_a_session']:.1f} KiB"


def _host_failures(found: Result) -> Iterator[Row]:
    kills = found["kills"]
    service = kills["service_ms"]
    yield (
        f"{kills['kills']} device hosts killed at random moments under load: jobs again",
        f"after p50 {service['p50'] / 1e3:.1f} s, p99 {service['p99'] / 1e3:.1f} s",
    )
    wrong = len(kills["wrong"])
    yield "... task blocks lost or doubled in jobs that had not begun there", f"{wrong}"


def _fuzz(found: Result) -> Iterator[Row]:
    parts = [
        f"{found[name]['messages']:,} {what}"
        for name, what in (
            ("parser", "to the parser"),
            ("coverage", "guided by coverage"),
            ("live", "to a live daemon"),
        )
        if found.get(name, {}).get("messages")
    ]
    yield (
        f"{found['messages']:,} mutated messages ({', '.join(parts)}): crashes, hangs, growth",
        f"{len(found['problems'])}",
    )


def _soak(found: Result) -> Iterator[Row]:
    growth = ", ".join(
        f"{role} {one['growth_mib']:+.1f} MiB"
        for role, one in found["processes"].items()
        if "growth_mib" in one
    )
    yield (
        f"{found['seconds'] / 60:.0f} minutes with good and hostile clients: problems",
        f"{len(found['problems'])}; last against second quarter: {growth}",
    )


_ROWS: dict[str, tuple[str, Callable[[Result], Iterator[Row]]]] = {
    "conformance": ("python bench/bench_conformance.py", _conformance),
    "colocation": ("python bench/bench_colocation.py", _colocation),
    "service": ("python bench/bench_service.py", _service),
    "fleet": ("python bench/bench_fleet.py", _fleet),
    "stress": ("python bench/bench_stress.py", _stress),
    "persistent_cost": ("python bench/bench_persistent_cost.py", _persistent_cost),
    "pocl": ("python bench/bench_pocl.py", _pocl),
    "ptxas_table": ("python bench/bench_ptxas_table.py", _ptxas),
    "bounds_checks": ("python bench/bench_bounds_checks.py", _bounds_checks),
    "out_of_bounds": ("python bench/bench_out_of_bounds.py", _out_of_bounds),
    "client_kills": ("python bench/bench_client_kills.py", _client_kills),
    "host_failures": ("python bench/bench_host_failures.py", _host_failures),
    "fuzz": ("python bench/bench_fuzz.py", _fuzz),
    "soak": ("python bench/bench_soak.py", _soak),
    "launch": ("python bench/bench_launch.py", _launch),
    "wakeup_latency": ("python bench/bench_wakeup_latency.py", _wakeup_latency),
    "scheduler": ("python bench/bench_scheduler.py", _scheduler),
    "rewrite_speed": ("python bench/bench_rewrite_speed.py", _rewrite_speed),
}
"""By the result's file name: the command that writes it and the rows that it gives."""


if __name__ == "__main__":
    sys.exit(main())
