"""Three training loops that take turns with a device's memory, beside the same ones run alone.

    python bench/bench_workloads.py [--device cpu:N] [--iterations N] [--short]

A logistic regression, a perceptron and a convolution net (`bench.load.training`), each a process of
its own, whose memory needs add up to 1.8 times the device's memory for arrays:

* alone: one after the other, each with the whole device: nobody else takes turns;
* turns: all at once, as workloads;
* swap: all at once, and what persists is copied out at the end of every iteration and in at the
  beginning of the next, as if nothing of it could stay: the baseline that does nothing clever.

Losses must be the same bit for bit in all of them, and those that NumPy computes but for rounding.
Reported is the time from the common start to the last end; alone, the sum of the times. Ratios are
of medians over ``--rounds`` rounds, in turns.

Prints a table, writes bench/results/workloads.json and docs/images/workloads.png, which shows the
zones and who has the turn over time; with --short it only prints.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import gpud_client as gc
from bench.harness.machine import describe
from bench.harness.timing import load, spread
from bench.load.training import MODELS, Model

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "bench" / "results" / "workloads.json"
PICTURE = ROOT / "docs" / "images" / "workloads.png"
OVERSUBSCRIBED, AIM = 1.8, 1.03
SAMPLES = (3072, 3072, 384)
"""Of each model, such that activations are three times as large as what persists, or more."""
SHORT_SAMPLES = (768, 768, 96)
COLOURS = ("#2e86ab", "#d1495b", "#edae49")
MODES = ("alone", "turns", "swap")


class Round(NamedTuple):
    """One round of one mode.

    Attributes:
        took_s: from the start to the last end, or the sum.
        losses: of each model.
        turns: (time in seconds, the workload that had the turn or None), as it was polled.
        zones: the device's row of topic "workloads" with all workloads open.
    """

    took_s: float
    losses: list[list[float]]
    turns: list[tuple[float, str | None]]
    zones: dict[str, Any]


# -- a process of one training loop ---------------------------------------------------------------


def train(path: str, number: int, samples: int, iterations: int, mode: str) -> None:
    """Open a workload, say so, wait for a line on standard input, train, print the losses."""
    model = MODELS[number](samples, seed=number)
    with gc.connect(path) as gpu:
        work = gpu.workload(model.persistent_bytes, model.temporary_bytes, offset=0)
        model.losses(gpu, work, 1)  # compiles
        work.close()
        model = MODELS[number](samples, seed=number)
        work = gpu.workload(model.persistent_bytes, model.temporary_bytes, offset=0)
        print(work.id, flush=True)
        sys.stdin.readline()
        began = time.perf_counter()
        losses = model.losses(gpu, work, iterations, swapped=mode == "swap")
        took_s = time.perf_counter() - began
        print(json.dumps({"losses": losses, "took_s": took_s}), flush=True)
        sys.stdin.readline()


class Child:
    """A process that trains."""

    def __init__(self, path: str, number: int, samples: int, iterations: int, mode: str) -> None:
        arguments = [path, str(number), str(samples), str(iterations), mode]
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--child", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.workload = self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"a training process ended early, status {self._process.wait()}")
        return line

    def go(self) -> None:
        """Have it train, or end."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """Wait for its result, and end it."""
        found: dict[str, Any] = json.loads(self._line())
        self.go()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
        return found


# -- rounds ---------------------------------------------------------------------------------------


def run(
    gpu: Any, mode: str, samples: tuple[int, ...], iterations: int, *, watched: bool = False
) -> Round:
    """Run one round of a mode on a daemon; ``watched``: see who has the turn, which takes time."""
    if mode == "alone":
        results = []
        for number, count in enumerate(samples):
            child = Child(gpu.path, number, count, iterations, mode)
            child.go()
            results.append(child.result())
        took_s = sum(result["took_s"] for result in results)
        return Round(took_s, [result["losses"] for result in results], [], {})
    children = [
        Child(gpu.path, number, count, iterations, mode) for number, count in enumerate(samples)
    ]
    zones = gpu.query("workloads")["devices"][0]
    turns: list[tuple[float, str | None]] = []
    over = threading.Event()
    began = time.perf_counter()

    def poll() -> None:
        while not over.wait(0.002):
            row = gpu.query("workloads")["devices"][0]
            turns.append((time.perf_counter() - began, row["turn"]))

    watcher = threading.Thread(target=poll)
    if watched:
        watcher.start()
    for child in children:
        child.go()
    results = [child.result() for child in children]
    took_s = max(result["took_s"] for result in results)
    over.set()
    if watched:
        watcher.join()
    return Round(took_s, [result["losses"] for result in results], turns, zones)


def device_bytes(samples: tuple[int, ...]) -> int:
    """The device's memory for which the models' needs are 1.8 times as much.

    What must fit, all that persists and the largest temporary need, fits at least.
    """
    models = [kind(count, 0) for kind, count in zip(MODELS, samples, strict=True)]
    needs = sum(_pages(one.persistent_bytes) + _pages(one.temporary_bytes) for one in models)
    return int(needs / OVERSUBSCRIBED)


def _pages(size: int) -> int:
    return -(-size // 4096) * 4096


def check(models: list[Model], rounds: list[Round], iterations: int) -> list[str]:
    """What is wrong with the losses: texts."""
    problems = []
    for number, model in enumerate(models):
        curves = [one.losses[number] for one in rounds]
        if any(curve != curves[0] for curve in curves):
            problems.append(f"{model.name}: other losses than alone")
        if not np.allclose(curves[0], model.reference(iterations), rtol=2e-3, atol=1e-5):
            problems.append(f"{model.name}: other losses than NumPy's")
        if not curves[0][-1] < curves[0][0]:
            problems.append(f"{model.name}: it does not learn")
    return problems


# -- output ---------------------------------------------------------------------------------------


def draw(found: Round, path: Path) -> None:
    """Draw the zones to scale, and who has the turn over time."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (zones, turns) = plt.subplots(
        2, 1, figsize=(8, 3.6), gridspec_kw={"height_ratios": (1, 2)}, layout="constrained"
    )
    mib = 1 << 20
    names = {}
    for region, kind, colour in zip(found.zones["regions"], MODELS, COLOURS, strict=True):
        start, size = region["start"] / mib, region["size_bytes"] / mib
        zones.barh(0, size, left=start, color=colour, edgecolor="white")
        names[region["workload"]] = kind.name
    whole, temporary = found.zones["size_bytes"] / mib, found.zones["temporary_bytes"] / mib
    zones.barh(0, temporary, left=whole - temporary, color="#999999")
    zones.text(whole - temporary / 2, 0, "temporary, in turns", ha="center", va="center", size=8)
    zones.set_xlim(0, whole)
    zones.set_yticks([])
    zones.set_xlabel("position in the device's memory, MiB")
    times = [at for at, _ in found.turns]
    for row, workload in enumerate(names):
        spans = [
            (at, following - at)
            for (at, turn), following in zip(found.turns, times[1:], strict=False)
            if turn == workload
        ]
        turns.broken_barh(spans, (row - 0.4, 0.8), color=COLOURS[row])
    turns.set_yticks(range(len(names)), list(names.values()))
    turns.invert_yaxis()
    turns.set_xlim(0, min(2.0, times[-1]))
    turns.set_xlabel("time, s")
    figure.savefig(path, dpi=130)


