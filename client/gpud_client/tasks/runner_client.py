"""A connection to the user's runner, which is started if there is none."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

from gpud import __version__
from gpud.errors import ConnectionLost, GpudError, from_wire
from gpud.wire.framing import FrameDecoder
from gpud.wire.message_table import Sender
from gpud.wire.task_messages import TASK_PROTOCOL, Greet, TaskRefused
from gpud.wire.task_paths import runner_socket, task_folder
from gpud_client.connection.daemon_socket import MAX_FRAME_BYTES

__all__ = ["RunnerClient"]

_START_S = 30.0
_LOOK_S = 0.02
_IDLE_S = 600
_LOG_BYTES = 4096


class RunnerClient:
    """A connection to the runner of this user.

    Raises:
        ConnectionLost: there is none and it could not be started, or it is of another version.
    """

    def __init__(self) -> None:
        self.path = runner_socket()
        self._socket = _try(self.path) or _started(self.path)
        self._decoder = FrameDecoder(MAX_FRAME_BYTES)
        self._request = 0
        try:
            about = self.ask(Greet, version=__version__)
            if about["protocol"] != TASK_PROTOCOL.version:
                raise ConnectionLost(
                    f"the runner at {self.path} is of gpud {about['version']}, and this is "
                    f"{__version__}: end it with `kill {about['pid']}`; its tasks go on, and the "
                    "next command starts another"
                )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave."""
        self._socket.close()

    def ask(self, message: type[Any], **fields: Any) -> Any:
        """Send a request and return the answer; waits for it.

        Raises:
            GpudError: the runner refuses; the error is its own.
            ConnectionLost: it has gone.
        """
        request = self.send(message, **fields)
        while True:
            number, answer = self.receive()
            if number in (request, 0):
                if isinstance(answer, GpudError):
                    raise answer
                return answer

    def send(self, message: type[Any], **fields: Any) -> int:
        """Send a request, and return its number.

        Raises:
            ProtocolError: a field has a value that is not allowed.
            ConnectionLost: the runner has gone.
        """
        self._request += 1
        made = TASK_PROTOCOL.check(message(request=self._request, **fields))
        try:
            self._socket.sendall(TASK_PROTOCOL.encode(made))
        except OSError as error:
            raise self._gone() from error
        return self._request

    def receive(self) -> tuple[int, Any]:
        """Wait for the next answer: the request's number, and what it was answered or its error.

        Raises:
            ConnectionLost: the runner has gone.
        """
        while True:
            for body in self._decoder.frames():
                answer = TASK_PROTOCOL.decode(body, Sender.DAEMON)
                if isinstance(answer, TaskRefused):
                    return answer.request, from_wire(answer.error)
                return answer.request, answer.answer
            try:
                data = self._socket.recv(1 << 16)
            except OSError as error:
                raise self._gone() from error
            if not data:
                raise self._gone()
            self._decoder.feed(data)

    def _gone(self) -> ConnectionLost:
        return ConnectionLost(f"the runner at {self.path} has gone; its tasks go on: ask again")


def _try(path: Path) -> socket.socket | None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        return None
    except OSError as error:
        sock.close()
        raise ConnectionLost(f"the runner at {path} cannot be reached: {error.strerror}") from error
    return sock


def _started(path: Path) -> socket.socket:
    """Start a runner that outlives this program, and connect to it."""
    folder = task_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = folder / "runner.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gpud", "runner", "--idle", str(_IDLE_S)],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/",
            env={**os.environ, "NOTIFY_SOCKET": ""}, start_new_session=True,
        )  # fmt: skip
    end_s = time.monotonic() + _START_S
    while time.monotonic() < end_s:
        ended = process.poll() is not None  # another program may have started one meanwhile
        sock = _try(path)
        if sock is not None:
            process.returncode = process.returncode or 0  # nobody waits for it here
            return sock
        if ended:
            break
        time.sleep(_LOOK_S)
    said = log.read_bytes()[-_LOG_BYTES:].decode("utf-8", "replace").strip().splitlines()
    raise ConnectionLost(
        f"the runner at {path} could not be started; its log {log} ends with: "
        f"{said[-1] if said else 'nothing'}"
    )
