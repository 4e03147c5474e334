"""The memory behind the arrays: one sealed, sparse file for each session and device.

The ledger (`gpud.core.memory`) says where arrays are; this makes the files, hands them out, and
gives pages back. A file is as large as its arena and takes what was written to it.

Giving many pages back takes the kernel a while, so a large range is punched on a thread; arrays
that the session asks for meanwhile wait, for the range must read as zero before it is used again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from gpud.core.memory import Arena, Ledger, Range
from gpud.errors import InternalError
from gpud.server import memfd
from gpud.server.settings import MemoryLimits
from gpud.units import Address, SessionId

__all__ = ["Arenas"]

_LARGE_BYTES = 64 << 20  # punching so much takes some 5 ms


class Arenas:
    """Every session's memory. Empty until `set_up`, when the devices have said what they have."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ledger = Ledger([])
        self._files: dict[tuple[SessionId, int], int] = {}
        self._opened: set[SessionId] = set()
        self._punching: dict[SessionId, int] = {}
        self._waiting: dict[SessionId, list[Callable[[], None]]] = {}
        self._capacities: tuple[int, ...] = ()
        self.session_limit_bytes = 0

    def set_up(self, limits: MemoryLimits) -> None:
        """Say what there is, before the first session."""
        self._ledger = Ledger(limits.device, session_bytes=limits.session, user_bytes=limits.user)
        self._capacities = tuple(limits.device)
        self.session_limit_bytes = max(limits.session, default=0)

    # -- arrays

    def allocate(
        self, session: SessionId, user: int, device: int, size: int
    ) -> tuple[Address, Arena | None]:
        """Returns the address of a new array, and its arena if it is the first there.

        Raises:
            OutOfMemory, InvalidArgument, UnknownName, LimitExceeded: as the ledger.
            InternalError: the kernel gives no file for a new arena, or no descriptor.
        """
        if session not in self._opened:
            self._opened.add(session)
            self._ledger.open(session, user)
        address = self._ledger.allocate(session, device, size)
        key = (session, device)
        if key in self._files:
            return address, None
        arena = self._ledger.arena(session, device)
        assert arena is not None
        try:
            self._files[key] = memfd.create(f"gpud-{session}-{device}", arena.size)
        except OSError as error:
            self._ledger.free(session, device, address)
            raise InternalError(
                f"the kernel gives no memory file: {error.strerror}; raise the daemon's limit of "
                "open files",
                stage="server",
            ) from error
        return address, arena

    def file(self, arena: Arena) -> int:
        """The descriptor of an arena's memory file."""
        return self._files[arena.session, arena.device]

    def free_after(self, session: SessionId, device: int, address: int, last_job: int) -> None:
        """Free an array when the session's jobs up to ``last_job`` have ended: see `settle`.

        Raises:
            UnknownName: there is none.
        """
        self._ledger.free_after(session, device, address, last_job)

    def settle(self, session: SessionId, oldest_job: int | None) -> None:
        """Give back what no job of the session uses any more."""
        if session in self._opened:
            for piece in self._ledger.settle(session, oldest_job):
                self._give_back(piece)

    def when_zero(self, session: SessionId, action: Callable[[], None]) -> None:
        """Do ``action`` as soon as all that the session has freed reads as zero."""
        if session in self._punching:
            self._waiting.setdefault(session, []).append(action)
        else:
            action()

    def _give_back(self, piece: Range) -> None:
        arena = self._ledger.arena(piece.session, piece.device)
        assert arena is not None
        descriptor = self._files[piece.session, piece.device]
        offset = piece.address - arena.base
        if piece.size < _LARGE_BYTES:
            memfd.punch(descriptor, offset, piece.size)
            return
        own = os.dup(descriptor)  # the session may go meanwhile
        self._punching[piece.session] = self._punching.get(piece.session, 0) + 1
        done = self._loop.run_in_executor(None, _punch_and_close, own, offset, piece.size)
        done.add_done_callback(lambda _: self._punched(piece.session))

    def _punched(self, session: SessionId) -> None:
        self._punching[session] -= 1
        if self._punching[session]:
            return
        del self._punching[session]
        for action in self._waiting.pop(session, ()):
            action()

    # -- sessions

    def arena_of(self, session: int, device: int) -> tuple[int, int, int] | None:
        """(base, size, descriptor) of a session's memory on a device, if it has any there."""
        arena = self._ledger.arena(SessionId(session), device)
        if arena is None or (arena.session, device) not in self._files:
            return None
        return arena.base, arena.size, self.file(arena)

    def close_session(self, session: SessionId) -> None:
        """Free all that a session has; no device uses it any more."""
        if session not in self._opened:
            return
        self._opened.discard(session)
        for arena in self._ledger.close(session):
            descriptor = self._files.pop((session, arena.device), None)
            if descriptor is not None:
                os.close(descriptor)

    def close(self) -> None:
        """Free everything."""
        for session in sorted(self._opened):
            self.close_session(session)

    # -- looking

    def capacity_bytes(self, device: int) -> int:
        """What a device has for arrays; 0 before `set_up`."""
        return self._capacities[device] if device < len(self._capacities) else 0

    def used_bytes(self, device: int) -> int:
        """What of it is used."""
        return self._ledger.used_bytes(device) if self._capacities else 0

    def usage(self) -> list[dict[str, Any]]:
        """What each session has on each device where it has any."""
        return [use._asdict() for use in self._ledger.usage()]


def _punch_and_close(descriptor: int, offset: int, size: int) -> None:
    try:
        memfd.punch(descriptor, offset, size)
    finally:
        os.close(descriptor)
