"""Shares of offline jobs over time, as the policy of before and the default policy give them.

    python bench/bench_shares.py [--device cpu:N] [--seconds S] [--short]

Three experiments. Two of them with the policies ``arrival`` and ``reservations``, each in virtual
time over `tests.property.share_simulation` and on a CPU device with a daemon:

* newcomer: two batch jobs of equal weight, the second half a second after the first;
* bursts: nine batch jobs, the first of weight 3, beside online requests of about 12 ms that reserve
  half of the device, 25 a second on the average, at the same times for both policies.

And one on the device only: parts of an SM, jobs with quotas of 1/32 to 16/32 of an SM.

In virtual time service is CapSM seconds; on the device it is task blocks, of equal size in all
jobs. Reported is how far the job that is furthest off is from its part by weight, or by quota, and
how many offline jobs give way to a request. On a device whose SMs are more than the machine's free
cores, an SM is a share of a core; by default there is one SM, so that other programs do not count.

Prints a table, writes bench/results/shares.json and docs/images/shares.png; with --short it only
prints. Takes three minutes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import gpud_client as gc
from bench.harness.machine import describe
from bench.harness.timing import load
from gpud.core.scheduler import Scheduler, Settings
from gpud.demo.arrivals import poisson
from gpud.units import JobId
from tests.property.share_simulation import MS, SECOND, ShareWorld

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "bench" / "results" / "shares.json"
PICTURE = ROOT / "docs" / "images" / "shares.png"
POLICIES = {"arrival": "before: arrival", "reservations": "now: reservations"}
WEIGHTS = (3, 1, 1, 1, 1, 1, 1, 1, 1)
NEWCOMER_S, BURSTS_S, APART_S, SETTLED_S = 4.0, 60, 0.5, 1.0
REQUEST_MS, EVERY_MS = 12, 40
AIM = 0.05
COLOURS = ("#d1495b", "#2e86ab")
PARTS = (1, 3, 4, 8, 16)
OF = 32
PARTS_S, WINDOW_S = 10.0, 1.0
SMALL_BLOCK = 64  # threads, so that OF of them fit on an SM

SOURCE = r"""
extern "C" __global__ void work(float* out, int rounds) {
    float a = threadIdx.x;
    for (int i = 0; i < rounds; ++i) a = a * 0.999f + 1.0f;
    if (a < 0) out[threadIdx.x] = a;
}"""
BLOCK, ENDLESS = 256, 1 << 28


@dataclass
class Run:
    """One experiment with one policy.

    Attributes:
        weights: of the offline jobs.
        unit: of ``served``.
        times_s: when shares and service were looked at.
        shares: CapSM of each job at each of these times.
        served: service of each job at each of these times.
        allocated: CapSM seconds of each job, as the daemon counts them; empty in virtual time.
        since_s: from when on all jobs are there, and the hold time is over.
        disturbed: offline jobs that gave way, on the average, when a request came.
    """

    weights: tuple[int, ...]
    unit: str
    times_s: list[float] = field(default_factory=list)
    shares: list[list[float]] = field(default_factory=list)
    served: list[list[float]] = field(default_factory=list)
    allocated: list[float] = field(default_factory=list)
    since_s: float = 0.0
    disturbed: float | None = None

    def off(self) -> float:
        """Return how far the job that is furthest off is from its part, relative to that."""
        first = self.served[bisect_left(self.times_s, self.since_s)]
        return self._off([end - begin for begin, end in zip(first, self.served[-1], strict=True)])

    def off_allocated(self) -> float | None:
        """Return the same of the CapSM seconds that the daemon counts, since the beginning."""
        return self._off(self.allocated) if self.allocated else None

    def _off(self, served: list[float]) -> float:
        parts = [sum(served) * weight / sum(self.weights) for weight in self.weights]
        return max(abs(has - part) / part for has, part in zip(served, parts, strict=True))

    def plain(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return {
            "weights": self.weights,
            "seconds": round(self.times_s[-1], 2),
            f"served_{self.unit.replace(' ', '_')}": [round(one, 2) for one in self.served[-1]],
            "off": round(self.off(), 4),
            "off_capsm_s": None if not self.allocated else round(self._off(self.allocated), 4),
            "disturbed_by_a_request": self.disturbed,
        }


# -- in virtual time -------------------------------------------------------------------------------


def simulate(policy: str, weights: tuple[int, ...], seconds: float, *, bursts: bool) -> Run:
    """Run an experiment in virtual time, on 4 SMs with 4 slices each."""
    world = ShareWorld(4, seed=1, scheduler=Scheduler(Settings(policy=policy)))
    jobs: list[JobId] = []
    run = Run(weights, "CapSM s", since_s=0.0 if bursts else SETTLED_S)
    for number, weight in enumerate(weights):
        if number and not bursts:
            _look_until(world, jobs, run, number * APART_S)
        jobs.append(world.offline(m=4, weight=weight))
    if bursts:
        world.bursts(2, REQUEST_MS * MS, EVERY_MS * MS)
    _look_until(world, jobs, run, seconds)
    run.served = [row + [0.0] * (len(jobs) - len(row)) for row in run.served]
    run.shares = [row + [0.0] * (len(jobs) - len(row)) for row in run.shares]
    requests = len(world.jobs) - len(jobs)
    if requests:
        run.disturbed = round(sum(world.jobs[job].shrinks for job in jobs) / requests, 2)
    return run


def _look_until(world: ShareWorld, jobs: list[JobId], run: Run, until_s: float) -> None:
    while world.now_ns < until_s * SECOND:
        world.run(world.now_ns + 20 * MS)
        run.times_s.append(world.now_ns / SECOND)
        run.shares.append([float(world.share(job)) for job in jobs])
        # What was held since the last change is not in the record yet.
        run.served.append(
            [
                float(one.capsm_s) + one.held / one.occupancy * (world.now_ns - one.at_ns) / SECOND
                for one in (world.jobs[job] for job in jobs)
            ]
        )


# -- on a device -----------------------------------------------------------------------------------


def measure(
    device: str, policy: str, weights: tuple[int, ...], seconds: float, *, bursts: bool
) -> Run:
    """Run an experiment on a private daemon."""
    run = Run(weights, "task blocks", since_s=0.0 if bursts else SETTLED_S)
    with gc.local(device, policy=policy) as gpu:
        kernel, out = gpu.kernel(SOURCE, "work"), gpu.zeros(BLOCK, np.float32)
        streams = [gpu.stream() for _ in weights]
        kernel.submit(4, BLOCK, (out, np.int32(10))).result(60)  # it is compiled now
        rounds = np.int32(5_000)
        request = _request_blocks(kernel, (out, rounds)) if bursts else 0
        jobs: list[gc.Job] = []
        began = time.monotonic()
        for number, weight in enumerate(weights):
            if number and not bursts:
                _look(jobs, run, began, began + number * APART_S, len(weights))
            one = kernel.submit(
                ENDLESS, BLOCK, (out, rounds), weight=weight, stream=streams[number]
            )
            jobs.append(one)
        if bursts:
            requests, rows = gpu.stream(), poisson(1e3 / EVERY_MS, seconds, 1)
            for arrival_s in rows:
                _look(jobs, run, began, began + arrival_s, len(weights))
                kernel.submit(request, BLOCK, (out, rounds), reservation="50%", stream=requests)
            resized = sum(int(job.stats["resizes"]) for job in jobs)
            run.disturbed = round(resized / 2 / len(rows), 2)  # each gives, and gets it back
        _look(jobs, run, began, began + seconds, len(weights))
        if bursts:
            run.allocated = [float(job.stats["capsm_seconds"]) for job in jobs]
        for job in jobs:
            job.cancel()
    return run


def measure_parts(seconds: float) -> Run:
    """Run jobs with quotas of parts of an SM, on a private daemon with one SM."""
    run = Run(PARTS, "task blocks", since_s=SETTLED_S)
    with gc.local("cpu:1") as gpu:
        kernel, out = gpu.kernel(SOURCE, "work"), gpu.zeros(BLOCK, np.float32)
        kernel.submit(4, SMALL_BLOCK, (out, np.int32(10))).result(60)  # it is compiled now
        began = time.monotonic()
        jobs = [
            kernel.submit(
                ENDLESS,
                SMALL_BLOCK,
                (out, np.int32(500)),
                quota=Fraction(part, OF),
                stream=gpu.stream(),
            )
            for part in PARTS
        ]
        _look(jobs, run, began, began + seconds, len(PARTS))
        for job in jobs:
            job.cancel()
    return run


def _request_blocks(kernel: gc.Kernel, args: tuple[Any, ...]) -> int:
    """Return how many task blocks take half of the device as long as a request is to take."""
    trial, took_s = 64, []
    for _ in range(5):
        job = kernel.submit(trial, BLOCK, args, quota="50%")
        job.result(60)
        took_s.append(float(job.stats["run_s"]))
    return max(2, round(trial * REQUEST_MS / 1e3 / statistics.median(took_s)))


def _look(jobs: list[gc.Job], run: Run, began: float, until: float, count: int) -> None:
    while (now := time.monotonic()) < until:
        if not run.times_s or now - began - run.times_s[-1] >= 0.05:
            none = [0.0] * (count - len(jobs))
            run.shares.append([float(job.allocation) for job in jobs] + none)
            run.served.append([float(job.progress[0]) for job in jobs] + none)
            run.times_s.append(now - began)
        time.sleep(max(0.0, min(0.02, until - time.monotonic())))


# -- the report ------------------------------------------------------------------------------------


def report(runs: Mapping[str, Mapping[str, Run]]) -> None:
    """Print the table."""
    print(
        f"{'experiment':<22}{'policy':<20}{'furthest off':>13}{'of CapSM s':>12}{'give way':>10}"
        "  served by weight"
    )
    for experiment, by_policy in runs.items():
        for policy, run in by_policy.items():
            pairs = zip(run.served[-1], run.weights, strict=True)
            served = " ".join(f"{has / weight:.0f}" for has, weight in pairs)
            gave = "" if run.disturbed is None else f"{run.disturbed:.1f}"
            allocated = run.off_allocated()
            capsm = "" if allocated is None else f"{allocated:.1%}"
            print(
                f"{experiment:<22}{policy:<20}{run.off():>12.1%}{capsm:>12}{gave:>10}  "
                f"{served} {run.unit}"
            )
    print(f"aim: no job is further off than {AIM:.0%} with `reservations`")


def draw(runs: Mapping[str, Mapping[str, Run]], parts: Run, path: Path) -> None:
    """Write the picture: the policies side by side, and below them the parts of an SM."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        len(runs) + 1, 2, figsize=(11, 2.3 * len(runs) + 2.3), layout="constrained", squeeze=False
    )
    _parts_panels(axes[-1], parts)
    for row, (experiment, by_policy) in zip(axes[:-1], runs.items(), strict=True):
        top = max(
            max(run.served[-1][index] / weight for index, weight in enumerate(run.weights))
            for run in by_policy.values()
        )
        for axis, (policy, run) in zip(row, by_policy.items(), strict=True):
            _panel(axis, run, top)
            axis.set_title(f"{experiment}, {POLICIES[policy]}", loc="left", fontsize=10)
            axis.set_title(f"furthest off {run.off():.1%}", loc="right", fontsize=9)
    for axis in axes.flat:
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel("seconds")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _panel(axis: Any, run: Run, top: float) -> None:
    names = [f"weight {weight}" for weight in run.weights]
    if len(names) == 2:
        heights = [[row[index] for row in run.shares] for index in range(2)]
        labels = ("first job", "second job")
        axis.stackplot(run.times_s, heights, labels=labels, colors=COLOURS, step="post")
        axis.set_ylabel("CapSM")
        axis.legend(loc="upper right", fontsize=8, framealpha=0.9)
        return
    for index in reversed(range(len(names))):
        served = [row[index] / run.weights[index] for row in run.served]
        colour = COLOURS[0] if run.weights[index] > 1 else COLOURS[1]
        label = names[index] if index < 2 else None
        axis.plot(run.times_s, served, color=colour, linewidth=1.6 - 0.8 * (index > 0), label=label)
    axis.set_ylim(0, top * 1.05)
    axis.set_ylabel(f"{run.unit} / weight")
    axis.legend(loc="upper left", fontsize=8, framealpha=0.9)


