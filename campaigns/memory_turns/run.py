"""Runs the Hypothesis state machine of workloads until so many events have happened.

    python -m campaigns.run memory_turns

Beside its own rules the machine has one that lets thirty things happen at random from a number that
Hypothesis draws, as a rule of its own costs more than what happens.

Each part of some thousand events is a Hypothesis run of its own with examples of its own; a
violation ends the run with Hypothesis' smallest example.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from functools import partial

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from campaigns.frame import Campaign, Figures, Plan, together
from tests.property.test_workloads import Workloads, random_step

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


def measure(plan: Plan) -> Figures:
    """Run parts until there were enough events, or the time is over."""
    done: Counter[str] = Counter()
    began = time.process_time()
    while done.total() < plan.count and time.monotonic() < plan.until:
        Workloads.done.clear()
        run_state_machine_as_test(Bursts, settings=PART)
        done += Workloads.done
    return {
        "seed": plan.seed,  # Hypothesis draws its own
        "events": done.total(),
        "processor_s": round(time.process_time() - began, 1),
        "by_kind": dict(sorted(done.items())),
    }


def report(found: Figures) -> None:
    """Print the figures."""
    print(f"{found['events']:,} events in {found['processor_s']} s, no violation")
    for kind, count in found["by_kind"].items():
        print(f"    {kind:<20}{count:>10,}")


MEMORY_TURNS = Campaign(
    "memory_turns",
    "The state machine of workloads, whose memory takes turns",
    unit="events",
    count=1_000_000,
    few=20_000,
    measure=measure,
    report=report,
    wrong=lambda found: (),  # a violation is raised
    device="",
    add=partial(together, sums=("events", "processor_s"), counts=("by_kind",)),
    seconds=3600.0,
)
