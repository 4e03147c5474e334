"""Connects to the daemon's socket, and explains failures to connect."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

from gpud.errors import ConnectionLost, InvalidArgument
from gpud.wire.socket_path import check_fallback_folder

__all__ = ["MAX_FRAME_BYTES", "connect_socket"]

MAX_FRAME_BYTES = 1 << 30
"""The limit on frames from the daemon: it is trusted, and a long trace is large."""

_CONNECT_S = 10.0  # a daemon that does not accept for this long counts as unreachable


def connect_socket(path: str | os.PathLike[str]) -> socket.socket:
    """Connect to the daemon at ``path``, within `_CONNECT_S`; the socket is non-blocking.

    Raises:
        ConnectionLost: there is no daemon, or access is denied; the message says what to do.
    """
    try:
        check_fallback_folder(path)
    except InvalidArgument as error:
        raise ConnectionLost(str(error)) from error
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # Not settimeout(): a non-blocking connect fails at once if the backlog is full.
        _limit_sending(sock, _CONNECT_S)
        sock.connect(os.fspath(path))
        _limit_sending(sock, 0)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise ConnectionLost(_why(os.fspath(path), error)) from None
    return sock


def _limit_sending(sock: socket.socket, seconds: float) -> None:
    """Limit how long connecting and sending may block; 0: no limit."""
    whole = int(seconds)
    limit = struct.pack("@ll", whole, int((seconds - whole) * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _why(path: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        pid = _ending(path)
        if pid:
            return (
                f"the daemon at {path} (pid {pid}) takes no connections: it is ending, and waits "
                "for its jobs (wait, too, or send it SIGTERM once more to end it at once); or its "
                "socket's file was removed, which it makes again within a second: try again"
            )
        return (
            f"no daemon listens at {path}; start one with `gpud serve`, say where it is (--socket, "
            "connect(path) or GPUD_SOCKET), or use a private one: gpud_client.local()"
        )
    if isinstance(error, PermissionError):
        return f"{path} belongs to another user; ask for access, or start your own: `gpud serve`"
    if isinstance(error, TimeoutError | BlockingIOError):
        return f"the daemon at {path} does not accept connections; its log may say why"
    return f"{path} cannot be connected to: {error.strerror or error}"


def _ending(path: str) -> str:
    """Find the pid of a daemon that owns the path but no longer listens; empty: there is none."""
    with suppress(OSError):  # there is none, or it is another user's
        # Not by trying to lock it: a daemon that starts just then would find the path taken.
        pid = Path(path + ".lock").read_text().strip()
        if pid.isdecimal() and b"gpud" in Path("/proc", pid, "cmdline").read_bytes():
            return pid
    return ""
