"""Maps memory of a GPU into this process, at addresses that stay the same from turn to turn.

Problem: a framework's kernels use addresses of this process. What persists must stay at its address
while other programs have their turns; what is temporary must be the memory that all programs share,
at an address of this program's own.

Approach: the driver's virtual memory management. Addresses are reserved once. `MappedRange` backs
the parts that are used with memory of this process's own; `MappedZone` maps the daemon's temporary
zone, which it gets as a descriptor, during a turn only.

Terms: a *granule* is the unit in which the driver maps memory (2 MiB and more).

Source: CUDA Driver API 13.0, "Virtual Memory Management".

Nothing here has run on a GPU yet; tests run it over the model of the driver.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from gpud.device.cuda.driver.allocations import access_to, allocation_on, descriptor_kind
from gpud.device.cuda.driver.calls import Driver, DriverError
from gpud.errors import ConnectionLost, InvalidArgument, MissingDependency, OutOfMemory

__all__ = ["MappedRange", "MappedZone", "ProcessGpu", "gpu_of", "received_memory"]

_TIMEOUT_S = 30.0
"""How long the daemon's device host may take to send what it has said to have sent."""


class ProcessGpu:
    """A GPU as this process has it: its primary context, which frameworks use.

    Args:
        index: the GPU's number in this process, which ``CUDA_VISIBLE_DEVICES`` changes.
        driver: replaces the machine's driver in tests.

    Attributes:
        granule: bytes.
        memory_bytes: the GPU's memory, in whole granules.
        name: the GPU's.

    Raises:
        MissingDependency: the driver's bindings are not installed.
        InvalidArgument: there is no such GPU.
    """

    def __init__(self, index: int = 0, driver: Driver | None = None) -> None:
        self.driver = driver = _open_driver() if driver is None else driver
        try:
            self._device = driver.call("cuDeviceGet", index)
        except DriverError as error:
            count = int(driver.call("cuDeviceGetCount"))
            raise InvalidArgument(
                f"there is no cuda:{index} in this process, which sees {count} GPUs: see "
                "CUDA_VISIBLE_DEVICES"
            ) from error
        self._context = driver.call("cuDevicePrimaryCtxRetain", self._device)
        self._allocation = allocation_on(driver.api, index)
        self._access = access_to(driver.api, self._allocation)
        kind = driver.api.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        with self.entered():
            self.granule = int(driver.call("cuMemGetAllocationGranularity", self._allocation, kind))
        self.memory_bytes = self.whole(int(driver.call("cuDeviceTotalMem", self._device)))
        raw: Any = driver.call("cuDeviceGetName", 256, self._device)
        self.name = bytes(raw).partition(b"\0")[0].decode(errors="replace")

    @contextmanager
    def entered(self) -> Iterator[Driver]:
        """Context manager; the GPU's context is current in this thread meanwhile."""
        self.driver.call("cuCtxPushCurrent", self._context)
        try:
            yield self.driver
        finally:
            self.driver.call("cuCtxPopCurrent")

    def whole(self, size: int) -> int:
        """Return ``size`` in whole granules."""
        return -(-size // self.granule) * self.granule

    def synchronize(self) -> None:
        """Wait for everything that this process has begun on the GPU."""
        with self.entered() as driver:
            driver.call("cuCtxSynchronize")

    def read(self, address: int, size: int) -> np.ndarray[Any, Any]:
        """Return a copy of the GPU's memory."""
        copy = np.empty(size, np.uint8)
        with self.entered() as driver:
            driver.call("cuMemcpyDtoH", copy.ctypes.data, address, size)
        return copy

    def write(self, address: int, values: np.ndarray[Any, Any]) -> None:
        """Copy bytes to the GPU's memory; every later launch sees them."""
        with self.entered() as driver:
            driver.call("cuMemcpyHtoD", address, values.ctypes.data, values.nbytes)
            driver.call("cuStreamSynchronize", 0)

    def close(self) -> None:
        """Release the context, which the framework may still have."""
        self.driver.call("cuDevicePrimaryCtxRelease", self._device)

    # -- for ranges and zones

    def reserve(self, size: int) -> int:
        """Reserve addresses for ``size`` bytes, in whole granules."""
        with self.entered() as driver:
            return int(driver.call("cuMemAddressReserve", size, self.granule, 0, 0))

    def free_addresses(self, address: int, size: int) -> None:
        """Free reserved addresses, at which nothing is mapped."""
        with self.entered() as driver:
            driver.call("cuMemAddressFree", address, size)

    def create(self, size: int) -> Any:
        """Allocate memory without an address.

        Raises:
            OutOfMemory: the GPU has too little left.
        """
        with self.entered() as driver:
            try:
                return driver.call("cuMemCreate", size, self._allocation, 0)
            except DriverError as error:
                if error.status != "OUT_OF_MEMORY":
                    raise
                free, _ = driver.call("cuMemGetInfo")
                raise OutOfMemory(size, int(free), limit="device") from error

    def imported(self, descriptor: int) -> Any:
        """Return a handle of memory that another process has exported."""
        with self.entered() as driver:
            kind = descriptor_kind(driver.api)
            return driver.call("cuMemImportFromShareableHandle", descriptor, kind)

    def map(self, address: int, size: int, handle: Any) -> None:
        """Map memory to reserved addresses, for kernels and copies to use."""
        with self.entered() as driver, ExitStack() as undo:
            driver.call("cuMemMap", address, size, 0, handle, 0)
            undo.callback(driver.call, "cuMemUnmap", address, size)
            driver.call("cuMemSetAccess", address, size, [self._access], 1)
            undo.pop_all()

    def unmap(self, address: int, size: int) -> None:
        """Undo a `map`; nothing uses the memory any more."""
        with self.entered() as driver:
            driver.call("cuMemUnmap", address, size)

    def release(self, handle: Any) -> None:
        """Give memory up; it is free when it is mapped nowhere and nobody else has it."""
        with self.entered() as driver:
            driver.call("cuMemRelease", handle)


class MappedRange:
    """Addresses of which parts have memory of this process's own behind them.

    Args:
        gpu: has the memory.

    Attributes:
        address: of the first byte.
    """

    def __init__(self, gpu: ProcessGpu) -> None:
        self._gpu = gpu
        self._runs: dict[int, int] = {}  # granules, each run an allocation: first number, end
        self._backed: set[int] = set()  # the same ones
        self._unmapped: set[int] = set()  # the first numbers of runs without memory now
        self.address = gpu.reserve(gpu.memory_bytes)

    @property
    def backed_bytes(self) -> int:
        """How much memory there is behind the addresses, or is to be again."""
        return len(self._backed) * self._gpu.granule

    def pieces(self, parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return (offset, end) of the granules in which ``parts``, (offset, size), lie, joined."""
        return self._joined(self._numbers(parts))

    def backed_pieces(self, parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return those of them that have memory behind them."""
        return self._joined(self._numbers(parts) & self._backed)

    def back(self, offset: int, size: int) -> None:
        """Have memory behind ``[offset, offset + size)``.

        Raises:
            OutOfMemory: the GPU has too little left; what was backed meanwhile stays so.
        """
        for first, end in _runs(self._numbers([(offset, size)]) - self._backed):
            self._map(first, end)
            self._runs[first] = end
            self._backed.update(range(first, end))

    def unmap(self) -> None:
        """Give all memory up until `map_again`; nothing uses it any more."""
        for first in self._runs.keys() - self._unmapped:
            self._unmap(first)

    def map_again(self) -> None:
        """Have new memory where it was given up.

        Raises:
            OutOfMemory: the GPU has too little left; what was given up stays so.
        """
        with ExitStack() as undo:
            for first in sorted(self._unmapped):
                self._map(first, self._runs[first])
                self._unmapped.discard(first)
                undo.callback(self._unmap, first)
            undo.pop_all()

    def close(self) -> None:
        """Give up all memory, and the addresses."""
        self.unmap()
        self._runs.clear()
        self._unmapped.clear()
        self._backed.clear()
        self._gpu.free_addresses(self.address, self._gpu.memory_bytes)

    def _map(self, first: int, end: int) -> None:
        gpu, size = self._gpu, (end - first) * self._gpu.granule
        handle = gpu.create(size)
        try:
            gpu.map(self.address + first * gpu.granule, size, handle)
        finally:
            gpu.release(handle)  # mapped, it stays

    def _unmap(self, first: int) -> None:
        granule = self._gpu.granule
        self._gpu.unmap(self.address + first * granule, (self._runs[first] - first) * granule)
        self._unmapped.add(first)

    def _joined(self, numbers: set[int]) -> list[tuple[int, int]]:
        granule = self._gpu.granule
        return [(first * granule, end * granule) for first, end in _runs(numbers)]

    def _numbers(self, parts: Iterable[tuple[int, int]]) -> set[int]:
        granule = self._gpu.granule
        return {
            number
            for offset, size in parts
            for number in range(offset // granule, -(-(offset + size) // granule))
        }


class MappedZone:
    """Addresses at which the daemon's temporary zone is mapped in this program's turns.

    Args:
        gpu: has the memory.

    Attributes:
        address: of the first byte.
        size: bytes that are mapped; 0: nothing is.
    """

    def __init__(self, gpu: ProcessGpu) -> None:
        self._gpu = gpu
        self._mapped = 0
        self.address = gpu.reserve(gpu.memory_bytes)
        self.size = 0

    def map(self, descriptor: int, address: int) -> None:
        """Map the zone that comes on a socket.

        Args:
            descriptor: of the socket; it is closed.
            address: where, this zone's own or that of another range.

        Raises:
            ConnectionLost: it does not come: the device host has ended meanwhile.
        """
        try:
            with received_memory(socket.socket(fileno=descriptor), 1, 1) as received:
                ((size,), memory) = received[0]
                handle = self._gpu.imported(memory)
        except ConnectionLost as error:
            raise ConnectionLost(f"{error}; begin the iteration again") from error
        try:
            self._gpu.map(address, size, handle)
        finally:
            self._gpu.release(handle)  # mapped, it stays
        self._mapped, self.size = address, size

    def unmap(self) -> None:
        """Give the zone up; nothing uses it any more."""
        size, self.size = self.size, 0
        if size:
            self._gpu.unmap(self._mapped, size)

    def close(self) -> None:
        """Give up the zone and the addresses."""
        self.unmap()
        self._gpu.free_addresses(self.address, self._gpu.memory_bytes)


def _runs(numbers: set[int]) -> list[tuple[int, int]]:
    """Return (first, end) of each run of adjacent numbers."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number:
            runs[-1] = runs[-1][0], number + 1
        else:
            runs.append((number, number + 1))
    return runs


def gpu_of(uuid: str) -> ProcessGpu:
    """Return the GPU with a UUID, in the form of `nvidia-smi -L`, as this process has it.

    Raises:
        MissingDependency: the driver's bindings are not installed.
        InvalidArgument: this process does not see it.
    """
    driver = _open_driver()
    for index in range(int(driver.call("cuDeviceGetCount"))):
        if driver.uuid(driver.call("cuDeviceGet", index)) == uuid:
            return ProcessGpu(index, driver)
    raise InvalidArgument(f"this process does not see the GPU {uuid}: see CUDA_VISIBLE_DEVICES")


@contextmanager
def received_memory(
    channel: socket.socket, numbers: int, most: int
) -> Iterator[list[tuple[tuple[int, ...], int]]]:
    """Context manager; takes memory from the daemon's device host, to be imported meanwhile.

    Args:
        channel: lies there already, or is about to be sent; closed afterwards.
        numbers: how many describe a piece.
        most: how many pieces there may be.

    Yields:
        For each piece, of which there is one or more, its numbers and its descriptor.

    Raises:
        ConnectionLost: it does not come: the device host has ended meanwhile.
    """
    with channel:
        channel.settimeout(_TIMEOUT_S)
        try:
            said, received, _, _ = socket.recv_fds(channel, 8 * numbers * most, most)
        except OSError:
            said, received = b"", []
    try:
        if not received or len(said) != 8 * numbers * len(received):
            raise ConnectionLost("memory of the device did not come: its device host has ended")
        values = struct.iter_unpack(f"={numbers}Q", said)
        yield list(zip(values, received, strict=True))
    finally:
        for descriptor in received:
            os.close(descriptor)


def _open_driver() -> Driver:
    """Load the machine's driver as the framework has it: without the daemon's own settings."""
    try:
        from cuda.bindings import driver as api
    except ImportError as error:
        raise MissingDependency("cuda-bindings", extra="cuda13", cause=str(error)) from error
    driver = Driver(api)
    try:
        driver.call("cuInit", 0)
    except (DriverError, RuntimeError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidArgument(
            f"there is no GPU that this process could use ({first}): see nvidia-smi and "
            "CUDA_VISIBLE_DEVICES"
        ) from error
    return driver
