"""The path of the daemon's socket: one rule for daemon and client."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpud.errors import InvalidArgument

__all__ = [
    "MAX_PATH_BYTES",
    "check_fallback_folder",
    "checked_socket_path",
    "default_socket_path",
    "draining_path",
    "socket_path",
]

MAX_PATH_BYTES: Final = 107
"""The longest path in ``sockaddr_un`` on Linux, without the terminating zero."""


def socket_path(
    explicit: str | os.PathLike[str] | None = None, environ: Mapping[str, str] = os.environ
) -> Path:
    """Return the path to connect to, or to listen on.

    Args:
        explicit: the path that the caller asked for; has precedence.
        environ: supplies ``GPUD_SOCKET``, the second choice; `default_socket_path` is the last.

    Raises:
        InvalidArgument: the path is not valid for a Unix socket.
    """
    if explicit is not None:
        return checked_socket_path(explicit)
    named = environ.get("GPUD_SOCKET", "")
    return checked_socket_path(named or default_socket_path(environ))


def draining_path(path: str | os.PathLike[str]) -> Path:
    """Return where a daemon at ``path`` answers gpuctl while it drains; programs have to wait."""
    return Path(os.fspath(path) + ".draining")


def default_socket_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return ``$XDG_RUNTIME_DIR/gpud/gpud.sock``.

    Where that variable is not set it is ``/run/gpud/gpud.sock`` for root and
    ``/tmp/gpud-UID/gpud.sock`` for others.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):  # the XDG specification has relative paths ignored
        return Path(runtime, "gpud", "gpud.sock")
    user = os.getuid()
    # The daemon makes the folder with mode 0700 and refuses one that is not its own.
    return Path("/run/gpud/gpud.sock" if user == 0 else f"/tmp/gpud-{user}/gpud.sock")  # noqa: S108


def check_fallback_folder(path: str | os.PathLike[str]) -> None:
    """Refuses a socket in ``/tmp/gpud-UID`` if that folder does not belong to the user alone.

    Any user can create a folder of that name in ``/tmp`` first, and impersonate the daemon in it.
    Other paths were chosen explicitly and are not checked.

    Raises:
        InvalidArgument: the folder is not a directory, another user's, or writable by others.
    """
    user = os.getuid()
    folder = Path(path).parent
    if folder != Path(f"/tmp/gpud-{user}"):  # noqa: S108
        return
    try:
        about = folder.lstat()
    except OSError:
        return  # connecting to it, or creating it, reports the error
    if not stat.S_ISDIR(about.st_mode):
        problem = "is no folder"
    elif about.st_uid != user:
        problem = "belongs to another user"
    elif about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        problem = "can be written to by others"
    else:
        return
    raise InvalidArgument(
        f"{folder} {problem}, so what listens there need not be a daemon of yours; remove it, or "
        "name another socket with --socket or GPUD_SOCKET"
    )


def checked_socket_path(path: str | os.PathLike[str]) -> Path:
    """Return ``path`` if it is valid for a Unix socket.

    Raises:
        InvalidArgument: it is empty, contains a zero byte, or is longer than `MAX_PATH_BYTES`.
    """
    name = os.fspath(path)
    encoded = os.fsencode(name)
    if not encoded or b"\0" in encoded:
        raise InvalidArgument(f"{name!r} is no path of a socket; give the path of a file")
    if len(encoded) > MAX_PATH_BYTES:
        raise InvalidArgument(
            f"the socket path {name} has {len(encoded)} bytes, and a Unix socket's has at most "
            f"{MAX_PATH_BYTES}; choose a shorter one with --socket or GPUD_SOCKET"
        )
    return Path(name)
