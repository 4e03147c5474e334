"""Passes memory of a device on to a client, one message with descriptors at a time.

Problem: the kernel limits how many descriptors may be on their way in all of the daemon's sockets.
A client that asks for its arrays' memory and never takes it would use them up for all others.

Approach: the device host sends them on a socket that is made for it. The front keeps the daemon's
end, and lets a client ask again only when nothing lies unread on it (``SIOCOUTQ``, which no client
can pretend).
"""

from __future__ import annotations

import fcntl
import socket
import termios
from collections.abc import Callable

from gpud.errors import InvalidArgument

__all__ = ["MemorySender"]


class MemorySender:
    """What is on its way to one client."""

    def __init__(self) -> None:
        self._asked = self._closed = False
        self._end: socket.socket | None = None

    def begin(self) -> None:
        """Begin to send something.

        Raises:
            InvalidArgument: something is on its way.
        """
        if self._asked or not self._is_taken():
            raise InvalidArgument(
                "memory of an array is on its way: take it from its socket before more is asked for"
            )
        self._asked = True

    def sent(self, ends: tuple[socket.socket, socket.socket], send: Callable[[int], None]) -> None:
        """Have ``send`` pass the client's end on: it lies on the socket, or will soon.

        Args:
            ends: the daemon's end, and the client's, which is closed afterwards.
            send: gets the client's descriptor.
        """
        self._asked = False
        ours, theirs = ends
        with theirs:
            send(theirs.fileno())
        if self._closed:
            ours.close()
        else:
            self._end = ours

    def failed(self) -> None:
        """Note that nothing is sent."""
        self._asked = False

    def close(self) -> None:
        """Drop what is on its way: the client is gone."""
        self._closed = True
        if self._end is not None:
            self._end.close()
            self._end = None

    def _is_taken(self) -> bool:
        if self._end is not None:
            if any(fcntl.ioctl(self._end, termios.TIOCOUTQ, bytes(4))):
                return False
            self._end.close()
            self._end = None
        return True
