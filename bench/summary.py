"""Generates the tables of figures from the files under bench/results/.

    python bench/summary.py

docs/reference/figures.md has all of them, README.md the few that tell whether gpud is of use. A
benchmark without a file has no row. tests/unit/test_docs.py checks that both are current.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import headlines
from bench import summary_rows as rows
from bench.gpu import summary_rows as gpu_rows
from bench.summary_rows import Result, Row

__all__ = ["page", "readme"]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "reference" / "figures.md"
README = ROOT / "README.md"
BEGIN = "<!-- figures: written by bench/summary.py -->\n"
END = "<!-- end of figures -->\n"

HEAD = """\
# Figures

<!-- Written by bench/summary.py from bench/results/: run the benchmarks. -->

What the benchmarks measured, each row with the command that made it. The same commands write the
details under `bench/results/`; `python bench/summary.py` makes this page from those files. Aims
that are missed are printed like those that are met.

Shares, co-location, workloads, killed clients, hostile rings and all of "Launches" but the CUDA
device were measured with this version; all else before its last changes, among them offline jobs'
shares by weight.

Co-location has two repetitions, whose r99 differ by up to 2.4 in a lane beside blocks of 0.1 ms
and by 1.5 at most elsewhere (in ratio): the slowest of a few hundred requests decide.

*r99* is the 99th percentile of the time of online requests beside offline work, divided by that of
the same requests alone. *Harvest* is the offline work done, divided by what the time that online
requests leave would allow.
"""


class Benchmark(NamedTuple):
    """A file of results, by its name, and what its rows are made by."""

    name: str
    command: str
    rows_of: Callable[[Result], Iterator[Row]]


def main() -> int:
    """Rewrite both tables."""
    for path, text in ((PAGE, page()), (README, readme(README.read_text()))):
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")
    return 0


def page(results: Path = RESULTS) -> str:
    """Return the page of all figures, with a description of the machines."""
    sections: list[str] = []
    machines: dict[str, None] = {}
    for title, benchmarks in _SECTIONS.items():
        lines = []
        for benchmark in benchmarks:
            result = _result(benchmark.name, results)
            if result is None:
                continue
            machines[_machine(result)] = None
            command = result.get("command", benchmark.command)
            lines += [
                f"| {what} | {figure} | `{command}` |" for what, figure in benchmark.rows_of(result)
            ]
        if lines:
            sections.append(_section(title, lines))
    text = HEAD
    if machines:
        where = "; ".join(machines)
        text += f"\nMeasured on {where}, which other programs use too: trust ratios, not times.\n"
    for where, own in gpu_rows.rows(results).items():
        lines = [f"| {what} | {figure} | `{command}` |" for what, figure, command in own]
        sections.append(_section(f"On a GPU: {where}", lines))
    return text + "".join(sections)


def readme(text: str, results: Path = RESULTS) -> str:
    """Return ``text`` with the few figures between its markers; none without results."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError("the text has no markers for the figures")
    lines = []
    for name, rows_of in _HEADLINES.items():
        result = _result(name, results)
        if result is not None:
            lines += [f"| {what} | {figure} | {aim} |" for what, figure, aim in rows_of(result)]
    table = "\n| what | figure | aim |\n| --- | --- | --- |\n" + "\n".join(lines) + "\n\n"
    return head + BEGIN + (table if lines else "") + END + tail


def _result(name: str, results: Path) -> Result | None:
    path = results / f"{name}.json"
    if not path.exists():
        return None
    result: Result = json.loads(path.read_text())
    return result


def _machine(result: Result) -> str:
    parts = [result, *(part for part in result.values() if isinstance(part, dict))]
    machine: Result = next((part["machine"] for part in parts if "machine" in part), {})
    return f"{machine.get('cores', '?')} cores of {machine.get('cpu', 'unknown')}"


def _section(title: str, lines: list[str]) -> str:
    table = "| what | figure | command |\n| --- | --- | --- |\n" + "\n".join(lines)
    return f"\n## {title}\n\n{table}\n"


def _campaign(name: str) -> str:
    return f"python -m campaigns.run {name}"


_SECTIONS = {
    "Are results right?": (
        Benchmark("conformance", "python bench/bench_conformance.py", rows.conformance),
        Benchmark("resizes", _campaign("resizes"), rows.resizes),
    ),
    "Sharing": (
        Benchmark("colocation", "python bench/bench_colocation.py", rows.colocation),
        Benchmark("fleet", "python bench/bench_fleet.py", rows.fleet),
        Benchmark("workloads", "python bench/bench_workloads.py", rows.workloads),
        Benchmark("scheduler", "python bench/bench_scheduler.py", rows.scheduler),
        Benchmark("tasks_replay", "python bench/bench_tasks.py replay", rows.tasks_replay),
        Benchmark("tasks_search", "python bench/bench_tasks.py search", rows.tasks_search),
        Benchmark("tasks_queue", "python bench/bench_tasks.py queue", rows.tasks_queue),
    ),
    "Launches": (
        Benchmark("service", "python bench/bench_service.py", rows.service),
        Benchmark("launch", "python bench/bench_launch.py", rows.launch),
        Benchmark("launch_path", "python bench/bench_launch_path.py", rows.launch_path),
        Benchmark("cuda_host", "python bench/bench_cuda_host.py", rows.cuda_host),
        Benchmark("lane", "python bench/bench_lane.py", rows.lane),
        Benchmark("lane_wake", "python bench/bench_lane_wake.py", rows.lane_wake),
        Benchmark("programs", "python bench/bench_programs.py", rows.programs),
    ),
    "Rewritten kernels": (
        Benchmark("persistent_cost", "python bench/bench_persistent_cost.py", rows.persistent_cost),
        Benchmark("bounds_checks", "python bench/bench_bounds_checks.py", rows.bounds_checks),
        Benchmark("ptxas_table", "python bench/bench_ptxas_table.py", rows.ptxas),
        Benchmark("rewrite_speed", "python bench/bench_rewrite_speed.py", rows.rewrite_speed),
        Benchmark("compile_time", "python bench/bench_compile_time.py", rows.compile_time),
    ),
    "Faults": (
        Benchmark("out_of_bounds", _campaign("out_of_bounds"), rows.out_of_bounds),
        Benchmark("client_kills", _campaign("client_kills"), rows.client_kills),
        Benchmark("lane_kills", _campaign("lane_kills"), rows.lane_kills),
        Benchmark("rings", _campaign("rings"), rows.rings),
        Benchmark("host_failures", _campaign("host_failures"), rows.host_failures),
        Benchmark("fuzz", _campaign("fuzz"), rows.fuzz),
        Benchmark("soak", _campaign("soak"), rows.soak),
        Benchmark("task_kills", _campaign("task_kills"), rows.task_kills),
    ),
}

_HEADLINES: dict[str, Callable[[Result], Iterator[headlines.Headline]]] = {
    "colocation": headlines.colocation,
    "conformance": headlines.conformance,
    "resizes": headlines.resizes,
    "bounds_checks": headlines.bounds_checks,
    "service": headlines.service,
}
"""What the README shows: by the result's file name."""


if __name__ == "__main__":
    sys.exit(main())
