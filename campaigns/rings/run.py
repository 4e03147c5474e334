"""Hostile rings: whatever a client writes into its lanes, they end and nobody else notices.

    python -m campaigns.run rings

One client of a live daemon opens lanes and writes into their rings what it should not; see
`campaigns.rings.hostile` for how, and for what counts as a ring. Beside it a client with a lane
of its own launches all the time, and checks each result. At the end the daemon must have lost no
device host, and nothing of the hostile client's may be left.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import numpy as np

import gpud_client as gc
from campaigns.client_kills.run import leaks, settled, until_back
from campaigns.frame import Campaign, Figures, Plan, together
from campaigns.rings.hostile import PATIENCE_S, Hostile, Wrong
from gpud.demo.metrics import percentile

_BESIDE = {"p50": 50, "p99": 99, "p100": 100}
TICK = 'extern "C" __global__ void tick(unsigned* n) { atomicAdd(n, 1u); }'


def measure(gpu: gc.Session, rings: int, seed: int, until: float = float("inf")) -> dict[str, Any]:
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
                if time.monotonic() > until:
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


def added(past: Figures, found: Figures) -> Figures:
    """Return the figures of two runs as those of one; of times beside them the worst run's."""
    both = together(
        past,
        found,
        sums=("rings", "lanes", "seconds", "beside_launches"),
        counts=("by_kind",),
        worst=("beside_us", "back_ms"),
    )
    both["rings_a_second"] = round(both["rings"] / both["seconds"])
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


def _measure(plan: Plan) -> Figures:
    with gc.local(plan.device, log_level="error", grace="30 s") as gpu:
        return measure(gpu, plan.count, plan.seed, plan.until)


RINGS = Campaign(
    "rings",
    "Hostile rings of lanes, beside a lane that is used well",
    unit="rings",
    count=1_000_000,
    few=5_000,
    measure=_measure,
    report=report,
    wrong=lambda found: found["wrong"],
    add=added,
    seed=18,
    seconds=3600.0,
)