def main() -> int:
    """Measure, print and write the results."""
    if sys.argv[1:2] == ["--child"]:
        path, number, count, times, mode = sys.argv[2:]
        train(path, int(number), int(count), int(times), mode)
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu:2")
    parser.add_argument("--iterations", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="little of each; writes no file")
    options = parser.parse_args()
    counts = SHORT_SAMPLES if options.short else SAMPLES
    iterations, rounds = (8, 1) if options.short else (options.iterations, options.rounds)
    memory = device_bytes(counts)
    before = load()
    found: dict[str, list[Round]] = {mode: [] for mode in MODES}
    with gc.local(options.device, memory=str(memory)) as gpu:
        for _ in range(rounds):
            for mode in MODES:
                found[mode].append(run(gpu, mode, counts, iterations))
        watched = run(gpu, "turns", counts, iterations, watched=True)
    models = [
        kind(count, number) for number, (kind, count) in enumerate(zip(MODELS, counts, strict=True))
    ]
    problems = check(
        models, [watched, *(one for each in found.values() for one in each)], iterations
    )
    took = {mode: spread([one.took_s for one in found[mode]]) for mode in MODES}
    alone = took["alone"].median
    print(f"device memory {memory:,} bytes; needs are {OVERSUBSCRIBED} times as much")
    for mode in MODES:
        print(f"{mode:6} {took[mode].median:8.3f} s  {took[mode].median / alone:6.3f} of alone")
    print("losses:", "; ".join(problems) or "the same bit for bit, and NumPy's but for rounding")
    print(f"aim: turns at most {AIM} of alone")
    if not options.short:
        kept = {
            "machine": {**describe(), **before},
            "iterations": iterations,
            "samples": counts,
            "device_bytes": memory,
            "aims": {"turns": AIM},
            "took_s": {mode: took[mode].plain() for mode in MODES},
            "of_alone": {mode: took[mode].median / alone for mode in MODES},
            "problems": problems,
        }
        RESULT.write_text(json.dumps(kept, indent=1) + "\n")
        draw(watched, PICTURE)
        print(f"wrote {RESULT.relative_to(ROOT)} and {PICTURE.relative_to(ROOT)}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
