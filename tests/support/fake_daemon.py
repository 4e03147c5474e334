"""A fake daemon for tests: speaks the protocol over a real socket, with scripted answers."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpud.errors import GpudError
from gpud.wire import messages as wm
from gpud.wire.framing import FrameDecoder
from gpud.wire.message_table import Sender

TIMEOUT_S = 20.0
BASE = 0x1000_0000_0000
ARENA_BYTES = 1 << 24
PAGE = 4096
SAXPY = [
    ("p0", "float", 4, 4, 0),
    ("p1", "uint", 8, 8, 8),
    ("p2", "uint", 8, 8, 16),
    ("p3", "uint", 4, 4, 24),
]


def kernel(name: str, parameters: list[Any], **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "entry": name,
        "form": "persistent",
        "exit_aware": False,
        "why": ["no departures"],
        "parameters": parameters,
        "shared_bytes": 0,
        "max_threads": None,
        "rejected": None,
    } | more


class FakeDaemon:
    """Serves one client after the other; every message is kept, and answered unless told not to.

    Attributes:
        received: messages of all connections.
        answer: by message class: called with the message instead of what is usual.
        occupancy: M of every kernel.
        finish_at_once: whether jobs are done as soon as they are submitted.
    """

    def __init__(
        self, *, sms: int = 4, devices: int = 1, online_sms: Any = None, path: Path | None = None
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpud-"))
        self.path = str(path or self.folder / "s")
        self.received: list[Any] = []
        self.answer: dict[type, Callable[[Any], None]] = {}
        self.kernels = [kernel("saxpy", SAXPY)]
        self.symbols: dict[str, int] = {"coef": 16}
        self.memory: dict[str, bytearray] = {"coef": bytearray(16)}
        self.occupancy = 2
        self.form = "persistent"
        self.finish_at_once = False
        self.states: dict[int, dict[str, Any]] = {}
        self.ended: list[int] = []
        self.sessions = 0
        self.version = wm.VERSION
        self.modules = 0
        self.most_jobs = 1000
        self.next_address = {index: BASE * (index + 1) for index in range(devices)}
        self.arena: dict[int, int] = {}
        self.may_read = threading.Event()
        self.may_read.set()
        self.changed = threading.Condition()
        self.sending = threading.Lock()
        self.devices = [
            {
                "name": f"device {index}",
                "kind": "cpu",
                "sms": sms,
                "memory_bytes": ARENA_BYTES,
                "capability": 90,
                "online_sms": online_sms if online_sms is not None else str(sms),
            }
            for index in range(devices)
        ]
        self.peer: socket.socket | None = None
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        self.thread = threading.Thread(target=self.serve, name="scripted daemon")
        self.thread.start()

    # -- what tests say

    def wait_for(self, kind: type, count: int = 1) -> Any:
        """The latest message of a kind, when there are so many."""
        with self.changed:
            found = self.changed.wait_for(lambda: len(self.of(kind)) >= count, TIMEOUT_S)
            assert found, f"{len(self.of(kind))} {kind.__name__} of {count} came"
            return self.of(kind)[count - 1]

    def of(self, kind: type) -> list[Any]:
        return [message for message in list(self.received) if type(message) is kind]

    def finish(
        self,
        number: int,
        state: str = "done",
        error: GpudError | None = None,
        output: bytes = b"",
        progress: tuple[int, int] = (64, 64),
    ) -> None:
        wire = None if error is None else error.to_wire()
        stats = {"queued_s": 0.1, "run_s": 0.2, "resizes": 1, "capsm_seconds": 0.5}
        self.ended.append(number)
        self.send(wm.Finished(number, state, wire, output, stats, progress))

    def fail(self, message: Any, error: GpudError) -> None:
        self.send(wm.Failed(message.request, error.to_wire()))

    def send(self, message: Any, descriptor: int | None = None) -> None:
        self.send_raw(wm.CLIENT_PROTOCOL.encode(message), descriptor)

    def send_raw(self, data: bytes, descriptor: int | None = None) -> None:
        peer = self.peer
        assert peer is not None
        with self.sending:
            if descriptor is None:
                peer.sendall(data)
            else:
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor]))
                assert peer.sendmsg([data], [rights]) == len(data)

    def drop(self) -> None:
        """Close the connection without a word."""
        assert self.peer is not None
        self.peer.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.may_read.set()
        # A blocking accept is not woken by shutdown() on every kernel: connect once instead.
        for sock in (self.peer, self.listener):
            if sock is not None:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        self.thread.join(TIMEOUT_S)
        assert not self.thread.is_alive()
        self.listener.close()
        for descriptor in self.arena.values():
            os.close(descriptor)
        shutil.rmtree(self.folder)

    # -- what it does by itself

    def serve(self) -> None:
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            self.peer = peer
            with peer, suppress(OSError):
                self.talk(peer)
            self.peer = None
            with self.changed:
                self.received.append(None)
                self.changed.notify_all()

    def talk(self, peer: socket.socket) -> None:
        decoder = FrameDecoder()
        while data := peer.recv(1 << 16):
            decoder.feed(data)
            for body in decoder.frames():
                message = wm.CLIENT_PROTOCOL.decode(body, Sender.CLIENT)
                self.heard(message)
                handler = self.answer.get(type(message))
                if handler is None:
                    handler = getattr(self, f"on_{type(message).__name__.lower()}", None)
                if handler is not None:
                    handler(message)
            self.may_read.wait(TIMEOUT_S)

    def heard(self, message: Any) -> None:
        with self.changed:
            self.received.append(message)
            self.changed.notify_all()

    def on_hello(self, message: wm.Hello) -> None:
        self.sessions += 1
        self.ended.clear()
        limits = {"message_bytes": 1 << 26, "jobs": self.most_jobs, "memory_bytes": ARENA_BYTES}
        daemon = {"version": "0", "pid": os.getpid(), "policy": "reservations"}
        self.send(
            wm.Welcome(message.request, self.version, self.sessions, self.devices, limits, daemon)
        )

    def on_compile(self, message: wm.Compile) -> None:
        self.modules += 1
        index = {one["name"]: at for at, one in enumerate(self.kernels)}
        names = {name: index[name] for name in message.names if name in index}
        self.send(
            wm.Compiled(message.request, self.modules, self.kernels, names, self.symbols, "a log")
        )

    def on_measure(self, message: wm.Measure) -> None:
        self.send(wm.Measured(message.request, self.occupancy, self.form))

    def on_allocate(self, message: wm.Allocate) -> None:
        if message.device not in self.arena:
            descriptor = os.memfd_create("arena")
            os.ftruncate(descriptor, ARENA_BYTES)
            self.arena[message.device] = descriptor
            base = BASE * (message.device + 1)
            self.send(wm.Arena(message.device, base, ARENA_BYTES), descriptor)
        address = self.next_address[message.device]
        if message.at is not None:
            self.send(wm.Allocated(message.request, message.at))
            return
        self.next_address[message.device] += -(-message.size // PAGE) * PAGE
        self.send(wm.Allocated(message.request, address))

    def on_resume(self, message: wm.Resume) -> None:
        self.arena.clear()  # the next connection is one to another daemon, with files of its own
        self.send(wm.Answer(message.request))

    def on_submit(self, message: wm.Submit) -> None:
        self.states[message.number] = {
            "state": "running",
            "progress": [3, 64],
            "allocation": "7/2",
            "resizes": 2,
            "run_s": 1.5,
            "queued_s": 0.25,
            "capsm_seconds": 4.0,
        }
        if self.finish_at_once:
            self.finish(message.number)

    def on_describe(self, message: wm.Describe) -> None:
        rows = [
            None if number in self.ended else self.states.get(number) for _, number in message.jobs
        ]
        self.send(wm.Answer(message.request, rows))

    def on_cancel(self, message: wm.Cancel) -> None:
        number = message.job[1]
        living = number in self.states and number not in self.ended
        self.send(wm.Answer(message.request, living))
        if living:
            self.finish(number, "cancelled")

    def on_resize(self, message: wm.Resize) -> None:
        self.send(wm.Answer(message.request))

    def on_query(self, message: wm.Query) -> None:
        self.send(wm.Answer(message.request, {"topic": message.topic, "limit": message.limit}))

    def on_readsymbol(self, message: wm.ReadSymbol) -> None:
        data = self.memory[message.name][message.offset : message.offset + message.size]
        self.send(wm.Answer(message.request, bytes(data)))

    def on_writesymbol(self, message: wm.WriteSymbol) -> None:
        end = message.offset + len(message.data)
        self.memory[message.name][message.offset : end] = message.data
        self.send(wm.Answer(message.request))
