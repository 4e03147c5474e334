"""Access control: a client is identified by the user id of its socket credentials.

What it uses is counted for its *account*: that is the user itself, or the owner of a subordinate
user id (``/etc/subuid``). Of these, one user has 65,536 or more, for the asking.
"""

from __future__ import annotations

import os
import pwd
import socket
import struct
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["Peer", "account_of", "may_manage", "peer_of", "user_name"]

_CREDENTIALS = struct.Struct("3i")


class Peer(NamedTuple):
    """The process at the other end of a connection, as it was when it connected."""

    pid: int
    uid: int
    gid: int

    @property
    def process(self) -> str:
        """The process in words: the kernel gives no number of one in another pid namespace."""
        return f"pid {self.pid}" if self.pid else "in another pid namespace"


def peer_of(sock: socket.socket) -> Peer:
    """Return the credentials of a connected Unix socket's peer, as recorded by the kernel."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(data))


def may_manage(peer: Peer, uid: int | None) -> bool:
    """Whether ``peer`` may see and manage what belongs to user ``uid``; None: to everybody."""
    return uid is None or peer.uid == uid or peer.uid in (0, os.geteuid())


def account_of(uid: int, table: Path = Path("/etc/subuid")) -> int:
    """Return the user for whom is counted what ``uid`` uses."""
    try:
        changed_ns = table.stat().st_mtime_ns
    except OSError:
        return uid
    for first, count, owner in _subordinates(table, changed_ns):
        if first <= uid < first + count:
            return owner
    return uid


@lru_cache(maxsize=4)
def _subordinates(table: Path, changed_ns: int) -> tuple[tuple[int, int, int], ...]:
    """Return (first, how many, owner) of each range in the table; lines that are none are left."""
    found = []
    for line in table.read_text("utf-8", "replace").splitlines():
        try:
            name, first, count = line.strip().split(":")
            owner = int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
            found.append((int(first), int(count), owner))
        except (ValueError, KeyError):
            continue
    return tuple(found)


@lru_cache(maxsize=256)
def user_name(uid: int) -> str:
    """Return the user's name, or the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
