"""Draws a device's two zones over time: regions, temporary memory, and who has the turn."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Seen", "draw"]

COLOURS = ("#2e86ab", "#d1495b", "#edae49")


class Seen(NamedTuple):
    """The state of the device when it was looked at.

    Attributes:
        at_s: since the start.
        device: the row of topic "workloads".
    """

    at_s: float
    device: dict[str, Any]


def draw(seen: list[Seen], names: list[str], models: list[str], path: Path) -> None:
    """Draw what is where in a device's memory over time, to scale, and who has the turn.

    Args:
        seen: the device, in the order of time.
        names: of the workloads.
        models: the name of each for people.
        path: of the picture.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (memory, turns) = plt.subplots(
        2, 1, figsize=(8, 4.6), sharex=True, gridspec_kw={"height_ratios": (3, 1)},
        layout="constrained",
    )  # fmt: skip
    mib = 1 << 20
    colours = dict(zip(names, COLOURS, strict=True))
    until = min(4.0, seen[-1].at_s)
    shown = [one for one in seen if one.at_s <= until]
    for one, following in pairwise(shown):
        device, width = one.device, following.at_s - one.at_s
        for region in device["regions"]:
            moves = region["workload"] in device["away"]
            memory.bar(
                one.at_s, region["size_bytes"] / mib, width, region["start"] / mib, align="edge",
                color=colours.get(region["workload"]), alpha=0.4 if moves else 1.0,
            )  # fmt: skip
        size, temporary = device["size_bytes"] / mib, device["temporary_bytes"] / mib
        holder = device["turn"]
        memory.bar(
            one.at_s, temporary, width, size - temporary, align="edge", alpha=0.7,
            color=colours.get(holder, "#dddddd"),
        )  # fmt: skip
        if holder in colours:
            row = names.index(holder)
            turns.barh(row, width, left=one.at_s, height=0.8, color=colours[holder])
    memory.set_ylim(0, seen[0].device["size_bytes"] / mib)
    memory.set_ylabel("position, MiB")
    memory.set_title(
        "below what persists (pale: it moves), above temporary memory, by the colour of its owner",
        fontsize=9,
    )
    turns.set_yticks(range(len(models)), models, fontsize=8)
    turns.invert_yaxis()
    turns.set_xlim(0, until)
    turns.set_xlabel("time, s")
    figure.savefig(path, dpi=130)
