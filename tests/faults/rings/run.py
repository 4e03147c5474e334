"""Hostile rings: whatever a client writes into its lanes, they end and nobody else notices.

    python -m tests.faults.rings.run [--rings N] [--device cpu:N] [--seed N] [--add] [--short]

One client of a live daemon opens lanes and writes into their rings what it should not; see
`tests.faults.rings.hostile` for how, and for what counts as a ring. Beside it a client with a lane
of its own launches all the time, and checks each result. At the end the daemon must have lost no
device host, and nothing of the hostile client's may be left.

Prints the figures and writes bench/results/rings.json; with --short it only prints. With --add it
goes on from what that file has, with the next seed, and writes the figures of all runs together; of
times beside them the worst run's. A run that found something wrong is not gone on from.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections import Counter
from typing import Any

import numpy as np

import gpud_client as gc
from bench.harness.results import RESULTS, keep
from bench.harness.timing import load
from gpud.demo.metrics import percentile
from tests.faults.client_kills.run import leaks, settled, until_back
from tests.faults.rings.hostile import PATIENCE_S, Hostile, Wrong

RINGS, FEW = 1_000_000, 5_000
RESULT = RESULTS / "rings.json"
_BESIDE = {"p50": 50, "p99": 99, "p100": 100}
TICK = 'extern "C" __global__ void tick(unsigned* n) { atomicAdd(n, 1u); }'


def main() -> int:
    """Try the rings, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rings", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=3600.0, help="the longest it may take")
    parser.add_argument("--device", default="cpu:2")
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--add", action="store_true", help="go on from the recorded figures")
    parser.add_argument("--short", action="store_true", help=f"{FEW} rings; writes no file")
    options = parser.parse_args()
    before = load()
    rings = options.rings or (FEW if options.short else RINGS)
    past: dict[str, Any] | None = None
    if options.add and RESULT.exists():
        past = json.loads(RESULT.read_text())
    if past is not None and past["wrong"]:
        parser.error(f"{RESULT.name} tells of something wrong: begin again, without --add")
    seed = options.seed if past is None else past["seed"] + 1
    left = rings - (0 if past is None else past["rings"])
    if left <= 0:
        parser.error(f"{RESULT.name} has {rings:,} rings already")
    with gc.local(options.device, log_level="error", grace="30 s") as gpu:
        found = measure(gpu, left, seed, options.seconds)
    if past is not None:
        found = added(past, found)
    report(found)
    if not options.short:
        keep("rings", found, before)
    return 1 if found["wrong"] else 0


def measure(gpu: gc.Session, rings: int, seed: int, seconds: float = 3600.0) -> dict[str, Any]:
    """Try so many rings at a live daemon; returns the figures."""
    wrong: list[str] = []
    front = int(gpu.query("status")["pid"])
    with gc.connect(gpu.path) as other, Good(other) as good:
        hostile = Hostile(str(gpu.path), random.Random(seed))
        warm = settled(front)
        began, before = time.monotonic(), 0
        try:
            hostile.try_one_lane()
            began, before = time.monotonic(), sum(hostile.rings.values())
            settle = rings // 10
            while sum(hostile.rings.values()) - before < rings:
                hostile.try_one_lane()
                if settle and sum(hostile.rings.values()) - before > settle:
                    warm, settle = settled(front), 0
                if time.monotonic() - began > seconds:
                    break
        except Wrong as error:
            rows = [row for row in gpu.query("jobs")["jobs"] if row["session"] == hostile.session]
            few = {row["id"]: (row["state"], row["allocation"], row["progress"]) for row in rows}
            wrong.append(f"{error} (seed {seed}, after {hostile.lanes} lanes; its lanes: {few})")
        took_s = time.monotonic() - began
        hostile.close()
        back_ms = until_back(gpu, time.monotonic_ns(), 2)
        good.end()
        wrong += good.wrong
        left = leaks(warm, settled(front, warm))
    status = gpu.query("status")
    if status["devices"][0]["restarts"] or status["devices"][0]["state"] != "ready":
        wrong.append(f"the device host was started again: {status['devices'][0]}")
    tried = sum(hostile.rings.values()) - before
    return {
        "rings": tried,
        "lanes": hostile.lanes,
        "seconds": round(took_s, 1),
        "rings_a_second": round(tried / took_s),
        "by_kind": dict(sorted(hostile.rings.items())),
        "beside_launches": len(good.times_us),
        "beside_us": {name: round(percentile(good.times_us, at)) for name, at in _BESIDE.items()},
        "back_ms": round(back_ms, 1),
        "seed": seed,
        "wrong": wrong + left,
    }


def added(past: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of two runs as those of one."""
    both = dict(found)
    for name in ("rings", "lanes", "seconds", "beside_launches"):
        both[name] = past[name] + found[name]
    both["rings_a_second"] = round(both["rings"] / both["seconds"])
    both["by_kind"] = dict(sorted((Counter(past["by_kind"]) + Counter(found["by_kind"])).items()))
    worst = {name: max(past["beside_us"][name], found["beside_us"][name]) for name in _BESIDE}
    both["beside_us"] = worst
    both["back_ms"] = max(past["back_ms"], found["back_ms"])
    both["runs"] = past.get("runs", 1) + 1
    return both


class Good:
    """A client with a lane, whose launches follow one another; each result is checked."""

    def __init__(self, gpu: gc.Session) -> None:
        self.wrong: list[str] = []
        self.times_us: list[float] = []
        self._lane = gpu.lane(reservation=1)
        self._count = gpu.zeros(1, np.uint32)
        self._tick = gpu.kernel(TICK, "tick")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Good:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def end(self) -> None:
        """Stop, and close the lane."""
        self._over.set()
        self._thread.join(2 * PATIENCE_S)
        if self._thread.is_alive():
            self.wrong.append("the good client has hung")
        else:
            self._lane.close()

    def _run(self) -> None:
        runs = 0
        try:
            while not self._over.wait(0.002):
                began = time.perf_counter_ns()
                self._tick.submit(1, 1, (self._count,), stream=self._lane).result(PATIENCE_S)
                self.times_us.append((time.perf_counter_ns() - began) / 1e3)
                runs += 1
                if (count := self._count.get()[0]) != runs:
                    self.wrong.append(f"the good client counts {count}, not {runs}")
                    return
        except (gc.GpudError, TimeoutError) as error:
            self.wrong.append(f"the good client: {type(error).__name__}: {error}"[:400])


def report(found: dict[str, Any]) -> None:
    """Print the figures."""
    beside = found["beside_us"]
    rows = {
        "hostile rings, in how many lanes": f"{found['rings']:,} in {found['lanes']:,}",
        "in s, and a second": f"{found['seconds']}, {found['rings_a_second']:,}",
        "launches in the lane beside them, each checked": f"{found['beside_launches']:,}",
        "round trip of these, p50, p99, most": f"{beside['p50']} us, {beside['p99']} us, "
        f"{beside['p100']} us",
        "until nothing is left of the hostile client": f"{found['back_ms']} ms",
    }
    for name, value in rows.items():
        print(f"{name:<52}{value}")
    for name, count in found["by_kind"].items():
        print(f"    {name:<48}{count:,}")
    for text in found["wrong"]:
        print(f"WRONG: {text}")


if __name__ == "__main__":
    sys.exit(main())
