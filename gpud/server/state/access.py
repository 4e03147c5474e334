"""Access control: a client is identified by the user id of its socket credentials."""

from __future__ import annotations

import os
import pwd
import socket
import struct
from functools import lru_cache
from typing import NamedTuple

__all__ = ["Peer", "may_manage", "peer_of", "user_name"]

_CREDENTIALS = struct.Struct("3i")


class Peer(NamedTuple):
    """The process at the other end of a connection, as it was when it connected."""

    pid: int
    uid: int
    gid: int


def peer_of(sock: socket.socket) -> Peer:
    """Return the credentials of a connected Unix socket's peer, as recorded by the kernel."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(data))


def may_manage(peer: Peer, uid: int | None) -> bool:
    """Whether ``peer`` may see and manage what belongs to user ``uid``; None: to everybody."""
    return uid is None or peer.uid == uid or peer.uid in (0, os.geteuid())


@lru_cache(maxsize=256)
def user_name(uid: int) -> str:
    """Return the user's name, or the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
