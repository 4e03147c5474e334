"""The memory of workloads in the sessions' arenas, where these lie in the sessions' files.

A workload has a region for what persists, which is an array that the client cannot free, and
addresses for temporary memory. These are lent: the ledger counts temporary memory once for the
device, as the zone that all of its workloads use in turns. A movable region's addresses are lent,
too: what is counted is the room that all movable regions of the device have together.
"""

from __future__ import annotations

from collections.abc import Callable

from gpud.core.memory.allocator import ArenaRange
from gpud.core.memory.ledger import FreeRange
from gpud.errors import GpudError, InvalidArgument
from gpud.server.state.arenas import Arenas
from gpud.units import Address, SessionId

__all__ = ["Lent", "WorkloadMemory"]

Lent = tuple[int, int]
"""Address and bytes of a workload's temporary memory."""


class WorkloadMemory:
    """The memory of all workloads.

    Args:
        arenas: the memory of sessions' arrays.
    """

    def __init__(self, arenas: Arenas) -> None:
        self._arenas = arenas

    def open_workload(
        self,
        session: SessionId,
        user: int,
        device: int,
        position: int | None,
        sizes: tuple[int, int],
    ) -> tuple[Address, Address | None, ArenaRange | None]:
        """Allocate a workload's memory: what persists, and addresses for what is temporary.

        Args:
            session: whose it is.
            user: the session's.
            device: on which.
            position: of the region in the device's persistent zone: it lies as far from the
                beginning of the arena, if nothing else does; None: it is movable.
            sizes: bytes of the region with its offset, and of temporary memory, or 0.

        Returns:
            Both addresses, None for no temporary memory; the arena if the client does not know it.

        Raises:
            OutOfMemory, UnknownName, LimitExceeded, InternalError: as `Arenas.allocate`.
        """
        persistent, temporary = sizes
        arena = self._arenas.opened(session, user, device)
        ledger, regions = self._arenas.ledger, self._arenas.regions
        if position is None:
            address = ledger.lend(session, device, persistent, limited=True)
        else:
            try:
                address = ledger.allocate(session, device, persistent, arena.base + position)
            except InvalidArgument:  # other arrays of the session are there
                address = ledger.allocate(session, device, persistent)
        lent = None
        if temporary:
            try:
                lent = ledger.lend(session, device, temporary)
            except GpudError:
                # No device has been asked for memory yet.
                self._free(session, device, address, movable=position is None, away=True)
                raise
            regions.counted[session, device, lent] = 0
            regions.idle[session, device, lent] = temporary
        regions.counted[session, device, address] = 0 if position is None else persistent
        return address, lent, self._arenas.unannounced(arena)

    def begin_turn(
        self,
        session: SessionId,
        device: int,
        lent: Lent,
        then: Callable[[GpudError | None], None],
        *,
        learns: bool,
    ) -> None:
        """Let the session have temporary memory, then call ``then`` with the error, or None.

        ``learns``: it is to be shrunk, as the workload does not know yet what it needs.
        """
        del self._arenas.regions.idle[session, device, lent[0]]
        if self._arenas.is_copied(device):
            self._arenas.commit(session, device, lent, then, shrinks=learns)
        else:
            then(None)

    def clear_temporary(
        self, session: SessionId, device: int, lent: Lent, then: Callable[[], None]
    ) -> None:
        """End a turn: free the pages of temporary memory, then call ``then``."""
        address, size = lent
        self._arenas.regions.idle[session, device, address] = size
        self._arenas.free_pages(FreeRange(session, device, Address(address), size))
        self._arenas.when_zeroed(session, then)

    def shrink_workload(
        self,
        session: SessionId,
        device: int,
        address: int,
        lent: Lent | None,
        sizes: tuple[int, int],
    ) -> Lent | None:
        """Make both kinds of a workload's memory smaller at their places.

        Args:
            session: whose it is.
            device: on which.
            address: of the region.
            lent: the temporary memory.
            sizes: bytes of the region with its offset, and of temporary memory, or 0.

        Returns:
            The temporary memory as it is then.
        """
        arenas, ledger, regions = self._arenas, self._arenas.ledger, self._arenas.regions
        persistent, temporary = sizes
        end = ledger.shrink(session, device, address, persistent)
        regions.counted[session, device, address] = persistent
        if end is not None:
            arenas.free_end(end, address)
        if lent is None:
            return None
        key = session, device, lent[0]
        # Between turns a device with memory of its own has none for it.
        in_file_only = key in regions.idle
        if not temporary:
            del regions.counted[key]
            regions.idle.pop(key, None)
            piece = ledger.end_loan(session, device, lent[0])
            arenas.free_pages(piece, in_file_only=in_file_only)
            return None
        end = ledger.shrink(session, device, lent[0], temporary)
        if in_file_only:
            regions.idle[key] = temporary
            if end is not None:
                arenas.free_pages(end, in_file_only=True)
        elif end is not None:
            arenas.free_end(end, lent[0])
        return lent[0], temporary

    def _free(
        self, session: SessionId, device: int, address: int, *, movable: bool, away: bool = False
    ) -> None:
        ledger = self._arenas.ledger
        free = ledger.end_loan if movable else ledger.free
        self._arenas.free_pages(free(session, device, address), in_file_only=away)

    def close_workload(
        self,
        session: SessionId,
        device: int,
        address: int,
        lent: Lent | None,
        *,
        movable: bool = False,
        away: bool = False,
    ) -> None:
        """Free a workload's memory, which no job can use any more.

        Args:
            session: whose it is; it is open.
            device: on which.
            address: of the region.
            lent: the temporary memory; None: it has none.
            movable: whether the region is; it does not move now.
            away: whether it is not on the device.
        """
        ledger, regions = self._arenas.ledger, self._arenas.regions
        del regions.counted[session, device, address]
        self._free(session, device, address, movable=movable, away=away)
        if lent is not None:
            del regions.counted[session, device, lent[0]]
            idle = regions.idle.pop((session, device, lent[0]), None)
            piece = ledger.end_loan(session, device, lent[0])
            if idle is None or not self._arenas.is_copied(device):  # else nothing is there
                self._arenas.free_pages(piece)

    def set_zone(self, device: int, size: int) -> None:
        """Count what all workloads of a device share; see `Ledger.set_zone`."""
        self._arenas.ledger.set_zone(device, size)

    def other_bytes(self, device: int) -> int:
        """Return the used bytes of a device without those of workloads."""
        ledger = self._arenas.ledger
        workloads = self._arenas.regions.counted_bytes(device) + ledger.zone_bytes(device)
        return ledger.used_bytes(device) - workloads
