"""The sessions' memory on a device: maps arenas and copies arrays, on a separate thread.

Problem: mapping or copying much memory takes seconds. Meanwhile jobs must start and small copies of
other sessions must be made.

Approach: every command goes to `gpud.device.host.command_thread`: copies in their session's turn,
opening and closing of arenas to a common one. Large parts are committed, released and copied in
pieces, one piece a step.

Properties:
* arenas are opened and closed, and copies of one session made, in the order of their commands;
* an arena with jobs stays mapped; one that cannot be unmapped ends the host;
* memory is refused to a session only when no arena waits to be closed.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from gpud.device.host import messages as m
from gpud.device.host.command_thread import CommandThread
from gpud.device.host.link import Link
from gpud.device.interface import Device, MappedArena
from gpud.errors import (
    DeviceLost,
    GpudError,
    InvalidArgument,
    LimitExceeded,
    OutOfMemory,
    UnknownName,
)

__all__ = ["SessionMemory"]

Handler = Callable[[Any], Any]

_PIECE_BYTES = 32 << 20
"""Most that is committed, released or copied in one step, before another session's turn."""

_PARTS = 64
"""Memory of which the end is to be given back is divided into as many allocations, or more: none
is larger than `_PIECE_BYTES`."""

_ARENAS = -1
"""The queue for opening and closing arenas: in order, since one may reuse another's address."""

_NOWHERE = (2**64 - 2**20, 2**20)
"""The range for a session without an arena: no memory lies there, so every access misses."""

_OF_SESSIONS = (m.Commit, m.Release, m.Shrink, m.UploadRange, m.DownloadRange, m.ExportMemory)

_MOST_PIECES = 16
"""Most pieces of memory that are exported at once: the kernel limits descriptors on their way."""


class _Arena(NamedTuple):
    """A session's mapped memory; all its modules are loaded with this one ``range`` object."""

    arena: MappedArena
    range: tuple[int, int]