def _parts_panels(row: Any, run: Run) -> None:
    """Draw each job's part of the work in the last second, and the work by part."""
    left, right = row
    for index, part in enumerate(run.weights):
        colour = f"C{index}"
        times: list[float] = []
        recent: list[float] = []
        for at, now_s in enumerate(run.times_s):
            first = bisect_left(run.times_s, now_s - WINDOW_S)
            done = [a - b for a, b in zip(run.served[at], run.served[first], strict=True)]
            if now_s >= WINDOW_S and any(done):
                times.append(now_s)
                recent.append(done[index] / sum(done))
        left.plot(times, recent, color=colour, label=f"{part}/{OF} SM")
        left.axhline(part / sum(run.weights), color=colour, linewidth=0.6, linestyle="--")
        served = [served[index] / part for served in run.served]
        right.plot(run.times_s, served, color=colour, linewidth=1)
    left.set_ylabel("part of the work")
    left.set_ylim(0, 0.75)
    left.legend(loc="upper center", fontsize=8, ncols=len(run.weights), framealpha=0.9)
    left.set_title("parts of an SM, cpu:1, over 1 s; dashed: quotas", loc="left", fontsize=10)
    right.set_ylabel("task blocks / part")
    right.set_ylim(bottom=0)
    right.set_title("the same, since the start", loc="left", fontsize=10)
    right.set_title(f"furthest off {run.off():.1%}", loc="right", fontsize=9)


