"""Ten million spoilt messages: against the parser, and against a daemon that serves others.

    python bench/bench_fuzz.py [--messages N] [--minutes M] [--seed S] [--first BATCH]
                               [--live N] [--coverage N] [--inputs N] [--python INTERPRETER]

Parts, whose messages together are N:

* *live* (400,000 by default): pipelined to a daemon process over its socket, each answer accounted
  for (`tests.faults.fuzz_live`), while a well-behaved client beside it checks the results of its
  jobs. The daemon's memory and descriptors are looked at as the messages go by, its log is searched
  for tracebacks.
* *coverage* (1,000,000): atheris, which keeps what leads to new code, at the parser
  (`tests.faults.fuzz_coverage`). It has no wheel for every Python: ``--python`` names an
  interpreter with atheris and msgpack, and without one this part's messages go to the parser.
* *inputs* (20,000 of each kind, not counted as messages): settings files, PTX programs through the
  whole compiler, command lines (`tests.faults.fuzz_inputs`).
* *parser*: the rest, made by kinds from the message tables, spoilt, decoded in this process with
  every property checked (`tests.faults.fuzz_parser`).

Equal seeds make equal messages, batch by batch. A failure says which batch it was:
``--seed S --first BATCH --messages 64 --live 0 --coverage 0 --inputs 0`` runs it again.

Prints counts by outcome, by kind and by how the messages were spoilt; writes
bench/results/fuzz.json for 10^7 messages or more. Exit status 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness.machine import describe
from bench.harness.memory import peak_bytes
from bench.harness.timing import load
from tests.compiler.support import ptx_samples
from tests.faults import fuzz_inputs as inputs
from tests.faults.fuzz_choices import Dice
from tests.faults.fuzz_daemon import Daemon
from tests.faults.fuzz_live import KERNEL, fuzz_connection
from tests.faults.fuzz_neighbour import Neighbour
from tests.faults.fuzz_parser import BATCH, Outcomes, all_fuzzers, check_batch

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "bench" / "results" / "fuzz.json"
MESSAGES, LIVE, COVERAGE, INPUTS = 10_000_000, 400_000, 1_000_000, 20_000
PER_CONNECTION = 300
SAMPLES = 20
AIM_GROWTH_MIB = 16.0
_MIB = 1 << 20


def main() -> int:
    """Fuzzes, prints, keeps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--minutes", type=float, default=45.0, help="at most, all parts together")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--first", type=int, default=0, help="the parser's first batch")
    parser.add_argument("--live", type=int, help="of the messages")
    parser.add_argument("--coverage", type=int, help="of the messages")
    parser.add_argument("--inputs", type=int, help="of each kind")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with atheris")
    options = parser.parse_args()
    part = min(1.0, options.messages / MESSAGES)
    live = int(LIVE * part) if options.live is None else options.live
    coverage = int(COVERAGE * part) if options.coverage is None else options.coverage
    texts = int(INPUTS * part) if options.inputs is None else options.inputs
    before = load()
    end = time.monotonic() + 60 * options.minutes
    found: dict[str, Any] = {"seed": options.seed}
    if live:
        found["live"] = fuzz_live(options.seed, live, end)
    if coverage:
        found["coverage"] = fuzz_coverage(options.python, options.seed, coverage, end)
    if texts:
        found["inputs"] = fuzz_inputs(options.seed, texts, end)
    done = sum(one.get("messages", 0) for one in found.values() if isinstance(one, dict))
    found["parser"] = fuzz_parser(options.seed, options.first, options.messages - done, end)
    found["messages"] = done + found["parser"]["messages"]
    found["problems"] = [
        problem
        for one in found.values()
        if isinstance(one, dict)
        for problem in one.get("problems", ())
    ]
    report(found)
    if found["messages"] >= MESSAGES:
        RESULT.parent.mkdir(exist_ok=True)
        kept = {"machine": {**describe(), **before}, **found}
        RESULT.write_text(json.dumps(kept, indent=1) + "\n")
        print(f"wrote {RESULT.relative_to(ROOT)}")
    return 1 if found["problems"] else 0


# -- the parser --------------------------------------------------------------------------------


