"""The driver's virtual memory management: allocations in granules, and mapping them to addresses.

Approach: the driver's calls for memory without an address, for one context (CUDA Driver API 13.0,
"Virtual Memory Management"). The same memory may be mapped at several addresses.

Properties:
* a call that fails has changed nothing, or `DeviceLost` says that this is not known;
* memory is refused only when none can be reclaimed, see `gpud.device.cuda.memory.arenas`.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Protocol

from gpud.device.cuda.driver.allocations import access_to, allocation_on, descriptor_kind
from gpud.device.cuda.driver.calls import DriverError
from gpud.device.cuda.driver.context import Context
from gpud.device.cuda.memory.pool import out_of_memory
from gpud.device.cuda.memory.staging import Staging
from gpud.errors import DeviceLost

__all__ = ["Reserve", "VirtualMemory"]


class Reserve(Protocol):
    """Who can find memory when none is left."""

    @property
    def freed(self) -> int:
        """How many arenas have been freed: for `find_memory`."""

    def find_memory(self, freed: int) -> bool:
        """Reclaim memory; return whether there may be more than after ``freed`` arenas."""

    def refusal_limit(self) -> str:
        """Return the limit to name when memory is refused."""


class VirtualMemory:
    """Virtual memory of one device, for one arena.

    Args:
        reserve: finds memory when none is left.
        staging: zeroes memory.

    Attributes:
        size: bytes of a granule.
        exports: whether the driver can export memory to other processes.
    """

    def __init__(self, context: Context, reserve: Reserve, staging: Staging) -> None:
        self._context = context
        self._reserve = reserve
        self._staging = staging
        driver = context.enter()
        self._allocation = allocation_on(driver.api, context.index)
        self._exportable = allocation_on(driver.api, context.index, exportable=True)
        self.exports = bool(context.attribute("HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED"))
        kind = driver.api.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.size = int(driver.call("cuMemGetAllocationGranularity", self._allocation, kind))

    def create(self, size: int, *, exportable: bool = False) -> Any:
        """Allocate memory without an address; returns its handle.

        Args:
            size: bytes, in whole granules.
            exportable: whether `export` may be called with it.

        Raises:
            OutOfMemory: the device has too little left, and none can be reclaimed.
        """
        driver, reserve = self._context.enter(), self._reserve
        wanted = self._exportable if exportable else self._allocation
        while True:
            freed = reserve.freed
            try:
                return driver.call("cuMemCreate", size, wanted, 0)
            except DriverError as error:
                if error.status != "OUT_OF_MEMORY" or not reserve.find_memory(freed):
                    limit = reserve.refusal_limit()
                    raise out_of_memory(self._context, error, size, limit) from error

    def export(self, handle: Any) -> int:
        """Return a descriptor, which the caller closes, with which a process can import memory."""
        driver = self._context.enter()
        kind = descriptor_kind(driver.api)
        return int(driver.call("cuMemExportToShareableHandle", handle, kind, 0))

    def map(self, handle: Any, address: int, size: int) -> None:
        """Map memory to an address; `allow_access` makes it accessible."""
        self._context.enter().call("cuMemMap", address, size, 0, handle, 0)

    def allow_access(self, address: int, size: int) -> None:
        """Let kernels and copies access what is mapped there."""
        driver = self._context.enter()
        access = access_to(driver.api, self._allocation)
        driver.call("cuMemSetAccess", address, size, [access], 1)

    def unmap(self, address: int, size: int) -> None:
        """Undo a `map`. No kernel accesses the range."""
        self._call_watched("cuMemUnmap", address, size)

    def release(self, handle: Any) -> None:
        """Free memory that is mapped nowhere."""
        self._call_watched("cuMemRelease", handle)

    def free_range(self, address: int, size: int) -> None:
        """Free a range of addresses where nothing is mapped."""
        self._call_watched("cuMemAddressFree", address, size)

    def clear(self, handle: Any, size: int) -> None:
        """Zero memory that is mapped nowhere, through a temporary mapping.

        Raises:
            DeviceLost: the temporary mapping cannot be undone.
        """
        driver = self._context.enter()
        address = int(driver.call("cuMemAddressReserve", size, self.size, 0, 0))
        with ExitStack() as undo:
            undo.callback(driver.call, "cuMemAddressFree", address, size)
            self.map(handle, address, size)
            undo.pop_all()
            undo.callback(self._free_scratch, address, size)
            self.allow_access(address, size)
            self._staging.zero(address, size)

    def _free_scratch(self, address: int, size: int) -> None:
        try:
            self.unmap(address, size)
            self.free_range(address, size)
        except DriverError as error:
            raise DeviceLost(f"addresses cannot be freed: {error}") from error

    def _call_watched(self, function: str, *arguments: Any) -> None:
        """Make a call that should not wait for kernels; if it does, the watchdog has them leave."""
        driver = self._context.enter()
        with self._context.watchdog.blocking_call(function):
            driver.call(function, *arguments)