def main() -> int:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu:1")
    parser.add_argument("--seconds", type=float, default=60.0, help="of bursts on the device")
    parser.add_argument("--short", action="store_true", help="little of each; writes no file")
    options = parser.parse_args()
    before, began = load(), time.monotonic()
    simulated_s, device_s = (10, 2.0) if options.short else (BURSTS_S, options.seconds)
    cases = {
        "newcomer": ((1, 1), NEWCOMER_S, NEWCOMER_S),
        "bursts": (WEIGHTS, simulated_s, device_s),
    }
    runs: dict[str, dict[str, Run]] = {}
    for name, (weights, virtual_s, real_s) in cases.items():
        bursts = name == "bursts"
        runs[f"{name}, virtual"] = {
            policy: simulate(policy, weights, virtual_s, bursts=bursts) for policy in POLICIES
        }
        runs[f"{name}, {options.device}"] = {
            policy: measure(options.device, policy, weights, real_s, bursts=bursts)
            for policy in POLICIES
        }
    parts = measure_parts(3.0 if options.short else PARTS_S)
    report({**runs, "parts of an SM, cpu:1": {"reservations": parts}})
    if not options.short:
        kept = {
            "machine": {**describe(), **before},
            "aims": {"off": AIM},
            "took_s": round(time.monotonic() - began),
            "runs": {
                name: {policy: run.plain() for policy, run in by_policy.items()}
                for name, by_policy in runs.items()
            },
            "parts": parts.plain(),
        }
        RESULT.write_text(json.dumps(kept, indent=1) + "\n")
        draw(runs, parts, PICTURE)
        print(f"wrote {RESULT.relative_to(ROOT)} and {PICTURE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
