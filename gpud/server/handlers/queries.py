"""Handles queries: status, jobs, kernels, memory, history, events, trace, doctor.

Users see their own rows; the daemon's user and root see all. Answers are built in slices
(`gpud.server.handlers.answers`), so a row gives the state at the time when it was built.
"""

from __future__ import annotations

import os
import platform
import resource
import time
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpud
from gpud.server.handlers import answers
from gpud.server.handlers.answers import Steps
from gpud.server.handlers.progress import refresh_progress
from gpud.server.ipc import file_descriptors
from gpud.server.state.access import may_manage, user_name
from gpud.server.state.modules import Module
from gpud.telemetry.records import AllocationChange, trace_events, trace_header
from gpud.wire import messages as wm

if TYPE_CHECKING:
    from gpud.core.memory.ledger import MemoryUsage
    from gpud.server.front import Front
    from gpud.server.hosts.device import Device
    from gpud.server.state.session import Session
    from gpud.server.state.submitted_job import Job

__all__ = ["follow", "query"]

_MOST_JOBS = 4096  # in one answer
_LOOKS_AT_ONCE = 32  # jobs


def query(session: Session, message: wm.Query) -> None:
    """Handle `Query`: answers with a map."""
    if message.topic == "jobs":
        _jobs(session, message)
        return
    steps = _TOPICS[message.topic](session, message.limit)
    session.front.answers.answer(session, message.request, steps)


def follow(session: Session, message: wm.Follow) -> None:
    """Handle `Follow`: answers, and sends `Happened` for each event from now on."""
    session.front.follow(session, message.on)
    session.send(wm.Answer(message.request))


def _jobs(session: Session, message: wm.Query) -> None:
    front = session.front
    limit = min(message.limit or _MOST_JOBS, _MOST_JOBS)
    found = answers.latest(list(front.runner.jobs.values()), limit, _seen_by(session))

    def on_found(jobs: list[Job]) -> None:
        steps = _job_rows(front, jobs)
        refresh_progress(
            front.runner, jobs, lambda: front.answers.answer(session, message.request, steps)
        )

    front.answers.make(session, message.request, found, on_found)


def _seen_by(session: Session) -> Callable[[Any], bool]:
    peer = session.peer
    return lambda one: may_manage(peer, one.uid)


def _job_rows(front: Front, jobs: list[Job]) -> Steps[dict[str, Any]]:
    rows = yield from answers.rows(jobs, lambda job: front.job_row(job, time.monotonic_ns()))
    return {"jobs": rows}


class _Load:
    """How many jobs a device has, and how much of it they occupy."""

    def __init__(self) -> None:
        self.jobs = self.online = 0
        self.allocated = Fraction(0)


def _loads(front: Front) -> Steps[tuple[Counter[str], dict[int, _Load]]]:
    """How many jobs are in each state, and the load of each device."""
    states: Counter[str] = Counter()
    loads = {device.index: _Load() for device in front.devices}
    for index, job in enumerate(list(front.runner.jobs.values())):
        if not index % _LOOKS_AT_ONCE:
            yield
        if job.state is not None:
            continue  # ended meanwhile
        states[job.present_state] += 1
        load = loads[job.device]
        load.jobs += 1
        load.online += job.online
        if job.capsm:  # few jobs have an allocation, however many wait
            load.allocated += job.allocation
    return states, loads


def _status(session: Session, limit: int) -> Steps[dict[str, Any]]:
    front = session.front
    states, loads = yield from _loads(front)
    now_ns = time.monotonic_ns()
    return {
        "version": gpud.__version__,
        "pid": os.getpid(),
        "uptime_s": (now_ns - front.started_ns) / 1e9,
        "policy": front.config.policy,
        "bounds_checks": front.config.bounds_checks,
        "draining": front.draining,
        "socket": str(front.config.socket),
        "devices": [_device(front, device, loads[device.index]) for device in front.devices],
        "clients": len(front.connections),
        "sessions": len(front.sessions),
        "jobs": dict(sorted(states.items())),
        "ended": dict(front.counts),
    }


def _device(front: Front, device: Device, load: _Load) -> dict[str, Any]:
    down = device.state != "ready" and device.failures
    monitor = front.gpu_monitors.get(device.index)
    return {
        **front.describe_device(device),
        **({} if monitor is None else monitor.metrics()),
        "pid": device.pid,
        "restarts": device.restarts,
        "error": device.last_failure if down else None,
        "allocated": str(load.allocated),
        "allocated_sms": float(load.allocated),
        "jobs": load.jobs,
        "online_jobs": load.online,
        "memory_used_bytes": front.arenas.used_bytes(device.index),
    }


