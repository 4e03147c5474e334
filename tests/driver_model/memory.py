"""Memory of the model: device memory, page-locked memory, and mappings in reserved addresses.

All of it is memory of this process, so addresses are the same for both sides, and filled with
rubbish when it is new. Accessing an unmapped part of a reserved range without asking
`Memory.reaches` first ends the process.
"""

from __future__ import annotations

import ctypes
import os
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from cuda.bindings import driver as real

from tests.driver_model.handles import Misuse

if TYPE_CHECKING:
    from tests.driver_model.model_driver import ModelDriver

_RUBBISH = 0xA5
_MOST_RUBBISH = 1 << 24
_ALIGNMENT = 256
_BAD = real.CUresult.CUDA_ERROR_INVALID_VALUE
_NONE_LEFT = real.CUresult.CUDA_ERROR_OUT_OF_MEMORY
_READ_WRITE, _NO_ACCESS = 3, 0
_DESCRIPTOR = real.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_SHARED, _PRIVATE, _FIXED, _ANONYMOUS, _NO_RESERVE, _NO_REPLACE = (
    0x1, 0x2, 0x10, 0x20, 0x4000, 0x100000,
)  # fmt: skip


@dataclass(slots=True)
class Span:
    """Memory at an address; ``held``: the object that keeps it, a `Piece` if it is mapped."""

    size: int
    kind: str
    held: Any
    permitted: bool = True


class Piece:
    """Memory without an address, which can be mapped at several.

    Args:
        size: bytes.
        exportable: whether other processes can have it as a descriptor.
        file: of memory that another process has made; None: it is new.
    """

    def __init__(self, size: int, *, exportable: bool = False, file: int | None = None) -> None:
        self.size = size
        self.exportable = exportable
        self.imported = file is not None
        self.mappings = 0
        self.released = False
        self.file: int | None = file
        if file is None:
            self.file = os.memfd_create("piece")
            os.pwrite(self.file, bytes([_RUBBISH]) * min(size, _MOST_RUBBISH), 0)
            os.ftruncate(self.file, size)

    def close(self) -> None:
        """Free it."""
        file, self.file = self.file, None
        if file is not None:
            os.close(file)

    __del__ = close


