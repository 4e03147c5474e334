"""What systemd and the daemon tell each other: readiness, and sockets made beforehand.

The two protocols are a few lines each, so no library is needed (see sd_notify(3) and
sd_listen_fds(3)). Without systemd both do nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress

__all__ = ["activated", "notify"]

_FIRST_DESCRIPTOR = 3  # SD_LISTEN_FDS_START


def notify(text: str, environ: MutableMapping[str, str] | None = None) -> bool:
    """Tells the service manager, such as ``READY=1``; whether there is one that heard it."""
    address = (os.environ if environ is None else environ).get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):  # a name in the abstract namespace
        address = "\0" + address[1:]
    with (
        suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
    ):
        # A manager that does not read must not stop the daemon.
        sock.setblocking(False)
        sock.sendto(text.encode(), address)
        return True
    return False


def activated(environ: MutableMapping[str, str] | None = None) -> list[int]:
    """Descriptors that systemd has passed to this process, and to no other.

    The variables are removed, so that child processes do not take them for theirs.
    """
    env = os.environ if environ is None else environ
    pid, count = env.pop("LISTEN_PID", ""), env.pop("LISTEN_FDS", "")
    env.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal():
        return []
    return list(range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + int(count)))
