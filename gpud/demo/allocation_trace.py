"""Allocations over time, read from the daemon's Chrome trace; and a validator for such traces.

Terms: a *change* is a job's new allocation at a time; a *lane* is a group of jobs whose allocations
are added up; times are seconds on this machine's monotonic clock, which the daemon uses too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["Change", "changes_in", "stacked", "trace_problems"]


_REQUEST = "dense"  # the first kernel of `gpud.demo.online_network`


class Change(NamedTuple):
    """From ``at_s`` on, ``job``, in ``lane``, has an allocation of ``sms`` CapSM."""

    at_s: float
    job: str
    lane: str
    sms: float


def changes_in(trace: Mapping[str, Any]) -> Iterator[Change]:
    """Yield the allocation changes in a daemon's trace; other events are ignored.

    The lane of a request is ``online``, also under a policy without reservations, where it is an
    offline job; the lane of any other job is the name of its kernel.
    """
    events = trace["traceEvents"]
    start_s = trace.get("otherData", {}).get("start_monotonic_ns", 0) / 1e9
    lanes: dict[str, str] = {}
    for event in events:
        if event["ph"] == "M" and event["name"] == "thread_name":
            job, _, rest = event["args"]["name"].partition(" ")
            name, _, kind = rest.rpartition(" ")
            lanes[job] = "online" if kind == "(online)" or name.startswith(_REQUEST) else name
    for event in events:
        if event["ph"] == "C":
            for job, sms in event["args"].items():
                if job in lanes:
                    yield Change(start_s + event["ts"] / 1e6, job, lanes[job], sms)


def stacked(
    changes: Iterable[Change], lanes: Sequence[str], start_s: float, end_s: float
) -> tuple[list[float], dict[str, list[float]]]:
    """Compute the total allocation of each lane as a step function between two times.

    Args:
        changes: in any order; those before ``start_s`` determine the state at the beginning.
        lanes: the lanes to return; changes in other lanes are ignored.
        start_s: the first time that is returned.
        end_s: the last time that is returned.

    Returns:
        The times of the steps, ascending, and for each lane its amount in CapSM at each of them.
    """
    now: dict[str, dict[str, float]] = {lane: {} for lane in lanes}
    times = [start_s]
    heights: dict[str, list[float]] = {lane: [0.0] for lane in lanes}
    for change in sorted(changes, key=lambda one: one.at_s):
        if change.lane not in now or change.at_s > end_s:
            continue
        now[change.lane][change.job] = change.sms
        if not change.sms:
            del now[change.lane][change.job]
        if change.at_s > times[-1]:
            times.append(change.at_s)
            for lane in lanes:
                heights[lane].append(heights[lane][-1])
        heights[change.lane][-1] = sum(now[change.lane].values())
    times.append(end_s)
    for lane in lanes:
        heights[lane].append(heights[lane][-1])
    return times, heights


_PHASES = "BEXiICbneMPNODstf"
_REQUIRED = {"X": ("name", "ts", "dur"), "C": ("name", "ts", "args"), "M": ("name", "args")}


def trace_problems(trace: Mapping[str, Any]) -> list[str]:
    """Return what is invalid in a Chrome trace; empty if nothing.

    Source: "Trace Event Format", the document that Chromium and Perfetto refer to.
    """
    events = trace.get("traceEvents")
    if not isinstance(events, list) or not events:
        return ["there is no list `traceEvents`, or it is empty"]
    problems = []
    for number, event in enumerate(events):
        phase = event.get("ph") if isinstance(event, dict) else None
        if not isinstance(phase, str) or phase not in _PHASES:
            problems.append(f"event {number} has no known phase `ph`: {event!r:.80}")
            continue
        needed = (*_REQUIRED.get(phase, ("name", "ts")), "pid")
        if missing := [name for name in needed if name not in event]:
            problems.append(f"event {number} ({phase}) lacks {', '.join(missing)}")
        for name in ("ts", "dur"):
            value = event.get(name, 0)
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                problems.append(f"event {number}: {name} is {value!r}, not a time in microseconds")
        if phase == "C" and not all(
            isinstance(value, int | float) for value in event.get("args", {}).values()
        ):
            problems.append(f"event {number}: a counter has values that are no numbers")
    try:
        json.dumps(trace, allow_nan=False)
    except (TypeError, ValueError) as error:
        problems.append(f"the trace is no JSON: {error}")
    return problems
