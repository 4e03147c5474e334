"""A daemon as a process of its own, looked at from outside: memory, descriptors, log.

Where the tests run as root the daemon's clients can be another user (`Daemon.connect`), who has no
rights over the other clients' jobs; where they do not, everybody is the same user.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65534
_READY_S = 60.0
_END_S = 30.0
_BUGS = ("Traceback", "was not handled", "AssertionError", "Fatal Python error", "Exception in ")


class Sample(NamedTuple):
    """A process at a moment.

    Attributes:
        role: "front", "host", "native" (makes a host's machine code), "worker" or "other".
        private_bytes: resident memory that is the process's own: what a leak makes grow.
        shared_bytes: resident memory of shared files, as the arrays are.
    """

    pid: int
    role: str
    private_bytes: int
    shared_bytes: int
    descriptors: int
    threads: int


class Daemon:
    """``gpud serve`` with a folder of its own; ended with the ``with`` block.

    Args:
        device: as for ``--device``.
        settings: options of ``gpud serve``, underscores for hyphens.
    """

    def __init__(self, device: str = "cpu:2", **settings: Any) -> None:
        short = "/tmp"  # a socket's path has to be short
        self.folder = Path(tempfile.mkdtemp(prefix="gpud-", dir=short))
        self.folder.chmod(0o711)
        self.path = self.folder / "s"
        self.log = self.folder / "log"
        notify = self.folder / "notify"
        command = [sys.executable, "-m", "gpud", "serve", "--device", device]
        command += ["--socket", str(self.path), "--config", os.devnull, "--exit-with-parent"]
        given = {"socket_mode": "0666", "cache_dir": str(self.folder / "cache"), **settings}
        for name, value in given.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        environ = {name: value for name, value in os.environ.items() if "GPUD" not in name}
        self._process: subprocess.Popen[bytes] | None = None
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
                ready.bind(str(notify))
                with self.log.open("wb") as log:
                    self._process = subprocess.Popen(
                        command,
                        cwd=ROOT,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env={**environ, "NOTIFY_SOCKET": str(notify)},
                        start_new_session=True,
                    )
                self._await(ready, self._process)
        except BaseException:
            self.close()
            raise

    def _await(self, ready: socket.socket, process: subprocess.Popen[bytes]) -> None:
        ended: Any = os.pidfd_open(process.pid)
        try:
            while True:
                found = select.select([ready, ended], [], [], _READY_S)[0]
                assert found, f"the daemon is not ready in {_READY_S:g} s: {self.log_tail()}"
                if ready in found and b"READY=1" in ready.recv(4096):
                    return
                assert ended not in found, f"the daemon ended: {self.log_tail()}"
        finally:
            os.close(ended)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def connect(self, *, other_user: bool = True, timeout_s: float = 30.0) -> socket.socket:
        """A connection; of another user where that can be had."""
        sock = socket.socket(socket.AF_UNIX)  # blocking: waits while the queue is full
        switch = other_user and os.geteuid() == 0
        try:
            if switch:
                os.seteuid(NOBODY)  # the kernel keeps who connected
            try:
                sock.connect(str(self.path))
            finally:
                if switch:
                    os.seteuid(0)
        except BaseException:
            sock.close()
            raise
        sock.settimeout(timeout_s)
        return sock

    def samples(self) -> list[Sample]:
        """The daemon and its children."""
        children = [sample(pid) for pid in _descendants(self.pid)]
        front = sample(self.pid, "front")
        return [one for one in (front, *children) if one is not None]

    def bugs(self) -> list[str]:
        """Lines of the log that tell of a bug in the daemon or in one of its children."""
        with self.log.open("rb") as log:
            lines = (line.decode(errors="replace").rstrip() for line in log)
            return [line[:400] for line in lines if any(words in line for words in _BUGS)][:50]

    def log_tail(self, lines: int = 15) -> str:
        """The end of the log."""
        with suppress(OSError):
            text = self.log.read_bytes()[-20_000:].decode(errors="replace")
            return "\n".join(text.splitlines()[-lines:])
        return ""

    def end(self) -> int:
        """End it in order; its exit status."""
        process = self._process
        assert process is not None
        if process.poll() is None:
            process.terminate()
        try:
            return process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def close(self) -> None:
        """End it, at once if need be, and remove its folder."""
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def sample(pid: int, role: str = "") -> Sample | None:
    """How a process stands; None if it has ended. Its command tells its role, if nobody else."""
    folder = Path(f"/proc/{pid}")
    try:
        command = (folder / "cmdline").read_bytes().decode(errors="replace")
        lines = (folder / "status").read_text().splitlines()
        descriptors = sum(1 for _ in (folder / "fd").iterdir())
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)

    def kib(name: str) -> int:
        return int(fields.get(name, "0").split()[0]) << 10

    # A child that has not come to its own program yet has its parent's command.
    roles = {
        "gpud.device.host.native_compile_process": "native",
        "gpud.device.host": "host",
        "gpud.compiler.process.main": "worker",
        "": "other",
    }
    role = role or next(role for words, role in roles.items() if words in command)
    private, shared = kib("RssAnon"), kib("RssShmem")
    return Sample(pid, role, private, shared, descriptors, int(fields.get("Threads", "0")))


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *_descendants(int(child))]
    return found
