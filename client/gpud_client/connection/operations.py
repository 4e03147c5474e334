"""The operations that gpuctl and the library share: what is asked about a daemon and its jobs."""

from __future__ import annotations

from typing import Any

from gpud.errors import GpudError
from gpud.wire.messages import (
    TOPICS,
    AskHistory,
    Cancel,
    CloseWorkload,
    Describe,
    Drain,
    Follow,
    Pause,
    Query,
    Reload,
    Resize,
    SetSetting,
    Why,
)
from gpud_client.connection.pending import Operation, Request

__all__ = [
    "ask_history",
    "cancel",
    "describe",
    "drain",
    "end_workload",
    "follow",
    "pause",
    "query",
    "reload",
    "resize",
    "set_setting",
    "why",
]

JobRef = tuple[int, int]
"""The numbers of a session and of one of its jobs."""

Pair = tuple[int, int]
"""A share as a fraction."""


def query(topic: str, limit: int = 0) -> Operation[dict[str, Any]]:
    """Ask for a topic: the latest ``limit`` rows, or all with 0.

    Raises:
        ValueError: there is no such topic.
    """
    if topic not in TOPICS:
        raise ValueError(f"a topic is one of {', '.join(TOPICS)}, not {topic!r}")
    answer = yield Request(lambda number: Query(number, topic, limit))
    return _map(answer.value)


def ask_history(**asked: Any) -> Operation[list[dict[str, Any]]]:
    """Ask for jobs that have ended, or sums: fields of `gpud.wire.messages.AskHistory`."""
    answer = yield Request(lambda number: AskHistory(number, **asked))
    rows: list[dict[str, Any]] = _map(answer.value)["rows"]
    return rows


def describe(job: JobRef) -> Operation[dict[str, Any] | None]:
    """Ask for a job's row in topic "jobs"; None if it has ended or there is no such job."""
    answer = yield Request(lambda number: Describe(number, (job,)))
    rows: list[dict[str, Any] | None] = answer.value
    return rows[0] if rows else None


def why(job: JobRef) -> Operation[dict[str, Any]]:
    """Ask what a job waits for, and why its share changed: ``lines``, and its row as ``job``."""
    answer = yield Request(lambda number: Why(number, job))
    rows: dict[str, Any] = answer.value
    return rows


def resize(job: JobRef, reservation: Pair | None, quota: Pair | None) -> Operation[None]:
    """Change the reservation or the quota of a job, in CapSM."""
    yield Request(lambda number: Resize(number, job, reservation, quota))


def cancel(job: JobRef) -> Operation[bool]:
    """Cancel a job; returns whether it had not ended yet."""
    answer = yield Request(lambda number: Cancel(number, job))
    return bool(answer.value)


def pause(devices: tuple[int, ...], *, on: bool, now: bool = False) -> Operation[dict[str, Any]]:
    """Pause devices, all if none is named, or let them go on; see `gpud.wire.messages.Pause`."""
    answer = yield Request(lambda number: Pause(number, list(devices), on, now))
    return _map(answer.value)


def drain() -> Operation[dict[str, Any]]:
    """End the daemon in order: "jobs" that are waited for, and "timeout_s"."""
    answer = yield Request(Drain)
    return _map(answer.value)


def end_workload(workload: int) -> Operation[None]:
    """End a workload, and wait until its memory is cleared."""
    yield Request(lambda number: CloseWorkload(number, workload))


def set_setting(key: str, value: str) -> Operation[dict[str, Any]]:
    """Keep a setting in the daemon's file; see `gpud.wire.messages.SetSetting`."""
    answer = yield Request(lambda number: SetSetting(number, key, value))
    return _map(answer.value)


def reload() -> Operation[dict[str, Any]]:
    """Have the daemon read its settings again; see `gpud.wire.messages.Reload`."""
    answer = yield Request(Reload)
    return _map(answer.value)


def follow() -> Operation[None]:
    """Have the daemon send every event from now on."""
    yield Request(lambda number: Follow(number, True))


def _map(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise GpudError(f"the daemon answered with {type(value).__name__}, not with a map")
    return value
