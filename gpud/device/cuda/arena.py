"""Arenas of the CUDA device: one session's range of device addresses, beside its memory file.

Problem: a session's arrays must lie in one range whose base and size its fences know, at the same
addresses in a host that replaces another; but memory is taken only for arrays that are there. The
daemon and the client see arrays in a memory file, the GPU needs them in its own memory.

Approach: the whole range is reserved when the arena is opened, which takes no memory.
`Arena.commit` puts memory behind a part of it, `Arena.release` takes it away; `upload` and
`download` copy between the file and the device, at the same offset in both
(`gpud.device.cuda.staging`).

Terms: a *granule* is what the driver gives memory in (2 MiB and more); a *piece* is a run of
granules that was created at once; it is *spare* while no committed part lies in it.

Algorithm: `commit` makes a piece of each gap between the pieces that its range touches, then sets
the range to what the file has, or to zero. To take memory away the driver may wait for every kernel
that runs. So spare pieces stay where they are while kernels run, unless memory is short: then all
of the device's are given back first.

Properties:
* what `commit` could not finish, it takes back: nothing of the range is mapped that was not before;
* what of it no array has, reads as zero or as what the session left there;
* a byte is mapped as long as a committed part lies in its granule, and is never given to another
  session before;
* with nothing on the device no piece stays spare after a `release`;
* copies of an arena are done in their order, and when the call returns.

Nothing here has run on a GPU yet.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from gpud.device.cuda.context import Context
from gpud.device.cuda.driver import DriverError
from gpud.device.cuda.memory import out_of_memory
from gpud.device.cuda.staging import Staging
from gpud.errors import InvalidArgument, OutOfMemory

__all__ = ["Arena"]


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
        context: of the device.
        staging: what copies go through.
        descriptor: of the file; it may be closed afterwards.
        size: bytes, a power of two.
        base: the address that the first byte shall have; 0: the driver chooses.
        idle: whether nothing is on the device.
        reclaim: gives back what is spare in all arenas; whether there was any.

    Attributes:
        address: of the first byte, on the device.
        size: in bytes.

    Raises:
        InvalidArgument: the file is smaller than ``size``, or the range is not free.
        OutOfMemory: there is no address range left.
    """

    def __init__(
        self,
        context: Context,
        staging: Staging,
        descriptor: int,
        size: int,
        base: int = 0,
        *,
        idle: Callable[[], bool],
        reclaim: Callable[[], bool],
    ) -> None:
        self._context = context
        self._staging = staging
        self._idle = idle
        self._reclaim = reclaim
        self.size = size
        self._pieces: list[_Piece] = []
        driver = context.enter()
        self._location = _properties(driver.api, context.index)
        kind = driver.api.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self._granule = int(driver.call("cuMemGetAllocationGranularity", self._location, kind))
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
            undo.pop_all()
        self._open = True

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
                    undo.callback(self._drop, made[-1])
                at = max(at, resume)
            if from_file:
                self._staging.up(self._file, offset, self.address + offset, size)
            elif touched:
                self._staging.zero(self.address + offset, size)
            undo.pop_all()
        self._pieces = sorted([*self._pieces, *made], key=lambda piece: piece.first)

    def release(self, offset: int, size: int) -> None:
        """Undo a `commit` of the same range. No kernel that could touch it runs."""
        first, last = self._granules(offset, size)
        for piece in self._pieces:
            if piece.first < last and first < piece.last:
                piece.parts -= 1
        if self._idle():
            self.reclaim()

    def reclaim(self) -> bool:
        """Give back the pieces that are spare; whether there were any. May wait for kernels."""
        spare = [piece for piece in self._pieces if not piece.parts]
        for piece in spare:
            self._pieces.remove(piece)
            self._drop(piece)
        return bool(spare)

    def upload(self, offset: int, size: int) -> None:
        """Copy from the file to the device; all of it is committed."""
        self._check(offset, size)
        self._staging.up(self._file, offset, self.address + offset, size)

    def download(self, offset: int, size: int) -> None:
        """Copy from the device to the file; all of it is committed."""
        self._check(offset, size)
        self._staging.down(self.address + offset, self._file, offset, size)

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """(address, size) of what is mapped: what may be read there for a kernel."""
        return tuple(
            (self.address + p.first * self._granule, (p.last - p.first) * self._granule)
            for p in self._pieces
        )

    def close(self) -> None:
        """Give everything back. No kernel that could touch it runs."""
        if not self._open:
            return
        self._open = False
        driver = self._context.enter()
        while self._pieces:
            self._drop(self._pieces.pop())
        driver.call("cuMemAddressFree", self.address, self._reserved)
        os.close(self._file)

    # -- pieces

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
        driver = self._context.driver
        try:
            address = int(
                driver.call("cuMemAddressReserve", self._reserved, self._granule, base, 0)
            )
        except DriverError as error:
            if error.status == "OUT_OF_MEMORY":
                raise OutOfMemory(self.size, 0) from error
            raise
        if base and address != base:
            driver.call("cuMemAddressFree", address, self._reserved)
            raise InvalidArgument(f"{self.size} bytes cannot be reserved at {base:#x}: it is taken")
        return address

    def _created(self, first: int, last: int) -> _Piece:
        driver, granule = self._context.enter(), self._granule
        size, address = (last - first) * granule, self.address + first * granule
        with ExitStack() as undo:
            handle = self._allocated(size)
            undo.callback(driver.call, "cuMemRelease", handle)
            driver.call("cuMemMap", address, size, 0, handle, 0)
            undo.callback(driver.call, "cuMemUnmap", address, size)
            driver.call("cuMemSetAccess", address, size, [self._access()], 1)
            # All of it: kernels reach what lies beside arrays, and it may have been another's.
            self._staging.zero(address, size)
            undo.pop_all()
        return _Piece(first, last, 1, handle)

    def _allocated(self, size: int) -> Any:
        driver = self._context.enter()
        while True:
            try:
                return driver.call("cuMemCreate", size, self._location, 0)
            except DriverError as error:
                if error.status != "OUT_OF_MEMORY" or not self._reclaim():
                    raise out_of_memory(self._context, error, size) from error

    def _drop(self, piece: _Piece) -> None:
        driver, granule = self._context.enter(), self._granule
        size = (piece.last - piece.first) * granule
        driver.call("cuMemUnmap", self.address + piece.first * granule, size)
        driver.call("cuMemRelease", piece.handle)

    def _access(self) -> Any:
        api = self._context.driver.api
        access = api.CUmemAccessDesc()
        access.location = self._location.location
        access.flags = api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        return access


def _leave(piece: _Piece) -> None:
    piece.parts -= 1


def _properties(api: Any, device: int) -> Any:
    """Memory of the device, mapped by nobody else."""
    wanted = api.CUmemAllocationProp()
    wanted.type = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    location = api.CUmemLocation()
    location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = device
    wanted.location = location
    return wanted
