"""Runs the Hypothesis state machine of workloads until so many events have happened.

    python -m tests.property.workload_campaign [--events N] [--seconds S] [--file FILE]

Beside its own rules the machine has one that lets thirty things happen at random from a number that
Hypothesis draws, as a rule of its own costs more than what happens.

Goes on where the last run ended: what happened is added up by kind in FILE, by default
bench/results/workload_campaign.json. Each part of some thousand events is a Hypothesis run of its
own with examples of its own; a violation ends the run with Hypothesis' smallest example.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from tests.property.test_workloads import Workloads, random_step

FILE = Path(__file__).resolve().parents[2] / "bench" / "results" / "workload_campaign.json"
PART = settings(
    max_examples=60,
    stateful_step_count=100,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


class Bursts(Workloads):
    """The state machine with a rule that has much happen."""

    @precondition(lambda self: self._admitted)
    @rule(seed=st.integers(0, 2**32 - 1))
    def burst(self, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(30):
            random_step(self.simulation, chance)


def main() -> int:
    """Run, and say how far it has come; returns 0 once there were enough events."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=480.0, help="of this run at most")
    parser.add_argument("--file", type=Path, default=FILE)
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    known = json.loads(options.file.read_text()) if options.file.exists() else {}
    done: Counter[str] = Counter(known.get("by_kind", {}))
    seconds = known.get("processor_s", 0.0)
    while done.total() < options.events and time.monotonic() < until:
        Workloads.done.clear()
        began = time.process_time()
        run_state_machine_as_test(Bursts, settings=PART)
        seconds += time.process_time() - began
        done += Workloads.done
        found = {
            "events": done.total(),
            "processor_s": round(seconds, 1),
            "by_kind": dict(sorted(done.items())),
        }
        options.file.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{done.total():,} of {options.events:,} events, no violation")
    return 0 if done.total() >= options.events else 1


if __name__ == "__main__":
    sys.exit(main())