class Memory:
    """Everything that has an address.

    Attributes:
        granule: the unit of allocation and mapping.
        free_bytes: free memory that the driver reports; None: `room_bytes`.
        room_bytes: what is left for `cuMemCreate`, at most three quarters of the memory.
    """

    def __init__(self, driver: ModelDriver, memory_bytes: int, granule: int) -> None:
        self._driver = driver
        self._total = memory_bytes
        self.granule = granule
        self.free_bytes: int | None = None
        self.room_bytes = memory_bytes * 3 // 4
        self._starts: list[int] = []
        self._spans: dict[int, Span] = {}
        self._ranges: dict[int, int] = {}

    # -- spans

    def reaches(self, address: int, size: int) -> bool:
        """Whether the whole range is accessible memory; it may lie in adjacent spans."""
        end = address + max(size, 1)
        with self._driver.lock:
            while True:
                found = self._at(address)
                if found is None:
                    return False
                start, span = found
                if not span.permitted:
                    return False
                if end <= start + span.size:
                    return True
                address = start + span.size

    def is_locked(self, address: int, size: int) -> bool:
        """Whether the range is in one block of page-locked memory."""
        with self._driver.lock:
            found = self._at(address)
        return found is not None and found[1].kind == "host" and (
            address + size <= found[0] + found[1].size
        )  # fmt: skip

    def _at(self, address: int) -> tuple[int, Span] | None:
        """The span that contains this byte."""
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        start = self._starts[index]
        span = self._spans[start]
        return (start, span) if address < start + span.size else None

    def take(self, address: int, span: Span) -> None:
        """Add a span."""
        with self._driver.lock:
            self._starts.insert(bisect_right(self._starts, address), address)
            self._spans[address] = span
        self._driver.alive[span.kind] += 1

    def give(self, kind: str, address: Any) -> Span:
        """Remove the span that begins at this address.

        Raises:
            Misuse: there is none of this kind.
        """
        with self._driver.lock:
            span = self._spans.get(int(address))
            if span is None or span.kind != kind:
                raise Misuse(f"no {kind} memory begins at {int(address):#x}, or none any more")
            del self._spans[int(address)]
            self._starts.remove(int(address))
        self._driver.alive[kind] -= 1
        return span

    def allocate(self, kind: str, size: int) -> int:
        """Allocate memory of this process, filled with rubbish; its address."""
        held = np.empty(size + _ALIGNMENT, np.uint8)
        held[:_MOST_RUBBISH] = _RUBBISH
        address = int(held.ctypes.data) + -int(held.ctypes.data) % _ALIGNMENT
        self.take(address, Span(size, kind, held))
        return address

    def read(self, address: int, size: int) -> bytes:
        """Read bytes, which must be accessible."""
        assert self.reaches(address, size), f"{size} bytes at {address:#x} are nobody's"
        return ctypes.string_at(address, size)

    def write(self, address: int, raw: bytes) -> None:
        """Write bytes, which must be accessible."""
        assert self.reaches(address, len(raw)), f"{len(raw)} bytes at {address:#x} are nobody's"
        ctypes.memmove(address, raw, len(raw))

    # -- blocks

    def cuMemGetInfo(self) -> tuple[int, int]:
        return self.room_bytes if self.free_bytes is None else self.free_bytes, self._total

    def cuMemAlloc(self, size: int) -> Any:
        return real.CUdeviceptr(self.allocate("device", size)) if size > 0 else _BAD

    def cuMemFree(self, address: Any) -> None:
        self.give("device", address)

    def cuMemHostAlloc(self, size: int, flags: int) -> Any:
        if not flags & real.CU_MEMHOSTALLOC_DEVICEMAP:
            raise Misuse("page-locked memory that the device does not see is of no use here")
        return self.allocate("host", size) if size > 0 else _BAD

    def cuMemHostGetDevicePointer(self, address: Any, flags: int) -> Any:
        return real.CUdeviceptr(int(address)) if self.is_locked(int(address), 1) else _BAD

    def cuMemFreeHost(self, address: Any) -> None:
        self.give("host", address)

    def cuMemHostRegister(self, address: Any, size: int, flags: int) -> Any:
        if self._at(int(address)) is not None:
            return real.CUresult.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
        self.take(int(address), Span(size, "registered", None))
        return None

    def cuMemHostUnregister(self, address: Any) -> None:
        self.give("registered", address)

    # -- synchronous copies

    def cuMemcpyHtoD(self, to: Any, source: Any, size: int) -> Any:
        if size <= 0 or not self.reaches(int(to), size):
            return _BAD
        staged = ctypes.string_at(int(source), size)  # it arrives later
        self._driver.streams.now(0, lambda: ctypes.memmove(int(to), staged, size))
        return None

    def cuMemcpyDtoH(self, to: Any, source: Any, size: int) -> Any:
        if size <= 0 or not self.reaches(int(source), size):
            return _BAD
        self._driver.streams.cuStreamSynchronize(0)
        ctypes.memmove(int(to), int(source), size)
        return None

    def cuMemsetD8(self, to: Any, byte: int, size: int) -> Any:
        if not self.reaches(int(to), size):
            return _BAD
        self._driver.streams.now(0, lambda: ctypes.memset(int(to), byte, size))
        return None

    # -- memory behind ranges of addresses

    def cuMemGetAllocationGranularity(self, wanted: Any, kind: Any) -> int:
        return self.granule

    def cuMemAddressReserve(self, size: int, align: int, base: Any, flags: int) -> Any:
        if size <= 0 or size % self.granule or align & (align - 1):
            return _BAD
        base = int(base)
        if base and not base % self.granule:
            found = _mapped(base, size, _NO_ACCESS, _NO_REPLACE)
            if found == base:
                return self._reserved(base, size)
            if found is not None:
                _libc.munmap(found, size)
        align = max(align, self.granule)
        found = _mapped(0, size + align, _NO_ACCESS, 0)
        if found is None:
            return _NONE_LEFT
        start = found + -found % align
        for at, length in ((found, start - found), (start + size, found + align - start)):
            if length:
                _libc.munmap(at, length)
        return self._reserved(start, size)

    def _reserved(self, address: int, size: int) -> Any:
        self._ranges[address] = size
        self._driver.alive["range"] += 1
        return real.CUdeviceptr(address)

    def cuMemAddressFree(self, address: Any, size: int) -> None:
        if self._ranges.get(int(address)) != size:
            raise Misuse(f"{size} bytes at {int(address):#x} were not reserved so, or not any more")
        if self._mappings(int(address), size):
            raise Misuse("addresses are given back at which memory is mapped")
        del self._ranges[int(address)]
        self._driver.alive["range"] -= 1
        _libc.munmap(int(address), size)

    def _mappings(self, address: int, size: int) -> list[tuple[int, Span]]:
        """All mappings that overlap the range."""
        return [
            (at, span)
            for at, span in self._spans.items()
            if span.kind == "mapping" and at < address + size and address < at + span.size
        ]

    def cuMemCreate(self, size: int, wanted: Any, flags: int) -> Any:
        if size <= 0 or size % self.granule:
            return _BAD
        with self._driver.lock:
            if size > self.room_bytes:
                return _NONE_LEFT
            self.room_bytes -= size
        wants = 0 if wanted is None else int(wanted.requestedHandleTypes)
        if wants not in (0, int(_DESCRIPTOR)):
            raise Misuse("the model exports memory as descriptors only")
        return self._driver.handles.new("piece", Piece(size, exportable=bool(wants)))

    def cuMemExportToShareableHandle(self, handle: Any, kind: Any, flags: int) -> Any:
        """A descriptor, which the caller closes; it keeps the memory, as a mapping does."""
        piece: Piece = self._driver.handles.of("piece", handle)
        if kind != _DESCRIPTOR or flags or not piece.exportable:
            return _BAD
        assert piece.file is not None
        return os.dup(piece.file)

    def cuMemImportFromShareableHandle(self, descriptor: int, kind: Any) -> Any:
        """Memory of another process; the descriptor stays the caller's."""
        try:
            name = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        except OSError:
            return _BAD
        if kind != _DESCRIPTOR or "memfd:piece" not in name:
            return _BAD
        piece = Piece(os.fstat(descriptor).st_size, file=os.dup(descriptor))
        return self._driver.handles.new("piece", piece)

    def cuMemRelease(self, handle: Any) -> None:
        piece: Piece = self._driver.handles.drop("piece", handle)
        piece.released = True
        self._end(piece)

    def _end(self, piece: Piece) -> None:
        """Free memory that has neither a handle nor a mapping any more."""
        if piece.released and not piece.mappings:
            if not piece.imported:  # else it is counted in the process that has made it
                with self._driver.lock:
                    self.room_bytes += piece.size
            piece.close()

    def cuMemMap(self, address: Any, size: int, offset: int, handle: Any, flags: int) -> Any:
        piece: Piece = self._driver.handles.of("piece", handle)
        at = int(address)
        if offset or size != piece.size or at % self.granule or flags:
            return _BAD
        if not any(low <= at and at + size <= low + much for low, much in self._ranges.items()):
            raise Misuse(f"{size} bytes at {at:#x} were not reserved")
        if self._mappings(at, size):
            raise Misuse(f"memory is mapped at {at:#x} already")
        assert piece.file is not None
        assert _mapped(at, size, _NO_ACCESS, _FIXED, piece.file) == at
        piece.mappings += 1
        self.take(at, Span(size, "mapping", piece, permitted=False))
        return None

    def cuMemSetAccess(self, address: Any, size: int, access: list[Any], count: int) -> Any:
        at = int(address)
        some = self._mappings(at, size)
        if len(access) != count or count != 1 or sum(span.size for _, span in some) != size:
            return _BAD
        if any(not at <= start < at + size for start, _ in some):
            return _BAD
        assert _libc.mprotect(at, size, _READ_WRITE) == 0
        for _, span in some:
            span.permitted = True
        return None

    def cuMemUnmap(self, address: Any, size: int) -> None:
        at = int(address)
        found = self._spans.get(at)
        if found is None or found.kind != "mapping" or found.size != size:
            raise Misuse(f"{size} bytes at {at:#x} were not mapped so, or not any more")
        span = self.give("mapping", at)
        assert _mapped(at, size, _NO_ACCESS, _FIXED) == at
        span.held.mappings -= 1
        self._end(span.held)


def _mapped(address: int, size: int, access: int, how: int, file: int = -1) -> int | None:
    flags = how | (_PRIVATE | _ANONYMOUS | _NO_RESERVE if file < 0 else _SHARED)
    found = _libc.mmap(address or None, size, access, flags, file, 0)
    return None if found == ctypes.c_void_p(-1).value else int(found)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
)  # fmt: skip
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
