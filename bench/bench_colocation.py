"""The cost of co-location for online requests, and the offline throughput that it gives.

    python bench/bench_colocation.py [--repeat N] [--seconds S] [--device cpu:N] [--short]
        [--policy POLICY] [--block-ms MS]

As in ``gpud demo``: three kinds of offline jobs keep a device full, online requests of about 12 ms
arrive as a Poisson process and each reserves the whole device; every result is checked. For online
loads 0.2 and 0.5 and for offline task blocks of 0.1, 1 and 5 ms: r99 and harvest with reservations,
with reservations and the requests in a lane that lends its share between them, with run to
completion, and with equal sharing. p99 alone is measured anew in every repetition, between the
policies, with the same arrivals, and offline work alone for every policy; p99 alone of requests in
a lane is that in a lane. Every repetition has its own arrivals. Reported is the median over the
repetitions, with the extremes.

Prints a table and writes bench/results/colocation.json; with --short, --policy or --block-ms it
only prints.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness.machine import describe
from bench.harness.timing import load
from gpud.demo.arrivals import poisson
from gpud.demo.background_load import BackgroundLoad
from gpud.demo.colocation import Comparison, DemoWindow, Sizes, compare, open_experiment, sizes_for

RESULT = Path(__file__).parent / "results" / "colocation.json"
POLICIES = ("reservations", "lane", "fifo", "equal")
"""The scheduling policies; ``lane`` is ``reservations`` with the requests in a lane."""
LOADS = (0.2, 0.5)
BLOCKS_MS = (0.1, 1.0, 5.0)
REQUEST_S, JOB_S = 0.012, 0.25
AIM_R99, AIM_HARVEST, AIM_AT_MS = 1.25, 0.85, 1.0
LANE_R99, LANE_R99_FINE, LANE_HARVEST = 1.15, 1.10, 0.95  # the second for blocks of 0.1 ms


@dataclass
class Row:
    """One policy at one load and one block time; a value for each repetition."""

    policy: str
    load: float
    block_ms: float
    runs: list[Comparison] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def median(self, name: str) -> float:
        return float(statistics.median(getattr(run, name) for run in self.runs))

    def extremes(self, name: str) -> tuple[float, float]:
        values = [getattr(run, name) for run in self.runs]
        return min(values), max(values)

    @property
    def verdict(self) -> str:
        if self.policy not in ("reservations", "lane") or self.block_ms > AIM_AT_MS:
            return ""
        most, least = AIM_R99, AIM_HARVEST
        if self.policy == "lane":
            most = LANE_R99_FINE if self.block_ms <= min(BLOCKS_MS) else LANE_R99
            least = LANE_HARVEST
        met = self.median("r99") <= most and self.median("harvest") >= least
        return "met" if met else "missed"

    def plain(self) -> dict[str, Any]:
        found: dict[str, Any] = {name: getattr(self, name) for name in ("policy", "load")}
        found["block_ms"] = self.block_ms
        if self.runs:
            for name in ("r99", "harvest", "p50_s", "p99_s"):
                found[name] = float(f"{self.median(name):.4g}")
        return {**found, "runs": [run.plain() for run in self.runs], "problems": self.problems}


def main() -> int:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a window")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--short", action="store_true", help="one setting, one second")
    parser.add_argument("--policy", choices=POLICIES, help="of all, this one; writes no file")
    parser.add_argument("--block-ms", type=float, help="of all, this one; writes no file")
    options = parser.parse_args()
    before = load()
    began = time.monotonic()
    blocks, loads = ((1.0,), (0.2,)) if options.short else (BLOCKS_MS, LOADS)
    policies = POLICIES if options.policy is None else (options.policy,)
    if options.block_ms is not None:
        blocks = (options.block_ms,)
    repeat, seconds = (1, 1.0) if options.short else (options.repeat, options.seconds)
    rows: list[Row] = []
    background = BackgroundLoad()
    for block_ms in blocks:
        sizes = sizes_for(options.device, block_s=block_ms / 1e3, job_s=JOB_S, request_s=REQUEST_S)
        rows += measure(options.device, sizes, block_ms, loads, policies, repeat, seconds)
    report(rows)
    others = background.share()
    if others is not None:
        print(f"other programs had {others:.1%} of the machine meanwhile")
    if not (options.short or options.policy or options.block_ms):
        keep(rows, {**before, "others_share": others}, seconds, time.monotonic() - began)
    return 1 if any(row.problems for row in rows) else 0


def measure(
    device: str,
    sizes: Sizes,
    block_ms: float,
    loads: tuple[float, ...],
    policies: tuple[str, ...],
    repeat: int,
    seconds: float,
) -> list[Row]:
    """Rows for all loads and policies at one block time."""
    rows = {(share, policy): Row(policy, share, block_ms) for share in loads for policy in policies}
    for seed in range(1, repeat + 1):
        arrivals = {share: poisson(share / REQUEST_S, seconds, seed) for share in loads}
        online: dict[float, DemoWindow] = {}
        own: dict[float, DemoWindow] = {}
        for policy in policies:
            lane = policy == "lane"
            daemons = "reservations" if lane else policy
            with open_experiment(device, daemons, sizes, lane=lane) as experiment:
                # Beside each policy: where others share the machine it differs within minutes.
                offline = experiment.measure("alone", seconds / 2, offline=True)
                if not online or lane:
                    for share in loads:
                        own[share] = experiment.measure(
                            "a", seconds, arrivals[share], offline=False
                        )
                if not online:
                    online.update(own)
                alone = own if lane else online
                for share in loads:
                    row = rows[share, policy]
                    window = experiment.measure(policy, seconds, arrivals[share], offline=True)
                    for seen in (window, alone[share], offline):
                        row.problems += seen.problems
                    if not row.problems:
                        row.runs.append(compare(window, alone[share], offline, sizes))
                        print(_line(row, row.runs[-1]), flush=True)
    return list(rows.values())


def _line(row: Row, run: Comparison) -> str:
    return (
        f"  {row.block_ms:g} ms, load {row.load:g}, {row.policy}: "
        f"r99 {run.r99:.2f}, harvest {run.harvest:.2f}"
    )


def report(rows: list[Row]) -> None:
    """Print the table."""
    print(f"\n{'block':>7} {'load':>5}  {'policy':<14}{'r99':>18}{'harvest':>22}  aim at 1 ms")
    for row in rows:
        head = f"{row.block_ms:>4g} ms {row.load:>5g}  {row.policy:<14}"
        if not row.runs:
            print(f"{head}  WRONG: {'; '.join(row.problems[:3])}")
            continue
        (low, high), (least, most) = row.extremes("r99"), row.extremes("harvest")
        print(
            f"{head}{row.median('r99'):>6.2f} ({low:.2f}-{high:.2f})".ljust(50)
            + f"{row.median('harvest'):>6.2f} ({least:.2f}-{most:.2f})  {row.verdict}"
        )
    print(f"aim: r99 at most {AIM_R99} at harvest {AIM_HARVEST} or more, blocks of 1 ms or less")
    print(
        f"in a lane: r99 at most {LANE_R99} ({LANE_R99_FINE} at 0.1 ms) at {LANE_HARVEST} or more"
    )


def keep(rows: list[Row], before: dict[str, Any], seconds: float, took_s: float) -> None:
    """Write the figures, with a description of the machine."""
    result = {
        "machine": {**describe(), **before},
        "aims": {
            "r99": AIM_R99,
            "harvest": AIM_HARVEST,
            "block_ms": AIM_AT_MS,
            "lane_r99": LANE_R99,
            "lane_r99_fine": LANE_R99_FINE,
            "lane_harvest": LANE_HARVEST,
        },
        "window_s": seconds,
        "request_s": REQUEST_S,
        "took_s": round(took_s),
        "rows": [row.plain() for row in rows],
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {RESULT.relative_to(RESULT.parents[2])}")


if __name__ == "__main__":
    sys.exit(main())
