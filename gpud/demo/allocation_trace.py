"""Allocations over time, read from the daemon's Chrome trace, and the checks of such a trace.

Terms: a *change* says what a job has from a moment on; a *lane* is what jobs of one kind have
together; times are seconds on the daemon's monotonic clock, which is this machine's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["Change", "changes_in", "stacked", "trace_problems"]


class Change(NamedTuple):
    """From ``at_s`` on, ``job``, which belongs to ``lane``, has ``sms`` CapSM."""

    at_s: float
    job: str
    lane: str
    sms: float


def changes_in(trace: Mapping[str, Any]) -> Iterator[Change]:
    """The changes that a daemon's trace tells of; what is no job's allocation is passed over.

    The lane of an online job is ``online``, of any other the name of its kernel.
    """
    events = trace["traceEvents"]
    start_s = trace.get("otherData", {}).get("start_monotonic_ns", 0) / 1e9
    lanes: dict[str, str] = {}
    for event in events:
        if event["ph"] == "M" and event["name"] == "thread_name":
            job, _, rest = event["args"]["name"].partition(" ")
            name, _, kind = rest.rpartition(" ")
            lanes[job] = "online" if kind == "(online)" else name
    for event in events:
        if event["ph"] == "C":
            for job, sms in event["args"].items():
                if job in lanes:
                    yield Change(start_s + event["ts"] / 1e6, job, lanes[job], sms)


def stacked(
    changes: Iterable[Change], lanes: Sequence[str], start_s: float, end_s: float
) -> tuple[list[float], dict[str, list[float]]]:
    """What each lane has from each moment on, between two times.

    Args:
        changes: in any order; those before ``start_s`` tell what is there at the beginning.
        lanes: which ones; changes of others are left out.
        start_s: the first moment that is returned.
        end_s: the last.

    Returns:
        Moments, ascending, and for each lane as many amounts in CapSM.
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
    """What a viewer of Chrome traces would not understand; empty if nothing.

    Source: "Trace Event Format", the document that Chromium and Perfetto point to.
    """
    events = trace.get("traceEvents")
    if not isinstance(events, list) or not events:
        return ["there is no list `traceEvents`, or it is empty"]
    found = []
    for number, event in enumerate(events):
        phase = event.get("ph") if isinstance(event, dict) else None
        if not isinstance(phase, str) or phase not in _PHASES:
            found.append(f"event {number} has no known phase `ph`: {event!r:.80}")
            continue
        needed = (*_REQUIRED.get(phase, ("name", "ts")), "pid")
        if missing := [name for name in needed if name not in event]:
            found.append(f"event {number} ({phase}) lacks {', '.join(missing)}")
        for name in ("ts", "dur"):
            value = event.get(name, 0)
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                found.append(f"event {number}: {name} is {value!r}, not a time in microseconds")
        if phase == "C" and not all(
            isinstance(value, int | float) for value in event.get("args", {}).values()
        ):
            found.append(f"event {number}: a counter has values that are no numbers")
    try:
        json.dumps(trace, allow_nan=False)
    except (TypeError, ValueError) as error:
        found.append(f"the trace is no JSON: {error}")
    return found
