"""The transition tables: the full product of states and inputs, and their properties."""

from __future__ import annotations

from enum import StrEnum
from itertools import product
from typing import Any

import pytest

from docs.generate_lifecycles import lifecycles_page
from gpud.core import lifecycles as cycles
from gpud.core.lifecycles import JobInput, JobState, Lifecycle
from gpud.errors import InternalError
from gpud.tasks.core.lifecycle import TASKS, TaskInput, TaskState

TABLES: list[tuple[Any, type[StrEnum], type[StrEnum], str]] = [
    (cycles.JOBS, JobState, JobInput, "blocked"),
    (cycles.SESSIONS, cycles.SessionState, cycles.SessionInput, "open"),
    (cycles.DEVICES, cycles.DeviceState, cycles.DeviceInput, "starting"),
    (TASKS, TaskState, TaskInput, "blocked"),
]


class Cycle(Lifecycle[Any, Any]):
    what = "job 3.17"


@pytest.mark.parametrize(("table", "states", "inputs", "first"), TABLES)
def test_every_pair_is_a_transition_or_an_error_with_the_history(
    table: Any, states: type[StrEnum], inputs: type[StrEnum], first: str
) -> None:
    for state, by in product(states, inputs):
        cycle = Cycle(table, state, 5)
        if (state, by) in table:
            assert cycle.step(by, 6) is table[state, by] is cycle.state
            assert list(cycle.history) == [(5, state), (6, by)]
        else:
            with pytest.raises(InternalError, match=f"job 3.17 is {state} .*was {state} at 5 ns"):
                cycle.step(by, 6)
            assert cycle.state is state


@pytest.mark.parametrize(("table", "states", "inputs", "first"), TABLES)
def test_every_state_is_reached_and_every_input_is_used(
    table: Any, states: type[StrEnum], inputs: type[StrEnum], first: str
) -> None:
    reached = {first}
    for _ in states:
        reached |= {after for (before, _), after in table.items() if before in reached}
    assert reached == set(states)
    assert {by for _, by in table} == set(inputs)


def test_jobs_end_once() -> None:
    ends = {JobState.DONE, JobState.FAILED, JobState.CANCELLED}
    assert not {before for before, _ in cycles.JOBS} & ends
    for state in set(JobState) - ends:
        # A job can be cancelled in every state: at once, or by way of `ending`.
        assert (state, JobInput.CANCEL) in cycles.JOBS or (state, JobInput.END) in cycles.JOBS
        # And its device can be lost.
        assert (state, JobInput.FAIL) in cycles.JOBS


def test_only_a_job_that_runs_is_done() -> None:
    done = [how for how, after in cycles.JOBS.items() if after is JobState.DONE]
    assert {before for before, by in done if by is not JobInput.CLOSE} == {
        JobState.RUNNING,
        JobState.PAUSED,
    }
    assert (JobState.ENDING, JobInput.CLOSE) in done  # of a lane, which has no end of its own


def test_a_long_history_is_cut() -> None:
    cycle = Cycle(cycles.JOBS, JobState.RUNNING, 0)
    for now_ns in range(1000):
        cycle.step(JobInput.RESUME if now_ns % 2 else JobInput.PAUSE, now_ns)
        assert len(cycle.history) <= 32
    assert [at_ns for at_ns, _ in cycle.history[-16:]] == list(range(984, 1000))
    assert cycle.history[-1] == (999, "resume")


def test_the_page_has_every_transition() -> None:
    page = lifecycles_page()
    sections = page.split("\n## ")[1:]
    for section, (table, states, inputs, _) in zip(sections, TABLES, strict=True):
        lines = section.splitlines()
        rows = {line.split("`")[1]: line for line in lines if line.startswith("| `")}
        assert set(states) <= rows.keys()
        for (before, by), after in table.items():
            assert f"{by}: `{after}`" in rows[before]
        assert all(f"| {by} | " in page for by in inputs)
