"""What all campaigns share: their options, going on from a recorded run, and keeping the figures.

A campaign attacks, kills, fuzzes or resizes for long and counts what it did. Its figures are
recorded as bench/results/NAME.json, from which bench/summary.py makes the page of figures. The
short versions of the same runs are tests: tests/faults, tests/conformance and tests/property.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.harness import results
from bench.harness.timing import load

__all__ = ["Campaign", "Figures", "Plan", "run", "together"]

Figures = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What one run shall do.

    Attributes:
        count: how many; of what, the campaign says.
        device: as for ``gpud serve``.
        until: by when it ends, in seconds of `time.monotonic`.
        options: with the campaign's own ones.
    """

    count: int
    seed: int
    device: str
    until: float
    short: bool
    options: argparse.Namespace


def _no_options(parser: argparse.ArgumentParser) -> None:
    """Add none."""


@dataclass(frozen=True)
class Campaign:
    """One campaign.

    Attributes:
        name: of the recorded figures, and on the command line.
        does: what it does, in a sentence.
        unit: what is counted; also its name in the figures.
        count: of a full run.
        few: of a short one.
        measure: makes the figures, which have ``unit`` and ``seed``.
        report: prints them.
        wrong: what must not be among them, in sentences; a campaign without is a success.
        add: the figures of two runs as those of one; None if two runs are not one longer run.
        device: the one that is measured on, if no other is named; empty if there is none.
        seconds: the longest that a run may take; None if it ends by its count only.
        own_options: adds the campaign's own options.
    """

    name: str
    does: str
    unit: str
    count: int
    few: int
    measure: Callable[[Plan], Figures]
    report: Callable[[Figures], None]
    wrong: Callable[[Figures], Sequence[str]]
    add: Callable[[Figures, Figures], Figures] | None = None
    device: str = "cpu:2"
    seed: int = 1
    seconds: float | None = None
    own_options: Callable[[argparse.ArgumentParser], None] = _no_options


def run(campaign: Campaign, arguments: Sequence[str]) -> int:
    """Run a campaign as its command line says; returns the exit status."""
    parser = _parser(campaign)
    options = parser.parse_args(arguments)
    path = results.RESULTS / f"{campaign.name}.json"
    past: Figures | None = None
    if options.add and path.exists():
        past = json.loads(path.read_text())
    count = options.count or (campaign.few if options.short else campaign.count)
    seed = options.seed
    if past is not None:
        if campaign.wrong(past):
            parser.error(f"{path.name} tells of something wrong: begin again, without --add")
        count -= past[campaign.unit]
        if count <= 0:
            parser.error(f"{path.name} has {past[campaign.unit]:,} {campaign.unit} already")
        seed = int(past["seed"]) + 1
    before = load()
    seconds = getattr(options, "seconds", None)
    until = time.monotonic() + (float("inf") if seconds is None else seconds)
    print(f"{campaign.does}: {count:,} {campaign.unit}, seed {seed}", flush=True)
    found = campaign.measure(Plan(count, seed, options.device, until, options.short, options))
    if past is not None and campaign.add is not None:
        found = campaign.add(past, found)
    campaign.report(found)
    wrong = campaign.wrong(found)
    for text in wrong:
        print(f"WRONG: {text}")
    # A part of a run is no record, unless others are to be added to it.
    whole = found[campaign.unit] >= campaign.count
    if not options.short and (whole or options.add):
        results.keep(campaign.name, found, before)
    return 1 if wrong else 0


def _parser(campaign: Campaign) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m campaigns.run {campaign.name}", description=campaign.does
    )
    unit = campaign.unit
    parser.add_argument(
        "--count", type=int, metavar="N", help=f"{unit}; {campaign.count:,} if not given"
    )
    parser.add_argument("--short", action="store_true", help=f"{campaign.few:,}; records nothing")
    parser.add_argument("--seed", type=int, default=campaign.seed)
    if campaign.device:
        parser.add_argument("--device", default=campaign.device)
    else:
        parser.set_defaults(device="")
    if campaign.seconds is not None:
        parser.add_argument("--seconds", type=float, default=campaign.seconds, help="at most")
    if campaign.add is not None:
        parser.add_argument(
            "--add", action="store_true", help="go on from the recorded figures, with the next seed"
        )
    else:
        parser.set_defaults(add=False)
    campaign.own_options(parser)
    return parser


def together(
    past: Figures,
    found: Figures,
    *,
    sums: Sequence[str] = (),
    counts: Sequence[str] = (),
    worst: Sequence[str] = (),
    joined: Sequence[str] = (),
) -> Figures:
    """Return the figures of two runs as those of one; what is not named is the second's.

    Args:
        past: of the first.
        found: of the second.
        sums: numbers that are added.
        counts: tables of numbers that are added by their keys.
        worst: tables of numbers, or numbers, of which the higher is taken.
        joined: lists that are put together.
    """
    both = dict(found)
    for name in (*sums, *joined):
        both[name] = past[name] + found[name]
    for name in counts:
        both[name] = dict(sorted((Counter(past[name]) + Counter(found[name])).items()))
    for name in worst:
        if isinstance(found[name], dict):
            both[name] = {key: max(past[name][key], one) for key, one in found[name].items()}
        else:
            both[name] = max(past[name], found[name])
    both["runs"] = past.get("runs", 1) + 1
    return both
