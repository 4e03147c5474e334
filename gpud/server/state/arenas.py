"""Arenas, the memory of sessions' arrays: one sealed, sparse file for each session and device.

The ledger (`gpud.core.memory.ledger`) places arrays; this creates the files, passes their
descriptors on, and frees pages. A file has the size of its arena and occupies the pages written.

Pages are freed by `gpud.server.state.page_freer`; if a device has its own memory
(`gpud.server.hosts.device_memory`), a range is released there first.

A client maps its whole file, and can write where it has no array, to memory that no limit counts.
So the files are checked periodically (`Arenas.find_excess`). Pages outside of all arrays are freed;
a session that goes on writing there is reported to the server, which ends it.

Properties:
    counted: a session whose file holds `SLACK_BYTES` more than its arrays at `MOST_STRIKES` checks
        in a row is reported; a session that does not write outside of its arrays never is.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

from gpud.core.memory.allocator import ArenaRange, whole_pages
from gpud.core.memory.coherence import CoherenceTracker
from gpud.core.memory.ledger import FreeRange, Ledger, MemoryUsage
from gpud.errors import GpudError, InternalError, InvalidArgument, LimitExceeded, UnknownName
from gpud.server.ipc import memfd
from gpud.server.ipc.child_process import OnReply
from gpud.server.ipc.file_descriptors import PER_ARENA, DescriptorBudget
from gpud.server.state.page_freer import LARGE_BYTES, PageFreer, close_freed
from gpud.server.state.regions import Regions
from gpud.units import Address, SessionId

__all__ = ["MOST_STRIKES", "SLACK_BYTES", "Arenas", "DeviceCopies", "MemoryExcess", "MemoryLimits"]

SLACK_BYTES = 16 << 20
"""What a file may hold beyond its arrays: pages that are being freed, stray writes."""

MOST_STRIKES = 3
"""Checks in a row at which a session holds too much before it is reported."""

_LEAST_ARENA_BYTES = 1 << 20  # checks of accesses subtract up to some KiB from an arena's size


class MemoryLimits(NamedTuple):
    """The most bytes of arrays on each device: of all sessions, of one user, of one session."""

    device: list[int]
    user: list[int]
    session: list[int]


class DeviceCopies(Protocol):
    """The arrays on a device with memory of its own: `gpud.server.hosts.device_memory`.

    Attributes:
        copies: tracks what the sessions' files hold of them.
    """

    copies: CoherenceTracker

    def commit(self, session: SessionId, address: int, on_reply: OnReply) -> None:
        """Commit memory for a new array."""

    def release(self, session: SessionId, address: int, size: int, done: OnReply) -> None:
        """Release the memory of an array that no job can use any more."""

    def shrink(self, session: SessionId, address: int, size: int, done: OnReply) -> None:
        """Make an array smaller at its place, ``size`` bytes."""

    def move_out(self, session: SessionId, address: int, size: int, done: OnReply) -> None:
        """Copy an array to the file, and release its memory on the device."""

    def move_in(self, session: SessionId, address: int, size: int, done: OnReply) -> None:
        """Undo `move_out`."""


_NONE: Mapping[int, DeviceCopies] = {}


class MemoryExcess(NamedTuple):
    """A session whose file holds memory outside of its arrays."""

    session: SessionId
    device: int
    held_bytes: int
    arrays_bytes: int


class Arenas:
    """The arenas of all sessions. Empty until `set_up`, when the devices' memory is known.

    Args:
        loop: the event loop.
        descriptors: the use of descriptors, which limits and counts the arenas' files.

    Attributes:
        session_limit_bytes: a session's limit, on the device where it is largest.
        regions: what of the arenas is workloads' memory.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptors: DescriptorBudget) -> None:
        self._loop = loop
        self._descriptors = descriptors
        self._ledger = Ledger([])
        self._files: dict[tuple[SessionId, int], int] = {}
        self._opened: set[SessionId] = set()
        self._announced: set[tuple[SessionId, int]] = set()
        self._strikes: dict[tuple[SessionId, int], int] = {}
        self._reclaiming: set[tuple[SessionId, int]] = set()
        self.regions = Regions()
        self._freer = PageFreer(loop)
        self._capacities: tuple[int, ...] = ()
        self._closing = False
        self._device_arrays: Mapping[int, DeviceCopies] = {}
        self.session_limit_bytes = 0

    def set_up(self, limits: MemoryLimits, copied: Mapping[int, DeviceCopies] = _NONE) -> None:
        """Set the limits, before the first session; ``copied`` by the device's index."""
        self._device_arrays = copied
        self._ledger = Ledger(
            limits.device,
            session_bytes=limits.session,
            user_bytes=limits.user,
            least_arena_bytes=_LEAST_ARENA_BYTES,
            first_slot=random.getrandbits(32),
        )
        self._capacities = tuple(limits.device)
        self.session_limit_bytes = max(limits.session, default=0)

    @property
    def ledger(self) -> Ledger:
        """The accounts and addresses of all arrays."""
        return self._ledger

    # -- arrays

    def allocate(
        self, session: SessionId, user: int, device: int, size: int, at: int | None = None
    ) -> tuple[Address, ArenaRange | None]:
        """Allocate an array; returns its address, and its arena if the client does not know it.

        Args:
            session: whose array it is.
            user: the session's.
            device: on which it lies.
            size: bytes.
            at: its address; None: any.

        Raises:
            OutOfMemory, InvalidArgument, UnknownName: as the ledger.
            LimitExceeded: as the ledger, or no descriptors are left for a new arena.
            InternalError: the kernel cannot create the file of a new arena.
        """
        self._open(session, user)
        address = self._ledger.allocate(session, device, size, at)
        try:
            arena = self._with_file(session, device)
        except GpudError:
            self._ledger.free(session, device, address)
            raise
        self._clear(arena, address, size)
        if device in self._device_arrays:
            self._device_arrays[device].copies.allocated(session, address, size)
        return address, self.unannounced(arena)

    def _clear(self, arena: ArenaRange, address: int, size: int) -> None:
        """Free what the session has written where it had no array, as beyond the end of another."""
        descriptor, offset = self.file(arena), address - arena.base
        if memfd.written_bytes(descriptor, offset, size):
            memfd.punch(descriptor, offset, whole_pages(size))

    def opened(self, session: SessionId, user: int, device: int) -> ArenaRange:
        """Return a session's arena with its file; create both if they are missing.

        Raises:
            UnknownName: as the ledger.
            LimitExceeded, InternalError: as `allocate`.
        """
        self._open(session, user)
        return self._with_file(session, device)

    def unannounced(self, arena: ArenaRange) -> ArenaRange | None:
        """Return an arena if the client does not know it; from now on it does."""
        key = (arena.session, arena.device)
        if key in self._announced:
            return None
        self._announced.add(key)
        return arena

    def undo(self, session: SessionId, device: int, address: int) -> bool:
        """Undo `allocate` when the device has no memory; whether the array still existed."""
        if session in self._opened:
            with suppress(UnknownName):  # freed by a client that guessed its address
                self._ledger.free(session, device, address)
                self._device_arrays[device].copies.removed(session, address)
                return True
        return False

    def reserve(self, session: SessionId, user: int, device: int, size: int) -> None:
        """Count ``size`` bytes for module variables, and create the session's arena if needed.

        Raises:
            OutOfMemory, UnknownName: as the ledger.
            LimitExceeded: as the ledger, or no descriptors are left for a new arena.
            InternalError: the kernel cannot create the file of a new arena.
        """
        self._open(session, user)
        self._ledger.reserve(session, device, size)
        try:
            self._with_file(session, device)
        except GpudError:
            self._ledger.release(session, device, size)
            raise

    def release(self, session: SessionId, device: int, size: int) -> None:
        """Undo a `reserve` of the same ``size``."""
        if session in self._opened:
            self._ledger.release(session, device, size)

    def _open(self, session: SessionId, user: int) -> None:
        if session not in self._opened:
            self._opened.add(session)
            self._ledger.open(session, user)

    def _with_file(self, session: SessionId, device: int) -> ArenaRange:
        """Return the session's arena, with its file created if it is missing."""
        arena = self._ledger.open_arena(session, device)
        key = (session, device)
        if key not in self._files:
            if self._descriptors.remaining < PER_ARENA:
                raise LimitExceeded(
                    f"the daemon has no descriptors for the memory of more than {self.files} "
                    "sessions; end some, or raise the daemon's LimitNOFILE",
                    limit="LimitNOFILE",
                    value=self.files,
                )
            try:
                self._files[key] = memfd.create(f"gpud-{session}-{device}", arena.size)
            except OSError as error:
                raise InternalError(
                    f"the kernel gives no memory file: {error.strerror}; raise the daemon's limit "
                    "of open files",
                    stage="server",
                ) from error
            self._descriptors.arenas += 1
        return arena

    def file(self, arena: ArenaRange) -> int:
        """Return the descriptor of an arena's memory file."""
        return self._files[arena.session, arena.device]

    def free_after(self, session: SessionId, device: int, address: int, last_job: int) -> None:
        """Mark an array to be freed once the session's jobs up to ``last_job`` have ended.

        `settle` frees it.

        Raises:
            UnknownName: there is no such array.
            InvalidArgument: it is a workload's.
        """
        if (session, device, address) in self.regions.counted:
            raise InvalidArgument(
                f"the memory at {address:#x} is a workload's: close the workload to free it"
            )
        self._ledger.free_after(session, device, address, last_job)
        if device in self._device_arrays:
            self._device_arrays[device].copies.freed(session, address, last_job)

    def settle(self, session: SessionId, oldest_job: int | None) -> int:
        """Free the marked arrays that no job of the session can use; returns how many."""
        if session not in self._opened:
            return 0
        freed = self._ledger.reclaim(session, oldest_job)
        for piece in freed:
            self.free_pages(piece)
        return len(freed)

    def when_zeroed(self, session: SessionId, action: Callable[[], None]) -> None:
        """Call ``action`` once all ranges that the session has freed read as zero."""
        self._freer.when_zeroed(session, action)

    def is_copied(self, device: int) -> bool:
        """Whether a device has memory of its own."""
        return device in self._device_arrays

    def commit(
        self,
        session: SessionId,
        device: int,
        part: tuple[int, int],
        done: Callable[[GpudError | None], None],
        *,
        shrinks: bool = False,
    ) -> None:
        """Have a device with memory of its own back a part of an arena, which reads as zero.

        Args:
            session: whose arena it is.
            device: on which.
            part: its address and bytes; `free_pages` of the same gives it back.
            done: gets why it cannot; nothing is backed then.
            shrinks: whether `free_end` will give back a part of it before.
        """
        arrays = self._device_arrays[device]
        address, size = part
        arrays.copies.allocated(session, address, size, shrinks=shrinks)

        def committed(_: Any, error: GpudError | None) -> None:
            done(error)

        arrays.commit(session, address, committed)

    def move_out(
        self, session: SessionId, device: int, part: tuple[int, int], done: OnReply
    ) -> None:
        """Have an array of a device with memory of its own be in the session's file only.

        Args:
            session: whose array it is; none of its jobs can use it.
            device: on which.
            part: its address and bytes.
            done: gets what went wrong.
        """
        self._device_arrays[device].move_out(session, *part, done)

    def move_in(
        self, session: SessionId, device: int, part: tuple[int, int], done: OnReply
    ) -> None:
        """Undo `move_out`."""
        self._device_arrays[device].move_in(session, *part, done)

    def free_pages(self, piece: FreeRange, *, in_file_only: bool = False) -> None:
        """Free the memory of a range that no job can use any more.

        Args:
            piece: the range.
            in_file_only: the device has none for it.
        """
        arena = self._ledger.arena(piece.session, piece.device)
        assert arena is not None
        offset = piece.address - arena.base
        if piece.device in self._device_arrays and not in_file_only:
            self._release_on_device(piece, offset)
        else:
            self._punch(piece, offset)

    def free_end(self, piece: FreeRange, address: int) -> None:
        """Free the memory of the end of an array, which no job can use any more.

        Args:
            piece: the end; the array is as much smaller.
            address: the array's; if its device has memory of its own, it is committed there.
        """
        arena = self._ledger.arena(piece.session, piece.device)
        assert arena is not None
        offset = piece.address - arena.base
        if piece.device in self._device_arrays:
            arrays, size = self._device_arrays[piece.device], piece.address - address
            arrays.shrink(piece.session, address, size, self._punching(piece, offset))
        else:
            self._punch(piece, offset)

    def _release_on_device(self, piece: FreeRange, offset: int) -> None:
        """Release a range on the device, which may be copying it, and then in the file."""
        released = self._punching(piece, offset)
        arrays = self._device_arrays[piece.device]
        arrays.release(piece.session, piece.address, piece.size, released)

    def _punching(self, piece: FreeRange, offset: int) -> OnReply:
        """Return what frees a range in the file once the device has released it."""
        session = piece.session
        over = self._freer.hold(session, piece.size)

        def released(_: Any, error: GpudError | None) -> None:
            # An error means that the host or session is gone, and the device's memory with it.
            if (session, piece.device) in self._files:
                self._punch(piece, offset)
            over()

        return released

    def _punch(self, piece: FreeRange, offset: int) -> None:
        descriptor = self._files[piece.session, piece.device]
        self._freer.punch(piece.session, descriptor, offset, piece.size)

    # -- sessions

    def arena_of(self, session: int, device: int) -> tuple[int, int, int] | None:
        """Return (base, size, descriptor) of a session's arena on a device, if it has one there."""
        arena = self._ledger.arena(SessionId(session), device)
        if arena is None or (arena.session, device) not in self._files:
            return None
        return arena.base, arena.size, self.file(arena)

    def nearest_array(self, session: int, device: int, address: int) -> tuple[int, int] | None:
        """(address, requested size) of the session's array on a device nearest to an address."""
        return self._ledger.nearest(SessionId(session), device, address)

    def close_session(self, session: SessionId) -> None:
        """Free all arenas of a session; no device uses them any more."""
        if session not in self._opened:
            return
        self._opened.discard(session)
        self.regions.close_session(session)
        for arena in self._ledger.close(session):
            key = (session, arena.device)
            self._announced.discard(key)
            self._strikes.pop(key, None)
            descriptor = self._files.pop(key, None)
            if descriptor is None:
                continue
            self._descriptors.arenas -= 1
            if _held_bytes(descriptor) < LARGE_BYTES or self._closing:
                os.close(descriptor)
            else:
                self._loop.run_in_executor(None, close_freed, descriptor, [(0, arena.size)])

    def array_bytes(self, session: SessionId, device: int) -> int:
        """Return the bytes of a session's arrays on a device, freed ones that wait included."""
        return self._ledger.array_bytes(session, device)

    def close(self) -> None:
        """Free everything. The event loop may end afterwards."""
        self._closing = True
        for session in sorted(self._opened):
            self.close_session(session)

    # -- memory outside of arrays

    def find_excess(self) -> list[MemoryExcess]:
        """Check what the files hold; returns the sessions that have held too much repeatedly.

        To be called periodically, such as once a second. It costs a system call for each file.
        """
        excesses = []
        for (session, device), descriptor in self._files.items():
            held_bytes = _held_bytes(descriptor)
            arrays_bytes = self._ledger.array_bytes(session, device)
            arrays_bytes -= self.regions.idle_bytes(session, device)
            freeing_bytes = self._freer.held_bytes(session)
            if held_bytes <= arrays_bytes + freeing_bytes + SLACK_BYTES:
                self._strikes.pop((session, device), None)
                continue
            if (session, device) in self._reclaiming:
                continue  # the pages found at the last check are still being freed
            strikes = self._strikes.get((session, device), 0) + 1
            self._strikes[session, device] = strikes
            if strikes >= MOST_STRIKES:
                excesses.append(MemoryExcess(session, device, held_bytes, arrays_bytes))
                continue
            arena = self._ledger.arena(session, device)
            assert arena is not None
            holes = self._ledger.holes(session, device)
            pieces = [(hole.address - arena.base, hole.size) for hole in holes]
            self._reclaiming.add((session, device))
            self._freer.punch_later(
                session, descriptor, pieces, partial(self._reclaiming.discard, (session, device))
            )
        return excesses

    # -- usage

    @property
    def files(self) -> int:
        """How many memory files there are."""
        return len(self._files)

    def capacity_bytes(self, device: int) -> int:
        """Return a device's limit on arrays; 0 before `set_up`."""
        return self._capacities[device] if device < len(self._capacities) else 0

    def used_bytes(self, device: int) -> int:
        """How much of it is used."""
        return self._ledger.used_bytes(device) if self._capacities else 0

    def usage(self) -> Iterator[MemoryUsage]:
        """Return the usage of each session on each device that it uses; see `Ledger.usage`."""
        # A session that has loaded a program has an arena for its bounds checks, without arrays.
        return (use for use in self._ledger.usage() if use.arrays or use.used_bytes)


def _held_bytes(descriptor: int) -> int:
    """Return the memory that a file occupies."""
    return os.fstat(descriptor).st_blocks * 512
