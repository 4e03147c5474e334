"""Memory of the GPU in granules, and addresses where it is mapped: what arenas are made of.

Approach: the driver's calls for memory without an address, for one context (CUDA Driver API 13.0,
"Virtual Memory Management"). The same memory may be mapped at several addresses.

Properties:
* a call that fails has changed nothing, or `DeviceLost` says that this is not known;
* memory is refused only when there is none to be found, see `gpud.device.cuda.memory.arenas`.

Nothing here has run on a GPU yet.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from gpud.device.cuda.driver.calls import DriverError
from gpud.device.cuda.driver.context import Context
from gpud.device.cuda.memory.pool import out_of_memory
from gpud.errors import DeviceLost

if TYPE_CHECKING:
    from gpud.device.cuda.memory.arenas import Arenas

__all__ = ["VirtualMemory"]


class VirtualMemory:
    """Memory of one device, for one arena.

    Args:
        context: of the device.
        shared: finds memory where there is none left.

    Attributes:
        size: bytes of a granule.
    """

    def __init__(self, context: Context, shared: Arenas) -> None:
        self._context = context
        self._shared = shared
        driver = context.enter()
        self._location = _properties(driver.api, context.index)
        kind = driver.api.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.size = int(driver.call("cuMemGetAllocationGranularity", self._location, kind))

    def create(self, size: int) -> Any:
        """Memory without an address; its handle.

        Raises:
            OutOfMemory: the device has too little left, and nothing is spare that can be had.
        """
        driver, shared = self._context.enter(), self._shared
        while True:
            returned = shared.returned
            try:
                return driver.call("cuMemCreate", size, self._location, 0)
            except DriverError as error:
                if error.status != "OUT_OF_MEMORY" or not shared.find_memory(returned):
                    limit = shared.why_not()
                    raise out_of_memory(self._context, error, size, limit) from error

    def map(self, handle: Any, address: int, size: int) -> None:
        """Give memory an address, where it cannot be reached before `permit`."""
        self._context.enter().call("cuMemMap", address, size, 0, handle, 0)

    def permit(self, address: int, size: int) -> None:
        """Let kernels and copies reach what is mapped there."""
        driver = self._context.enter()
        access = driver.api.CUmemAccessDesc()
        access.location = self._location.location
        access.flags = driver.api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        driver.call("cuMemSetAccess", address, size, [access], 1)

    def unmap(self, address: int, size: int) -> None:
        """Undo a `map`. No kernel reaches the place."""
        self._taken_away("cuMemUnmap", address, size)

    def release(self, handle: Any) -> None:
        """Give memory back that is mapped nowhere."""
        self._taken_away("cuMemRelease", handle)

    def free_range(self, address: int, size: int) -> None:
        """Give a range of addresses back where nothing is mapped."""
        self._taken_away("cuMemAddressFree", address, size)

    def clear(self, handle: Any, size: int) -> None:
        """Set memory that is mapped nowhere to zero, at addresses of its own.

        Raises:
            DeviceLost: they cannot be given back.
        """
        driver = self._context.enter()
        address = int(driver.call("cuMemAddressReserve", size, self.size, 0, 0))
        with ExitStack() as undo:
            undo.callback(driver.call, "cuMemAddressFree", address, size)
            self.map(handle, address, size)
            undo.pop_all()
            undo.callback(self._leave, address, size)
            self.permit(address, size)
            self._shared.staging.zero(address, size)

    def _leave(self, address: int, size: int) -> None:
        try:
            self.unmap(address, size)
            self.free_range(address, size)
        except DriverError as error:
            raise DeviceLost(f"addresses cannot be given back: {error}") from error

    def _taken_away(self, function: str, *arguments: Any) -> None:
        """Call what is said not to wait for kernels; if it does, they make way."""
        driver = self._context.enter()
        with self._context.watchdog.blocking_call():
            driver.call(function, *arguments)


def _properties(api: Any, device: int) -> Any:
    """Memory of the device, mapped by nobody else."""
    wanted = api.CUmemAllocationProp()
    wanted.type = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    location = api.CUmemLocation()
    location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = device
    wanted.location = location
    return wanted
