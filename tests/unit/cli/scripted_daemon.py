"""The daemon of tests of gpuctl: what it answers, by topic and by message."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpud.errors import GpudError, UnknownName
from gpud.wire import messages as wm
from tests.support.fake_daemon import FakeDaemon

DEVICE = {
    "index": 0, "spec": "cpu:8", "name": "CPU device", "kind": "cpu", "sms": 8, "state": "ready",
    "memory_bytes": 8 << 30, "memory_used_bytes": 3 << 20, "capability": 90, "online_sms": "8",
    "allocated": "7/2", "allocated_sms": 3.5, "restarts": 0, "error": None,
}  # fmt: skip
STATUS = {
    "version": "0.1.0", "pid": 4711, "uptime_s": 61.5, "policy": "reservations",
    "draining": False, "devices": [DEVICE], "clients": 3, "jobs": {"running": 1, "waiting": 1},
}  # fmt: skip
RUNNING = {
    "id": "3.17", "session": 3, "user": "alice", "uid": 1000, "program": "train.py",
    "kernels": ["step", "reduce"], "state": "running", "kind": "offline", "reservation": None,
    "quota": "8", "allocation": "7/2", "allocation_sms": 3.5, "device": 0, "progress": [25, 100],
    "queued_s": 0.0004, "run_s": 1.5, "resizes": 2, "error": None,
}  # fmt: skip
WAITING = {
    **RUNNING, "id": "4.1", "kind": "online", "state": "waiting", "reservation": "6", "quota": None,
    "allocation": "0", "program": "evil\x1b[31m\nname", "progress": [0, 10], "run_s": None,
}  # fmt: skip
ENDED = {
    **RUNNING, "id": "2.5", "state": "failed", "allocation": "0",
    "error": {"code": "job-timeout", "message": "the job was ended", "fields": {}},
}  # fmt: skip
LIVE = {"key": "grace", "value": "3 s", "origin": "--grace", "next": None, "next_origin": None,
        "live": True, "shown": True, "meaning": "..."}  # fmt: skip
RESTART = {"key": "policy", "value": "arrival", "origin": "the default", "next": "equal",
           "next_origin": "/etc/gpud/gpud.toml:3", "live": False, "shown": True}  # fmt: skip
ANSWERS: dict[str, dict[str, Any]] = {
    "status": STATUS,
    "jobs": {"jobs": [RUNNING, WAITING]},
    "kernels": {"kernels": [{"name": "axpy<float>", "form": "persistent", "why": ["no thread ..."],
                             "module": 1, "session": 3, "occupancy": [8], "user": "alice"}]},
    "memory": {"devices": [DEVICE], "sessions": [
        {"session": 3, "user": "alice", "pid": 4712, "device": 0, "arrays": 2,
         "used_bytes": 3 << 20},
    ]},
    "history": {"jobs": [ENDED]},
    "events": {"events": [{"at_s": 1.75e9, "event": "job-failed", "job": "2.5", "user": "alice",
                           "error": {"code": "kernel-trap", "message": "a trap", "fields": {}}}]},
    "trace": {"traceEvents": [{"ph": "C", "ts": 1.0, "name": "allocation", "args": {"3.17": 1}}]},
    "config": {"settings": [
        {"key": "grace", "value": "2 s", "origin": "the default", "shown": True, "meaning": "...",
         "live": True, "next": None},
        RESTART,
        {"key": "users", "value": None, "origin": "gpud.toml:3", "shown": False, "meaning": "."},
    ]},
    "doctor": {"checks": [{"name": "daemon", "state": "ok", "detail": "gpud 0.1.0", "hint": ""}]},
}  # fmt: skip


class Peer(FakeDaemon):
    """Answers from the script.

    ``answers`` is by topic; ``jobs`` are the rows that can be described, resized and cancelled.
    """

    def __init__(self, path: Path, serve: Callable[[socket.socket], None] | None = None) -> None:
        self.answers: dict[str, Any] = dict(ANSWERS)
        self.jobs = {(3, 17): RUNNING, (4, 1): WAITING}
        self.goodbye: GpudError | None = None
        self.hang_up_at: type[Any] | None = None
        self._serve = serve
        super().__init__(path=path)

    def talk(self, peer: socket.socket) -> None:
        (self._serve or super().talk)(peer)

    def reply(self, message: Any, value: Any = None) -> None:
        if isinstance(value, GpudError):
            self.fail(message, value)
        else:
            self.send(wm.Answer(message.request, value))

    def heard(self, message: Any) -> None:
        super().heard(message)
        if type(message) is self.hang_up_at:
            raise ConnectionAbortedError

    def on_hello(self, message: wm.Hello) -> None:
        if self.goodbye is not None:
            self.send(wm.Goodbye(self.goodbye.to_wire()))
            raise ConnectionAbortedError
        limits = {"message_bytes": 1 << 26, "jobs": 100, "memory_bytes": 1 << 30}
        self.send(
            wm.Welcome(message.request, wm.VERSION, 9, [DEVICE], limits, {"version": "0.1.0"})
        )

    def on_query(self, message: wm.Query) -> None:
        self.reply(message, self.answers[message.topic])

    def on_askhistory(self, message: wm.AskHistory) -> None:
        self.reply(message, {"rows": self.answers["history"].get("jobs", [])})

    def on_describe(self, message: wm.Describe) -> None:
        self.reply(message, [self.jobs.get(job) for job in message.jobs])

    def on_cancel(self, message: wm.Cancel) -> None:
        session, number = message.job
        known = (session, number) in self.jobs
        unknown = UnknownName(f"there is no job {session}.{number}")
        self.reply(message, message.job == (3, 17) if known else unknown)

    def on_why(self, message: wm.Why) -> None:
        row = self.jobs.get(message.job, RUNNING)
        lines = ["it is paused, for 2 s: online\njobs have its capacity", "1 s ago: it ..."]
        self.reply(message, {"id": "3.17", "lines": lines, "job": row})

    def on_pause(self, message: wm.Pause) -> None:
        paused = {"by": "alice", "since": "2026-11-23 14:02", "now": message.now}
        row = {"index": 0, "spec": "cpu:8", "paused": paused if message.on else None}
        self.reply(message, {"devices": [{**row, "waiting": 2, "running": 1, "stopped": 0}]})

    def on_reload(self, message: wm.Reload | wm.SetSetting) -> None:
        found = {"file": "/etc/gpud/gpud.toml", "changed": [LIVE], "restart": [RESTART]}
        self.reply(message, {**found, "set": LIVE})

    on_setsetting = on_reload

    def on_drain(self, message: wm.Drain) -> None:
        self.reply(message, {"jobs": 3, "timeout_s": 30.0})

    def on_follow(self, message: wm.Follow) -> None:
        self.reply(message)
        for number in range(3):
            event = {"at_s": 1.75e9 + number, "event": "job-started", "n": number}
            self.send(wm.Happened(event))
        raise ConnectionAbortedError


@contextmanager
def scripted(path: Path, serve: Callable[[socket.socket], None] | None = None) -> Iterator[Peer]:
    """A `Peer` that listens at ``path``; ``serve`` replaces its handling of a connection."""
    peer = Peer(path, serve)
    try:
        yield peer
    finally:
        peer.close()
