"""What one warm launch costs on its way: Python calls, files, processor time, in each process.

    python bench/bench_launch_path.py [--rounds N] [--jobs N] [--functions N] [--short]

A launch passes the client, the front and the device host. Two private daemons are measured with a
kernel of one block whose arguments differ from job to job:

* calls: in the first, a profile hook in every process counts the calls of Python functions by file
  and function; counts before and after `CALLS` round trips are subtracted. Only functions of gpud
  and of its client count, in the table of files; those of libraries are given as one number;
* processor time: in the second, without the hook, the processor time of each process over
  ``--jobs`` jobs, one at a time (round trips) and with 64 in flight (pipelined), from the kernel's
  accounting of its threads, and how long a job took. The device host's includes the SM threads
  that run the task blocks. In turns with that, the same with the daemon and its device host kept on
  one core, where the system does not move them from core to core.

Prints the figures and the ``--functions`` most called functions of each process, and writes
bench/results/launch_path.json; with --short it only prints.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gpud_client as gc
from bench.harness.processes import confine, processor_ns
from bench.harness.results import keep
from bench.harness.round_trips import (
    one_by_one,
    pipelined,
    processes_of,
    repeat,
    side_of,
)
from bench.harness.timing import load, spread

ROOT = Path(__file__).resolve().parents[1]
CALLS = 400
SIDES = ("client", "front", "device host")
FREE, KEPT = "as they come", "daemon on one core"
AIM_US = 200
_POLL_S = 0.02
_HOOK = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from bench.bench_launch_path import count_calls
count_calls()
"""


# -- in every measured process -------------------------------------------------------------------


def count_calls() -> None:
    """Count the calls of Python functions in this process from now on.

    A thread writes the counts to ``$GPUD_CALLS/NAME-PID.json`` each time that a new file
    ``NAME.ask`` appears there. Threads started later are counted as well, that one is not.
    """
    counts: Counter[tuple[str, str]] = Counter()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            code = frame.f_code
            counts[code.co_filename, code.co_qualname] += 1

    _answer(lambda: [[*key, number] for key, number in list(counts.items())])
    threading.setprofile(profile)
    sys.setprofile(profile)


def _answer(rows_now: Callable[[], list[list[Any]]]) -> None:
    """Have a thread write rows whenever it is asked."""
    folder = Path(os.environ["GPUD_CALLS"])

    def answer() -> None:
        answered: set[str] = set()
        while folder.exists():
            for asked in folder.glob("*.ask"):
                if asked.stem not in answered:
                    answered.add(asked.stem)
                    rows = rows_now()
                    part = folder / f"{asked.stem}-{os.getpid()}.part"
                    part.write_text(json.dumps({"command": sys.orig_argv, "calls": rows}))
                    part.rename(part.with_suffix(".json"))
            time.sleep(_POLL_S)

    threading.Thread(target=answer, name="counts", daemon=True).start()


@contextmanager
def _counting(folder: Path) -> Iterator[None]:
    """Have processes that are started meanwhile count their calls, and this one as well."""
    (folder / "sitecustomize.py").write_text(_HOOK)
    changed = {
        "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}",
        "GPUD_CALLS": str(folder),
    }
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    count_calls()
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# -- measuring -------------------------------------------------------------------------------------


