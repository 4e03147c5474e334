"""Turns between users at the front's time, however many connections each of them has.

Problem: the event loop calls the reader of every connection that has sent something. One user with
300 of them, each with a request that takes milliseconds, has everybody else wait for all.

Approach: a user has one `UserTurns`. Once its connections have taken `TURN_S` in one round of the
event loop, those that come later wait in line, and one of them is read from in each round.

Properties:
    by_user: a user with any number of connections delays another by `TURN_S`, and by one turn of a
        connection (`gpud.server.ipc.stream`), in each round;
    in_line: connections that wait are read from in the order in which they came;
    free: a user with one connection pays nothing for this.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

__all__ = ["TURN_S", "UserTurns", "WaitingReader"]

TURN_S = 0.005


class WaitingReader(Protocol):
    """A connection that can wait for its turn: `gpud.server.ipc.stream.Stream`."""

    ended: bool

    def pause(self) -> None:
        """Read nothing."""

    def take_turn(self) -> None:
        """Go on after `pause`, now."""


class UserTurns:
    """The turns of one user's connections.

    Attributes:
        connections: how many there are.
    """

    __slots__ = ("_line", "_loop", "_next_round", "_used_s", "connections")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._line: deque[WaitingReader] = deque()
        self._used_s = 0.0
        self._next_round = False
        self.connections = 0

    def read(self, connection: WaitingReader, read: Callable[[], None]) -> None:
        """Read from a connection, now or when it is its turn."""
        if self.connections < 2 and not self._line:
            read()
        elif self._line or self._used_s > TURN_S:
            connection.pause()
            self._line.append(connection)
        else:
            self._timed(read)

    def _timed(self, read: Callable[[], None]) -> None:
        began_s = time.monotonic()
        try:
            read()
        finally:
            self._used_s += time.monotonic() - began_s
            if not self._next_round:
                self._next_round = True
                self._loop.call_soon(self._begin_round)

    def _begin_round(self) -> None:
        self._used_s, self._next_round = 0.0, False
        while self._line:
            connection = self._line.popleft()
            if not connection.ended:
                self._timed(connection.take_turn)
                return
