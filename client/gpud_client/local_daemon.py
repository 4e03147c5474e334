"""Private daemons: `local`, and `alocal` for asyncio.

The daemon is a child process with a socket in a folder of its own. It signals readiness through
``NOTIFY_SOCKET``, as to systemd, and ends when this process does, however that ends.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpud.errors import ConnectionLost, InvalidArgument, MissingDependency
from gpud_client.aio.session import AsyncSession, Connecting, open_session
from gpud_client.session import Session

__all__ = ["PrivateDaemon", "alocal", "local"]

_START_S = 30.0
_END_S = 3.0  # after each signal
_USAGE = 2  # the exit status of `gpud serve` for invalid flags
_NEEDED = ("uvloop", "llvmlite", "cuda.bindings")  # of the extra `daemon`
_LOG_LINES = 12
_LOG_BYTES = 1 << 16  # more than a daemon logs that fails to start


def local(device: str | tuple[str, ...] = "cpu", *, check: bool = False, **options: Any) -> Session:
    """Start a private daemon and connect to it; it ends with the session.

    For scripts, notebooks and tests. Several may run at once. The daemon ignores the machine's
    configuration file; it reads the environment (``GPUD_...``).

    Args:
        device: As for ``gpud serve --device``: ``"cpu:4"``, or several in a tuple.
        check: Whether kernels are checked while they run; see `connect`.
        **options: Further options of ``gpud serve``, such as ``policy="equal"`` or
            ``drain_timeout="5 s"``.

    Raises:
        MissingDependency: The extra ``daemon`` is not installed; the message says how to.
        ConnectionLost: It did not start; the message holds the end of its log.
        ValueError: There is no such ``device`` or option.
    """
    daemon = PrivateDaemon(device, options)
    try:
        daemon.start()
        session = Session(str(daemon.socket), check=check)
    except BaseException:
        daemon.end()
        raise
    session._at_end(daemon.end)
    return session


def alocal(
    device: str | tuple[str, ...] = "cpu", *, check: bool = False, **options: Any
) -> Connecting:
    """Start a private daemon and connect to it, for asyncio; see `local`.

    ``async with alocal("cpu:4") as gpu:`` or ``gpu = await alocal("cpu:4")``.
    """

    async def start() -> AsyncSession:
        daemon = PrivateDaemon(device, options)
        try:
            await asyncio.to_thread(daemon.start)
            session = await open_session(str(daemon.socket), None, check=check)
        except BaseException:
            await asyncio.to_thread(daemon.end)  # it may take seconds
            raise
        session._at_end(daemon.end)
        return session

    return Connecting(start)


class PrivateDaemon:
    """A daemon as a child process; `end` may be called while another thread is in `start`."""

    def __init__(self, device: str | tuple[str, ...], options: Mapping[str, Any]) -> None:
        # Not in TMPDIR, whose path may be long: a socket's path has to be short.
        self.folder = Path(tempfile.mkdtemp(prefix="gpud-", dir=_short_folder()))
        self.socket = self.folder / "gpud.sock"
        self._arguments = _arguments(device, self.socket, options)
        self._notify = self.folder / "notify"
        self._log = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115  (`end` closes it)
        self._parent = os.getpid()
        self._ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._beginning = threading.Lock()
        self._over = False
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it accepts connections. Call `end` after an error, too.

        Raises:
            MissingDependency: a library that it needs is not installed.
            ConnectionLost: it has ended instead, or takes too long.
            InvalidArgument: it has ended because of an invalid option.
        """
        for library in _NEEDED:
            if not _installed(library):
                raise MissingDependency(library, extra="daemon")
        with self._beginning:
            if self._over:
                return
            self._ready.bind(str(self._notify))
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", "gpud", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                # It has no history file: that is the service's, if this program is one.
                env={**os.environ, "NOTIFY_SOCKET": str(self._notify), "STATE_DIRECTORY": ""},
                # Ctrl-C is for this program, which ends its daemon itself.
                start_new_session=True,
            )
        self._await_ready(process)

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        ended = os.pidfd_open(process.pid)
        try:
            poll = select.poll()
            poll.register(self._ready, select.POLLIN)
            poll.register(ended, select.POLLIN)
            end = time.monotonic() + _START_S
            while (left_s := end - time.monotonic()) > 0:
                ready = dict(poll.poll(left_s * 1000))
                if self._ready.fileno() in ready and b"READY=1" in self._ready.recv(4096):
                    # If this process is killed, the daemon removes its socket and the folder.
                    self._notify.unlink(missing_ok=True)
                    return
                if ended in ready:
                    status = process.wait()
                    problem = (
                        f"the private daemon ended at once (status {status}); its log:\n"
                        f"{self._tail()}"
                    )
                    raise (InvalidArgument if status == _USAGE else ConnectionLost)(problem)
        finally:
            os.close(ended)
        raise ConnectionLost(
            f"the private daemon was not ready within {_START_S:g} s; its log:\n{self._tail()}"
        )

    def end(self) -> None:
        """End it, and wait until it has ended. May be called twice.

        In a forked child process it does nothing: the daemon belongs to the parent.
        """
        if os.getpid() != self._parent:
            return
        with self._beginning:
            process, self._process, self._over = self._process, None, True
        self._ready.close()
        self._log.close()
        if process is not None:
            for signal_number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    process.send_signal(signal_number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_END_S)
                    break
        shutil.rmtree(self.folder, ignore_errors=True)

    def _tail(self) -> str:
        with suppress(OSError, ValueError):  # ended meanwhile
            # Not by seeking: the daemon writes at the offset that both share.
            text = os.pread(self._log.fileno(), _LOG_BYTES, 0).decode("utf-8", "replace")
            return "\n".join(text.splitlines()[-_LOG_LINES:]) or "(nothing was logged)"
        return "(there is no log)"


def _arguments(device: str | tuple[str, ...], path: Path, options: Mapping[str, Any]) -> list[str]:
    devices = (device,) if isinstance(device, str) else tuple(device)
    arguments = ["serve", "--socket", str(path), "--config", os.devnull, "--exit-with-parent"]
    for one in devices:
        arguments += ["--device", one]
    for name, value in options.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    return arguments


def _installed(library: str) -> bool:
    try:
        return importlib.util.find_spec(library) is not None
    except ImportError:  # its parent package is not installed
        return False


def _short_folder() -> str | None:
    """Choose a parent for a temporary folder, with a short path; None: tempfile's default."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    for folder in (runtime, "/tmp"):  # noqa: S108  (mkdtemp makes a folder of our own there)
        if folder and len(folder) < 60 and os.access(folder, os.W_OK | os.X_OK):
            return folder
    return None
