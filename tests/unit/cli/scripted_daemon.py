"""A daemon for tests of gpuctl: answers from a script, on a real socket, in a thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gpud.errors import GpudError, UnknownName
from gpud.wire.framing import FrameDecoder
from gpud.wire.message_table import Sender
from gpud.wire.messages import (
    CLIENT_PROTOCOL,
    VERSION,
    Answer,
    AskHistory,
    Cancel,
    Describe,
    Drain,
    Failed,
    Follow,
    Goodbye,
    Happened,
    Hello,
    Pause,
    Query,
    Reload,
    Resize,
    SetSetting,
    Welcome,
    Why,
)

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


class Peer:
    """The script of answers, and a record of the requests.

    ``answers`` is by topic; ``jobs`` are the rows that can be described, resized and cancelled.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, Any] = dict(ANSWERS)
        self.jobs = {(3, 17): RUNNING, (4, 1): WAITING}
        self.asked: list[Any] = []
        self.goodbye: GpudError | None = None
        self.hang_up_at: type[Any] | None = None

    def answer(self, message: Any) -> Iterator[Any]:
        self.asked.append(message)
        if type(message) is self.hang_up_at:
            raise ConnectionAbortedError
        match message:
            case Hello():
                if self.goodbye is not None:
                    yield Goodbye(self.goodbye.to_wire())
                    raise ConnectionAbortedError
                limits = {"message_bytes": 1 << 26, "jobs": 100, "memory_bytes": 1 << 30}
                yield Welcome(message.request, VERSION, 9, [DEVICE], limits, {"version": "0.1.0"})
            case Query():
                found = self.answers[message.topic]
                if isinstance(found, GpudError):
                    yield Failed(message.request, found.to_wire())
                else:
                    yield Answer(message.request, found)
            case AskHistory():
                yield Answer(message.request, {"rows": self.answers["history"].get("jobs", [])})
            case Describe():
                yield Answer(message.request, [self.jobs.get(job) for job in message.jobs])
            case Cancel():
                if message.job in self.jobs:
                    yield Answer(message.request, message.job == (3, 17))
                else:
                    error = UnknownName(f"there is no job {message.job[0]}.{message.job[1]}")
                    yield Failed(message.request, error.to_wire())
            case Why():
                row = self.jobs.get(message.job, RUNNING)
                lines = ["it is paused, for 2 s: online\njobs have its capacity", "1 s ago: it ..."]
                yield Answer(message.request, {"id": "3.17", "lines": lines, "job": row})
            case Pause():
                paused = {"by": "alice", "since": "2026-11-23 14:02", "now": message.now}
                row = {"index": 0, "spec": "cpu:8", "paused": paused if message.on else None}
                yield Answer(
                    message.request,
                    {"devices": [{**row, "waiting": 2, "running": 1, "stopped": 0}]},
                )
            case Reload() | SetSetting():
                found = {"file": "/etc/gpud/gpud.toml", "changed": [LIVE], "restart": [RESTART]}
                yield Answer(message.request, {**found, "set": LIVE})
            case Drain():
                yield Answer(message.request, {"jobs": 3, "timeout_s": 30.0})
            case Resize():
                yield Answer(message.request)
            case Follow():
                yield Answer(message.request)
                for number in range(3):
                    yield Happened({"at_s": 1.75e9 + number, "event": "job-started", "n": number})
                raise ConnectionAbortedError
            case _:
                raise AssertionError(message)

    def serve(self, connection: socket.socket) -> None:
        decoder = FrameDecoder(1 << 26)
        with connection, suppress(ConnectionError):
            while data := connection.recv(1 << 16):
                decoder.feed(data)
                for body in decoder.frames():
                    for reply in self.answer(CLIENT_PROTOCOL.decode(body, Sender.CLIENT)):
                        connection.sendall(CLIENT_PROTOCOL.encode(reply))

    def asked_for(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.asked if isinstance(message, kind)]


@contextmanager
def scripted(path: Path, serve: Callable[[socket.socket], None] | None = None) -> Iterator[Peer]:
    """A `Peer` that listens at ``path``; ``serve`` replaces its handling of a connection."""
    peer = Peer(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(8)
        thread = threading.Thread(target=_accept, args=(listener, serve or peer.serve))
        thread.start()
        yield peer
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        assert not thread.is_alive()


def _accept(listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            serve(connection)
