"""What the driver is told of memory without an address: where it is, and who may have it.

Source: CUDA Driver API 13.0, "Virtual Memory Management".
"""

from __future__ import annotations

from typing import Any

__all__ = ["access_to", "allocation_on", "descriptor_kind"]


def allocation_on(api: Any, device: int, *, exportable: bool = False) -> Any:
    """Return properties of allocations on a device.

    Args:
        api: the driver's.
        device: its number in the driver's order.
        exportable: whether other processes can have the memory as a file descriptor.
    """
    wanted = api.CUmemAllocationProp()
    wanted.type = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    location = api.CUmemLocation()
    location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = device
    wanted.location = location
    if exportable:
        wanted.requestedHandleTypes = descriptor_kind(api)
    return wanted


def access_to(api: Any, allocation: Any) -> Any:
    """Return what lets kernels and copies read and write memory with these properties."""
    access = api.CUmemAccessDesc()
    access.location = allocation.location
    access.flags = api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return access


def descriptor_kind(api: Any) -> Any:
    """Return the kind of handle that is a file descriptor."""
    return api.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
