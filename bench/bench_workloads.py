"""Three training loops that take turns with a device's memory, beside the same ones run alone.

    python bench/bench_workloads.py [--case fits|exceeds] [--iterations N] [--rounds N]
                                    [--device NAME] [--scale N] [--short]

A logistic regression, a perceptron and a convolution net (`bench.load.training`), each a process of
its own, whose memory needs add up to 1.8 times the device's memory for arrays. In case "fits" what
persists of all of them fits beside the largest temporary need; in case "exceeds", where each has 16
batches of data, what persists alone is more than the device has: it has room for two of them.

* alone: one after the other, each with the whole device: nobody else takes turns;
* turns: all at once, as workloads, movable ones where what persists exceeds the device;
* swap: all at once, and all that persists is copied in at the beginning of every turn and out at
  its end, as if nothing of it could stay: the baseline that does nothing clever. Its programs take
  turns of 0.25 s, the time slice of the others, and all of their memory is temporary.

Losses must be the same bit for bit in all of them, and those that NumPy computes but for rounding.
Reported is the time from the common start to the last end; alone, the sum of the times. In each
round every mode runs once, in another order each time; ratios are those of one round, and their
median is given with the least and the most.

Prints a table, writes its part of bench/results/workloads.json, or of gpu_workloads.json, and a
picture in docs/images, which shows what is where in the device's memory over time, and who has the
turn; with --short it only prints.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import gpud_client as gc
from bench.harness.machine import describe
from bench.harness.processes import family_ns
from bench.harness.timing import load
from bench.harness.zones_picture import Seen, draw
from bench.load.training import MODELS, Model

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "bench" / "results" / "workloads.json"
OVERSUBSCRIBED = 1.8
SLICE_S = 0.25
SHORT_SAMPLES = (768, 768, 96)
MODES = ("alone", "turns", "swap")


class Case(NamedTuple):
    """What is compared.

    Attributes:
        samples: of a batch of each model.
        short: the same for ``--short``.
        batches: of each model.
        aim: the most time in turns, as a part of that alone.
    """

    samples: tuple[int, int, int]
    short: tuple[int, int, int]
    batches: int
    aim: float

    def models(self, *, short: bool, scale: int = 1) -> list[Model]:
        """Return the models."""
        counts = self.short if short else tuple(count * scale for count in self.samples)
        return [
            kind(count, number, self.batches)
            for number, (kind, count) in enumerate(zip(MODELS, counts, strict=True))
        ]

    def device_bytes(self, *, short: bool, scale: int = 1) -> int:
        """Return the device's memory."""
        models = self.models(short=short, scale=scale)
        if self.batches == 1:
            return device_bytes(tuple(one.samples for one in models))
        kept = sorted(_pages(one.persistent_bytes) for one in models)
        return sum(kept[1:]) + max(_pages(one.temporary_bytes) for one in models)


CASES = {
    # Activations are three times as large as what persists, or more.
    "fits": Case((3072, 3072, 384), SHORT_SAMPLES, 1, 1.03),
    "exceeds": Case((1536, 1536, 384), SHORT_SAMPLES, 16, 1 / 0.95),
}


class Round(NamedTuple):
    """One round of one mode.

    Attributes:
        took_s: from the start to the last end, or the sum.
        processor_s: the processor time of all processes meanwhile: programs, daemon, device host.
        losses: of each model.
        seen: as it was polled.
        names: the workload of each model.
        moved: what the daemon says of regions that moved.
    """

    took_s: float
    processor_s: float
    losses: list[list[float]]
    seen: list[Seen]
    names: list[str]
    moved: dict[str, Any]


# -- a process of one training loop ---------------------------------------------------------------


def train(path: str, case: Case, number: int, size: str, iterations: int, mode: str) -> None:
    """Open a workload, say so, wait for a line on standard input, train, print the losses."""
    model = case.models(short=size == "short", scale=1 if size == "short" else int(size))[number]
    sizes = model.persistent_bytes, model.temporary_bytes
    movable = case.batches > 1 and mode != "alone"
    swapped_s = SLICE_S if mode == "swap" else None
    if swapped_s is not None:
        sizes, movable = (1, sum(sizes)), False
    with gc.connect(path) as gpu:
        with gpu.workload(*sizes, offset=0, movable=movable) as work:
            model.losses(gpu, work, 1, swapped_s=swapped_s)  # compiles
        work = gpu.workload(*sizes, offset=0, movable=movable)
        print(work.id, flush=True)
        sys.stdin.readline()
        began, had = time.perf_counter(), time.process_time()
        losses = model.losses(gpu, work, iterations, swapped_s=swapped_s)
        took_s, processor_s = time.perf_counter() - began, time.process_time() - had
        found = {"losses": losses, "took_s": took_s, "processor_s": processor_s}
        print(json.dumps(found), flush=True)
        sys.stdin.readline()


class Child:
    """A process that trains."""

    def __init__(self, path: str, terms: tuple[str, str, int], number: int, mode: str) -> None:
        case, size, iterations = terms
        arguments = [path, case, str(number), size, str(iterations), mode]
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


