"""An array of a GPU that this process has mapped, so that its own kernels can use it.

Problem: a GPU's memory belongs to the daemon's device host, and an address of it means nothing in
another process; frameworks want to read and write arrays without a copy.

Approach: the device host exports the allocations in which the array lies, the *pieces*; here they
are imported and mapped one after the other to addresses of this process. A piece is whole granules
of the session's own memory, so neighbours of the array may lie in it, but nothing of others.

Properties:
    same_memory: what jobs and this process's kernels write is the same bytes;
    kept: a mapping stays until the array is gone, also when the device host was lost and another
        mapping has replaced it: who has its address may go on, with memory that is nobody else's;
    quiet_end: before a mapping is undone, all work of this process on the GPU has ended.

Nothing here has run on a GPU yet; tests run it over the model of the driver.
"""

from __future__ import annotations

import functools
import socket
from contextlib import ExitStack, suppress
from typing import Any

from gpud.device.cuda.driver.calls import DriverError
from gpud.errors import ConnectionLost, DeviceLost, InvalidArgument, MissingDependency
from gpud.wire.messages import ExportArray
from gpud_client.adapters.mapped import ProcessGpu, gpu_of, received_memory
from gpud_client.connection.pending import Operation, Request
from gpud_client.workloads.memory import MemoryPart

__all__ = ["cuda_interface"]

_MOST_PIECES = 64
"""At least as many as the daemon sends at once."""

Piece = tuple[int, int, Any]
"""A piece's offset in the arena, its size, and the driver's handle."""


class MappedArray:
    """The mapping of an array's pieces.

    Args:
        gpu: the GPU as this process has it.
        allocation: the array's, which is kept as long as the mapping is there.
        host: the device host that has the memory, see `gpud.wire.messages.ArrayExported`.
        pieces: in order, without gaps; their handles are released.
        offset: of the array's first byte in the arena.

    Attributes:
        address: of the array's first byte, in this process.
        host: as given.
    """

    def __init__(
        self, gpu: ProcessGpu, allocation: Any, host: int, pieces: list[Piece], offset: int
    ) -> None:
        self.host = host
        self._gpu = gpu
        self._allocation = allocation
        first, (last, length, _) = pieces[0][0], pieces[-1]
        self._size = last + length - first
        self._mapped: list[tuple[int, int]] = []
        self._base = gpu.reserve(self._size)
        self.address = self._base + offset - first
        for at, size, handle in pieces:
            place = self._base + at - first, size
            gpu.map(*place, handle)
            self._mapped.append(place)

    def close(self) -> None:
        """Undo the mapping; nothing uses it any more."""
        base, self._base = self._base, 0
        if base:
            self._gpu.synchronize()
            for place in self._mapped:
                self._gpu.unmap(*place)
            self._gpu.free_addresses(base, self._size)
        self._allocation = None

    def __del__(self) -> None:
        if getattr(self, "_base", 0):
            with suppress(DriverError):  # the context is gone, and the mapping with it
                self.close()


def cuda_interface(array: Any) -> dict[str, Any]:
    """Return version 3 of ``__cuda_array_interface__`` of a GPU's array, which it maps if needed.

    Raises:
        AttributeError, ValueError, DeviceLost: see `gpud_client.session.Array`.
    """
    allocation = array._allocation
    if allocation is None:
        raise ValueError(array._gone)
    if isinstance(allocation, MemoryPart):
        raise AttributeError(
            "the memory of a workload's array is the workload's in its turns only: copy the values "
            "with get(), or allocate with the framework, see gpud_client.adapters"
        )
    try:
        gpu = process_gpu(array.device.uuid)
        mapped: MappedArray = array._channel.run(_mapped(array, gpu))
    except (InvalidArgument, MissingDependency, DriverError) as error:
        raise AttributeError(
            f"the memory of {array.device.name} cannot be mapped into this process ({error}): copy "
            "the values with get() and set()"
        ) from error
    element = array.dtype
    interface = {
        "version": 3,
        "shape": array.shape,
        "typestr": element.str,
        "data": (mapped.address if array.size else 0, False),
        "strides": None,
        "stream": None,
    }
    return interface if element.fields is None else interface | {"descr": element.descr}


@functools.cache
def process_gpu(uuid: str) -> ProcessGpu:
    """Return a GPU as this process has it; for as long as the process is there.

    Raises:
        MissingDependency, InvalidArgument: as `gpu_of`.
    """
    return gpu_of(uuid)


def _mapped(array: Any, gpu: ProcessGpu) -> Operation[MappedArray]:
    """Return an array's mapping of the device's present host."""
    core = array._channel.core
    yield from array._wait_for_jobs(None)
    allocation = array._allocation
    if allocation is None:  # freed meanwhile
        raise ValueError(array._gone)
    if allocation.lost:
        raise DeviceLost(
            f"the values of {array!r} were in the memory of a device that ended with its daemon: "
            "write new ones with set()"
        )
    if core.lost is not None:
        raise ConnectionLost(f"{core.lost}; the array's values are gone")
    before = array._mappings[-1] if array._mappings else None
    offset = allocation.address - core.arenas[allocation.device].base
    with ExitStack() as handles:
        pieces: list[Piece] = []
        host = first = 0
        while first < allocation.size:
            with core.exporting:
                now, memory = yield _asking(allocation, first, 0 if before is None else before.host)
                if memory is None:
                    assert isinstance(before, MappedArray)
                    return before
                with received_memory(memory, 2, _MOST_PIECES) as received:
                    for (at, size), descriptor in received:
                        handle = gpu.imported(descriptor)
                        handles.callback(gpu.release, handle)  # mapped, it stays
                        pieces.append((at, size, handle))
            is_other, host = bool(host) and now != host, now
            if is_other:  # the device has lost its memory meanwhile: all is to be asked for again
                pieces.clear()
                first = 0
            else:
                first = pieces[-1][0] + pieces[-1][1] - offset
        mapped = MappedArray(gpu, allocation, host, pieces, offset)
    array._mappings = (*array._mappings, mapped)
    return mapped


def _asking(allocation: Any, first: int, known: int) -> Request:
    part = allocation.device, allocation.address, first, known
    return Request(lambda number: ExportArray(number, *part), undo=_drop)


def _drop(answer: tuple[int, socket.socket | None]) -> None:
    if answer[1] is not None:
        answer[1].close()
