from __future__ import annotations

import json

from gpud.errors import JobCancelled
from gpud.telemetry.records import AllocationChange, EventRecord, Records, trace_events
from gpud.units import job_id


def change(at_ns: int, job: int, capsm: float | None, device: int = 0) -> AllocationChange:
    return AllocationChange(at_ns, device, job_id(1, job), 0, capsm, "k", online=job == 2)


def test_bounded() -> None:
    records = Records(epoch_ns=0, history=3)
    for number in range(20_000):
        records.add_event(number, "noise", None)
        records.ended.append(number)
    assert len(records.events) == 10_000
    assert list(records.ended) == [19_997, 19_998, 19_999]


def test_an_event_as_it_is_shown() -> None:
    records = Records(epoch_ns=10**18, history=0)
    seen: list[EventRecord] = []
    records.on_event = seen.append
    records.add_event(5 * 10**8, "job-cancelled", 7, ("job", job_id(3, 17)), ("error", None))
    records.add_event(0, "x", 7, ("error", JobCancelled("stop")))
    assert records.describe(seen[0]) == {
        "at_s": 10**9 + 0.5,
        "event": "job-cancelled",
        "job": "3.17",
        "error": None,
    }
    assert records.describe(seen[1])["error"]["code"] == "job-cancelled"
    assert seen[0].uid == 7


def test_a_trace_has_a_counter_and_a_run_for_each_job() -> None:
    changes = [
        change(1000, 1, 4.0),
        change(3000, 1, 1.0),
        change(3000, 2, 3.0),
        change(7000, 2, None),
        change(7000, 1, 4.0),
    ]
    events = json.loads(json.dumps(list(trace_events(changes, 1000, 9000, [(0, "device 0")]))))
    assert [(e["ts"], e["args"]) for e in events if e["ph"] == "C"] == [
        (0, {"1.1": 4.0}),
        (2.0, {"1.1": 1.0}),
        (2.0, {"1.2": 3.0}),
        (6.0, {"1.2": 0}),
        (6.0, {"1.1": 4.0}),
    ]
    runs = {e["args"]["job"]: (e["ts"], e["dur"], e["cat"]) for e in events if e["ph"] == "X"}
    assert runs == {"1.1": (0, 8.0, "offline"), "1.2": (2.0, 4.0, "online")}
    assert {e["name"] for e in events if e["ph"] == "M"} == {"process_name", "thread_name"}


def test_a_trace_of_nothing() -> None:
    assert list(trace_events([], 5, 5, [])) == []