class SessionMemory:
    """Executes the commands on memory, of all sessions on one device.

    Args:
        device: maps arenas.
        guarded: called with a handler and a command; calls the handler and handles what it raises.
        jobs_of: returns the numbers of a session's jobs on the device.

    Attributes:
        handlers: functions that queue the commands, by message class; all return at once.
    """

    def __init__(
        self,
        device: Device,
        link: Link,
        guarded: Callable[[Handler, Any], None],
        jobs_of: Callable[[int], list[int]],
    ) -> None:
        self._device = device
        self._link = link
        self._send = link.send
        self._guarded = guarded
        self._jobs_of = jobs_of
        self._arenas: dict[int, _Arena] = {}
        self._programs: dict[int, socket.socket] = {}  # by ticket: where exported memory goes
        self._thread = CommandThread("map", guarded, self._session_gone)
        put = self._thread.put
        self.handlers: dict[type, Handler] = {
            m.OpenArena: self._queue_open,
            m.LendZone: self._queue_lend,
            m.ClearZone: lambda command: put(_ARENAS, self._clear_zone, command),
            m.Ping: lambda command: put(_ARENAS, self._ping, command),
            m.Commit: lambda command: put(command.session, self._commit, command),
            m.Release: lambda command: put(command.session, self._in_pieces, command),
            m.Shrink: lambda command: put(command.session, self._shrink, command),
            m.UploadRange: lambda command: put(command.session, self._in_pieces, command),
            m.DownloadRange: lambda command: put(command.session, self._in_pieces, command),
            m.ExportMemory: self._queue_export,
        }

    def range_of(self, session: int) -> tuple[int, int]:
        """Return (address, size) of a session's arena; a range without memory if it has none."""
        opened = self._arenas.get(session)
        return _NOWHERE if opened is None else opened.range

    def close_session(self, command: m.CloseArena) -> None:
        """Drop a session's pending copies, and queue the unmapping of its arena."""
        for copy in self._thread.drop(command.session, lambda one: isinstance(one, _OF_SESSIONS)):
            if isinstance(copy, m.ExportMemory):
                self._programs.pop(copy.ticket).close()
            self._guarded(self._session_gone, copy)
        self._thread.put(_ARENAS, self._close_arena, command)

    # -- arenas: on the mapping thread

    def _queue_open(self, command: m.OpenArena) -> None:
        # The descriptor is taken now: the next one belongs to another command.
        open_arena = partial(self._open_arena, self._link.take_descriptor())
        self._thread.put(_ARENAS, open_arena, command)

    def _open_arena(self, descriptor: int | None, command: m.OpenArena) -> None:
        try:
            if command.session in self._arenas:
                raise InvalidArgument(f"session {command.session} has its arena already")
            if descriptor is None:
                raise InvalidArgument("OpenArena came without a file descriptor")
            arena = self._map(descriptor, command)
        finally:
            if descriptor is not None:
                os.close(descriptor)
        self._arenas[command.session] = _Arena(arena, (arena.address, command.size))
        self._send(m.Replied(command.ticket, arena.address))

    def _map(self, descriptor: int, command: m.OpenArena) -> MappedArena:
        try:
            return self._device.map_arena(descriptor, command.size, command.base)
        except InvalidArgument as error:
            first, end = command.base, command.base + command.size
            for session, (_, (address, size)) in self._arenas.items():
                if address < end and first < address + size:  # the front's mistake, or ours
                    raise InvalidArgument(f"{error}: the memory of session {session}") from error
            raise

    def _close_arena(self, command: m.CloseArena) -> None:
        jobs = self._jobs_of(command.session)
        if jobs:
            raise InvalidArgument(
                f"session {command.session} has jobs {jobs}: its arena stays mapped for good"
            )
        opened = self._arenas.pop(command.session, None)
        if opened is None:
            return
        try:
            opened.arena.close()
        except Exception as error:
            # Its addresses are about to be another session's.
            raise DeviceLost(
                f"the memory of session {command.session} cannot be unmapped: {error}"
            ) from error

    def _ping(self, command: m.Ping) -> None:
        self._send(m.Replied(command.ticket))

    # -- memory that programs map in their turns: on the mapping thread

    def _queue_lend(self, command: m.LendZone) -> None:
        lend = partial(self._lend_zone, self._link.take_descriptor())
        self._thread.put(_ARENAS, lend, command)

    def _lend_zone(self, descriptor: int | None, command: m.LendZone) -> None:
        if descriptor is None:
            raise InvalidArgument("LendZone came without a file descriptor")
        with socket.socket(fileno=descriptor) as program:
            zone = self._zone()
            memory = zone.lend(command.size)
            _send_memory(program, (zone.size,), (memory,))
        self._send(m.Replied(command.ticket))

    def _clear_zone(self, command: m.ClearZone) -> None:
        zone = self._zone()
        if command.free:
            zone.free()
        else:
            zone.clear()
        self._send(m.Replied(command.ticket))

    def _zone(self) -> Any:
        zone = getattr(self._device, "zone", None)
        if zone is None:
            raise InvalidArgument(f"{self._device.name} has no memory that programs can map")
        return zone

    # -- arrays, on devices that copy them: on the mapping thread, in pieces

    def _commit(self, command: m.Commit) -> Iterator[None]:
        arena = self._arena(command.session)
        done: list[tuple[int, int]] = []
        most = command.size // _PARTS if command.shrinks else None
        try:
            for offset, size in _pieces(command):
                back = partial(arena.commit, offset, size, from_file=command.from_file, most=most)
                yield from self._when_closed(back)
                done.append((offset, size))
                yield
        except GpudError:
            for offset, size in done:
                arena.release(offset, size)
            raise
        self._send(m.Replied(command.ticket))

    def _when_closed(self, back: Callable[[], None]) -> Iterator[None]:
        """Call ``back``; if memory lacks, again as arenas are closed that wait for it now.

        The front counts the memory of sessions that have ended as free.
        """
        closing: Callable[[], bool] | None = None
        while True:
            try:
                back()
                return
            except OutOfMemory:
                closing = closing or self._thread.waiting(_closes)
                if not closing():
                    raise
            yield

    def _in_pieces(self, command: m.Release | m.UploadRange | m.DownloadRange) -> Iterator[None]:
        arena = self._arena(command.session)
        acts = {
            m.Release: arena.release,
            m.UploadRange: arena.upload,
            m.DownloadRange: arena.download,
        }
        act = acts[type(command)]
        if isinstance(command, m.DownloadRange) and command.moves:
            act = partial(act, moves=True)
        for offset, size in _pieces(command):
            act(offset, size)
            yield
        self._send(m.Replied(command.ticket))

    def _shrink(self, command: m.Shrink) -> Iterator[None]:
        arena = self._arena(command.session)
        end = command.offset + command.kept
        for offset, size in _pieces(command):
            if offset >= end:
                arena.release(offset, size)
            elif offset + size > end:
                arena.shrink(offset, size, end - offset)
            yield
        self._send(m.Replied(command.ticket))

    # -- memory of arrays that programs map: on the mapping thread

    def _queue_export(self, command: m.ExportMemory) -> None:
        descriptor = self._link.take_descriptor()
        if descriptor is None:
            raise InvalidArgument("ExportMemory came without a file descriptor")
        self._programs[command.ticket] = socket.socket(fileno=descriptor)
        self._thread.put(command.session, self._export, command)

    def _export(self, command: m.ExportMemory) -> None:
        with self._programs.pop(command.ticket) as program:
            arena = self._arena(command.session)
            if not hasattr(arena, "export"):
                raise InvalidArgument(f"{self._device.name} has no memory that programs can map")
            pieces = arena.export(command.offset, command.size, _MOST_PIECES)
            numbers = [number for offset, size, _ in pieces for number in (offset, size)]
            _send_memory(program, numbers, [descriptor for _, _, descriptor in pieces])
        self._send(m.Replied(command.ticket))

    def _arena(self, session: int) -> Any:
        opened = self._arenas.get(session)
        if opened is None:
            raise UnknownName(f"session {session} has no memory on this device")
        return opened.arena

    def _session_gone(self, command: Any) -> None:
        raise UnknownName(f"session {command.session} was closed meanwhile")


def _closes(command: Any) -> bool:
    return isinstance(command, m.CloseArena)


def _send_memory(program: socket.socket, numbers: Iterable[int], memory: Sequence[int]) -> None:
    """Send descriptors of memory, which are closed, with numbers that describe it.

    Raises:
        LimitExceeded: too many descriptors are on their way to programs.
    """
    said = b"".join(number.to_bytes(8, sys.byteorder) for number in numbers)
    try:
        socket.send_fds(program, [said], memory)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the program is gone
    except OSError as error:
        raise LimitExceeded(
            f"the kernel passes no more descriptors of memory on ({error.strerror}): programs have "
            "not taken what was sent to them",
            limit="RLIMIT_NOFILE",
        ) from error
    finally:
        for descriptor in memory:
            os.close(descriptor)


def _pieces(command: Any) -> Iterator[tuple[int, int]]:
    """Yield (offset, size) of the pieces of a command's part; equal parts, equal pieces."""
    at, end = command.offset, command.offset + command.size
    while at < end:
        following = min(end, (at // _PIECE_BYTES + 1) * _PIECE_BYTES)
        yield at, following - at
        at = following
