"""Arenas of the CUDA device: one session's range of device addresses, beside its memory file.

Problem: a session's arrays must lie in one range whose base and size its fences know, at the same
addresses in a host that replaces another; but memory is taken only for arrays that are there. An
access where no memory lies ends the context, and with it everybody's jobs: fences must let none
through. The daemon and the client see arrays in a memory file, the GPU needs them in its own
memory.

Approach: the whole range is reserved when the arena is opened. Memory lies behind a part of it that
begins at its first byte and only grows; fences let programs reach this *prefix* and no more.
`Arena.commit` puts memory behind a part of the range, `Arena.release` says that it is not needed;
`upload` and `download` copy between the file and the device, at the same offset in both
(`gpud.device.cuda.memory.staging`).

Terms: a *granule* is what the driver gives memory in (2 MiB and more); a *piece* is a run of
granules that was created at once; it is *spare* while no committed part lies in it. The *sink* is
one granule of memory, the arena's own, that is mapped wherever the prefix has no piece.

Algorithm: `commit` makes a piece of each gap between the pieces that its range touches, sinks what
the prefix skips by that, and sets the range to what the file has, or to zero. Then the prefix ends
behind it, and programs are told. Spare pieces stay until memory is short
(`gpud.device.cuda.memory.arenas` says when that is, and whose are taken): then they are given back,
and their granules are sunk.

Where memory in the prefix is taken away or put, there is none for a moment. So that is done only
while the session stands still (`gpud.device.cuda.memory.quiescer`). Where it does not in time,
spare memory stays, and an array that was to take the place of the sink is refused.

What memory the sink or an array has been put behind, kernels that began before may see as it was
("virtual aliasing", CUDA Programming Guide 13, 4.16.5.3): none of the session has, and others never
reach it.

Properties:
* what fences let through has memory behind it whenever a kernel of the session is on the device;
* what `commit` could not finish, it takes back: the prefix is as long as it was, or has memory;
* what of the prefix no array has, reads as zero or as what the session left there: memory is
  cleared before a program can reach it;
* a byte is mapped as long as a committed part lies in its granule, and is never given to another
  session before;
* copies of an arena are done in their order, and when the call returns.

Nothing here has run on a GPU yet.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from gpud.device.cuda.driver.calls import DriverError
from gpud.device.cuda.memory.quiescer import all_runs
from gpud.device.cuda.memory.virtual_memory import VirtualMemory
from gpud.errors import DeviceLost, InvalidArgument, OutOfMemory

if TYPE_CHECKING:
    from gpud.device.cuda.execution.gang import Gang
    from gpud.device.cuda.memory.arenas import Arenas

__all__ = ["Arena"]

_FLOOR_BYTES: Final = 1 << 16
"""The least prefix: checks of accesses subtract some KiB from its size."""


class Program(Protocol):
    """What it needs of `gpud.device.cuda.program.module.CUDAModule`."""

    def widen(self, size: int) -> None:
        """Let its fences pass the first ``size`` bytes of its arena from the next launch on."""


@dataclass(slots=True)
class _Piece:
    """Granules ``[first, last)``, mapped for ``parts`` committed parts."""

    first: int
    last: int
    parts: int
    handle: Any


class Arena:
    """A reserved range of device addresses and its file. For one thread at a time.

    Args:
        shared: what all arenas of the device share.
        descriptor: of the file; it may be closed afterwards.
        size: bytes, a power of two.
        base: the address that the first byte shall have; 0: the driver chooses.

    Attributes:
        address: of the first byte, on the device.
        size: in bytes.

    Raises:
        InvalidArgument: the file is smaller than ``size``, or the range is not free.
        OutOfMemory: there is no address range left, or no memory for what each arena has.
    """

    def __init__(self, shared: Arenas, descriptor: int, size: int, base: int = 0) -> None:
        self._shared = shared
        self._context = context = shared.context
        self._staging = shared.staging
        self._memory = VirtualMemory(context, shared)
        self.size = size
        self._pieces: list[_Piece] = []
        self._sunk: set[int] = set()
        self._end = 0  # granules that the prefix has
        self._programs: weakref.WeakSet[Program] = weakref.WeakSet()
        self._telling = threading.Lock()  # programs are loaded on another thread
        driver = context.enter()
        self._granule = self._memory.size
        # The range ends with a whole granule; what lies behind ``size`` is never mapped for it.
        self._reserved = -(-size // self._granule) * self._granule
        with ExitStack() as undo:
            try:
                there = os.fstat(descriptor).st_size
                self._file = os.dup(descriptor)
            except OSError as error:
                raise InvalidArgument(f"the arena's descriptor is of no use: {error}") from error
            undo.callback(os.close, self._file)
            if there < size:
                raise InvalidArgument(f"the arena's file has {there} bytes, its range {size}")
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
        """The bytes of the prefix: what fences may let through."""
        return min(self._end * self._granule, self.size)

    def attach(self, program: Program) -> None:
        """Have a program's fences follow the prefix from now on."""
        with self._telling:
            if self._open:  # else nothing of the session runs any more
                self._programs.add(program)
                program.widen(self.backed)

    def commit(self, offset: int, size: int, *, from_file: bool = True) -> None:
        """Have memory behind ``[offset, offset + size)``, with what the file has there, or zeroes.

        Raises:
            OutOfMemory: the device has too little left.
        """
        first, last = self._granules(offset, size)
        touched = [p for p in self._pieces if p.first < last and first < p.last]
        made: list[_Piece] = []
        with ExitStack() as undo:
            for piece in touched:  # at once: what is spare may be given back meanwhile
                piece.parts += 1
                undo.callback(_leave, piece)
            at = first
            for stop, resume in [*((p.first, p.last) for p in touched), (last, last)]:
                if at < stop:
                    made.append(self._created(at, stop))
                    undo.callback(self._not_needed, made[-1])
                at = max(at, resume)
            if self._end < first:
                self._sink_at(self._end, first)
                undo.callback(self._lift, self._end, first)
            if from_file:
                self._staging.up(self._file, offset, self.address + offset, size)
            elif touched:
                self._staging.zero(self.address + offset, size)
            undo.pop_all()
        self._pieces = sorted([*self._pieces, *made], key=lambda piece: piece.first)
        try:
            self._extend(last)
        except BaseException:
            for piece in (*touched, *made):  # some programs may reach them: they stay, spare
                piece.parts -= 1
            raise

    def release(self, offset: int, size: int) -> None:
        """Undo a `commit` of the same range. Nothing uses what is there any more."""
        first, last = self._granules(offset, size)
        for piece in self._pieces:
            if piece.first < last and first < piece.last:
                piece.parts -= 1
        self._shared.tidy()

    @property
    def has_spare(self) -> bool:
        """Whether a piece is spare."""
        return any(not piece.parts for piece in self._pieces)

    def reclaim(self, most: int, interrupt: Callable[[Gang], bool]) -> bool:
        """Give back ``most`` pieces that are spare, or all; whether there were any.

        Args:
            most: pieces.
            interrupt: which runs may be interrupted for that; if another is there, none is taken.

        Raises:
            DeviceLost: whether memory lies there now is not known.
        """
        if not self._open or not self.has_spare:
            return False
        with self._shared.quiescer.hold(self.address, interrupt) as still:
            if still:
                for piece in [piece for piece in self._pieces if not piece.parts][-most:]:
                    self._pieces.remove(piece)
                    self._drop(piece)
            return still

    def upload(self, offset: int, size: int) -> None:
        """Copy from the file to the device; all of it is committed."""
        self._check(offset, size)
        self._staging.up(self._file, offset, self.address + offset, size)

    def download(self, offset: int, size: int) -> None:
        """Copy from the device to the file; all of it is committed."""
        self._check(offset, size)
        self._staging.down(self.address + offset, self._file, offset, size)

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """(address, size) of the prefix: what may be read there for a kernel."""
        return ((self.address, self.backed),) if self._end else ()

    def close(self) -> None:
        """Give everything back, at another time. No kernel that could touch it runs, or will."""
        if not self._open:
            return
        with self._telling:  # a program must not hear that the prefix has no bytes: all would pass
            self._open = False
            self._end = 0
        os.close(self._file)
        self._shared.left(self, self._give_back)

    # -- pieces

    def _give_back(self) -> None:
        """Give back what there is, when it is closed. On any thread.

        Raises:
            DeviceLost: not all can be.
        """
        try:
            while self._pieces:
                self._drop(self._pieces.pop())
            for number in sorted(self._sunk):
                self._lift(number, number + 1)
            self._memory.release(self._sink)
            self._memory.free_range(self.address, self._reserved)
        except DriverError as error:
            raise DeviceLost(f"memory of an arena cannot be given back: {error}") from error

    def _check(self, offset: int, size: int) -> None:
        """Raises InvalidArgument if the range is not all committed."""
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
            returned = shared.returned
            try:
                address = int(
                    driver.call("cuMemAddressReserve", self._reserved, self._granule, base, 0)
                )
            except DriverError as error:
                if error.status != "OUT_OF_MEMORY":
                    raise
                if not shared.came_back(returned):
                    raise OutOfMemory(self.size, 0) from error
                continue
            if base in (0, address):
                return address
            driver.call("cuMemAddressFree", address, self._reserved)
            if not shared.came_back(returned):  # an arena that was there may be on its way back
                raise InvalidArgument(
                    f"{self.size} bytes cannot be reserved at {base:#x}: it is taken"
                )

    def _created(self, first: int, last: int) -> _Piece:
        """A piece of new memory where there was none, or the sink; it reads as zero.

        Raises:
            OutOfMemory: there is too little, or kernels of the session keep it from its place.
        """
        size = self._place(first, last)[1]
        handle = self._memory.create(size)
        try:
            sunk = sorted(self._sunk.intersection(range(first, last)))
            if not sunk:
                self._place_piece(handle, first, last, sunk)
            else:  # programs reach the place already
                with self._shared.quiescer.hold(self.address, all_runs) as still:
                    if not still:
                        raise OutOfMemory(size, self._context.free_bytes(), limit="kernels")
                    self._place_piece(handle, first, last, sunk)
        except BaseException:
            self._memory.release(handle)
            raise
        return _Piece(first, last, 1, handle)

    def _place_piece(self, handle: Any, first: int, last: int, sunk: list[int]) -> None:
        """Map new memory, in place of the sink at the granules ``sunk``, and clear it."""
        memory, (address, size) = self._memory, self._place(first, last)
        with ExitStack() as undo:
            for number in sunk:
                self._lift(number, number + 1)
                undo.callback(self._sink_again, number, number + 1)
            memory.map(handle, address, size)
            undo.callback(memory.unmap, address, size)
            memory.permit(address, size)
            # All of it: kernels reach what lies beside arrays, and it may have been another's.
            self._staging.zero(address, size)
            undo.pop_all()

    def _not_needed(self, piece: _Piece) -> None:
        """Take back a piece that was just made: where programs reach it, it stays, spare."""
        if piece.first < self._end:
            piece.parts = 0
            self._pieces.append(piece)
            self._pieces.sort(key=lambda one: one.first)
        else:
            self._drop(piece)

    def _extend(self, end: int) -> None:
        """Let programs reach what lies in front of granule ``end``: all of it has memory."""
        with self._telling:
            self._end = max(self._end, end)
            for program in self._programs:
                program.widen(self.backed)

    def _sink_at(self, first: int, last: int) -> None:
        """Map the sink at each of the granules ``[first, last)``, which have no memory."""
        with ExitStack() as undo:
            for number in range(first, last):
                place = self._place(number, number + 1)
                self._memory.map(self._sink, *place)
                undo.callback(self._memory.unmap, *place)
            self._memory.permit(*self._place(first, last))
            undo.pop_all()
        self._sunk.update(range(first, last))

    def _sink_again(self, first: int, last: int) -> None:
        """Likewise, where fences let programs through already.

        Raises:
            DeviceLost: there is no memory now: an access would end the context.
        """
        try:
            self._sink_at(first, last)
        except DriverError as error:
            raise DeviceLost(f"a part of an arena is without memory: {error}") from error

    def _lift(self, first: int, last: int) -> None:
        """Take the sink away from granules ``[first, last)``."""
        for number in range(first, last):
            self._memory.unmap(*self._place(number, number + 1))
            self._sunk.discard(number)

    def _place(self, first: int, last: int) -> tuple[int, int]:
        """Address and bytes of granules."""
        return self.address + first * self._granule, (last - first) * self._granule

    def _drop(self, piece: _Piece) -> None:
        """Give a piece back; what of it the prefix has is sunk, while the session stands still."""
        try:
            self._memory.unmap(*self._place(piece.first, piece.last))
            if piece.first < self._end:
                self._sink_again(piece.first, min(piece.last, self._end))
            self._memory.release(piece.handle)
        except DriverError as error:
            raise DeviceLost(f"memory of an arena cannot be given back: {error}") from error


def _leave(piece: _Piece) -> None:
    piece.parts -= 1
