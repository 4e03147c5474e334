"""What people ask: status, jobs, kernels, memory, history, events, trace, doctor.

Everybody sees their own; the daemon's user and root see all.
"""

from __future__ import annotations

import os
import platform
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import gpud
from gpud.server import descriptors
from gpud.server.access import may_manage, user_name
from gpud.telemetry.records import chrome_trace
from gpud.wire import messages as wm

if TYPE_CHECKING:
    from gpud.server.devices import Device
    from gpud.server.front import Front
    from gpud.server.session import Session

__all__ = ["follow", "query"]

_T = TypeVar("_T")
_MOST_JOBS = 4096  # in one answer: a row takes some 10 us, and everybody waits


def query(session: Session, message: wm.Query) -> None:
    """`Answer` with a map follows."""
    if message.topic == "jobs":
        _jobs(session, message)
        return
    value = _TOPICS[message.topic](session, message.limit)
    session.send(wm.Answer(message.request, value))


def follow(session: Session, message: wm.Follow) -> None:
    """`Answer` follows, and `Happened` from now on."""
    session.front.follow(session, message.on)
    session.send(wm.Answer(message.request))


def _jobs(session: Session, message: wm.Query) -> None:
    front = session.front
    jobs = [job for job in front.runner.jobs.values() if may_manage(session.peer, job.uid)]
    jobs = _latest(jobs, min(message.limit or _MOST_JOBS, _MOST_JOBS))

    def on_progress() -> None:
        now_ns = time.monotonic_ns()
        rows = [front.row(job, now_ns) for job in jobs]
        session.send(wm.Answer(message.request, {"jobs": rows}))

    front.with_progress(jobs, on_progress)


def _latest(rows: Sequence[_T], limit: int) -> list[_T]:
    return list(rows[-limit:] if limit else rows)


def _status(session: Session, limit: int) -> dict[str, Any]:
    front = session.front
    now_ns = time.monotonic_ns()
    states = Counter(job.present_state for job in front.runner.jobs.values())
    return {
        "version": gpud.__version__,
        "pid": os.getpid(),
        "uptime_s": (now_ns - front.started_ns) / 1e9,
        "policy": front.config.policy,
        "fences": front.config.fences,
        "draining": front.draining,
        "socket": str(front.config.socket),
        "devices": [_device(front, device) for device in front.devices],
        "clients": len(front.connections),
        "sessions": len(front.sessions),
        "jobs": dict(sorted(states.items())),
        "ended": dict(front.counts),
    }


def _device(front: Front, device: Device) -> dict[str, Any]:
    jobs = [job for job in front.runner.jobs.values() if job.device == device.index]
    # Those that have something are few, however many wait.
    allocated = sum((job.allocation for job in jobs if job.capsm), start=Fraction(0))
    down = device.state != "ready" and device.failures
    return {
        **front.describe_device(device),
        "pid": device.pid,
        "restarts": device.restarts,
        "error": device.failures[-1] if down else None,
        "allocated": str(allocated),
        "allocated_sms": float(allocated),
        "jobs": len(jobs),
        "online_jobs": sum(job.online for job in jobs),
        "memory_used_bytes": front.arenas.used_bytes(device.index),
    }


def _kernels(session: Session, limit: int) -> dict[str, Any]:
    rows = []
    running = Counter(
        kernel
        for job in session.front.runner.jobs.values()
        for kernel in {(module.number, shape[0]): None for module, shape in job.chain.needs}
    )
    for other in session.front.sessions.values():
        if not may_manage(session.peer, other.peer.uid):
            continue
        for module in other.modules.values():
            for index, description in enumerate(module.program.descriptions):
                shapes = [
                    {"block": list(block), "shared": shared, "occupancy": m, "form": form}
                    for (block, shared), (m, form) in module.measured_of(index).items()
                ]
                rows.append(
                    {
                        **description,
                        "module": module.number,
                        "session": other.number,
                        "user": user_name(other.peer.uid),
                        "device": module.device,
                        "shapes": shapes,
                        "occupancy": sorted({m for m, _ in module.measured_of(index).values()}),
                        "jobs": running[module.number, index],
                    }
                )
    return {"kernels": _latest(rows, limit)}


def _memory(session: Session, limit: int) -> dict[str, Any]:
    front = session.front
    rows = []
    for use in front.arenas.usage():
        if may_manage(session.peer, use["user"]):
            other = front.sessions.get(use["session"])
            program = "" if other is None else other.program
            rows.append({**use, "uid": use["user"], "user": user_name(use["user"])})
            rows[-1]["program"] = program
    return {
        "devices": [_device(front, device) for device in front.devices],
        "sessions": _latest(rows, limit),
    }


def _history(session: Session, limit: int) -> dict[str, Any]:
    front = session.front
    jobs = [job for job in front.records.ended if may_manage(session.peer, job.uid)]
    now_ns = time.monotonic_ns()
    return {"jobs": [front.row(job, now_ns) for job in _latest(jobs, limit)]}


def _events(session: Session, limit: int) -> dict[str, Any]:
    records = session.front.records
    seen = [one for one in records.events if may_manage(session.peer, one.uid)]
    return {"events": [records.describe(one) for one in _latest(seen, limit)]}


def _trace(session: Session, limit: int) -> dict[str, Any]:
    front = session.front
    changes = [one for one in front.records.changes if may_manage(session.peer, one.uid)]
    devices = [(d.index, f"device {d.index}: {d.spec}") for d in front.devices]
    return chrome_trace(_latest(changes, limit), time.monotonic_ns(), devices)


def _doctor(session: Session, limit: int) -> dict[str, Any]:
    front = session.front
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = usage.ru_utime + usage.ru_stime
    opened = sum(1 for _ in Path("/proc/self/fd").iterdir())
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
            if descriptors.left(front.config.max_connections, 0) < 0
            else "",
        ),
        _check("compiler", front.compiler.describe()),
        _check(
            "fences",
            "on" if front.config.fences else f"off, by {front.config.origin('fences')}",
            "" if front.config.fences else "kernels can reach other sessions' memory; turn them on",
        ),
    ]
    for device in front.devices:
        row = _device(front, device)
        detail = f"{row['name']}, {row['sms']} SMs, {device.state}"
        if device.restarts:
            detail += (
                f", started again {device.restarts} times: the last host {device.failures[-1]}"
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


_TOPICS: dict[str, Callable[[Session, int], dict[str, Any]]] = {
    "status": _status,
    "kernels": _kernels,
    "memory": _memory,
    "history": _history,
    "events": _events,
    "trace": _trace,
    "doctor": _doctor,
}