def _kernels(session: Session, limit: int) -> Steps[dict[str, Any]]:
    front = session.front
    jobs: Counter[tuple[int, int]] = Counter()
    chains = Counter(job.chain for job in front.runner.jobs.values())
    for chain, count in chains.items():
        for key in {(module.number, shape[0]) for module, shape in chain.needs}:
            jobs[key] += count
        yield
    found: list[tuple[Session, Module, int]] = []
    for other in list(front.sessions.values()):
        if not may_manage(session.peer, other.peer.uid):
            continue
        for module in list(other.modules.values()):
            found += ((other, module, index) for index in range(len(module.program.kernels)))
            yield

    def row(one: tuple[Session, Module, int]) -> dict[str, Any]:
        other, module, index = one
        measured = module.measured_of(index)
        return {
            **module.program.descriptions[index],
            "module": module.number,
            "session": other.number,
            "user": user_name(other.peer.uid),
            "device": module.device,
            "shapes": [
                {"block": list(block), "shared": shared, "occupancy": m, "form": form}
                for (block, shared), (m, form) in measured.items()
            ],
            "occupancy": sorted({m for m, _ in measured.values()}),
            "jobs": jobs[module.number, index],
        }

    return {"kernels": (yield from answers.rows(found[-limit:] if limit else found, row))}


def _memory(session: Session, limit: int) -> Steps[dict[str, Any]]:
    front = session.front
    _, loads = yield from _loads(front)
    found: list[MemoryUsage] = []
    for use in front.arenas.usage():
        if may_manage(session.peer, use.user):
            found.append(use)
        yield

    def row(use: MemoryUsage) -> dict[str, Any]:
        other = front.sessions.get(use.session)
        return {
            **use._asdict(),
            "uid": use.user,
            "user": user_name(use.user),
            "program": "" if other is None else other.program,
            "pid": None if other is None else other.peer.pid,
        }

    rows = yield from answers.rows(found[-limit:] if limit else found, row)
    devices = [_device(front, device, loads[device.index]) for device in front.devices]
    return {"devices": devices, "sessions": rows}


def _history(session: Session, limit: int) -> Steps[dict[str, Any]]:
    front = session.front
    jobs = yield from answers.latest(list(front.records.ended), limit, _seen_by(session))
    return (yield from _job_rows(front, jobs))


def _events(session: Session, limit: int) -> Steps[dict[str, Any]]:
    records = session.front.records
    seen = yield from answers.latest(list(records.events), limit, _seen_by(session))
    return {"events": (yield from answers.rows(seen, records.describe))}


def _trace(session: Session, limit: int) -> Steps[dict[str, Any]]:
    front = session.front
    seen = _seen_by(session)
    kept = list(front.records.changes)
    found = yield from answers.latest(kept, limit, lambda one: seen(AllocationChange._make(one)))
    devices = [(d.index, f"device {d.index}: {d.spec}") for d in front.devices]
    now_ns = time.monotonic_ns()
    start_ns = AllocationChange._make(found[0]).at_ns if found else now_ns
    changes = map(AllocationChange._make, found)
    events = yield from answers.items(trace_events(changes, start_ns, now_ns, devices))
    return {"traceEvents": events, **trace_header(start_ns)}


def _doctor(session: Session, limit: int) -> Steps[dict[str, Any]]:
    front = session.front
    _, loads = yield from _loads(front)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = usage.ru_utime + usage.ru_stime
    opened = 0
    with os.scandir("/proc/self/fd") as descriptors_open:
        while found := sum(1 for _ in islice(descriptors_open, _LOOKS_AT_ONCE)):
            opened += found
            yield
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    loop = type(front.outbox.loop).__module__.partition(".")[0]
    checks = [
        _check("daemon", f"gpud {gpud.__version__}, Python {platform.python_version()}"),
        _check(
            "process",
            f"pid {os.getpid()}, user {user_name(os.geteuid())}, {cpu_s:.1f} s of processor time, "
            f"{_resident_bytes() >> 20} MiB of memory",
        ),
        _check("event loop", loop, "" if loop == "uvloop" else "install uvloop: it answers sooner"),
        _check(
            "open files",
            f"{opened} of {most}",
            "raise LimitNOFILE, or ulimit -n: they do not suffice for max_connections"
            if file_descriptors.remaining(front.config.max_connections, 0) < 0
            else "",
        ),
        _check("compiler", front.compiler.describe()),
        _check(
            "bounds checks",
            "on"
            if front.config.bounds_checks
            else f"off, by {front.config.origin('bounds_checks')}",
            ""
            if front.config.bounds_checks
            else "kernels can reach other sessions' memory; turn them on",
        ),
    ]
    for device in front.devices:
        row = _device(front, device, loads[device.index])
        detail = f"{row['name']}, {row['sms']} SMs, {device.state}"
        if device.restarts:
            detail += (
                f", started again {device.restarts} times: the last host {device.last_failure}"
            )
        hint = "see the daemon's log, then restart it" if device.state == "failed" else ""
        checks.append(_check(f"device {device.index}", detail, hint, device.state == "failed"))
    return {"checks": checks}


def _check(name: str, detail: str, hint: str = "", problem: bool = False) -> dict[str, Any]:
    state = "problem" if problem else "warning" if hint else "ok"
    return {"name": name, "state": state, "detail": detail, "hint": hint}


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


_TOPICS: dict[str, Callable[[Session, int], Steps[dict[str, Any]]]] = {
    "status": _status,
    "kernels": _kernels,
    "memory": _memory,
    "history": _history,
    "events": _events,
    "trace": _trace,
    "doctor": _doctor,
}
