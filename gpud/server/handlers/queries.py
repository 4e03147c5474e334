"""Handles queries: status, jobs, kernels, memory, workloads, events, trace, doctor.

Users see their own rows; the daemon's user and root see all. Answers are built in slices
(`gpud.server.handlers.answers`), so a row gives the state at the time when it was built.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from gpud import __version__
from gpud.core.memory.ledger import MemoryUsage
from gpud.server.handlers.answers import Answers, Steps, items, latest, rows
from gpud.server.handlers.configuration import Configuration
from gpud.server.handlers.device_rows import DeviceRows
from gpud.server.handlers.doctor import Doctor
from gpud.server.handlers.job_rows import JobRows
from gpud.server.handlers.workload_rows import WorkloadRows
from gpud.server.hosts.devices import Devices
from gpud.server.hosts.runner import Runner
from gpud.server.ipc.event_loop import STALLS
from gpud.server.shared import SharedState
from gpud.server.state.access import may_manage, user_name
from gpud.server.state.modules import Module
from gpud.server.state.others import Others
from gpud.server.state.session import Session
from gpud.server.state.submitted_job import SubmittedJob
from gpud.telemetry.records import AllocationChange, trace_events, trace_header
from gpud.wire import messages as wm

__all__ = ["Queries"]

_MOST_JOBS = 4096  # in one answer


class Queries:
    """Handles queries.

    Args:
        state: what is asked about.
        devices: by index.
        runner: knows whether the daemon drains.
        job_rows: makes rows about jobs.
        device_rows: makes rows about devices.
        doctor: checks the daemon.
        answers: builds large answers in slices.
        others: sums of what users hold whose rows are not shown.
        configuration: shows the settings.
    """

    def __init__(
        self,
        state: SharedState,
        devices: Devices,
        runner: Runner,
        job_rows: JobRows,
        device_rows: DeviceRows,
        doctor: Doctor,
        answers: Answers,
        others: Others,
        configuration: Configuration,
    ) -> None:
        self._state = state
        self._devices = devices
        self._runner = runner
        self._job_rows = job_rows
        self._device_rows = device_rows
        self._answers = answers
        self._others = others
        self._workload_rows = WorkloadRows(state.workloads)
        self._topics: dict[str, Callable[[Session, int], Steps[dict[str, Any]]]] = {
            "status": self._status,
            "kernels": self._kernels,
            "memory": self._memory,
            "workloads": self._workloads,
            "events": self._events,
            "trace": self._trace,
            "doctor": lambda session, limit: doctor.checks(),
            "config": lambda session, limit: configuration.query(session),
        }

    def query(self, session: Session, message: wm.Query) -> None:
        """Handle `Query`: answer with a map."""
        if message.topic == "jobs":
            self._jobs(session, message)
            return
        steps = self._topics[message.topic](session, message.limit)
        self._answers.answer(session, message.request, steps)

    def _jobs(self, session: Session, message: wm.Query) -> None:
        limit = min(message.limit or _MOST_JOBS, _MOST_JOBS)
        chosen = latest(list(self._state.jobs.values()), limit, _seen_by(session))

        def on_chosen(jobs: list[SubmittedJob]) -> None:
            steps = self._jobs_of(session, jobs)
            self._job_rows.refresh(
                session, jobs, lambda: self._answers.answer(session, message.request, steps)
            )

        self._answers.make(session, message.request, chosen, on_chosen)

    def _jobs_of(self, session: Session, jobs: list[SubmittedJob]) -> Steps[dict[str, Any]]:
        def row(job: SubmittedJob) -> dict[str, Any]:
            return self._job_rows.row(job, time.monotonic_ns())

        seen = yield from rows(jobs, row)
        return {"jobs": seen, "others": self._others.rows(session.peer)}

    def _status(self, session: Session, limit: int) -> Steps[dict[str, Any]]:
        answer = yield from self.status()
        return {**answer, "others": self._others.rows(session.peer)}

    def status(self) -> Steps[dict[str, Any]]:
        """Make the answer about the daemon and its devices, the same for every user."""
        states, loads = yield from self._device_rows.loads()
        now_ns = time.monotonic_ns()
        return {
            "version": __version__,
            "pid": os.getpid(),
            "uptime_s": (now_ns - self._state.started_ns) / 1e9,
            "policy": self._state.config.policy,
            "bounds_checks": self._state.config.bounds_checks,
            "draining": self._runner.draining,
            "socket": str(self._state.config.socket),
            "devices": self._device_rows.rows(loads),
            "orphaned_sessions": len(self._state.sessions.orphans),
            "loop_stalls": STALLS.count,
            "loop_longest_stall_s": STALLS.longest_s,
            "clients": self._state.descriptors.connections,
            "sessions": len(self._state.sessions),
            "jobs": dict(sorted(states.items())),
            "ended": dict(self._state.history.counts),
        }

    def _kernels(self, session: Session, limit: int) -> Steps[dict[str, Any]]:
        jobs: Counter[tuple[int, int]] = Counter()
        sequences = Counter(job.sequence for job in self._state.jobs.values())
        for sequence, count in sequences.items():
            for key in {(module.number, shape[0]) for module, shape in sequence.needs}:
                jobs[key] += count
            yield
        kernels: list[tuple[Session, Module, int]] = []
        for other in list(self._state.sessions.values()):
            if not may_manage(session.peer, other.uid):
                continue
            for module in list(other.modules.values()):
                kernels += ((other, module, index) for index in range(module.program.kernel_count))
                yield

        def row(one: tuple[Session, Module, int]) -> dict[str, Any]:
            other, module, index = one
            measured = module.measured_of(index)
            return {
                **module.program.descriptions[index],
                "module": module.number,
                "session": other.number,
                "user": user_name(other.uid),
                "device": module.device,
                "shapes": [
                    {"block": list(block), "shared": shared, "occupancy": m, "form": form}
                    for (block, shared), (m, form) in measured.items()
                ],
                "occupancy": sorted({m for m, _ in measured.values()}),
                "jobs": jobs[module.number, index],
            }

        return {"kernels": (yield from rows(kernels[-limit:] if limit else kernels, row))}

    def _memory(self, session: Session, limit: int) -> Steps[dict[str, Any]]:
        _, loads = yield from self._device_rows.loads()
        usage: list[MemoryUsage] = []
        for use in self._state.arenas.usage():
            if may_manage(session.peer, use.user):
                usage.append(use)
            yield

        def row(use: MemoryUsage) -> dict[str, Any]:
            other = self._state.sessions.get(use.session)
            return {
                **use._asdict(),
                "uid": use.user,
                "user": user_name(use.user),
                "program": "" if other is None else other.program,
                "pid": None if other is None else other.peer.pid,
            }

        sessions = yield from rows(usage[-limit:] if limit else usage, row)
        return {
            "devices": self._device_rows.rows(loads),
            "sessions": sessions,
            "zones": self._workload_rows.zones(),
            "workloads": self._workload_rows.rows(session.peer),
            "others": self._others.rows(session.peer),
        }

    def _workloads(self, session: Session, limit: int) -> Steps[dict[str, Any]]:
        yield
        seen = self._workload_rows.rows(session.peer)
        devices = self._workload_rows.zones()
        moved = self._workload_rows.moved()
        return {"workloads": seen[-limit:] if limit else seen, "devices": devices, "moved": moved}

    def _events(self, session: Session, limit: int) -> Steps[dict[str, Any]]:
        records = self._state.records
        seen = yield from latest(list(records.events), limit, _seen_by(session))
        return {"events": (yield from rows(seen, records.describe))}

    def _trace(self, session: Session, limit: int) -> Steps[dict[str, Any]]:
        seen = _seen_by(session)
        kept = list(self._state.records.changes)
        chosen = yield from latest(kept, limit, lambda one: seen(AllocationChange._make(one)))
        devices = [(d.index, f"device {d.index}: {d.spec}") for d in self._devices]
        now_ns = time.monotonic_ns()
        start_ns = AllocationChange._make(chosen[0]).at_ns if chosen else now_ns
        changes = map(AllocationChange._make, chosen)
        events = yield from items(trace_events(changes, start_ns, now_ns, devices))
        return {"traceEvents": events, **trace_header(start_ns)}


def _seen_by(session: Session) -> Callable[[Any], bool]:
    peer = session.peer
    return lambda one: may_manage(peer, one.uid)
