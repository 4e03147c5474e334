"""``gpud serve`` as a process of its own, looked at from outside.

Where the tests run as root the daemon's clients can be another user (`DaemonProcess.connect`), who
has no rights over the other clients' jobs; where they do not, everybody is the same user.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from tests.support.processes import Sample, samples

NOBODY = 65534
TIMEOUT_S = 60.0
_BUGS = ("Traceback", "was not handled", "AssertionError", "Fatal Python error", "Exception in ")


class DaemonProcess:
    """A folder for a daemon, and those that were started there; gone with the ``with`` block.

    Attributes:
        path: of the socket.
        processes: the daemons.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpud-", dir="/tmp"))  # as paths must be short
        self.folder.chmod(0o711)
        self.path = self.folder / "s"
        self.processes: list[subprocess.Popen[bytes]] = []
        self._manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._manager.bind(str(self.folder / "notify"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            _ended(process, 5.0)
        self._manager.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of the daemon, and of the clients that shall find it."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUD_")}
        places = dict.fromkeys(("XDG_CACHE_HOME", "XDG_CONFIG_HOME"), str(self.folder))
        notify = str(self.folder / "notify")
        return {**kept, **places, "GPUD_SOCKET": str(self.path), "NOTIFY_SOCKET": notify}

    def serve(
        self,
        *options: str,
        device: str = "cpu:2",
        wait: bool = True,
        wrapper: Sequence[str] = (),
        stdin: int = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        """Start a daemon, by the command ``wrapper`` if there is one."""
        command = [*wrapper, sys.executable, "-m", "gpud", "serve", "--device", device, *options]
        with self._log(len(self.processes)).open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )
        self.processes.append(process)
        if wait:
            self.notified("READY=1")
        return process

    def notified(self, what: str) -> None:
        """Wait until the last daemon says so to whoever manages it."""
        ended: Any = os.pidfd_open(self.processes[-1].pid)
        try:
            while True:
                found = select.select([self._manager, ended], [], [], TIMEOUT_S)[0]
                assert found, f"{what} was not said in {TIMEOUT_S:g} s: {self.log_tail()}"
                assert self._manager in found, f"the daemon ended: {self.log_tail()}"
                if what.encode() in self._manager.recv(4096):
                    return
        finally:
            os.close(ended)

    def _log(self, number: int) -> Path:
        return self.folder / f"log-{number}"

    @property
    def log(self) -> Path:
        """What the last daemon has logged."""
        return self._log(len(self.processes) - 1)

    def bugs(self) -> list[str]:
        """Lines of the log that tell of a bug in the daemon or in one of its children."""
        with self.log.open("rb") as log:
            lines = (line.decode(errors="replace").rstrip() for line in log)
            return [line[:400] for line in lines if any(words in line for words in _BUGS)][:50]

    def log_tail(self, lines: int = 15) -> str:
        """The end of the log."""
        text = self.log.read_bytes()[-20_000:].decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    @property
    def alive(self) -> bool:
        return self.processes[-1].poll() is None

    def samples(self) -> list[Sample]:
        """The daemon and its children."""
        return samples(self.processes[-1].pid)

    def connect(self, *, other_user: bool = True, timeout_s: float = 30.0) -> socket.socket:
        """A connection; of another user where that can be had."""
        sock = connected(self.path, other_user=other_user)
        sock.settimeout(timeout_s)
        return sock

    def ended(self, process: subprocess.Popen[bytes]) -> tuple[int, str]:
        """The exit status and the log of one of the daemons, waited for."""
        status = process.wait(TIMEOUT_S)
        return status, self._log(self.processes.index(process)).read_text(errors="replace")

    def end(self) -> int:
        """End the last daemon in order; its exit status."""
        return _ended(self.processes[-1], TIMEOUT_S)


def _ended(process: subprocess.Popen[bytes], timeout_s: float) -> int:
    """End a daemon in order if it takes no longer than that; its exit status."""
    process.terminate()
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


@contextmanager
def serving(device: str = "cpu:2", **settings: Any) -> Iterator[DaemonProcess]:
    """A daemon that serves every user.

    Args:
        device: as for ``--device``.
        settings: options of ``gpud serve``, underscores for hyphens.
    """
    given = {"socket_mode": "0666", **settings}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    with DaemonProcess() as daemon:
        daemon.serve("--exit-with-parent", *options, device=device)
        yield daemon


def connected(path: Path | str, *, other_user: bool) -> socket.socket:
    """A blocking connection to a daemon's socket; of another user where that can be had."""
    sock = socket.socket(socket.AF_UNIX)  # blocking: waits while the queue is full
    switch = other_user and os.geteuid() == 0
    try:
        if switch:
            os.seteuid(NOBODY)  # the kernel keeps who connected
        try:
            sock.connect(str(path))
        finally:
            if switch:
                os.seteuid(0)
    except BaseException:
        sock.close()
        raise
    return sock
