"""The protocols of systemd: service notification and socket activation.

Each is a few lines, so no library is needed (see sd_notify(3) and sd_listen_fds(3)). Without
systemd both do nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress

__all__ = ["activated", "notify"]

_FIRST_DESCRIPTOR = 3  # SD_LISTEN_FDS_START


def notify(text: str, environ: MutableMapping[str, str] | None = None) -> bool:
    """Send the service manager a notification such as ``READY=1``; returns whether it was sent."""
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
    """Return the listening descriptors that systemd has passed to this process.

    The environment variables are removed, so that child processes do not use them.
    """
    env = os.environ if environ is None else environ
    pid, count = env.pop("LISTEN_PID", ""), env.pop("LISTEN_FDS", "")
    env.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal():
        return []
    return list(range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + int(count)))
