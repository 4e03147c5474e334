"""Frees pages of the arenas' files, large ranges on a thread, and counts what is being freed.

Problem: freeing many pages takes the kernel long, and a range must read as zero before it is used
again. On a device with memory of its own it must first be released there.

Approach: small ranges are punched at once. For a large one, or while a device releases one, the
range counts as held, and the session's next allocations wait: `PageFreer.when_zeroed`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from gpud.server.ipc import memfd
from gpud.units import SessionId

__all__ = ["LARGE_BYTES", "PageFreer", "close_freed"]

LARGE_BYTES = 64 << 20
"""Punching so much takes some 5 ms."""

Range = tuple[int, int]
"""Offset and size in bytes."""


class PageFreer:
    """The ranges that are being freed, by session."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._under_way: dict[SessionId, int] = {}
        self._bytes: dict[SessionId, int] = {}
        self._waiting: dict[SessionId, list[Callable[[], None]]] = {}

    def held_bytes(self, session: SessionId) -> int:
        """Return how much of the session's is being freed, and may not be yet."""
        return self._bytes.get(session, 0)

    def when_zeroed(self, session: SessionId, action: Callable[[], None]) -> None:
        """Call ``action`` once all ranges that the session has freed read as zero."""
        if session in self._under_way:
            self._waiting.setdefault(session, []).append(action)
        else:
            action()

    def punch(self, session: SessionId, descriptor: int, offset: int, size: int) -> None:
        """Free a range of a file."""
        if size < LARGE_BYTES:
            memfd.punch(descriptor, offset, size)
        else:
            self.punch_later(session, descriptor, [(offset, size)], self.hold(session, size))

    def punch_later(
        self,
        session: SessionId,
        descriptor: int,
        ranges: list[Range],
        then: Callable[[], None],
    ) -> None:
        """Free ranges on a thread, then call ``then``."""
        own = os.dup(descriptor)  # the session may end meanwhile
        over = self.hold(session, 0)

        def freed(_: object) -> None:
            then()
            over()

        self._loop.run_in_executor(None, close_freed, own, ranges).add_done_callback(freed)

    def hold(self, session: SessionId, size: int) -> Callable[[], None]:
        """Count ``size`` bytes as held, and as not zero, until the returned function is called."""
        self._under_way[session] = self._under_way.get(session, 0) + 1
        self._bytes[session] = self._bytes.get(session, 0) + size

        def over() -> None:
            self._bytes[session] -= size
            self._under_way[session] -= 1
            if not self._under_way[session]:
                del self._under_way[session], self._bytes[session]
                for action in self._waiting.pop(session, ()):
                    action()

        return over


def close_freed(descriptor: int, ranges: list[Range]) -> None:
    """Free ranges of a file and close its descriptor."""
    try:
        for offset, size in ranges:
            memfd.punch(descriptor, offset, size)
    finally:
        os.close(descriptor)
