"""The daemon's history: events, allocations over time, and ended jobs, in ring buffers.

Problem: ``gpuctl events``, ``history`` and ``trace`` report what has happened; recording it must
cost next to nothing on the path of a job, and memory must not grow with the daemon's uptime.

Approach: ring buffers of plain tuples, which are converted to maps and trace events on request.

Terms: times are monotonic nanoseconds, as in the scheduler; adding `Records.epoch_ns` gives
nanoseconds since 1970.

Properties:
    bounded: each ring keeps only its latest entries;
    private: every entry carries its user, so that a view can leave out those of other users.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from gpud.errors import GpudError
from gpud.units import JobId, job_name

__all__ = ["AllocationChange", "EventRecord", "Records", "trace_events", "trace_header"]

_CHANGES_KEPT = 50_000
_EVENTS_KEPT = 10_000


class EventRecord(NamedTuple):
    """One event.

    Attributes:
        uid: the user that it concerns; None if it concerns all users.
    """

    at_ns: int
    event: str
    uid: int | None
    fields: tuple[tuple[str, Any], ...]


class AllocationChange(NamedTuple):
    """A job's allocation from ``at_ns`` on, in CapSM; None: the job has ended."""

    at_ns: int
    device: int
    job: JobId
    uid: int
    capsm: float | None
    name: str
    online: bool


class Records:
    """The ring buffers of one daemon.

    Args:
        epoch_ns: offset from a monotonic time to nanoseconds since 1970.
        history: how many ended jobs are kept.

    Attributes:
        events: `EventRecord`, the latest last.
        changes: the fields of each `AllocationChange`, the latest last. Plain tuples of atomic
            values, which the garbage collector stops tracking; 50,000 tracked objects would cost
            it 4 ms at a time.
        ended: jobs that have ended, the latest last.
        on_event: called with each event; None if no client has subscribed.
    """

    def __init__(self, *, epoch_ns: int, history: int) -> None:
        self.epoch_ns = epoch_ns
        self.events: deque[EventRecord] = deque(maxlen=_EVENTS_KEPT)
        self.changes: deque[tuple[int, int, JobId, int, float | None, str, bool]] = deque(
            maxlen=_CHANGES_KEPT
        )
        self.ended: deque[Any] = deque(maxlen=history)
        self.on_event: Callable[[EventRecord], None] | None = None

    def add_event(self, at_ns: int, event: str, uid: int | None, *fields: tuple[str, Any]) -> None:
        """Record an event and pass it to `on_event`."""
        record = EventRecord(at_ns, event, uid, fields)
        self.events.append(record)
        if self.on_event is not None:
            self.on_event(record)

    def describe(self, record: EventRecord) -> dict[str, Any]:
        """Return an event in the form of `gpud.wire.messages.Happened`."""
        at_s = (record.at_ns + self.epoch_ns) / 1e9
        fields = {name: _plain(name, value) for name, value in record.fields}
        return {"at_s": at_s, "event": record.event, **fields}


def trace_header(start_ns: int) -> dict[str, Any]:
    """Return the fields of a trace other than ``traceEvents``."""
    # The origin of the trace's times, so that they can be aligned with times measured elsewhere.
    return {"displayTimeUnit": "ms", "otherData": {"start_monotonic_ns": start_ns}}


def trace_events(
    changes: Iterable[AllocationChange],
    start_ns: int,
    now_ns: int,
    devices: Iterable[tuple[int, str]],
) -> Iterator[dict[str, Any]]:
    """Yield allocations over time in the trace event format that Perfetto and Chrome read.

    Each device is a process, each job a thread of it with one slice from its start to its end, and
    a counter per device stacks the allocations of its jobs, in CapSM. Times begin at ``start_ns``.
    """
    for index, name in devices:
        yield {"ph": "M", "pid": index, "name": "process_name", "args": {"name": name}}
    yield from _trace_events(changes, start_ns, now_ns)


def _trace_events(
    changes: Iterable[AllocationChange], start_ns: int, now_ns: int
) -> Iterator[dict[str, Any]]:
    begun: dict[JobId, AllocationChange] = {}
    threads: dict[JobId, int] = {}
    for change in changes:
        at_us = (change.at_ns - start_ns) / 1e3
        job = job_name(change.job)
        if change.job not in threads:
            thread = threads[change.job] = len(threads) + 1
            begun[change.job] = change
            label = f"{job} {change.name} ({'online' if change.online else 'offline'})"
            yield {
                "ph": "M",
                "pid": change.device,
                "tid": thread,
                "name": "thread_name",
                "args": {"name": label},
            }
        yield {
            "ph": "C",
            "pid": change.device,
            "name": "allocation (CapSM)",
            "ts": at_us,
            "args": {job: change.capsm or 0},
        }
        if change.capsm is None and change.job in begun:
            yield _run(begun.pop(change.job), change.at_ns, start_ns, threads[change.job])
    for first in begun.values():
        yield _run(first, now_ns, start_ns, threads[first.job])


def _run(first: AllocationChange, end_ns: int, start_ns: int, thread: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": first.device,
        "tid": thread,
        "name": first.name,
        "cat": "online" if first.online else "offline",
        "ts": (first.at_ns - start_ns) / 1e3,
        "dur": (end_ns - first.at_ns) / 1e3,
        "args": {"job": job_name(first.job)},
    }


def _plain(name: str, value: Any) -> Any:
    """Return a field of an event as it is shown; converted on request, as few events are read."""
    if name == "job":
        return job_name(value)
    return value.to_wire() if isinstance(value, GpudError) else value
