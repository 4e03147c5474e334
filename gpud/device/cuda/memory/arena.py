"""Arenas of the CUDA device: one session's range of device addresses, beside its memory file.

Problem: a session's arrays must lie in one range whose base and size its bounds checks know, at the
same addresses in a replacement host; but memory should be used only for arrays that exist. An
access to an unmapped address ends the context, and with it the jobs of all sessions: bounds checks
must let none through. The daemon and the client see arrays in a memory file, the GPU needs them in
its own memory.

Approach: the whole range is reserved when the arena is opened. A *prefix* of it, which only grows,
is backed by memory; bounds checks let programs access this prefix and no more. `CUDAArena.commit`
backs a part of the range with memory, `CUDAArena.release` says that it is not needed any more;
`upload` and `download` copy between the file and the device, at the same offset in both
(`gpud.device.cuda.memory.staging`).

Terms: a *granule* is the unit in which the driver allocates memory (2 MiB and more); a *piece* is a
run of granules that was allocated at once; it is *spare* while no committed part lies in it. The
*sink* is one granule of memory, the arena's own, that is mapped wherever the prefix has no piece.

Algorithm: `commit` allocates a piece for each gap between the pieces that its range touches, maps
the sink where the prefix would have a hole in front of them, and sets the range to what the file
has, or to zero. Then it extends the prefix to the range's end and updates the programs' bounds
checks. Spare pieces stay until memory is short (`gpud.device.cuda.memory.arenas` decides when, and
whose are taken): then they are freed, and the sink is mapped in their place.

Where mappings inside the prefix change, there is none for a moment. So that is done only while the
session is quiesced (`gpud.device.cuda.memory.quiescer`). If that does not succeed in time, spare
memory stays, and an array that was to replace the sink is refused.

Kernels that began before a mapping changed may still see the old memory ("virtual aliasing", CUDA
Programming Guide 13, 4.16.5.3): inside the prefix none of the session's did, and others' never
access it.

Properties:
* what bounds checks let through is backed by memory whenever a kernel of the session is on the
  device;
* a `commit` that fails is undone: the prefix is as long as it was, or is backed by memory;
* the part of the prefix without arrays reads as zero or as what the session left there: memory is
  cleared before a program can access it;
* a byte stays mapped as long as a committed part lies in its granule, and is not given to another
  session before;
* copies of an arena are made in order, and are complete when the call returns.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from gpud.device.cuda.driver.calls import DriverError
from gpud.device.cuda.execution.watcher import WatchedRun
from gpud.device.cuda.memory.arena_interfaces import LoadedProgram, SharedByArenas
from gpud.device.cuda.memory.quiescer import all_runs
from gpud.device.cuda.memory.staging import FilePart, MappedPart
from gpud.device.cuda.memory.virtual_memory import VirtualMemory
from gpud.errors import DeviceLost, InvalidArgument, OutOfMemory

__all__ = ["CUDAArena"]

_FLOOR_BYTES: Final = 1 << 16
"""The least prefix: checks of accesses subtract some KiB from its size."""


@dataclass(slots=True)
class _Piece:
    """Granules ``[first, last)``, mapped for ``parts`` committed parts."""

    first: int
    last: int
    parts: int
    handle: Any


class CUDAArena:
    """A reserved range of device addresses and its file. For one thread at a time.

    Args:
        shared: what the device's arenas share.
        descriptor: of the file; it may be closed afterwards.
        size: bytes, a power of two.
        base: the wanted address of the first byte; 0: the driver chooses.

    Attributes:
        address: of the first byte, on the device.
        size: in bytes.

    Raises:
        InvalidArgument: the file is smaller than ``size``, or the range is not free.
        OutOfMemory: no address range is left, or no memory for the arena's first granule and sink.
    """

    def __init__(self, shared: SharedByArenas, descriptor: int, size: int, base: int = 0) -> None:
        self._shared = shared
        self._context = context = shared.context
        self._staging = shared.staging
        self._memory = VirtualMemory(context, shared, shared.staging)
        self.size = size
        self._pieces: list[_Piece] = []
        self._sunk: set[int] = set()
        self._end = 0  # granules that the prefix has
        self._moving: dict[tuple[int, int], MappedPart] = {}  # of the file, by offset and bytes
        self._programs: weakref.WeakSet[LoadedProgram] = weakref.WeakSet()
        self._programs_lock = threading.Lock()  # programs are loaded on another thread
        driver = context.enter()
        self._granule = self._memory.size
        # Rounded up to whole granules; bounds checks end at ``size``.
        self._reserved = -(-size // self._granule) * self._granule
        with ExitStack() as undo:
            try:
                file_bytes = os.fstat(descriptor).st_size
                self._file = os.dup(descriptor)
            except OSError as error:
                raise InvalidArgument(f"the arena's descriptor is of no use: {error}") from error
            undo.callback(os.close, self._file)
            if file_bytes < size:
                raise InvalidArgument(f"the arena's file has {file_bytes} bytes, its range {size}")
            self.address = self._reserve(base)
            undo.callback(driver.call, "cuMemAddressFree", self.address, self._reserved)
            self._sink = self._memory.create(self._granule)
            undo.callback(self._memory.release, self._sink)
            self._memory.clear(self._sink, self._granule)
            floor = -(-min(_FLOOR_BYTES, self._reserved) // self._granule)
            self._pieces.append(self._created(0, floor))  # with a part that is never released
            undo.pop_all()
        self._end = floor
        self._open = True

    @property
    def backed(self) -> int:
        """The size of the prefix in bytes: what bounds checks may let through."""
        return min(self._end * self._granule, self.size)

    def attach(self, program: LoadedProgram) -> None:
        """Have a program's bounds checks follow the prefix from now on."""
        with self._programs_lock:
            if self._open:  # else nothing of the session runs any more
                self._programs.add(program)
                program.widen(self.backed)

    def commit(
        self, offset: int, size: int, *, from_file: bool = True, most: int | None = None
    ) -> None:
        """Back ``[offset, offset + size)`` with memory, set to what the file has there or to zero.

        Args:
            offset: of the first byte.
            size: bytes.
            from_file: whether the file has the values; else they are all zero.
            most: bytes of a piece, in whole granules, at most or one granule; None: any.

        Raises:
            OutOfMemory: the device has too little left.
        """
        first, last = self._granules(offset, size)
        touched = [p for p in self._pieces if p.first < last and first < p.last]
        step = last - first if most is None else max(1, most // self._granule)
        made: list[_Piece] = []
        with ExitStack() as undo:
            for piece in touched:  # first of all: spare pieces may be reclaimed meanwhile
                piece.parts += 1
                undo.callback(_drop_part, piece)
            at = first
            for stop, resume in [*((p.first, p.last) for p in touched), (last, last)]:
                for begin in range(at, stop, step):
                    made.append(self._created(begin, min(begin + step, stop)))
                    undo.callback(self._discard, made[-1])
                at = max(at, resume)
            if self._end < first:
                self._map_sink(self._end, first)
                undo.callback(self._unmap_sink, self._end, first)
            if from_file:
                self._staging.upload(self._part(offset, size), self.address + offset, size)
            elif touched:
                self._staging.zero(self.address + offset, size)
            undo.pop_all()
        self._pieces = sorted([*self._pieces, *made], key=lambda piece: piece.first)
        try:
            self._extend(last)
        except BaseException:
            for piece in (*touched, *made):  # some programs may access them: they stay, spare
                piece.parts -= 1
            raise

    def release(self, offset: int, size: int) -> None:
        """Undo a `commit` of the same range. Nothing uses its memory any more."""
        first, last = self._granules(offset, size)
        for piece in self._pieces:
            if piece.first < last and first < piece.last:
                piece.parts -= 1
        self._shared.trim()

    def shrink(self, offset: int, size: int, kept: int) -> None:
        """Undo a part of a `commit` of the same range: of all but its first ``kept`` bytes."""
        first, last = self._granules(offset, size)
        _, end = self._granules(offset, kept)
        for piece in self._pieces:
            if piece.first < last and first < piece.last and piece.first >= end:
                piece.parts -= 1
        self._shared.trim()

    @property
    def has_spare(self) -> bool:
        """Whether any piece is spare."""
        return any(not piece.parts for piece in self._pieces)

    def reclaim(self, most: int, interrupt: Callable[[WatchedRun], bool]) -> bool:
        """Free spare pieces; whether there were any.

        Args:
            most: how many pieces at most.
            interrupt: which runs may be interrupted; if any other runs, no piece is freed.

        Raises:
            DeviceLost: the mapping failed half-way.
        """
        if not self._open or not self.has_spare:
            return False
        with self._shared.quiescer.quiesce(self.address, interrupt) as is_quiet:
            if is_quiet:
                for piece in [piece for piece in self._pieces if not piece.parts][-most:]:
                    self._pieces.remove(piece)
                    self._drop(piece)
            return is_quiet

    def upload(self, offset: int, size: int) -> None:
        """Copy from the file to the device; the whole range must be committed."""
        self._check(offset, size)
        self._staging.upload(self._part(offset, size), self.address + offset, size)

    def download(self, offset: int, size: int, *, moves: bool = False) -> None:
        """Copy from the device to the file; the whole range must be committed.

        ``moves``: the same range, in whole pages, will be copied back, and again.
        """
        self._check(offset, size)
        part = self._part(offset, size)
        self._staging.download(self.address + offset, part, size)
        if moves and isinstance(part, FilePart):
            self._moving[offset, size] = MappedPart(self._file, offset, size)

    def export(self, offset: int, size: int, most: int) -> list[tuple[int, int, int]]:
        """Return the pieces in which a committed range lies, for the session's own process to map.

        Its memory is the session's alone: a mapping keeps it when the piece is freed here.

        Args:
            offset: of the range's first byte.
            size: of the range, in bytes.
            most: how many pieces at most; the first ones.

        Returns:
            For each piece its offset, its size and a descriptor, which the caller closes.

        Raises:
            InvalidArgument: the range is not all committed, or the driver cannot export memory.
        """
        self._check(offset, size)
        first, last = self._granules(offset, size)
        touched = [p for p in self._pieces if p.parts and p.first < last and first < p.last]
        found: list[tuple[int, int, int]] = []
        with ExitStack() as undo:
            for piece in touched[:most]:
                try:
                    descriptor = self._memory.export(piece.handle)
                except DriverError as error:
                    raise InvalidArgument(
                        f"the driver exports no memory for programs to map ({error}): copy the "
                        "values with get() and set()"
                    ) from error
                undo.callback(os.close, descriptor)
                address, length = self._place(piece.first, piece.last)
                found.append((address - self.address, length, descriptor))
            undo.pop_all()
        return found

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Return (address, size) of the prefix, which may be read to report a kernel's failure."""
        return ((self.address, self.backed),) if self._end else ()

    def close(self) -> None:
        """Free everything later, on another thread.

        No kernel that could access it runs, or will.
        """
        if not self._open:
            return
        with self._programs_lock:  # never widen a program to 0 bytes: its checks would pass all
            self._open = False
            self._end = 0
        os.close(self._file)
        self._moving.clear()
        self._shared.retire(self.address, self._free_all)

    # -- pieces

    def _free_all(self) -> None:
        """Free everything of a closed arena. On any thread.

        Raises:
            DeviceLost: something cannot be freed.
        """
        try:
            while self._pieces:
                self._drop(self._pieces.pop())
            for number in sorted(self._sunk):
                self._unmap_sink(number, number + 1)
            self._memory.release(self._sink)
            self._memory.free_range(self.address, self._reserved)
        except DriverError as error:
            raise DeviceLost(f"memory of an arena cannot be freed: {error}") from error

    def _part(self, offset: int, size: int) -> FilePart | MappedPart:
        mapped = self._moving.get((offset, size))
        return FilePart(self._file, offset) if mapped is None else mapped

    def _check(self, offset: int, size: int) -> None:
        """Raise InvalidArgument if the range is not all committed."""
        first, last = self._granules(offset, size)
        at = first
        for piece in self._pieces:
            if piece.parts and piece.first <= at < piece.last:
                at = piece.last
        if at < last:
            raise InvalidArgument(f"of {size} bytes at {offset} not all have memory behind them")

    def _granules(self, offset: int, size: int) -> tuple[int, int]:
        if not (size > 0 and offset >= 0 and offset + size <= self.size):
            raise InvalidArgument(
                f"{size} bytes at {offset} are no part of an arena of {self.size}"
            )
        return offset // self._granule, -(-(offset + size) // self._granule)

    def _reserve(self, base: int) -> int:
        driver, shared = self._context.driver, self._shared
        while True:
            freed = shared.freed
            try:
                address = int(
                    driver.call("cuMemAddressReserve", self._reserved, self._granule, base, 0)
                )
            except DriverError as error:
                if error.status != "OUT_OF_MEMORY":
                    raise
                if not shared.wait_freed(freed):
                    raise OutOfMemory(self.size, 0) from error
                continue
            if base in (0, address):
                return address
            driver.call("cuMemAddressFree", address, self._reserved)
            if not shared.wait_freed(freed):  # the arena that was there may be being freed
                raise InvalidArgument(
                    f"{self.size} bytes cannot be reserved at {base:#x}: it is taken"
                )

    def _created(self, first: int, last: int) -> _Piece:
        """Allocate and map a piece where there was none, or the sink; it reads as zero.

        Raises:
            OutOfMemory: too little is left, or running kernels of the session prevent the mapping.
        """
        size = self._place(first, last)[1]
        handle = self._memory.create(size, exportable=self._memory.exports)
        try:
            sunk = sorted(self._sunk.intersection(range(first, last)))
            if not sunk:
                self._place_piece(handle, first, last, sunk)
            else:  # programs can access these addresses already
                with self._shared.quiescer.quiesce(self.address, all_runs) as is_quiet:
                    if not is_quiet:
                        raise OutOfMemory(size, self._context.free_bytes(), limit="kernels")
                    self._place_piece(handle, first, last, sunk)
        except BaseException:
            self._memory.release(handle)
            raise
        return _Piece(first, last, 1, handle)

    def _place_piece(self, handle: Any, first: int, last: int, sunk: list[int]) -> None:
        """Map and clear new memory, replacing the sink at the granules ``sunk``."""
        memory, (address, size) = self._memory, self._place(first, last)
        with ExitStack() as undo:
            for number in sunk:
                self._unmap_sink(number, number + 1)
                undo.callback(self._remap_sink, number, number + 1)
            memory.map(handle, address, size)
            undo.callback(memory.unmap, address, size)
            memory.allow_access(address, size)
            # All of it: kernels can access the gaps, and it may have been another session's.
            self._staging.zero(address, size)
            undo.pop_all()

    def _discard(self, piece: _Piece) -> None:
        """Free a piece that was just created; inside the prefix it stays, spare."""
        if piece.first < self._end:
            piece.parts = 0
            self._pieces.append(piece)
            self._pieces.sort(key=lambda one: one.first)
        else:
            self._drop(piece)

    def _extend(self, end: int) -> None:
        """Let programs access everything below granule ``end``: all of it is backed by memory."""
        with self._programs_lock:
            self._end = max(self._end, end)
            for program in self._programs:
                program.widen(self.backed)

    def _map_sink(self, first: int, last: int) -> None:
        """Map the sink at each of the granules ``[first, last)``, which are not mapped."""
        with ExitStack() as undo:
            for number in range(first, last):
                place = self._place(number, number + 1)
                self._memory.map(self._sink, *place)
                undo.callback(self._memory.unmap, *place)
            self._memory.allow_access(*self._place(first, last))
            undo.pop_all()
        self._sunk.update(range(first, last))

    def _remap_sink(self, first: int, last: int) -> None:
        """Map the sink again, inside the prefix.

        Raises:
            DeviceLost: it failed: an access would end the context.
        """
        try:
            self._map_sink(first, last)
        except DriverError as error:
            raise DeviceLost(f"a part of an arena is without memory: {error}") from error

    def _unmap_sink(self, first: int, last: int) -> None:
        """Unmap the sink from granules ``[first, last)``."""
        for number in range(first, last):
            self._memory.unmap(*self._place(number, number + 1))
            self._sunk.discard(number)

    def _place(self, first: int, last: int) -> tuple[int, int]:
        """Return the address and size of granules ``[first, last)``."""
        return self.address + first * self._granule, (last - first) * self._granule

    def _drop(self, piece: _Piece) -> None:
        """Free a piece; the sink replaces it inside the prefix, while the session is quiesced."""
        try:
            self._memory.unmap(*self._place(piece.first, piece.last))
            if piece.first < self._end:
                self._remap_sink(piece.first, min(piece.last, self._end))
            self._memory.release(piece.handle)
        except DriverError as error:
            raise DeviceLost(f"memory of an arena cannot be freed: {error}") from error


def _drop_part(piece: _Piece) -> None:
    piece.parts -= 1
