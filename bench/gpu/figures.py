"""Draws figures of the results of measurements on a GPU, from bench/results/gpu_*.json.

    python bench/gpu/figures.py [--results FOLDER] [--into FOLDER]

Draws a figure for each result that exists and lists those that do not; each figure names the GPU,
driver and date of its results. Uses matplotlib, which the extra ``demo`` installs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu.summary_rows import source

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
INTO = ROOT / "docs" / "images"

Found = Mapping[str, Any]


def main() -> int:
    """Draw all figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--into", type=Path, default=INTO)
    options = parser.parse_args()
    for name, draw in FIGURES.items():
        found = results(options.results, name)
        if not found:
            print(f"gpu_{name}: no results, no figure")
            continue
        path = options.into / f"gpu_{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        save(path, found, draw)
        print(f"wrote {path.name}")
    return 0


def results(folder: Path, name: str) -> list[Found]:
    """Load the result ``name``, or all whose names begin with it, as of co-location."""
    paths = sorted(folder.glob(f"gpu_{name}.json")) or sorted(folder.glob(f"gpu_{name}_*.json"))
    return [json.loads(path.read_text()) for path in paths]


def save(path: Path, found: list[Found], draw: Callable[[Any, list[Found]], None]) -> None:
    """Draw one figure, with the source of its results below."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    draw(axes, found)
    axes.grid(visible=True, alpha=0.3)
    figure.supxlabel(source(found[0]), fontsize=7)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)


def rewrite_cost(axes: Any, found: list[Found]) -> None:
    """Rewritten / native time of each kernel."""
    rows = sorted(found[0]["rows"], key=lambda row: row["rewritten"]["median"])
    for side, mark in zip(found[0]["sides"], "ox+.*", strict=False):
        some = [(row["name"], row[side]["median"]) for row in rows if side in row]
        if some:
            axes.plot(*zip(*some, strict=True), mark, label=side, markersize=4)
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_ylabel("time / native time")
    axes.tick_params(axis="x", rotation=90, labelsize=6)
    axes.set_title("What rewriting costs, by kernel")
    axes.legend()


def release_latency(axes: Any, found: list[Found]) -> None:
    """p99 of the release by length of task blocks, for each side."""
    rows = found[0]["rows"]
    for side in dict.fromkeys(row["side"] for row in rows):
        some = [row for row in rows if row["side"] == side]
        for key, style in (("gone", "o-"), ("first_online", "x--")):
            points = [(row["block_us"], row[key]["p99"]) for row in some if row[key]["count"]]
            if points:
                axes.plot(*zip(*points, strict=True), style, label=f"{side}: {key}", markersize=4)
    lengths = sorted({row["block_us"] for row in rows})
    aims = {row["block_us"]: row["aim_p99_us"] for row in rows}
    axes.plot(lengths, [aims[us] for us in lengths], color="grey", linewidth=0.8, label="aim")
    axes.set(xscale="log", yscale="log", xlabel="task block [us]", ylabel="p99 [us]")
    axes.set_title("Decision to last released block gone, and to first online block")
    axes.legend(fontsize=6, ncols=2)


def colocation(axes: Any, found: list[Found]) -> None:
    """r99 against harvest, a point for each setting of each system."""
    for one in found:
        rows = one["rows"]
        label = rows[0]["system"]
        axes.plot([row["harvest"] for row in rows], [row["r99"] for row in rows], "o", label=label,
                  markersize=4)  # fmt: skip
    axes.axhline(1.05, color="grey", linewidth=0.8)
    axes.axvline(0.95, color="grey", linewidth=0.8)
    axes.set(yscale="log", xlabel="harvest", ylabel="r99 (p99 together / alone)")
    axes.set_title("Online latency against harvested offline work; grey: aims")
    axes.legend(fontsize=7)


def resize(axes: Any, found: list[Found]) -> None:
    """Commanded and observed SMs over time."""
    trace = found[0]["trace"]
    axes.step(trace["ms"], trace["commanded_sms"], where="post", label="commanded", color="grey")
    axes.plot(trace["ms"], trace["observed_sms"], label="observed, blocks / M", linewidth=0.9)
    axes.plot(trace["ms"], trace["sms_with_a_block"], label="SMs with a block", linewidth=0.6)
    axes.set(xlabel="ms", ylabel="SMs")
    axes.set_title("A share stepped under one running kernel")
    axes.legend(fontsize=7)


def shares(axes: Any, found: list[Found]) -> None:
    """Observed CapSM of each job in windows."""
    window = found[0]["window_ms"]
    for number, job in enumerate(found[0]["jobs"]):
        times = [window * index for index in range(len(job["observed"]))]
        label = f"{number + 1}: {job['kind']} {job['share']}"
        (drawn,) = axes.plot(times, job["observed"], label=label, linewidth=0.9)
        axes.axhline(job["allotted"], color=drawn.get_color(), linewidth=0.5, linestyle=":")
    axes.set(xlabel="ms", ylabel="CapSM")
    axes.set_title(f"Shares in windows of {window:g} ms; dotted: allotted")
    axes.legend(fontsize=6, ncols=2)


FIGURES: dict[str, Callable[[Any, list[Found]], None]] = {
    "rewrite_cost": rewrite_cost,
    "release_latency": release_latency,
    "colocation": colocation,
    "resize": resize,
    "shares": shares,
}

if __name__ == "__main__":
    raise SystemExit(main())