def measure_calls(device: str) -> dict[str, Any]:
    """Count the calls of a warm round trip by side, file and function."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _counting(folder), gc.local(device) as gpu:
            one = one_by_one(gpu)
            for _ in range(100):
                one()
            before = _ask(folder, "before")
            for _ in range(CALLS):
                one()
            after = _ask(folder, "after")
    sides: dict[str, Any] = {}
    for side in SIDES:
        counts = after[side]
        counts.subtract(before[side])
        ours = {key: n / CALLS for key, n in counts.items() if n >= CALLS / 2 and _is_ours(key[0])}
        sides[side] = {
            "calls": round(sum(ours.values()), 1),
            "files": len({file for file, _ in ours}),
            "library_calls": round(
                sum(n for (file, _), n in counts.items() if not _is_ours(file)) / CALLS, 1
            ),
            "functions": [
                [_short(file), function, round(number, 2)]
                for (file, function), number in sorted(ours.items(), key=lambda item: -item[1])
            ],
        }
    return sides


def measure_time(device: str, jobs: int, rounds: int) -> dict[str, Any]:
    """Measure the processor time of each side for a job, and how long it took, in microseconds."""
    every = sorted(os.sched_getaffinity(0))
    placements = {FREE: every, KEPT: every[:1]}
    samples: dict[str, dict[str, dict[str, list[float]]]] = {
        place: {
            way: {side: [] for side in (*SIDES, "took")} for way in ("round trips", "pipelined")
        }
        for place in placements
    }
    with gc.local(device) as gpu:
        pids = processes_of(gpu.query("status")["pid"])
        one, many = one_by_one(gpu), pipelined(gpu)
        ways: dict[str, Callable[[int], None]] = {
            "round trips": lambda count: repeat(one, count),
            "pipelined": many,
        }
        for way in ways.values():
            way(jobs)
        for _ in range(rounds):
            for place, cores in placements.items():
                for side in ("front", "device host"):
                    confine(pids[side], cores)
                for name, way in ways.items():
                    way(jobs // 10)
                    before = {side: processor_ns(pid) for side, pid in pids.items()}
                    began_ns = time.perf_counter_ns()
                    way(jobs)
                    took_ns = time.perf_counter_ns() - began_ns
                    samples[place][name]["took"].append(took_ns / jobs / 1e3)
                    for side, pid in pids.items():
                        us = (processor_ns(pid) - before[side]) / jobs / 1e3
                        samples[place][name][side].append(us)
    return {
        place: {name: _figures(by_side) for name, by_side in ways.items()}
        for place, ways in samples.items()
    }


def _figures(by_side: dict[str, list[float]]) -> dict[str, Any]:
    sums = [sum(values) for values in zip(*(by_side[side] for side in SIDES), strict=True)]
    return {name: spread(values).plain() for name, values in (*by_side.items(), ("all", sums))}


def _ask(folder: Path, name: str) -> dict[str, Counter[tuple[str, str]]]:
    """Return the counts of each side; waits until all three have written theirs."""
    (folder / f"{name}.ask").touch()
    sides: dict[str, Counter[tuple[str, str]]] = {}
    deadline = time.monotonic() + 20
    while len(sides) < len(SIDES):
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {', '.join(sides) or 'no process'} wrote its counts")
        time.sleep(_POLL_S)
        for path in folder.glob(f"{name}-*.json"):
            written = json.loads(path.read_text())
            calls = Counter({(first, second): n for first, second, n in written["calls"]})
            own = int(path.stem.rpartition("-")[2]) == os.getpid()
            side = "client" if own else side_of(" ".join(written["command"]))
            if side is not None:
                sides[side] = calls
    return sides


def _is_ours(file: str) -> bool:
    return f"{os.sep}gpud{os.sep}" in file or f"{os.sep}gpud_client{os.sep}" in file


def _short(file: str) -> str:
    for top in ("gpud_client", "gpud"):
        head, found, tail = file.rpartition(f"{os.sep}{top}{os.sep}")
        if found and head:
            return f"{top}/{tail}"
    return file


# -- reporting -------------------------------------------------------------------------------------


def report(calls: dict[str, Any], times: dict[str, Any], functions: int) -> None:
    """Print the tables."""
    columns = "calls", "files", "library_calls"
    print(f"{'a warm launch':<14}{'calls':>8}{'files':>8}{'library calls':>15}")
    every = {"all": {name: sum(calls[side][name] for side in SIDES) for name in columns}}
    for side, row in {**calls, **every}.items():
        counted = f"{row['calls']:>8.1f}{row['files']:>8}{row['library_calls']:>15.1f}"
        print(f"{side:<14}{counted}")
    print(f"\n{'us of processor time, and in all':<34}{'round trips':>12}{'pipelined':>12}")
    for place, ways in times.items():
        print(f"{place} (aim {AIM_US})")
        for side in (*SIDES, "all", "took"):
            trips, many = (ways[way][side]["median"] for way in ("round trips", "pipelined"))
            print(f"  {side:<32}{trips:>12.1f}{many:>12.1f}")
    for side in SIDES if functions else ():
        print(f"\n{side}")
        for file, function, number in calls[side]["functions"][:functions]:
            print(f"{number:>8.2f}  {file}  {function}")


def main() -> int:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=3000, help="jobs of a round")
    parser.add_argument("--functions", type=int, default=0, help="most called ones to print")
    parser.add_argument("--device", default="cpu:1")
    parser.add_argument("--short", action="store_true", help="few jobs; writes no file")
    options = parser.parse_args()
    before = load()
    calls = measure_calls(options.device)
    jobs, rounds = (300, 2) if options.short else (options.jobs, options.rounds)
    times = measure_time(options.device, jobs, rounds)
    report(calls, times, options.functions)
    if not options.short:
        keep("launch_path", {"calls": calls, "us": times, "aim_us": AIM_US}, before)
    return 0


if __name__ == "__main__":
    sys.exit(main())
