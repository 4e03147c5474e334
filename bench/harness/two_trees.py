"""Compares the processor time of a job in two trees, in turns of some hundredths of a second.

Each tree has a daemon and a client of its own, which run at the same time; they are given a few
jobs in turns, so that other programs slow both down alike. Which is first is left to chance: in a
fixed order the one that is asked twice in a row finds its caches warm. With turns of 200 jobs two
equal trees differed by up to 0.4 beside other programs; with these, by 0.02.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from statistics import median

__all__ = ["compare"]

ROOT = Path(__file__).resolve().parents[2]
_SIDES = ("client", "front", "device host")
_JOBS = 20
_TURNS = """
import json, sys
sys.path[:0] = [{tree!r}, {tree!r} + "/client"]
import gpud_client as gc
assert gc.__file__.startswith({tree!r}), gc.__file__
sys.path.insert(0, {root!r})  # for the load: the other tree may be too old to have this one
from bench.harness.processes import processor_ns
from bench.harness.round_trips import one_by_one, pipelined, processes_of, repeat
del sys.path[0]
with gc.local({device!r}) as gpu:
    pids = processes_of(gpu.query("status")["pid"])
    one, many = one_by_one(gpu), pipelined(gpu)
    ways = {{"round trips": lambda n: repeat(one, n), "pipelined": many}}
    for way in ways.values():
        way(300)
    print("ready", flush=True)
    for line in sys.stdin:
        before = {{side: processor_ns(pid) for side, pid in pids.items()}}
        ways[line.strip()]({jobs})
        us = {{s: (processor_ns(p) - before[s]) / {jobs} / 1e3 for s, p in pids.items()}}
        print(json.dumps(us), flush=True)
"""


def compare(before: Path, device: str, pairs: int) -> None:
    """Print the processor time of a job in another tree and in this one, in turns."""
    trees = {"before": str(before.resolve()), "after": str(ROOT)}
    running: dict[str, subprocess.Popen[str]] = {}
    found: dict[tuple[str, str, str], list[float]] = {}
    try:
        for name, tree in trees.items():
            paths = os.pathsep.join((tree, f"{tree}/client"))
            code = _TURNS.format(tree=tree, root=str(ROOT), jobs=_JOBS, device=device)
            running[name] = subprocess.Popen(
                [sys.executable, "-c", code],
                env={**os.environ, "PYTHONPATH": paths},
                cwd=tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            if _say(running[name], None) != "ready":
                raise RuntimeError(f"the client in {tree} did not begin; what it wrote says why")
        for _ in range(pairs):
            for way in ("round trips", "pipelined"):
                for name in random.sample(sorted(running), len(running)):
                    us = json.loads(_say(running[name], way))
                    for side, value in {**us, "all": sum(us.values())}.items():
                        found.setdefault((way, side, name), []).append(value)
    finally:
        for process in running.values():
            process.communicate()  # closes its input: it ends
    print(f"{'processor time of a job':<24}{'before us':>11}{'after us':>11}{'after / before':>16}")
    for way in ("round trips", "pipelined"):
        for side in (*_SIDES, "all"):
            one, other = found[way, side, "before"], found[way, side, "after"]
            ratio = median(b / a for a, b in zip(one, other, strict=True))
            print(
                f"{way + ', ' + side:<24}{median(one):>11.0f}{median(other):>11.0f}{ratio:>16.2f}"
            )


def _say(process: subprocess.Popen[str], line: str | None) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    if line is not None:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
    return process.stdout.readline().strip()
