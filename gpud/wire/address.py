"""Where a daemon is found: the path of its socket, the same rule for daemon and client."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpud.errors import InvalidArgument

__all__ = ["MAX_PATH_BYTES", "checked_socket_path", "default_socket_path", "socket_path"]

MAX_PATH_BYTES: Final = 107
"""What ``sockaddr_un`` holds on Linux, less the zero at its end."""


def socket_path(
    explicit: str | os.PathLike[str] | None = None, environ: Mapping[str, str] = os.environ
) -> Path:
    """Returns where to connect, or to listen.

    Args:
        explicit: what the caller asked for; goes first.
        environ: ``GPUD_SOCKET`` goes second, `default_socket_path` last.

    Raises:
        InvalidArgument: the path is none that a Unix socket can have.
    """
    if explicit is not None:
        return checked_socket_path(explicit)
    named = environ.get("GPUD_SOCKET", "")
    return checked_socket_path(named or default_socket_path(environ))


def default_socket_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Returns ``$XDG_RUNTIME_DIR/gpud/gpud.sock``.

    Where that variable is not set it is ``/run/gpud/gpud.sock`` for root and
    ``/tmp/gpud-UID/gpud.sock`` for others.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):  # the XDG specification has relative paths ignored
        return Path(runtime, "gpud", "gpud.sock")
    user = os.getuid()
    # The daemon makes the folder with mode 0700 and refuses one that is not its own.
    return Path("/run/gpud/gpud.sock" if user == 0 else f"/tmp/gpud-{user}/gpud.sock")  # noqa: S108


def checked_socket_path(path: str | os.PathLike[str]) -> Path:
    """Returns ``path`` if a Unix socket can have it.

    Raises:
        InvalidArgument: it is empty, holds a zero character, or is longer than `MAX_PATH_BYTES`.
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
