"""The demo's picture: allocations over time, and the distribution of request latencies.

Drawn with matplotlib, which the extra ``demo`` installs; without it the rest of the demo works.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpud.demo.allocation_trace import Change, stacked
from gpud.errors import pip_command

__all__ = ["MissingMatplotlibError", "Panel", "draw", "excerpt"]

COLOURS = {"online": "#d1495b", "pricer": "#2e86ab", "matmul": "#66a182", "nbody": "#edae49"}
_OTHER = "#9a9a9a"
_INK, _FAINT = "#222222", "#8a8a8a"


class MissingMatplotlibError(Exception):
    """Matplotlib is not installed; the message says how to install it."""


@dataclass(frozen=True)
class Panel:
    """One run in the picture.

    Attributes:
        title: name of the run.
        note: its results, in a few words.
        changes: allocation changes, on the same clock as ``arrivals_s``.
        arrivals_s: arrival times of the online requests.
        latencies_s: their latencies, for the distribution.
    """

    title: str
    note: str
    changes: Sequence[Change]
    arrivals_s: Sequence[float]
    latencies_s: Sequence[float]


def excerpt(arrivals_s: Sequence[float], seconds: float) -> float:
    """Return the start of the busiest ``seconds``, relative to the first arrival."""
    if not arrivals_s:
        return 0.0
    counts = [
        bisect.bisect_left(arrivals_s, start + seconds) - index
        for index, start in enumerate(arrivals_s)
    ]
    busiest = arrivals_s[counts.index(max(counts))]
    return max(0.0, busiest - arrivals_s[0] - 0.05 * seconds)


def draw(
    panels: Sequence[Panel],
    alone_s: Sequence[float],
    path: Path,
    *,
    sms: int,
    names: Mapping[str, str],
    seconds: float,
) -> None:
    """Write the picture as PNG.

    Args:
        panels: the runs, from top to bottom.
        alone_s: latencies of the same requests without offline work.
        path: the file to write.
        sms: number of SMs of the device, the height of a panel.
        names: the label of each lane of the changes, from bottom to top.
        seconds: length of the excerpt of each run.

    Raises:
        MissingMatplotlibError: matplotlib is not installed.
    """
    plt = _pyplot()
    plt.rcParams.update({"font.size": 9, "axes.edgecolor": _FAINT, "axes.linewidth": 0.6})
    figure = plt.figure(figsize=(12, 1.2 + 2.0 * len(panels)), layout="constrained")
    grid = figure.add_gridspec(len(panels), 2, width_ratios=(3.1, 1))
    axes: list[Any] = []
    for row, panel in enumerate(panels):
        axis = figure.add_subplot(grid[row, 0], sharex=axes[0] if axes else None)
        axes.append(axis)
        _timeline(axis, panel, sms, names, seconds)
        if row < len(panels) - 1:
            axis.tick_params(labelbottom=False)
    axes[-1].set_xlabel("seconds; a mark below a panel is a request's arrival")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels), frameon=False)
    _distribution(figure.add_subplot(grid[:, 1]), panels, alone_s)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _pyplot() -> Any:
    try:
        import matplotlib as mpl
    except ImportError:
        raise MissingMatplotlibError(
            f"no picture without matplotlib: {pip_command('demo')}"
        ) from None
    mpl.use("agg")
    from matplotlib import pyplot as plt

    return plt


def _timeline(axis: Any, panel: Panel, sms: int, names: Mapping[str, str], seconds: float) -> None:
    start = (panel.arrivals_s[0] if panel.arrivals_s else 0.0) + excerpt(panel.arrivals_s, seconds)
    times, heights = stacked(panel.changes, tuple(names), start, start + seconds)
    at = [time - start for time in times]
    below = [0.0] * len(at)
    for lane, label in names.items():
        above = [low + height for low, height in zip(below, heights[lane], strict=True)]
        colour = COLOURS.get(lane, _OTHER)
        axis.fill_between(at, below, above, step="post", color=colour, label=label, linewidth=0)
        below = above
    shown = [time - start for time in panel.arrivals_s if start <= time < start + seconds]
    axis.plot(shown, [-0.05 * sms] * len(shown), "|", color=_INK, markersize=6, clip_on=False)
    axis.set_xlim(0, seconds)
    axis.set_ylim(-0.1 * sms, sms)
    axis.set_yticks([0, sms / 2, sms], ["0", "", f"{sms} SMs"])
    axis.set_title(panel.title, loc="left", fontweight="bold", color=_INK, fontsize=10)
    axis.set_title(panel.note, loc="right", color=_INK, fontsize=9)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _distribution(axis: Any, panels: Sequence[Panel], alone_s: Sequence[float]) -> None:
    """Draws the cumulative distribution of the latencies, on a logarithmic axis."""
    styles = ("-", "--", ":", "-.")
    curves = [("alone", alone_s, _FAINT, "-")]
    curves += [
        (panel.title, panel.latencies_s, COLOURS["online"], styles[index % len(styles)])
        for index, panel in enumerate(panels)
    ]
    for label, latencies, colour, style in curves:
        ordered = sorted(latencies)
        shares = [100 * (index + 1) / len(ordered) for index in range(len(ordered))]
        milliseconds = [1e3 * value for value in ordered]
        axis.step(milliseconds, shares, where="post", label=label, color=colour, linestyle=style)
    axis.axhline(99, color=_FAINT, linewidth=0.5)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.xaxis.set_minor_formatter("")
    axis.set_ylim(0, 101)
    axis.set_yticks([0, 25, 50, 75, 99], ["0", "25", "50", "75", "99 %"])
    axis.set_xlabel("milliseconds from arrival to answer")
    axis.set_ylabel("requests answered", labelpad=-2)
    axis.grid(axis="x", which="major", color="#dddddd", linewidth=0.5)
    axis.legend(loc="lower left", bbox_to_anchor=(-0.05, 1.0), ncols=2, frameon=False, fontsize=8)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