def run(gpu: Any, mode: str, terms: tuple[str, str, int], *, watched: bool = False) -> Round:
    """Run one round of a mode on a daemon; ``watched``: look at the device, which takes time."""
    numbers, daemon = range(len(MODELS)), gpu.query("status")["pid"]
    if mode == "alone":
        results, had_ns = [], 0
        for number in numbers:
            child = Child(gpu.path, terms, number, mode)
            had_ns -= family_ns(daemon)
            child.go()
            results.append(child.result())
            had_ns += family_ns(daemon)
        took_s = sum(result["took_s"] for result in results)
        return _round(took_s, had_ns, results)
    children = [Child(gpu.path, terms, number, mode) for number in numbers]
    before, had_ns = gpu.query("workloads")["moved"], -family_ns(daemon)
    seen: list[Seen] = []
    over = threading.Event()
    began = time.perf_counter()

    def poll() -> None:
        while not over.wait(0.002):
            row = gpu.query("workloads")["devices"][0]
            seen.append(Seen(time.perf_counter() - began, row))

    watcher = threading.Thread(target=poll)
    if watched:
        watcher.start()
    for child in children:
        child.go()
    results = [child.result() for child in children]
    had_ns += family_ns(daemon)
    took_s = max(result["took_s"] for result in results)
    over.set()
    if watched:
        watcher.join()
    after = gpu.query("workloads")["moved"]
    moved = {name: after[name] - before[name] for name in ("moved_bytes", "moving_s")}
    names = [child.workload for child in children]
    return _round(took_s, had_ns, results, seen, names, moved)


def _round(took_s: float, daemon_ns: int, results: list[Any], *more: Any) -> Round:
    processor_s = daemon_ns / 1e9 + sum(result["processor_s"] for result in results)
    losses = [result["losses"] for result in results]
    return Round(took_s, processor_s, losses, *(more or ([], [], {})))


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
        first, last = (np.mean(curves[0][part]) for part in (slice(4), slice(-4, None)))
        if not last < first:
            problems.append(f"{model.name}: it does not learn")
    return problems


# -- output ---------------------------------------------------------------------------------------


def main() -> int:
    """Measure, print and write the results."""
    if sys.argv[1:2] == ["--child"]:
        path, name, index, size, times, mode = sys.argv[2:]
        train(path, CASES[name], int(index), size, int(times), mode)
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--case", choices=tuple(CASES), default="fits")
    parser.add_argument("--device", default="cpu:2")
    parser.add_argument("--iterations", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=int, default=1, help="so many times the samples")
    parser.add_argument("--short", action="store_true", help="little of each; writes no file")
    options = parser.parse_args()
    case = CASES[options.case]
    iterations, rounds = (16, 1) if options.short else (options.iterations, options.rounds)
    terms = options.case, "short" if options.short else str(options.scale), iterations
    memory = case.device_bytes(short=options.short, scale=options.scale)
    before = load()
    found: dict[str, list[Round]] = {mode: [] for mode in MODES}
    with gc.local(options.device, memory=str(memory)) as gpu:
        run(gpu, "turns", terms)  # its kernels are compiled as far as they will be
        for number in range(rounds):
            for mode in (*MODES[number % 3 :], *MODES[: number % 3]):
                found[mode].append(run(gpu, mode, terms))
        watched = run(gpu, "turns", terms, watched=True)
    models = case.models(short=options.short, scale=options.scale)
    needs = sum(one.persistent_bytes + one.temporary_bytes for one in models)
    kept = sum(one.persistent_bytes for one in models)
    problems = check(
        models, [watched, *(one for each in found.values() for one in each)], iterations
    )
    ratios = {
        mode: [
            one.took_s / alone.took_s
            for one, alone in zip(found[mode], found["alone"], strict=True)
        ]
        for mode in MODES
    }
    processor = {
        mode: [
            one.processor_s / alone.processor_s
            for one, alone in zip(found[mode], found["alone"], strict=True)
        ]
        for mode in MODES
    }
    print(
        f"device memory {memory:,} bytes; needs are {needs / memory:.2f} times as much, of which "
        f"{kept / memory:.2f} times persist"
    )
    for mode in MODES:
        took_s = median(one.took_s for one in found[mode])
        each = ratios[mode]
        print(
            f"{mode:6} {took_s:8.3f} s  {median(each):6.3f} of alone "
            f"({min(each):.3f} to {max(each):.3f}), processor time {median(processor[mode]):.3f}"
        )
    moved = [one.moved for one in found["turns"]]
    if any(one["moved_bytes"] for one in moved):
        amount = median(one["moved_bytes"] for one in moved) / 1e6
        print(
            f"moved: {amount:.0f} MB a round, in {median(one['moving_s'] for one in moved):.3f} s"
        )
    print("losses:", "; ".join(problems) or "the same bit for bit, and NumPy's but for rounding")
    print(f"aim: turns at most {case.aim:.3f} of alone")
    if not options.short:
        on_gpu = "gpu_" if options.device.startswith("cuda") else ""
        file = RESULT.with_name(f"{on_gpu}workloads.json")
        results = json.loads(file.read_text()) if file.exists() else {}
        results[options.case] = {
            "machine": {**describe(), **before},
            "iterations": iterations,
            "samples": [one.samples for one in models],
            "batches": case.batches,
            "device_bytes": memory,
            "needs_of_device": needs / memory,
            "persistent_of_device": kept / memory,
            "aims": {"turns": case.aim},
            "took_s": {mode: [one.took_s for one in found[mode]] for mode in MODES},
            "of_alone": {mode: median(ratios[mode]) for mode in MODES},
            "processor_time_of_alone": {mode: median(processor[mode]) for mode in MODES},
            "moved": moved,
            "problems": problems,
        }
        known = {name: results[name] for name in CASES if name in results}
        file.write_text(json.dumps(known, indent=1) + "\n")
        picture = ROOT / "docs" / "images" / f"{on_gpu}workloads-{options.case}.png"
        draw(watched.seen, watched.names, [kind.name for kind in MODELS], picture)
        print(f"wrote {file.relative_to(ROOT)} and {picture.relative_to(ROOT)}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