def fuzz_parser(seed: str, first: int, messages: int, end: float) -> dict[str, Any]:
    """So many messages to the parser in this process."""
    fuzzers = all_fuzzers()
    outcomes: Outcomes = Counter()
    problems: list[str] = []
    slowest = (0.0, 0)
    began = time.monotonic()
    peak = peak_bytes()
    batches = -(-max(0, messages) // BATCH)
    number = first
    for number in range(first, first + batches):
        at = time.perf_counter()
        try:
            check_batch(fuzzers[number % len(fuzzers)], f"{seed}:{number}", outcomes)
        except Exception as error:  # noqa: BLE001  (that is what is looked for)
            problems.append(f"batch {number}: {type(error).__name__}: {error}"[:600])
            if len(problems) >= 10:
                break
        slowest = max(slowest, (time.perf_counter() - at, number))
        if number % 1024 == 0 and time.monotonic() > end:
            break
        if number - first == 1024:
            peak = peak_bytes()
    took = time.monotonic() - began
    count = sum(outcomes.values())
    grown = (peak_bytes() - peak) / (1 << 20)
    if grown > AIM_GROWTH_MIB:
        problems.append(f"the parser's process has grown by {grown:.0f} MiB")
    return {
        "messages": count,
        "batches": [first, number + 1],
        "seconds": round(took, 1),
        "messages_per_second": round(count / took) if took else 0,
        "slowest_batch_ms": round(1e3 * slowest[0], 1),
        "growth_mib": round(grown, 1),
        **tables(outcomes),
        "problems": problems,
    }


def tables(outcomes: Outcomes) -> dict[str, Any]:
    """Counts by outcome, by kind and outcome, and by how they were spoilt."""
    by_outcome: Counter[str] = Counter()
    by_how: Counter[str] = Counter()
    by_kind: dict[str, Counter[str]] = {}
    for (kind, how, outcome), count in outcomes.items():
        by_outcome[outcome] += count
        by_how[how] += count
        by_kind.setdefault(kind, Counter())[outcome] += count
    return {
        "outcomes": dict(by_outcome.most_common()),
        "kinds": {kind: dict(sorted(by_kind[kind].items())) for kind in sorted(by_kind)},
        "spoilt": dict(by_how.most_common()),
    }


# -- a live daemon -----------------------------------------------------------------------------


def fuzz_live(seed: str, messages: int, end: float) -> dict[str, Any]:
    """So many messages to a daemon process, with a neighbour who must not notice."""
    outcomes: Outcomes = Counter()
    problems: list[str] = []
    rows: list[dict[str, dict[str, float]]] = []
    sent = connections = 0
    slowest = (0.0, 0)
    with Daemon("cpu:2") as daemon, Neighbour(str(daemon.path)) as neighbour:
        foreign = neighbour.names() if os.geteuid() == 0 else {}
        began = time.monotonic()
        while sent < messages and time.monotonic() < end and len(problems) < 10:
            at = time.monotonic()
            try:
                name = f"{seed}:live:{connections}"
                sent += fuzz_connection(daemon.connect(), name, PER_CONNECTION, outcomes, foreign)
            except (AssertionError, OSError) as error:
                problems.append(f"connection {connections}: {type(error).__name__}: {error}"[:600])
                if not daemon.alive:
                    break
            connections += 1
            slowest = max(slowest, (time.monotonic() - at, connections - 1))
            if sent * SAMPLES >= messages * len(rows):
                rows.append(_sizes(daemon))
        took = time.monotonic() - began
        neighbours = neighbour.end()
        rows.append(_sizes(daemon))
        problems += [f"the daemon's log: {line}" for line in daemon.bugs()]
        status = daemon.end()
    problems += neighbours["wrong"]
    if status:
        problems.append(f"the daemon ended with status {status}")
    return {
        "messages": sent,
        "connections": connections,
        "seconds": round(took, 1),
        "messages_per_second": round(sent / took) if took else 0,
        "slowest_connection_s": round(slowest[0], 2),
        "neighbour": neighbours,
        "sizes": rows,
        **_growth(rows, problems),
        **tables(outcomes),
        "problems": problems,
    }


def _sizes(daemon: Daemon) -> dict[str, dict[str, float]]:
    return {
        one.role: {
            "private_mib": round(one.private_bytes / _MIB, 1),
            "descriptors": one.descriptors,
            "threads": one.threads,
        }
        for one in daemon.samples()
    }


def _growth(rows: list[dict[str, dict[str, float]]], problems: list[str]) -> dict[str, Any]:
    """From the second quarter to the last row, by process."""
    grown = {}
    early, late = rows[len(rows) // 2], rows[-1]
    for role in ("front", "host", "worker"):
        if role in early and role in late:
            more = late[role]["private_mib"] - early[role]["private_mib"]
            grown[role] = round(more, 1)
            if more > AIM_GROWTH_MIB and len(rows) > SAMPLES // 2:
                problems.append(f"the {role} has grown by {more:.0f} MiB in the second half")
            if late[role]["descriptors"] > early[role]["descriptors"] + 16:
                problems.append(f"the {role} has {late[role]['descriptors']} descriptors")
    return {"growth_of_the_second_half_mib": grown}


# -- what else comes from outside --------------------------------------------------------------


def fuzz_inputs(seed: str, count: int, end: float) -> dict[str, Any]:
    """So many settings files, PTX programs and command lines; see `tests.faults.fuzz_inputs`."""
    programs = [KERNEL, *ptx_samples.SAMPLES.values()]
    found: dict[str, Any] = {"problems": []}
    with tempfile.TemporaryDirectory(prefix="gpud-fuzz-") as folder:
        checks: dict[str, Callable[[Dice], str]] = {
            "settings files": lambda dice: inputs.check_settings(
                inputs.settings_text(dice), Path(folder)
            ),
            "PTX programs": lambda dice: inputs.check_ptx(inputs.ptx_text(dice, programs)),
            "command lines": lambda dice: inputs.check_arguments(inputs.command_line(dice)),
        }
        for name, check in checks.items():
            outcomes: Counter[str] = Counter()
            slowest = (0.0, 0)
            for number in range(count):
                at = time.perf_counter()
                try:
                    outcomes[check(Dice(f"{seed}:{name}:{number}"))] += 1
                except Exception as error:  # noqa: BLE001  (that is what is looked for)
                    problem = f"{name}, {number}: {type(error).__name__}: {error}"
                    found["problems"].append(problem[:600])
                    if len(found["problems"]) >= 10:
                        return found
                slowest = max(slowest, (time.perf_counter() - at, number))
                if time.monotonic() > end:
                    break
            found[name] = {**outcomes, "slowest_ms": round(1e3 * slowest[0], 1)}
    return found


# -- guided by coverage ------------------------------------------------------------------------


def fuzz_coverage(python: str, seed: str, messages: int, end: float) -> dict[str, Any]:
    """So many messages by atheris, in a process of its own, as it never returns."""
    with tempfile.TemporaryDirectory(prefix="gpud-fuzz-") as folder:
        result = Path(folder, "result.json")
        left_s = max(10, int(end - time.monotonic()))
        command = [python, "-m", "tests.faults.fuzz_coverage", str(result), seed, str(messages)]
        process = subprocess.Popen(
            [*command, str(left_s)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            tail: list[str] = []
            reader = threading.Thread(target=_keep_tail, args=(process, tail))
            reader.start()
            try:
                process.wait(left_s + 120)
            except subprocess.TimeoutExpired:
                process.kill()
            reader.join()
        if process.returncode == 3:
            why = tail[-1] if tail else "atheris is not there"
            print(f"coverage: left out: {why}")
            return {"left_out": why}
        found: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {}
        if process.returncode:
            text = "\n".join(tail[-25:])
            found["problems"] = [f"coverage: exit status {process.returncode}: {text}"[-2000:]]
        return found


def _keep_tail(process: subprocess.Popen[str], tail: list[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        tail.append(line.rstrip())
        del tail[:-60]


def report(found: dict[str, Any]) -> None:
    """Prints the figures."""
    print(f"{found['messages']:,} messages, seed {found['seed']}")
    for name in ("live", "coverage", "parser"):
        part = found.get(name)
        if not part or "messages" not in part:
            continue
        print(
            f"{name}: {part['messages']:,} in {part['seconds']} s, "
            f"{part['messages_per_second']:,} a second"
        )
        for outcome, count in part.get("outcomes", {}).items():
            print(f"  {count:>12,}  {outcome}")
    if "live" in found:
        live = found["live"]
        print(f"  growth in the second half: {live['growth_of_the_second_half_mib']} MiB")
        print(f"  the neighbour: {live['neighbour']}")
    for name, outcomes in found.get("inputs", {}).items():
        if name != "problems":
            print(f"{name}: {outcomes}")
    for problem in found["problems"]:
        print(f"PROBLEM: {problem}")


if __name__ == "__main__":
    sys.exit(main())
