"""Allocations are read from a trace as the daemon recorded them; invalid traces are detected."""

from __future__ import annotations

from typing import Any

import pytest

from gpud.demo.allocation_trace import Change, changes_in, stacked, trace_problems
from gpud.telemetry import records
from gpud.units import JobId

START_NS = 5_000_000_000


def job(session: int, number: int) -> JobId:
    return JobId(session << 32 | number)


def recorded() -> dict[str, Any]:
    """Two jobs: an offline one shrinks for an online one and grows back."""

    def change(ms: int, number: int, capsm: float | None, name: str) -> records.AllocationChange:
        at = START_NS + ms * 1_000_000
        return records.AllocationChange(
            at, 0, job(number, 7), 1000, capsm, name, name.startswith("dense")
        )

    changes = [
        change(0, 3, 2.0, "pricer"),
        change(10, 3, 0.0, "pricer"),
        change(10, 4, 2.0, "dense, softmax"),
        change(22, 4, None, "dense, softmax"),
        change(22, 3, 2.0, "pricer"),
    ]
    end_ns = START_NS + 30_000_000
    events = list(records.trace_events(changes, START_NS, end_ns, [(0, "a CPU")]))
    return {"traceEvents": events, **records.trace_header(START_NS)}


def test_changes_are_those_that_were_recorded() -> None:
    found = list(changes_in(recorded()))
    assert [(round(1e3 * (c.at_s - 5)), c.lane, c.sms) for c in found] == [
        (0, "pricer", 2.0), (10, "pricer", 0.0), (10, "online", 2.0),
        (22, "online", 0.0), (22, "pricer", 2.0),
    ]  # fmt: skip
    assert {c.job for c in found} == {"3.7", "4.7"}


def test_a_recorded_trace_is_well_formed() -> None:
    assert trace_problems(recorded()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ph": "?"}, "no known phase"),
        ({"ph": "C", "ts": 1.0, "name": "n", "pid": 0}, "lacks args"),
        ({"ph": "X", "ts": 1.0, "name": "n", "pid": 0}, "lacks dur"),
        ({"ph": "X", "ts": -1.0, "dur": 1.0, "name": "n", "pid": 0}, "ts is -1.0"),
        ({"ph": "C", "ts": "1", "name": "n", "pid": 0, "args": {}}, "ts is '1'"),
        ({"ph": "C", "ts": 1, "name": "n", "pid": 0, "args": {"a": "1/2"}}, "no numbers"),
        ({"ph": "C", "ts": 1, "name": "n", "pid": 0, "args": {"a": float("nan")}}, "no JSON"),
        ({"ph": "i", "ts": 1, "name": "n"}, "lacks pid"),
    ],
)
def test_a_malformed_event_is_noticed(change: dict[str, Any], said: str) -> None:
    trace = recorded()
    trace["traceEvents"].append(change)
    (problem,) = trace_problems(trace)
    assert said in problem


def test_a_trace_without_events_is_no_trace() -> None:
    assert trace_problems({}) != []
    assert trace_problems({"traceEvents": []}) != []


def test_lanes_add_up_what_their_jobs_have() -> None:
    changes = [
        Change(1.0, "a", "one", 0.5), Change(2.0, "b", "one", 1.0), Change(3.0, "a", "one", 0.0),
        Change(2.5, "c", "two", 0.25), Change(2.5, "d", "other", 9.0), Change(9.0, "c", "two", 0),
    ]  # fmt: skip
    times, heights = stacked(reversed(changes), ["one", "two"], 0.0, 4.0)
    assert times == [0.0, 1.0, 2.0, 2.5, 3.0, 4.0]
    assert heights == {
        "one": [0.0, 0.5, 1.5, 1.5, 1.0, 1.0],
        "two": [0.0, 0.0, 0.0, 0.25, 0.25, 0.25],
    }


def test_what_was_before_the_excerpt_is_there_at_its_beginning() -> None:
    changes = [Change(1.0, "a", "one", 0.5), Change(1.0, "b", "one", 1.0)]
    times, heights = stacked(changes, ["one"], 2.0, 3.0)
    assert times == [2.0, 3.0]
    assert heights == {"one": [1.5, 1.5]}
