"""Reads what PyTorch has recorded of its allocations: a dry run that tells a loop's needs.

Two formats: a trace of the profiler (``torch.profiler.profile(profile_memory=True)``, then
``export_chrome_trace``), which a machine without a GPU can record, too, and a snapshot of the
allocator on a GPU (``torch.cuda.memory._record_memory_history()``, then ``_dump_snapshot``).
An iteration ends where ``step()`` of an optimizer ends, which both formats note by themselves, or
where the program says it with ``torch.profiler.record_function(MARK)``.

Source: PyTorch 2.15: the profiler's memory events, and what its viewer of snapshots reads.
"""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpud_client.workloads.kinds import Allocated, Event, Freed, IterationEnded

__all__ = ["MARK", "read_recording"]

MARK = "gpud iteration"
"""The name of a range of the profiler at whose end an iteration ends."""

_STEP = "Optimizer.step#"
_MEMORY = "[memory]"


def read_recording(path: str | Path, *, device: int | None = None) -> list[Event]:
    """Read a recording, a ``.json`` or ``.json.gz`` of the profiler or a pickled snapshot.

    A pickle runs what it names: open snapshots that you made yourself.

    Args:
        path: of the file.
        device: the GPU whose events are wanted; None: of a profile what was allocated in the
            host's memory, of a snapshot what was on GPU 0.

    Raises:
        ValueError: the file has another format, or no events of the device.
        OSError: it cannot be read.
    """
    raw = Path(path).read_bytes()
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    try:
        if raw[:64].lstrip()[:1] == b"{":
            events = _of_profile(json.loads(raw), device)
        else:
            events = _of_snapshot(_unpickled(raw), device or 0)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} is neither a profiler's trace nor a snapshot of PyTorch's allocator "
            f"({type(error).__name__}: {error}); write one with export_chrome_trace() or "
            "torch.cuda.memory._dump_snapshot()"
        ) from error
    if not any(isinstance(event, Allocated) for event in events):
        where = "the host's memory" if device is None else f"GPU {device}"
        raise ValueError(
            f"{path} has no allocations of {where}: record with profile_memory=True, and name the "
            "device whose events are wanted"
        )
    return events


def _unpickled(raw: bytes) -> Any:
    try:
        return pickle.loads(raw)  # noqa: S301 - the caller's own file, as the docstring says
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError, ImportError) as error:
        raise TypeError(str(error)) from error


def _of_profile(trace: Any, device: int | None) -> list[Event]:
    """Return the events of a trace in Chrome's format, whose times are in microseconds."""
    wanted = -1 if device is None else device
    found: list[tuple[float, int, Event]] = []
    for number, row in enumerate(trace["traceEvents"]):
        name, details = str(row.get("name", "")), row.get("args", {})
        if name == _MEMORY and int(details["Device Id"]) == wanted:
            address, size = int(details["Addr"]), int(details["Bytes"])
            event: Event = Allocated(address, size) if size > 0 else Freed(address)
            found.append((float(row["ts"]), number, event))
        elif row.get("ph") == "X" and (name.startswith(_STEP) or name == MARK):
            end = float(row["ts"]) + float(row["dur"])
            found.append((end, number, IterationEnded()))
    return _without_strangers(event for _, _, event in sorted(found, key=lambda one: one[:2]))


def _of_snapshot(snapshot: Any, device: int) -> list[Event]:
    """Return the events of the allocator's snapshot."""
    traces = snapshot["device_traces"]
    if device >= len(traces):
        return []
    found: list[tuple[float, int, Event]] = []
    for number, row in enumerate(traces[device]):
        when = float(row.get("time_us", number))
        if row["action"] == "alloc":
            found.append((when, number, Allocated(int(row["addr"]), int(row["size"]))))
        elif row["action"] == "free_completed":
            found.append((when, number, Freed(int(row["addr"]))))
    notes = snapshot.get("external_annotations", ())
    for number, row in enumerate(notes, len(traces[device])):
        name = str(row["name"])
        if row.get("stage") == "END" and (name.startswith(_STEP) or name == MARK):
            found.append((float(row["time_us"]), number, IterationEnded()))
    return _without_strangers(event for _, _, event in sorted(found, key=lambda one: one[:2]))


def _without_strangers(events: Iterable[Event]) -> list[Event]:
    """Leave out what frees memory that was allocated before the recording began."""
    alive: set[int] = set()
    kept: list[Event] = []
    for event in events:
        if isinstance(event, Allocated):
            alive.add(event.address)
        elif isinstance(event, Freed):
            if event.address not in alive:
                continue
            alive.discard(event.address)
        kept.append(event)
    return kept
