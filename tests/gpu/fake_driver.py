"""A stand-in for ``cuda.bindings.driver``: the calls of benchmarks, with the CPU device behind.

What is launched runs on the CPU device, in the order of the calls, whatever the stream. It shows
that the code around the driver makes sense, not that the driver does what is expected of it.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from gpud.device.cpu.device import CPUDevice
from gpud.device.cpu.launch import Launch

__all__ = ["FakeDriver"]

TIMEOUT_S = 60.0
_VALUES = {
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": 9,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": 0,
}


class Result(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NOT_FOUND = 500
    CUDA_ERROR_NOT_READY = 600


class Names:
    """An enumeration whose values are its names."""

    def __getattr__(self, name: str) -> str:
        return name


@dataclass
class Event:
    at: float = -1.0


@dataclass
class Stream:
    capturing: list[Callable[[], None]] | None = None


@dataclass
class Function:
    kernel: Any


OK = Result.CUDA_SUCCESS


@dataclass
class FakeDriver:
    """See the module.

    Attributes:
        freed: how many pieces of memory were given back.
        launches: how many kernels were launched.
    """

    device: CPUDevice
    launches: int = 0
    freed: int = 0
    _memory: dict[int, Any] = field(default_factory=dict)
    _running: list[Launch] = field(default_factory=list)
    _null: Stream = field(default_factory=Stream)

    CUresult = Result
    CUdevice_attribute = CUfunction_attribute = CUstreamCaptureMode = Names()

    def _settle(self) -> None:
        while self._running:
            self._running.pop(0).result(TIMEOUT_S)

    # -- the device

    def cuInit(self, flags: int) -> tuple[Any, ...]:
        return (OK,)

    def cuDeviceGetCount(self) -> tuple[Any, ...]:
        return OK, 1

    def cuDeviceGet(self, index: int) -> tuple[Any, ...]:
        return OK, index

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, ...]:
        return OK, "context"

    def cuCtxSetCurrent(self, context: str) -> tuple[Any, ...]:
        assert context == "context"
        return (OK,)

    def cuCtxPushCurrent(self, context: str) -> tuple[Any, ...]:
        return self.cuCtxSetCurrent(context)

    def cuCtxPopCurrent(self) -> tuple[Any, ...]:
        return OK, "context"

    def cuDeviceGetAttribute(self, which: str, device: int) -> tuple[Any, ...]:
        return OK, _VALUES.get(which, self.device.sms)

    def cuDeviceTotalMem(self, device: int) -> tuple[Any, ...]:
        return OK, 1 << 30

    def cuCtxGetStreamPriorityRange(self) -> tuple[Any, ...]:
        return OK, 0, -5

    def cuDeviceGetName(self, length: int, device: int) -> tuple[Any, ...]:
        return OK, b"Fake GPU".ljust(length, b"\0")

    def cuDriverGetVersion(self) -> tuple[Any, ...]:
        return OK, 13000

    def cuCtxSynchronize(self) -> tuple[Any, ...]:
        self._settle()
        return (OK,)

    # -- memory

    def cuMemAlloc(self, size: int) -> tuple[Any, ...]:
        memory = self.device.allocate(size)
        self._memory[memory.address] = memory
        return OK, memory.address

    def cuMemHostAlloc(self, size: int, flags: int) -> tuple[Any, ...]:
        assert flags == 2
        return self.cuMemAlloc(size)

    def cuMemHostGetDevicePointer(self, address: int, flags: int) -> tuple[Any, ...]:
        return OK, address

    def cuMemFree(self, address: int) -> tuple[Any, ...]:
        self._settle()
        del self._memory[address]
        self.freed += 1
        return (OK,)

    def cuMemFreeHost(self, address: int) -> tuple[Any, ...]:
        return self.cuMemFree(address)

    def cuMemcpyHtoD(self, to: int, of: int, size: int) -> tuple[Any, ...]:
        self._settle()
        ctypes.memmove(to, of, size)
        return (OK,)

    def cuMemcpyDtoH(self, to: int, of: int, size: int) -> tuple[Any, ...]:
        return self.cuMemcpyHtoD(to, of, size)

    def cuMemcpyDtoDAsync(self, to: int, of: int, size: int, stream: Any) -> tuple[Any, ...]:
        return self.cuMemcpyHtoD(to, of, size)

    # -- streams, events, graphs

    def cuStreamCreateWithPriority(self, flags: int, priority: int) -> tuple[Any, ...]:
        assert flags == 1
        assert -5 <= priority <= 0
        return OK, Stream()

    def cuStreamSynchronize(self, stream: Any) -> tuple[Any, ...]:
        return self.cuCtxSynchronize()

    def cuEventCreate(self, flags: int) -> tuple[Any, ...]:
        return OK, Event()

    def cuEventRecord(self, event: Event, stream: Any) -> tuple[Any, ...]:
        self._settle()
        event.at = time.perf_counter()
        return (OK,)

    def cuEventSynchronize(self, event: Event) -> tuple[Any, ...]:
        assert event.at >= 0
        return (OK,)

    def cuEventQuery(self, event: Event) -> tuple[Any, ...]:
        return (OK if event.at >= 0 else Result.CUDA_ERROR_NOT_READY,)

    def cuEventElapsedTime(self, first: Event, second: Event) -> tuple[Any, ...]:
        return OK, 1e3 * (second.at - first.at)

    def cuStreamBeginCapture(self, stream: Stream, mode: str) -> tuple[Any, ...]:
        assert mode == "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL"
        stream.capturing = []
        return (OK,)

    def cuStreamEndCapture(self, stream: Stream) -> tuple[Any, ...]:
        captured, stream.capturing = stream.capturing, None
        return OK, captured

    def cuGraphInstantiate(self, graph: list[Callable[[], None]], flags: int) -> tuple[Any, ...]:
        return OK, graph

    def cuGraphLaunch(self, graph: list[Callable[[], None]], stream: Stream) -> tuple[Any, ...]:
        for launch in graph:
            launch()
        return (OK,)

    # -- programs

    def cuModuleLoadData(self, image: bytes) -> tuple[Any, ...]:
        assert image.endswith(b"\0")
        return OK, self.device.load(image[:-1].decode())

    def cuModuleGetFunction(self, module: Any, name: bytes) -> tuple[Any, ...]:
        return OK, Function(module.kernel(name.decode()))

    def cuModuleGetGlobal(self, module: Any, name: bytes) -> tuple[Any, ...]:
        offset = module.layout.data.offsets.get(name.decode())
        if offset is None:
            return Result.CUDA_ERROR_NOT_FOUND, None, None
        size = module.data.sizes.get(name.decode(), 16)
        return OK, module.data.address + offset, size

    def cuFuncGetAttribute(self, which: str, function: Function) -> tuple[Any, ...]:
        assert which == "CU_FUNC_ATTRIBUTE_NUM_REGS"
        return OK, 8

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(
        self, function: Function, threads: int, shared: int
    ) -> tuple[Any, ...]:
        return OK, 2048 // threads

    def cuLaunchKernel(
        self, function: Function, gx: int, gy: int, gz: int, bx: int, by: int, bz: int,
        shared: int, stream: Any, pointers: int, extra: int,
    ) -> tuple[Any, ...]:  # fmt: skip
        assert extra == 0
        kernel = function.kernel
        buffer = bytearray()
        places = (ctypes.c_void_p * max(1, len(kernel.parameters))).from_address(pointers)
        for place, parameter in zip(places, kernel.parameters, strict=False):
            buffer += bytes(parameter.offset - len(buffer))
            buffer += ctypes.string_at(place or 0, parameter.size)
        assert math.prod((gx, gy, gz, bx, by, bz)) > 0

        def launch() -> None:
            self._settle()
            self.launches += 1
            self._running.append(
                self.device.launch(kernel, (gx, gy, gz), (bx, by, bz), bytes(buffer), shared=shared)
            )

        if isinstance(stream, Stream) and stream.capturing is not None:
            stream.capturing.append(launch)
        else:
            launch()
        return (OK,)
