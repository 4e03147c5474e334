"""Draws what `comparison` found: makespans, beta, parallel tasks and use over time.

Drawn with matplotlib, which the extra ``figures`` installs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpud.errors import MissingDependency

__all__ = ["draw"]

COLOURS = {
    "greedy": "#9a9a9a", "MCT": "#edae49", "Min-min": "#66a182", "Max-min": "#b0c4b1",
    "EGS": "#2e86ab", "gpud": "#d1495b",
}  # fmt: skip
_INK, _FAINT = "#222222", "#8a8a8a"


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Write the picture as PNG.

    Args:
        found: what `comparison.compare` returned.
        path: the file to write.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        raise MissingDependency("matplotlib", extra="demo") from None
    mpl.use("agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.edgecolor": _FAINT, "axes.linewidth": 0.6})
    figure = plt.figure(figsize=(12, 9), layout="constrained")
    grid = figure.add_gridspec(3, 3, width_ratios=(2.2, 1, 1))
    bars = figure.add_subplot(grid[0, 0])
    _makespans(bars, found["makespans_s"])
    _percent(figure.add_subplot(grid[0, 1:]), found)
    _beta(figure.add_subplot(grid[1, 0]), found)
    _parallel(figure.add_subplot(grid[1, 1:]), found["parallel"])
    first = None
    for row, (what, label) in enumerate((("capsm", "CapSM used"), ("memory", "memory used"))):
        axis = figure.add_subplot(grid[2, 0] if row == 0 else grid[2, 1:], sharex=first)
        first = first or axis
        _use(axis, found["use"], what, label)
    handles, labels = bars.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels), frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _bare(axis: Any, title: str) -> None:
    axis.set_title(title, loc="left", fontweight="bold", color=_INK, fontsize=10)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _makespans(axis: Any, makespans: Mapping[int, Mapping[str, float]]) -> None:
    counts = list(makespans)
    width = 0.8 / len(COLOURS)
    for place, (name, colour) in enumerate(COLOURS.items()):
        at = [index + (place - len(COLOURS) / 2 + 0.5) * width for index in range(len(counts))]
        axis.bar(at, [makespans[n][name] for n in counts], width, color=colour, label=name)
    for index, count in enumerate(counts):
        bound = makespans[count]["lower bound"]
        axis.plot([index - 0.42, index + 0.42], [bound, bound], color=_INK, linewidth=0.8)
    axis.set_xticks(range(len(counts)), [f"{count} tasks" for count in counts])
    axis.set_ylabel("makespan, simulated s")
    _bare(axis, "Matrix products on 8 GPUs; the line is the lower bound")


def _percent(axis: Any, found: Mapping[str, Any]) -> None:
    counts = list(found["makespans_s"])
    for name, reported in found["reported"]["EGS_percent_of"].items():
        axis.plot(counts, reported, "o--", color=COLOURS[name], markersize=4, linewidth=0.9)
        here = next(iter(found["readings"].values()))["EGS_percent_of"][name]
        axis.plot(counts, here, "o-", color=COLOURS[name], markersize=4)
    axis.set_xticks(counts)
    axis.set_xlabel("tasks")
    axis.set_ylim(0, 100)
    axis.set_ylabel("EGS in % of each")
    _bare(axis, "EGS: here (solid) and as reported (dashed)")


def _beta(axis: Any, found: Mapping[str, Any]) -> None:
    most_s = 0.0
    for line, (reading, row) in zip(("o-", "o:", "o--"), found["readings"].items(), strict=True):
        by_beta = row["beta_makespan_s"]
        axis.plot(list(by_beta), list(by_beta.values()), line, color=COLOURS["EGS"], label=reading)
        axis.set_xticks(list(by_beta))
        most_s = max(most_s, *by_beta.values())
    axis.set_ylim(0, 1.5 * most_s)
    axis.set_xlabel("beta; reported best: 0.4")
    axis.set_ylabel("EGS, simulated s")
    axis.legend(frameon=False, fontsize=8, loc="upper center")
    _bare(axis, "1,000 matrix products by beta")


def _parallel(axis: Any, parallel: Mapping[int, Mapping[str, Any]]) -> None:
    for place, (name, hatch) in enumerate((("assumed", ""), ("without pressure", "///"))):
        rows = [row[name] for row in parallel.values()]
        at = [index + (place - 0.5) * 0.4 for index in range(len(rows))]
        axis.bar(
            at, [row["makespan_s"] for row in rows], 0.4, label=name, hatch=hatch,
            color=COLOURS["EGS"] if not place else "white", edgecolor=COLOURS["EGS"],
        )  # fmt: skip
        for x, row in zip(at, rows, strict=True):
            note = f"{row['peak_capsm_percent']} %"
            if row["out_of_memory"]:
                note += f"\n{row['out_of_memory']} out of\nmemory"
            axis.text(x, row["makespan_s"], note, ha="center", va="bottom", fontsize=7, color=_INK)
    axis.set_ylim(0, 85)
    axis.set_xticks(range(len(parallel)), [str(count) for count in parallel])
    axis.set_xlabel("parallel tasks; above the bars the peak of CapSM")
    axis.legend(frameon=False, fontsize=8, loc="upper center", ncols=2)
    _bare(axis, "100 detections, one server, one set; slowness assumed")


def _use(
    axis: Any, use: Mapping[str, Sequence[Mapping[str, float]]], what: str, label: str
) -> None:
    for name, samples in use.items():
        axis.step(
            [one["at_s"] for one in samples], [100 * one[what] for one in samples], where="post",
            color=COLOURS[name], linewidth=0.9,
        )  # fmt: skip
    axis.set_ylim(0, 103)
    axis.set_xlabel("simulated s")
    axis.set_ylabel("%")
    _bare(axis, f"1,000 matrix products: {label}")
