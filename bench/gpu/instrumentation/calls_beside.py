"""The driver calls that gpud makes while kernels run, each made beside a kernel: does it wait?

Loads are not among them: `bench.gpu.load_beside`.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from bench.gpu.instrumentation.busy_kernel import Act, BusyKernel
from bench.gpu.instrumentation.driver import DriverError, Gpu, check

__all__ = ["calls", "wide_bytes"]

_SIZE = 2 << 20
_WIDE_BYTES = 96 << 10
"""Shared memory of a wide block, at most; kernels without any get no such split."""


def calls(busy: BusyKernel) -> dict[str, Any]:
    """Make every call that gpud makes while kernels run, or would have to, but for loads."""
    cu, gpu = busy.gpu.cu, busy.gpu
    found: dict[str, Any] = {}
    made: list[Any] = []

    def pair(make: str, act: Act, unmake: str, undo: Callable[[Any], Any]) -> None:
        """Both in their turn, beside a kernel each."""
        made.clear()
        found[make] = busy.run_beside(lambda: made.append(act()))
        if made:
            found[unmake] = busy.run_beside(lambda: undo(made[0]))

    pair(
        "cuMemHostAlloc",
        lambda: check(cu.cuMemHostAlloc(_SIZE, 2)),
        "cuMemFreeHost",
        lambda it: check(cu.cuMemFreeHost(it)),
    )
    pair(
        "cuMemAlloc",
        lambda: check(cu.cuMemAlloc(_SIZE)),
        "cuMemFree",
        lambda it: check(cu.cuMemFree(it)),
    )
    with suppress(DriverError):  # a program that the linker does not take is loaded as text
        found |= _linked(busy)
    pair(
        "cuStreamCreateWithPriority",
        gpu.stream,
        "cuStreamDestroy",
        lambda it: check(cu.cuStreamDestroy(it)),
    )
    locked = mmap.mmap(-1, _SIZE)
    at = np.frombuffer(locked, np.uint8).ctypes.data
    pair(
        "cuMemHostRegister",
        lambda: check(cu.cuMemHostRegister(at, _SIZE, 0)),
        "cuMemHostUnregister",
        lambda _: check(cu.cuMemHostUnregister(at)),
    )
    _mapping(busy, pair)
    with suppress(DriverError):  # older drivers have no green contexts
        _green(busy, pair)
    pair(
        "cuStreamBeginCapture to cuGraphInstantiate",
        lambda: _graph(busy),
        "cuGraphExecDestroy",
        lambda it: check(cu.cuGraphExecDestroy(it)),
    )
    memory = gpu.buffer(np.zeros(1024, np.uint8))
    given = np.zeros(1024, np.uint8)
    found["cuMemcpyHtoD"] = busy.run_beside(lambda: memory.set(given))
    found["cuMemcpyDtoH"] = busy.run_beside(memory.get)
    which = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    wide = busy.function("wide").handle
    found["cuFuncSetAttribute"] = busy.run_beside(
        lambda: check(cu.cuFuncSetAttribute(wide, which, wide_bytes(gpu)))
    )
    return found


def _graph(busy: BusyKernel) -> Any:
    """Make an executable graph of some launches."""
    cu, (stream, _) = busy.gpu.cu, busy.others
    check(
        cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
    )
    for _ in range(16):
        busy.launch("quick", stream)
    graph = check(cu.cuStreamEndCapture(stream))
    made = check(cu.cuGraphInstantiate(graph, 0))
    check(cu.cuGraphDestroy(graph))
    return made


def _linked(busy: BusyKernel) -> dict[str, Any]:
    """Link a program to machine code, as gpud does; `bench.gpu.load_beside` loads it."""
    cu = busy.gpu.cu
    kind = cu.CUjitInputType.CU_JIT_INPUT_PTX
    image = busy.text.encode() + b"\0"

    def link() -> None:
        state = check(cu.cuLinkCreate(0, [], []))
        check(cu.cuLinkAddData(state, kind, image, len(image), b"program", 0, [], []))
        check(cu.cuLinkComplete(state))
        check(cu.cuLinkDestroy(state))

    link()
    return {"cuLinkCreate to cuLinkDestroy": busy.run_beside(link)}


def _mapping(busy: BusyKernel, pair: Callable[[str, Act, str, Callable[[Any], Any]], None]) -> None:
    """Map memory to a reserved address, and unmap it."""
    cu = busy.gpu.cu
    wanted = cu.CUmemAllocationProp()
    wanted.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    location = cu.CUmemLocation()
    location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location = location
    access = cu.CUmemAccessDesc()
    access.location = location
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    address = int(check(cu.cuMemAddressReserve(_SIZE, 0, 0, 0)))

    def commit() -> Any:
        handle = check(cu.cuMemCreate(_SIZE, wanted, 0))
        check(cu.cuMemMap(address, _SIZE, 0, handle, 0))
        check(cu.cuMemSetAccess(address, _SIZE, [access], 1))
        return handle

    def release(handle: Any) -> None:
        check(cu.cuMemUnmap(address, _SIZE))
        check(cu.cuMemRelease(handle))

    pair("cuMemCreate, cuMemMap, cuMemSetAccess", commit, "cuMemUnmap, cuMemRelease", release)
    check(cu.cuMemAddressFree(address, _SIZE))


def _green(busy: BusyKernel, pair: Callable[[str, Act, str, Callable[[Any], Any]], None]) -> None:
    """Make a green context of half of the SMs, and a stream in one."""
    cu, gpu = busy.gpu.cu, busy.gpu
    whole = check(
        cu.cuDeviceGetDevResource(gpu.device, cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM)
    )

    def made() -> Any:
        groups, _, _ = check(cu.cuDevSmResourceSplitByCount(1, whole, 0, gpu.sms // 2))
        described = check(cu.cuDevResourceGenerateDesc([groups[0]], 1))
        return check(cu.cuGreenCtxCreate(described, gpu.device, 1))

    pair(
        "cuGreenCtxCreate",
        made,
        "cuGreenCtxDestroy",
        lambda it: check(cu.cuGreenCtxDestroy(it)),
    )
    green = made()
    pair(
        "cuGreenCtxStreamCreate",
        lambda: check(cu.cuGreenCtxStreamCreate(green, 1, gpu.highest_priority)),
        "cuStreamDestroy, of a green context",
        lambda it: check(cu.cuStreamDestroy(it)),
    )
    check(cu.cuGreenCtxDestroy(green))


def wide_bytes(gpu: Gpu) -> int:
    """Return the shared memory of a wide block on this GPU."""
    return min(_WIDE_BYTES, gpu.most_shared)
