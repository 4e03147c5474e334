"""The memory ledger: the arrays of every session on every device, and the memory limits.

Problem: many sessions share a device's memory. A session must be answered at once whether an array
fits, and at which address; a refusal must name the limit that was reached; an array that is freed
while jobs may still use it must stay untouched until they have ended; and a session that ends must
leave nothing behind.

Approach: each session has one arena on each device where it has arrays: a range of addresses as
large as the device's memory, rounded up to a power of two, so that bytes run out before addresses
do. Arenas lie in slots, and no two arenas share a slot, even on different devices: an address
determines its device, and an address in another session's or device's arena is never valid.
`gpud.core.memory.arena_slots` gives slots, `gpud.core.memory.allocator` places arrays within an
arena, and `gpud.core.memory.used_bytes` holds the limits.

This is accounting only; the server owns the memory itself. A freed range must read as zero again
before the next `Ledger.allocate` in that arena: see `FreeRange`.

Module variables lie outside arenas, and are counted: see `Ledger.reserve`. Workloads share the
memory that they have in turns: it is counted once for the device (`Ledger.set_zone`), and each has
addresses for it (`Ledger.lend`).

Terms (units in brackets):
    slot: a range of addresses for one arena, `Ledger.slot_bytes` [bytes].
    reserved [bytes]: counted without an address; whole pages.
    used [bytes]: in arrays, including those that wait to be freed and without lent ones, reserved,
        and for a device its zone; whole pages.
    zone [bytes]: the temporary memory of all workloads on a device.
    limit [bytes]: the most used bytes: of a device, and there of each user and each session.

Properties:
    conserved: used bytes are exactly those of the arrays and what is reserved, for each device,
        user and session;
    limited: no limit is exceeded at any time;
    apart: no two arenas share a slot;
    atomic: a call that raises has changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpud.core.memory.allocator import PAGE_BYTES, ArenaAllocator, ArenaRange, require, whole_pages
from gpud.core.memory.arena_slots import ArenaSlots
from gpud.core.memory.used_bytes import UsedBytes
from gpud.errors import InternalError, InvalidArgument, OutOfMemory, UnknownName
from gpud.units import Address, SessionId

__all__ = ["FreeRange", "Ledger", "MemoryUsage"]


class FreeRange(NamedTuple):
    """A range that is in no array any more. Its memory is to be unmapped, which zeroes it."""

    session: SessionId
    device: int
    address: Address
    size: int


class MemoryUsage(NamedTuple):
    """A session's memory on a device, for status reports.

    Attributes:
        arrays: number of arrays, without those that wait to be freed.
        used_bytes: of all arrays, in whole pages.
        waiting_bytes: of the arrays that wait to be freed, in whole pages.
        limit_bytes: the session's limit.
    """

    session: SessionId
    user: int
    device: int
    arrays: int
    used_bytes: int
    waiting_bytes: int
    limit_bytes: int


class Ledger:
    """The arenas of all sessions, with their accounting.

    Args:
        device_bytes: the limit of each device.
        session_bytes: the limit of each session, by device; None: only the device's limit.
        user_bytes: the limit of each user over all sessions, likewise.
        least_arena_bytes: the minimum size of an arena.
        first_slot: the slot that is used first, modulo the number of slots. Ledgers of daemons
            that follow each other differ in this, so that the sessions of one are unlikely to have
            the addresses that sessions of the other want to keep.
    """

    def __init__(
        self,
        device_bytes: Sequence[int],
        *,
        session_bytes: Sequence[int] | None = None,
        user_bytes: Sequence[int] | None = None,
        least_arena_bytes: int = PAGE_BYTES,
        first_slot: int = 0,
    ) -> None:
        self._used = UsedBytes(
            device_bytes, user_bytes or device_bytes, session_bytes or device_bytes
        )
        self._devices = len(device_bytes)
        self._arena_bytes = [_power_of_two(max(size, least_arena_bytes)) for size in device_bytes]
        self._slots = ArenaSlots(max(self._arena_bytes, default=PAGE_BYTES), first_slot)
        self._users: dict[SessionId, int] = {}
        self._arenas: dict[tuple[SessionId, int], ArenaAllocator] = {}
        self._reserved: dict[tuple[SessionId, int], int] = {}  # absent is 0

    @property
    def slot_bytes(self) -> int:
        """The size of a slot, which no arena exceeds."""
        return self._slots.slot_bytes

    # -- sessions

    def open(self, session: SessionId, user: int) -> None:
        """Add a session, whose memory counts for ``user``."""
        if session in self._users:
            raise InternalError(f"session {session} is open already", stage="memory")
        self._users[session] = user

    def close(self, session: SessionId) -> list[ArenaRange]:
        """Remove a session with all its arrays, which no device uses any more.

        Returns:
            Its arenas, whose memory is to be unmapped.
        """
        user = self._user(session)
        closed = []
        for device in range(self._devices):
            self._used.count(user, device, -self._reserved.pop((session, device), 0))
        for (owner, device), allocator in list(self._arenas.items()):
            if owner == session:
                self._used.count(user, device, -allocator.counted)
                self._slots.give_back(allocator.arena.base)
                del self._arenas[owner, device]
                closed.append(allocator.arena)
        del self._users[session]
        return closed

    def arena(self, session: SessionId, device: int) -> ArenaRange | None:
        """Return the session's arena on a device; None if it has none yet."""
        allocator = self._arenas.get((session, device))
        return None if allocator is None else allocator.arena

    def open_arena(self, session: SessionId, device: int) -> ArenaRange:
        """Return the session's arena on a device; create it if it has none.

        Raises:
            UnknownName: there is no such session or device.
            LimitExceeded: there is no room for another arena.
        """
        self._user(session)
        self._check_device(device)
        return self._allocator(session, device).arena

    def holes(self, session: SessionId, device: int) -> list[FreeRange]:
        """Return the ranges of an arena that are in no array, nor wait to be freed."""
        allocator = self._arenas.get((session, device))
        if allocator is None:
            return []
        return [FreeRange(session, device, start, size) for start, size in allocator.holes()]

    def array_bytes(self, session: SessionId, device: int) -> int:
        """Return the bytes of the session's arrays on a device, waiting ones included."""
        allocator = self._arenas.get((session, device))
        return 0 if allocator is None else allocator.used

    # -- arrays

    def allocate(
        self, session: SessionId, device: int, size: int, at: int | None = None
    ) -> Address:
        """Allocate an array and return its address. The first one creates the arena.

        Args:
            session: whose array it is.
            device: on which it lies.
            size: bytes.
            at: its address, which determines that of the arena; None: any.

        Raises:
            InvalidArgument: ``size`` is less than 1; or ``at`` cannot be the address of an array
                of the session, or is another session's.
            OutOfMemory: a limit would be exceeded; the error says how much could be granted.
            UnknownName: there is no such session or device.
            LimitExceeded: there is no room for another arena.
        """
        user = self._user(session)
        self._check_device(device)
        if size < 1:
            raise InvalidArgument(f"an array has 1 byte or more, not {size}")
        whole = whole_pages(size)
        left, limit = self._left(session, user, device)
        if whole > left:
            allocator = self._arenas.get((session, device))
            if allocator is not None and whole <= left + allocator.waiting_bytes:
                limit = "jobs"
            raise OutOfMemory(size, self.available_bytes(session, device), limit=limit)
        allocator = self._allocator(session, device, at)
        address = allocator.allocate(size, at)
        if address is None and at is not None:
            raise InvalidArgument(
                f"no array of {size} bytes can lie at {at:#x}: other arrays are there, or the "
                "session's addresses end before"
            )
        if address is None:
            raise OutOfMemory(size, allocator.largest_hole(), limit="arena")
        self._used.count(user, device, whole)
        return address

    def reserve(self, session: SessionId, device: int, size: int) -> None:
        """Count ``size`` bytes that are in no array, 0 or more.

        Raises:
            OutOfMemory: a limit would be exceeded.
            UnknownName: there is no such session or device.
        """
        user = self._user(session)
        self._check_device(device)
        whole = whole_pages(size)
        left, limit = self._left(session, user, device)
        if whole > left:
            raise OutOfMemory(size, left // PAGE_BYTES * PAGE_BYTES, limit=limit)
        key = (session, device)
        self._reserved[key] = self._reserved.get(key, 0) + whole
        self._used.count(user, device, whole)

    def release(self, session: SessionId, device: int, size: int) -> None:
        """Undo a `reserve` of the same ``size``.

        Raises:
            InternalError: less than that is reserved.
        """
        whole = whole_pages(size)
        key = (session, device)
        if whole > self._reserved.get(key, 0):
            raise InternalError(
                f"{size} bytes of session {session} are not reserved", stage="memory"
            )
        self._reserved[key] -= whole
        self._used.count(self._user(session), device, -whole)

    # -- temporary memory of workloads

    def set_zone(self, device: int, size: int) -> None:
        """Count ``size`` bytes for the zone of a device, instead of what it had.

        Raises:
            InternalError: the device has less; whoever sets it looks before.
        """
        self._used.set_zone(device, whole_pages(size))

    def zone_bytes(self, device: int) -> int:
        """Return the size of a device's zone."""
        return self._used.zones[device]

    def check_limits(self, device: int, size: int) -> None:
        """Check that a session with nothing else, and its user, may have ``size`` bytes.

        Raises:
            OutOfMemory: it is over a limit.
        """
        most, limit = self._used.most_of_one(device)
        if whole_pages(size) > most:
            raise OutOfMemory(size, most // PAGE_BYTES * PAGE_BYTES, limit=limit)

    def lend(self, session: SessionId, device: int, size: int, *, limited: bool = False) -> Address:
        """Return addresses for memory in the device's zone, near the end of the session's arena.

        Args:
            session: whose they are.
            device: on which.
            size: bytes.
            limited: whether the limits of the session and its user hold for this memory by itself.

        Raises:
            OutOfMemory: the arena has no room, or it is over a limit.
            UnknownName, LimitExceeded: as `allocate`.
        """
        self._user(session)
        self._check_device(device)
        if limited:
            self.check_limits(device, size)
        allocator = self._allocator(session, device)
        address = allocator.lend(size)
        if address is None:
            raise OutOfMemory(size, allocator.largest_hole(), limit="arena")
        return address

    def shrink(self, session: SessionId, device: int, address: int, size: int) -> FreeRange | None:
        """Make an array, lent or not, smaller at its place; returns what it gives back.

        Raises:
            UnknownName: the session has no array that begins at ``address``.
            InternalError: the array has less than ``size``.
        """
        allocator = self._allocator_of(session, device, address)
        start, given = allocator.shrink(Address(address), size)
        if not given:
            return None
        if address in allocator.lent:
            allocator.lent[Address(address)] -= given
            allocator.release(start, given)
            return FreeRange(session, device, start, given)
        return self._give_back(allocator, start, given)

    def end_loan(self, session: SessionId, device: int, address: int) -> FreeRange:
        """Free lent addresses at once.

        Raises:
            UnknownName: nothing is lent at ``address``.
        """
        allocator = self._allocator_of(session, device, address)
        size = allocator.lent.pop(Address(address), None)
        if size is None:
            raise UnknownName(f"the array at {address:#x} is not lent")
        del allocator.arrays[Address(address)]
        allocator.release(Address(address), size)
        return FreeRange(session, device, Address(address), size)

    def free(self, session: SessionId, device: int, address: int) -> FreeRange:
        """Free an array at once.

        Raises:
            UnknownName: the session has no array that begins at ``address``.
        """
        allocator = self._allocator_of(session, device, address)
        size = whole_pages(allocator.arrays.pop(Address(address)))
        return self._give_back(allocator, Address(address), size)

    def free_after(self, session: SessionId, device: int, address: int, last_job: int) -> None:
        """Free an array once the session's jobs up to ``last_job`` have ended; see `reclaim`.

        ``last_job`` is the number of the session's newest job: it never falls from call to call.

        Raises:
            UnknownName: the session has no array that begins at ``address``.
        """
        self._allocator_of(session, device, address).free_after(Address(address), last_job)

    def reclaim(self, session: SessionId, oldest_job: int | None) -> list[FreeRange]:
        """Free the waiting arrays that no job can use any more, and return their ranges.

        Args:
            session: the session whose arrays are examined.
            oldest_job: the lowest number of its unfinished jobs; None if all have ended.
        """
        self._user(session)
        ranges = []
        for device in range(self._devices):
            allocator = self._arenas.get((session, device))
            if allocator is not None and allocator.waiting:
                settled = allocator.reclaim(oldest_job)
                ranges += [self._give_back(allocator, address, size) for address, size in settled]
        return ranges

    # -- queries

    def nearest(self, session: SessionId, device: int, address: int) -> tuple[Address, int] | None:
        """Return the address and requested size of the array nearest to ``address``.

        Arrays that wait to be freed count, as jobs may still use them. None: there are no arrays.
        """
        allocator = self._arenas.get((session, device))
        return None if allocator is None else allocator.nearest(address)

    def used_bytes(self, device: int) -> int:
        """Return the used bytes of a device."""
        return self._used.by_device[device]

    def available_bytes(self, session: SessionId, device: int) -> int:
        """Return the size of the largest array that the session could allocate now."""
        left, _ = self._left(session, self._user(session), device)
        allocator = self._arenas.get((session, device))
        most = self._arena_bytes[device] if allocator is None else allocator.largest_hole()
        return min(left, most) // PAGE_BYTES * PAGE_BYTES

    def usage(self) -> Iterator[MemoryUsage]:
        """Yield the usage of each session on each device where it has an arena, oldest first.

        Arenas that are created or removed during the iteration are left out.
        """
        for key, allocator in list(self._arenas.items()):
            session, device = key
            if self._arenas.get(key) is allocator:
                yield MemoryUsage(
                    session,
                    self._users[session],
                    device,
                    len(allocator.arrays),
                    allocator.counted,
                    allocator.waiting_bytes,
                    self._used.session_limits[device],
                )

    def validate(self) -> None:
        """Check every property that can be checked on one state.

        Raises:
            InternalError: one is violated.
        """
        by_session: dict[tuple[int, int, int], int] = {}
        for (session, device), size in self._reserved.items():
            require(size >= 0, "less than nothing is reserved")
            by_session[session, self._users[session], device] = size
        for (session, device), allocator in self._arenas.items():
            allocator.validate()
            key = (session, self._users[session], device)
            by_session[key] = by_session.get(key, 0) + allocator.counted
        self._used.validate(by_session)
        self._slots.validate(allocator.arena.base for allocator in self._arenas.values())

    # -- helpers

    def _check_device(self, device: int) -> None:
        if not 0 <= device < self._devices:
            raise UnknownName(f"there is no device {device}; this daemon has {self._devices}")

    def _allocator(self, session: SessionId, device: int, at: int | None = None) -> ArenaAllocator:
        """Return the allocator of the session's arena on a device; create both if missing."""
        allocator = self._arenas.get((session, device))
        if allocator is None:
            base = self._slots.take() if at is None else self._slots.take_at(at)
            arena = ArenaRange(session, device, base, self._arena_bytes[device])
            allocator = self._arenas[session, device] = ArenaAllocator(arena)
        return allocator

    def _user(self, session: SessionId) -> int:
        user = self._users.get(session)
        if user is None:
            raise UnknownName(f"there is no session {session}")
        return user

    def _allocator_of(self, session: SessionId, device: int, address: int) -> ArenaAllocator:
        allocator = self._arenas.get((session, device))
        if allocator is None or address not in allocator.arrays:
            raise UnknownName(
                f"there is no array at {address:#x} on device {device}; was it freed already?"
            )
        return allocator

    def _left(self, session: SessionId, user: int, device: int) -> tuple[int, str]:
        """Return how many more bytes the session may use, and the limit that is reached first."""
        allocator = self._arenas.get((session, device))
        own = self._reserved.get((session, device), 0) + (
            0 if allocator is None else allocator.counted
        )
        return self._used.left(user, device, own)

    def _give_back(self, allocator: ArenaAllocator, address: Address, size: int) -> FreeRange:
        allocator.release(address, size)
        session, device = allocator.arena.session, allocator.arena.device
        self._used.count(self._users[session], device, -size)
        return FreeRange(session, device, address, size)


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
