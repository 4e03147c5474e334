"""A device of which the n-th call fails, and a device host around it in this process.

Every call of the interface that a host uses is counted: of the device, its modules, its arenas and
its runs, from whatever thread. The n-th raises instead of doing anything, in one of three ways
(`KINDS`): an error that the device reports; an exception that nobody expects; and the loss of the
whole device, after which every other call fails as well and the host has to end.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gpud.device.cpu.device import CPUDevice
from gpud.device.host.host import Host
from gpud.device.host.link import Link
from gpud.errors import DeviceLost, LaunchConfigError

INJECTED = "injected by a test"
KINDS: dict[str, Callable[[], Exception]] = {
    "error": lambda: LaunchConfigError("grid", 1, INJECTED),
    "exception": lambda: ZeroDivisionError(INJECTED),
    "lost": lambda: DeviceLost(f"the context is gone: {INJECTED}", device="cpu:2"),
}
"""How a call can fail."""


class Calls:
    """Counts calls and fails one of them.

    Attributes:
        names: the calls so far, in order.
        failed: the call that was made to fail.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.failed: str | None = None
        self._at = 0
        self._kind = ""
        self._lock = threading.Lock()

    def fail(self, at: int, kind: str) -> None:
        """Begin to count anew; the call with number ``at``, from 1, fails. 0: none does."""
        with self._lock:
            self.names, self.failed, self._at, self._kind = [], None, at, kind

    def count(self, name: str, of: Device) -> None:
        """A call is about to be made."""
        with self._lock:
            self.names.append(name)
            if len(self.names) == self._at:
                self.failed = name
                of.lost = self._kind == "lost"
                raise KINDS[self._kind]()  # noqa: RSE102 - it is made here
            if of.lost:
                raise KINDS["lost"]()  # noqa: RSE102 - it is made here


class Counted:
    """An object of the device whose methods, and some of whose properties, are counted."""

    METHODS: tuple[str, ...] = ()
    PROPERTIES: tuple[str, ...] = ()

    def __init__(self, inner: Any, calls: Calls, of: Device) -> None:
        self.inner = inner
        self.calls = calls
        self.of = of

    def __getattr__(self, name: str) -> Any:
        what = f"{type(self).__name__.lower()}.{name}"
        if name in self.PROPERTIES:
            self.calls.count(what, self.of)
        value = getattr(self.inner, name)
        if name not in self.METHODS:
            return value

        def counted(*arguments: Any) -> Any:
            self.calls.count(what, self.of)
            return value(*arguments)

        return counted


class Module(Counted):
    METHODS = ("kernel", "symbol")


class Arena(Counted):
    METHODS = ("close",)


class Run(Counted):
    METHODS = ("resize", "end", "kill")
    PROPERTIES = ("progress", "held", "output")


class Device(Counted):
    """The device itself; what it makes is counted as well."""

    METHODS = ("occupancy", "prepare")

    def __init__(self, inner: CPUDevice, calls: Calls) -> None:
        super().__init__(inner, calls, self)
        self.lost = False
        self._arenas: list[Any] | None = []  # None: its process would have ended
        self._mapping = threading.Lock()

    def load(self, *arguments: Any, **named: Any) -> Module:
        self.calls.count("device.load", self)
        return Module(self.inner.load(*arguments, **named), self.calls, self)

    def map_arena(self, *arguments: Any) -> Arena:
        self.calls.count("device.map_arena", self)
        with self._mapping:
            if self._arenas is None:
                raise KINDS["lost"]()  # noqa: RSE102 - it is made here
            arena = self.inner.map_arena(*arguments)
            self._arenas.append(arena)
        return Arena(arena, self.calls, self)

    def end(self) -> None:
        """What the end of a process gives back by itself: threads, and mapped memory."""
        self.inner.close()
        with self._mapping:
            for arena in self._arenas or ():
                arena.close()
            self._arenas = None

    def new_run(self, *arguments: Any) -> Run:
        self.calls.count("device.new_run", self)
        return Run(self.inner.new_run(*arguments), self.calls, self)


class HostInProcess:
    """A real `Host` on a real CPU device, on threads of this process; starts again when it ends.

    Attributes:
        ended: why hosts have ended themselves.
        host: the present one.
    """

    def __init__(self, calls: Calls, sms: int = 2) -> None:
        self.calls = calls
        self.sms = sms
        self.ended: list[str] = []
        self.host: Any = None
        self._threads: list[threading.Thread] = []

    def connect(self) -> socket.socket:
        """Start a host: the front's end of its link."""
        self.close()  # the one before must have unmapped its memory
        front, theirs = socket.socketpair()
        front.setblocking(False)
        thread = threading.Thread(target=self._run, args=(theirs,), name="host", daemon=True)
        self._threads.append(thread)
        thread.start()
        return front

    def close(self) -> None:
        """Wait for the hosts, whose links were closed before."""
        while self._threads:
            thread = self._threads.pop()
            thread.join(30)
            assert not thread.is_alive(), "a host has not ended"

    def _run(self, theirs: socket.socket) -> None:
        over = False

        def on_lost(reason: str) -> None:
            nonlocal over
            if not over:  # a process would not come to a second time
                over = True
                self.ended.append(reason)
                with suppress(OSError):
                    theirs.shutdown(socket.SHUT_RDWR)

        device = Device(CPUDevice(self.sms), self.calls)
        link = Link(theirs)
        host = self.host = Host(device, link, on_lost)
        try:
            host.run()
        finally:
            link.close()
            device.end()  # two idle threads are left
            host._modules.clear()
