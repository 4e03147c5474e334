"""The README's table of figures, made of the files under bench/results/.

    python bench/summary.py

Each benchmark has a function here that turns its file into rows; a benchmark without a file has no
row. Figures that miss their aim, and failures, are in the rows like all others. The table is
rewritten between two markers; tests/unit/test_docs.py holds that it is current.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["table", "updated"]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
BEGIN = "<!-- figures: written by bench/summary.py -->\n"
END = "<!-- end of figures -->\n"

Result = dict[str, Any]
Row = tuple[str, str]
"""What was measured, and the figure."""


def main() -> int:
    """Rewrites the README's table."""
    readme = ROOT / "README.md"
    text = readme.read_text()
    new = updated(text)
    if new != text:
        readme.write_text(new)
        print("wrote README.md")
    return 0


def updated(text: str, results: Path = RESULTS) -> str:
    """``text`` with the table between the markers made anew; without results, nothing is there."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError("the text has no markers for the figures")
    return head + BEGIN + table(results) + END + tail


def table(results: Path = RESULTS) -> str:
    """The table of all results that are there, with the machines that they come from."""
    lines: list[str] = []
    machines: dict[str, None] = {}
    for name, (command, rows) in _ROWS.items():
        path = results / f"{name}.json"
        if not path.exists():
            continue
        found: Result = json.loads(path.read_text())
        machine = found.get("machine", {})
        machines[f"{machine.get('cores', '?')} cores of {machine.get('cpu', 'unknown')}"] = None
        made_by = found.get("command", command)
        lines += [f"| {what} | {figure} | `{made_by}` |" for what, figure in rows(found)]
    if not lines:
        return ""
    where = "; ".join(machines)
    head = f"\nMeasured on {where}, which other programs use too: trust ratios, not times.\n"
    return f"{head}\n| what | figure | command |\n| --- | --- | --- |\n" + "\n".join(lines) + "\n\n"


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


def _rewrite_speed(found: Result) -> Iterator[Row]:
    aims = found["aims"]
    for row in found["rows"]:
        cold, cached = row["cold_ms_per_1000_lines"], row["cached_ms"]
        yield (
            f"rewriting {row['name']}, {row['lines']:,} PTX lines, cold",
            f"{cold:.1f} ms per 1,000 lines (aim {aims['cold_ms_per_1000_lines']:g})",
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


_ROWS: dict[str, tuple[str, Callable[[Result], Iterator[Row]]]] = {
    "conformance": ("python bench/bench_conformance.py", _conformance),
    "stress": ("python bench/bench_stress.py", _stress),
    "persistent_cost": ("python bench/bench_persistent_cost.py", _persistent_cost),
    "pocl": ("python bench/bench_pocl.py", _pocl),
    "ptxas_table": ("python bench/bench_ptxas_table.py", _ptxas),
    "rewrite_speed": ("python bench/bench_rewrite_speed.py", _rewrite_speed),
}
"""By the result's file name: the command that writes it and the rows that it gives."""


if __name__ == "__main__":
    sys.exit(main())
