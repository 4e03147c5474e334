"""Arenas of the CUDA device: one session's range of device addresses, beside its memory file.

Problem: a session's arrays must lie in one range whose base and size its fences know, at the same
addresses in a host that replaces another; but memory is taken only for arrays that are there. The
daemon and the client see arrays in a memory file, the GPU needs them in its own memory.

Approach: the whole range is reserved when the arena is opened, which takes no memory.
`Arena.commit` puts memory behind a part of it, `Arena.release` takes it away; `upload` and
`download` copy between the file, mapped and page-locked on our side, and the device, at the same
offset in both.

Terms: a *granule* is what the driver gives memory in (2 MiB and more); a *piece* is a run of
granules that was created at once, for as long as some committed part lies in it.

Algorithm: `commit` makes a piece of each gap between the pieces that its range touches, then copies
the range from the file: what reads as zero there is zero on the device. A memset would do less work
but needs room on an SM, and a full device may have none for hours; copies have engines of their
own.

Properties:
* what `commit` could not finish, it takes back: nothing of the range is mapped that was not before;
* a byte is mapped exactly as long as a committed part lies in its granule;
* copies of an arena are done in their order, and when the call returns.

The server has no messages for these yet: it must commit what it allocates, release what it frees,
and copy where a session reads or writes an array. Nothing here has run on a GPU yet.
"""

from __future__ import annotations

import mmap
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpud.device.cuda.context import Context
from gpud.device.cuda.driver import DriverError
from gpud.device.cuda.memory import out_of_memory
from gpud.errors import DeviceLost, InvalidArgument, OutOfMemory

__all__ = ["Arena"]

_NO_RESERVE = 0x4000  # MAP_NORESERVE: the file is sparse, its size says nothing about its use


@dataclass(slots=True)
class _Piece:
    """Granules ``[first, last)``, mapped for ``parts`` committed parts."""

    first: int
    last: int
    parts: int
    handle: Any


class Arena:
    """A reserved range of device addresses and a mapping of its file. For one thread at a time.

    Args:
        context: of the device.
        descriptor: of the file; it may be closed afterwards.
        size: bytes, a power of two.
        base: the address that the first byte shall have; 0: the driver chooses.

    Attributes:
        address: of the first byte, on the device.
        size: in bytes.

    Raises:
        InvalidArgument: the file is smaller than ``size``, or the range is not free.
        OutOfMemory: there is no address range left.
    """

    def __init__(self, context: Context, descriptor: int, size: int, base: int = 0) -> None:
        self._context = context
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
                self._file = mmap.mmap(descriptor, size, mmap.MAP_SHARED | _NO_RESERVE)
            except (OSError, ValueError) as error:
                raise InvalidArgument(f"the arena's file cannot be mapped: {error}") from error
            undo.callback(self._file.close)
            self._stream = driver.call(
                "cuStreamCreateWithPriority",
                int(driver.api.CUstream_flags.CU_STREAM_NON_BLOCKING),
                context.least_priority,
            )
            undo.callback(driver.call, "cuStreamDestroy", self._stream)
            self.address = self._reserve(base)
            undo.pop_all()
        self._host = np.frombuffer(self._file, np.uint8)
        self._open = True

    def commit(self, offset: int, size: int) -> None:
        """Have memory behind ``[offset, offset + size)``, with what the file has there.

        Raises:
            OutOfMemory: the device has too little left.
        """
        first, last = self._granules(offset, size)
        touched = [p for p in self._pieces if p.first < last and first < p.last]
        made: list[_Piece] = []
        with ExitStack() as undo:
            at = first
            for stop, resume in [*((p.first, p.last) for p in touched), (last, last)]:
                if at < stop:
                    made.append(self._created(at, stop))
                    undo.callback(self._drop, made[-1])
                at = max(at, resume)
            self._copy([*touched, *made], offset, size, up=True)
            undo.pop_all()
        for piece in (*touched, *made):
            piece.parts += 1
        self._pieces = sorted([*self._pieces, *made], key=lambda piece: piece.first)

    def release(self, offset: int, size: int) -> None:
        """Undo a `commit` of the same range. No kernel that could touch it runs."""
        first, last = self._granules(offset, size)
        for piece in [p for p in self._pieces if p.first < last and first < p.last]:
            piece.parts -= 1
            if not piece.parts:
                self._pieces.remove(piece)
                self._drop(piece)

    def upload(self, offset: int, size: int) -> None:
        """Copy from the file to the device; all of it is committed."""
        self._copy(self._pieces, offset, size, up=True)

    def download(self, offset: int, size: int) -> None:
        """Copy from the device to the file; all of it is committed."""
        self._copy(self._pieces, offset, size, up=False)

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
        driver.call("cuStreamDestroy", self._stream)
        del self._host
        self._file.close()

    # -- pieces

    def _copy(self, pieces: list[_Piece], offset: int, size: int, *, up: bool) -> None:
        """Copy piece by piece: a copy's ends must not lie in memory that was locked separately."""
        driver, host = self._context.enter(), self._host.ctypes.data
        try:
            for piece in pieces:
                start = max(offset, piece.first * self._granule)
                count = min(offset + size, piece.last * self._granule) - start
                if count <= 0:
                    continue
                there, here = self.address + start, host + start
                if up:
                    driver.call("cuMemcpyHtoDAsync", there, here, count, self._stream)
                else:
                    driver.call("cuMemcpyDtoHAsync", here, there, count, self._stream)
        finally:
            self._wait()

    def _wait(self) -> None:
        try:
            self._context.driver.call("cuStreamSynchronize", self._stream)
        except DriverError as error:
            raise DeviceLost(f"a copy of an arena cannot be waited for: {error}") from error

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
            try:
                handle = driver.call("cuMemCreate", size, self._location, 0)
            except DriverError as error:
                raise out_of_memory(self._context, error, size) from error
            undo.callback(driver.call, "cuMemRelease", handle)
            driver.call("cuMemMap", address, size, 0, handle, 0)
            undo.callback(driver.call, "cuMemUnmap", address, size)
            driver.call("cuMemSetAccess", address, size, [self._access()], 1)
            driver.call("cuMemHostRegister", *self._locked(first, last), 0)
            undo.pop_all()
        return _Piece(first, last, 0, handle)

    def _drop(self, piece: _Piece) -> None:
        driver, granule = self._context.enter(), self._granule
        size = (piece.last - piece.first) * granule
        driver.call("cuMemHostUnregister", self._locked(piece.first, piece.last)[0])
        driver.call("cuMemUnmap", self.address + piece.first * granule, size)
        driver.call("cuMemRelease", piece.handle)

    def _locked(self, first: int, last: int) -> tuple[int, int]:
        """(address, size) of the file's part beside granules, in our mapping."""
        start, end = first * self._granule, min(last * self._granule, self.size)
        return self._host.ctypes.data + start, end - start

    def _access(self) -> Any:
        api = self._context.driver.api
        access = api.CUmemAccessDesc()
        access.location = self._location.location
        access.flags = api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        return access


def _properties(api: Any, device: int) -> Any:
    """Memory of the device, mapped by nobody else."""
    wanted = api.CUmemAllocationProp()
    wanted.type = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    location = api.CUmemLocation()
    location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = device
    wanted.location = location
    return wanted
